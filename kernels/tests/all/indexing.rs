//! What gathers, index selects and segment sums read and write, and which indices they report.

use std::collections::BTreeSet;

use meshgrad_emulator::Counters;
use meshgrad_kernels::copies::Unit;
use meshgrad_kernels::elementwise::IterationSpace;
use meshgrad_kernels::faults::{Fault, FaultSite};
use meshgrad_kernels::indexing::{
    Gather, GatherArguments, IndexDtype, IndexKeys, IndexKeysArguments, IndexSelect,
    IndexSelectArguments, IndexedDim, SegmentStarts, SegmentStartsArguments, SegmentSum, Segments,
};
use meshgrad_kernels::sort::{RadixPass, RadixPassArguments, passes_for, workspace_words};
use meshgrad_kernels::{Dtype, In, Out};

use crate::device::{Device, values};
use crate::traffic::{
    assert_bytes, assert_moved, assert_no_conflicts, assert_once, assert_whole_sectors_of,
};

const SITE: u32 = 9;

/// Bytes whose neighbors differ.
fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|i| (i * 7 + i / 256 * 13) as u8).collect()
}

fn put_ids(device: &Device, format: IndexDtype, ids: &[i64]) -> u64 {
    let size = format.size() as usize;
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()[..size].to_vec()).collect();
    device.put(&bytes)
}

/// The indexed dim, and a fault word.
fn indexed(device: &Device, extent: usize, stride: usize) -> (IndexedDim, u64) {
    let word = device.put(&[0; 8]);
    let indexed = IndexedDim {
        extent: extent as u64,
        first: 0,
        total: extent as u64,
        stride: stride as i64,
        faults: FaultSite::new(word, SITE),
    };
    (indexed, word)
}

/// Asserts that the fault word reports the largest out-of-range index, if there is one.
#[track_caller]
fn assert_told(device: &Device, word: u64, ids: &[i64], extent: usize) {
    let outside = ids.iter().filter(|id| !(0..extent as i64).contains(id));
    // Indices are compared without sign, so negative ones are larger.
    let expected = outside.max_by_key(|id| **id as u64).copied();
    let word = u64::from_le_bytes(device.bytes(word, 8).try_into().unwrap());
    assert_eq!(word >> 40, expected.map_or(0, |_| u64::from(SITE)));
    assert_eq!(Fault::from_word(word).map(|fault| fault.index), expected);
}

/// y\[o, j\] = x\[o, ids\[j\]\] for rows of `inner` bytes, or 0 if the id is out of range. Returns the
/// bytes of y.
fn select(
    device: &Device,
    variant: (IndexSelect, Unit),
    format: IndexDtype,
    [outer, extent, inner]: [usize; 3],
    ids: &[i64],
) -> Vec<u8> {
    let (variant, unit) = variant;
    let x = bytes(outer * extent * inner);
    let (units, count) = (inner / unit.bytes() as usize, outer * ids.len() * inner);
    let (indexed, word) = indexed(device, extent, units);
    let arguments = IndexSelectArguments {
        x: In(device.put(&x)),
        ids: In(put_ids(device, format, ids)),
        y: Out(device.room(count)),
        units: IndexSelect::units([outer, ids.len(), units].map(|extent| extent as u64)),
        chosen: ids.len() as u64,
        inner: units as u64,
        indexed,
    };
    let launch = variant.launch(arguments.units).unwrap();
    let counters = device.run(&variant, launch, &arguments);
    if ids.iter().all(|id| (0..extent as i64).contains(id)) {
        let of_ids = outer * ids.len() * units * format.size() as usize;
        let rows: BTreeSet<i64> = ids.iter().copied().collect();
        let different = outer * rows.len() * inner + ids.len() * format.size() as usize;
        assert_moved(&counters, [count + of_ids, count], [different, count]);
        if inner.is_multiple_of(32) {
            assert_whole_sectors_of(&counters, "global.v4");
        }
    }

    assert_told(device, word, ids, extent);
    let y = device.bytes(arguments.y.0, count);
    for (at, row) in y.chunks(inner).enumerate() {
        let (o, id) = (at / ids.len(), ids[at % ids.len()]);
        match usize::try_from(id).ok().filter(|id| *id < extent) {
            Some(id) => assert_eq!(row, &x[(o * extent + id) * inner..][..inner]),
            None => assert!(row.iter().all(|byte| *byte == 0)),
        }
    }
    y
}

#[test]
fn chosen_rows_are_read_once() {
    let device = Device::plain();
    for format in IndexDtype::ALL {
        for inner in [1, 6, 20, 24, 256] {
            let variant = || IndexSelect::new(Unit::B1, format, inner as u64, 0, 1);
            select(&device, variant(), format, [1, 9, inner], &[3, 0, 8, 8, 1]);
            select(&device, variant(), format, [4, 5, inner], &[4, 4, 2]);
            select(&device, variant(), format, [2, 5, inner], &[0, 5, 1 << 20]);
        }
    }
    let negative = [2, -3, -9, 70];
    let variant = IndexSelect::new(Unit::B1, IndexDtype::I64, 32, 0, 1);
    select(&device, variant, IndexDtype::I64, [1, 9, 32], &negative);
}

/// y\[r, c\] = x\[r, index\[r, c\]\] with a transposed index tensor, or 0 if the index is out of
/// range. Returns the bytes of y.
fn gather(device: &Device, unit: Unit, format: IndexDtype, wide: bool, ids: &[i64; 15]) -> Vec<u8> {
    let size = unit.bytes() as usize;
    let x = bytes(3 * 7 * size);
    let (indexed, word) = indexed(device, 7, 1);
    let space = |far| IterationSpace::new(&[3, 5], &[5, 1], &[&[1, 3], &[far, 0]]).unwrap();
    let variant = Gather::new(unit, format, &space(if wide { 1 << 40 } else { 7 }));
    let arguments = GatherArguments {
        x: In(device.put(&x)),
        index: In(put_ids(device, format, ids)),
        y: Out(device.room(15 * size)),
        space: space(7),
        indexed,
    };
    let launch = variant.launch(15).unwrap();
    let counters = device.run(&variant, launch, &arguments);
    let chosen = ids.iter().filter(|id| (0..7).contains(*id)).count();
    let fault_bytes = 8 * (ids.len() - chosen); // the fault word is read and written
    let read = 15 * format.size() as usize + chosen * size + fault_bytes;
    let moved = [counters.total.bytes_read, counters.total.bytes_written];
    let expected = [read, 15 * size + fault_bytes].map(|bytes| bytes as u64);
    assert_eq!(moved, expected, "each element is moved once");

    assert_told(device, word, ids, 7);
    let y = device.bytes(arguments.y.0, 15 * size);
    for (at, y) in y.chunks(size).enumerate() {
        let (row, id) = (at / 5, ids[at % 5 * 3 + at / 5]);
        match usize::try_from(id).ok().filter(|id| *id < 7) {
            Some(id) => assert_eq!(y, &x[(row * 7 + id) * size..][..size]),
            None => assert!(y.iter().all(|byte| *byte == 0)),
        }
    }
    y
}

const INSIDE: [i64; 15] = [0, 6, 3, 3, 3, 1, 5, 2, 4, 6, 0, 0, 1, 2, 3];
const OUTSIDE: [i64; 15] = [0, 6, 3, 7, 3, 1, 5, 2, 900, 6, 0, 0, 1, 2, 3];

#[test]
fn chosen_elements_are_read_once() {
    let device = Device::plain();
    for unit in [Unit::B1, Unit::B2, Unit::B4, Unit::B8] {
        for format in IndexDtype::ALL {
            gather(&device, unit, format, false, &INSIDE);
            gather(&device, unit, format, true, &OUTSIDE);
        }
    }
    let mut negative = OUTSIDE;
    negative[2] = -1;
    gather(&device, Unit::B4, IndexDtype::I32, false, &negative);
}

/// Keys, their positions and segment starts, on a device.
struct Sorted {
    count: usize,
    rows: usize,
    lists: [u64; 2],
    starts: u64,
}

/// Asserts what a pass moves: 256 counts per CTA, before and after the scan, and 256 totals. The
/// key determines the bank of a warp's counter; equal keys do not conflict.
#[track_caller]
fn assert_pass(counters: &Counters, pass: RadixPass, ids: &[i64]) {
    let (count, of_all) = (ids.len(), 1024);
    let of_ctas = 4 * workspace_words(count as u32) as usize - of_all;
    match pass {
        RadixPass::Count => assert_bytes(counters, [4 * count, of_ctas], [4 * count, of_ctas]),
        RadixPass::Scan => assert_once(counters, [of_ctas, of_ctas + of_all]),
        RadixPass::Scatter => {
            let read = 8 * count + of_ctas;
            let [all, different] = [read + of_ctas, read + of_all];
            assert_bytes(counters, [all, 8 * count], [different, 8 * count]);
        }
    }
    if ids.iter().all(|id| *id == ids[0]) {
        assert_no_conflicts(counters);
    }
}

/// Sorts the positions by id.
fn sort(device: &Device, format: IndexDtype, wide: bool, ids: Vec<i64>, rows: usize) -> Sorted {
    let count = ids.len() as u32;
    let list = || [(); 2].map(|()| device.room(4 * ids.len()));
    let lists = [list(), list()];
    let (indexed, word) = indexed(device, rows, 1);
    let space = |step| IterationSpace::new(&[ids.len()], &[1], &[&[step], &[0]]).unwrap();
    let (near, far) = (space(1), space(1 << 40));
    let variant = IndexKeys::new(format, if wide { &far } else { &near });
    let arguments = IndexKeysArguments {
        index: In(put_ids(device, format, &ids)),
        keys: Out(lists[0][0]),
        positions: Out(lists[0][1]),
        space: near,
        indexed,
        rows: rows as u32,
    };
    let launch = variant.launch(ids.len() as u64).unwrap();
    let counters = device.run(&variant, launch, &arguments);
    assert_told(device, word, &ids, rows);
    let outside = ids.iter().filter(|id| !(0..rows as i64).contains(id)).count();
    let of_ids = ids.len() * format.size() as usize;
    let all = [of_ids + 8 * outside, 8 * (ids.len() + outside)];
    let fault_bytes = if outside > 0 { 8 } else { 0 };
    assert_moved(&counters, all, [of_ids + fault_bytes, 8 * ids.len() + fault_bytes]);

    let counted = device.room(4 * workspace_words(count) as usize);
    let passes = passes_for(rows as u32);
    for pass in 0..passes {
        let arguments = RadixPassArguments::new(
            lists[pass as usize % 2].map(In),
            lists[(pass as usize + 1) % 2].map(Out),
            Out(counted),
            count,
            pass,
        );
        for variant in RadixPass::ALL {
            let launch = variant.launch(count).unwrap();
            let counters = device.run(&variant, launch, &arguments);
            assert_pass(&counters, variant, &ids);
        }
    }
    let lists = lists[passes as usize % 2];
    let starts = device.room(4 * (rows + 1));
    let arguments = SegmentStartsArguments {
        keys: In(lists[0]),
        starts: Out(starts),
        count,
        rows: rows as u32,
    };
    let launch = SegmentStarts.launch(rows as u32).unwrap();
    let counters = device.run(&SegmentStarts, launch, &arguments);
    // Each row is a binary search, which reads from caches.
    assert!(counters.unique_bytes_read <= 4 * ids.len() as u64);
    assert_eq!(counters.total.bytes_written, 4 * (rows as u64 + 1));

    Sorted { count: ids.len(), rows, lists, starts }
}

impl Sorted {
    /// Sums the rows of each key. Returns the bytes of the sums.
    fn sum(
        &self,
        device: &Device,
        [from, to]: [Dtype; 2],
        outer: usize,
        inner: usize,
        write_all_rows: bool,
    ) -> Vec<u8> {
        let (count, rows) = (self.count, self.rows);
        let x = values(from, outer * count * inner, 5);
        let before = values(to, outer * rows * inner, 6);
        let variant = SegmentSum::new(from, to, inner as u32, true, write_all_rows);
        let segments = Segments {
            outer: outer as u32,
            count: count as u32,
            rows: rows as u32,
            inner: inner as u32,
        };
        let arguments = variant.arguments(
            In(device.put_floats(from, &x)),
            self.lists.map(In),
            In(self.starts),
            Out(device.put_floats(to, &before)),
            &segments,
        );
        let launch = variant.launch(&segments).unwrap();
        device.run(&variant, launch, &arguments);

        device.bytes(arguments.sum.0, before.len() * to.size() as usize)
    }
}

/// `count` indices of rows, two of which are out of range.
fn some_ids(count: usize, rows: usize) -> Vec<i64> {
    let mut ids: Vec<i64> =
        (0..count).map(|i| (i * i * 7 + i / 3) % rows).map(|id| id as i64).collect();
    ids[count / 2] = rows as i64;
    ids[count - 1] = 1 << 20;
    ids
}

/// One CTA and several, rows of one digit and of two. Keys do not depend on whether strides need 64
/// bits.
#[test]
fn passes_of_a_sort_move_the_minimum() {
    let device = Device::plain();
    for (count, rows) in [(2, 1), (33, 5), (700, 300), (4500, 70)] {
        let [near, far] = [false, true].map(|wide| {
            let sorted = sort(&device, IndexDtype::I64, wide, some_ids(count, rows), rows);
            sorted.lists.map(|list| device.bytes(list, 4 * count))
        });
        assert!(near == far);
    }
}

/// Every row is read once and written once, in whole sectors.
#[test]
fn sums_move_the_minimum() {
    let device = Device::plain();
    let ids: Vec<i64> = (0..40).map(|i| i % 8).collect();
    let sorted = sort(&device, IndexDtype::I32, false, ids, 8);
    let variant = SegmentSum::new(Dtype::F32, Dtype::F32, 512, true, true);
    let x = values(Dtype::F32, 40 * 512, 1);
    let segments = Segments { outer: 1, count: 40, rows: 8, inner: 512 };
    let arguments = variant.arguments(
        In(device.put_floats(Dtype::F32, &x)),
        sorted.lists.map(In),
        In(sorted.starts),
        Out(device.room(4 * 8 * 512)),
        &segments,
    );
    let launch = variant.launch(&segments).unwrap();
    let counters = device.run(&variant, launch, &arguments);
    let of_lists = 4 * (40 + 9);
    assert_eq!(counters.unique_bytes_read, 4 * 40 * 512 + of_lists);
    assert_eq!(counters.total.bytes_written, 4 * 8 * 512);
    assert_eq!(counters.unique_bytes_written, 4 * 8 * 512);
    assert_whole_sectors_of(&counters, "global.v4");
    // Each of the 128 threads of a row reads the positions and the start and end of the row.
    assert_eq!(counters.total.bytes_read, 4 * 40 * 512 + 128 * 4 * (40 + 2 * 8));
}

/// Runs every kernel of the catalogue.
pub(crate) fn exercise(device: &Device) -> Vec<u8> {
    let mut bits = Vec::new();
    for (unit, format, wide) in [
        (Unit::B1, IndexDtype::I64, false),
        (Unit::B2, IndexDtype::I32, false),
        (Unit::B4, IndexDtype::U32, false),
        (Unit::B8, IndexDtype::I64, false),
        (Unit::B4, IndexDtype::I32, true),
    ] {
        bits.extend(gather(device, unit, format, wide, &OUTSIDE));
    }
    for (inner, format, elements) in [
        (1, IndexDtype::I64, 100),
        (2, IndexDtype::I32, 100),
        (4, IndexDtype::U32, 100),
        (8, IndexDtype::I64, 100),
        (16, IndexDtype::I64, 100),
        (16, IndexDtype::I32, 1 << 40),
    ] {
        let variant = IndexSelect::new(Unit::B1, format, inner as u64, 0, elements);
        bits.extend(select(device, variant, format, [3, 5, inner], &[4, 0, 7, 2]));
    }
    let (f32, bf16) = (Dtype::F32, Dtype::Bf16);
    let sorted = sort(device, IndexDtype::I64, false, some_ids(2100, 20), 20);
    bits.extend(sorted.sum(device, [f32, f32], 1, 1, false));
    let sorted = sort(device, IndexDtype::U32, true, some_ids(30, 5), 5);
    for (formats, inner, write_all_rows) in [
        ([f32, f32], 64, true),
        ([f32, f32], 64, false),
        ([bf16, f32], 64, false),
        ([bf16, bf16], 64, true),
        ([bf16, f32], 7, true),
    ] {
        bits.extend(sorted.sum(device, formats, 1, inner, write_all_rows));
    }
    bits
}
