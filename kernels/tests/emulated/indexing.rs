//! Elements and rows that indices choose, against the host.

use meshgrad_kernels::copies::Unit;
use meshgrad_kernels::elementwise::Walk;
use meshgrad_kernels::faults::{Fault, FaultSite};
use meshgrad_kernels::indexing::{Gather, GatherArguments, Ids, Indexed, Select, SelectArguments};

use crate::device::Device;

const SITE: u32 = 9;

/// Bytes that differ from each other.
fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|i| (i * 7 + i / 256 * 13) as u8).collect()
}

fn put_ids(device: &Device, format: Ids, ids: &[i64]) -> u64 {
    let size = format.size() as usize;
    let bytes: Vec<u8> = ids
        .iter()
        .flat_map(|id| id.to_le_bytes()[..size].to_vec())
        .collect();
    device.put(&bytes)
}

/// What is chosen from, and a word for what is not inside.
fn indexed(device: &Device, extent: usize, stride: usize) -> (Indexed, u64) {
    let word = device.put(&[0; 8]);
    let indexed = Indexed {
        extent: extent as u64,
        stride: stride as i64,
        faults: FaultSite::new(word, SITE),
    };
    (indexed, word)
}

/// That the word tells of the largest index outside.
#[track_caller]
fn assert_told(device: &Device, word: u64, ids: &[i64], extent: usize) {
    let outside = ids.iter().filter(|id| !(0..extent as i64).contains(id));
    // Negative ones count as larger.
    let expected = outside.max_by_key(|id| **id as u64).copied();
    let word = u64::from_le_bytes(device.bytes(word, 8).try_into().unwrap());
    assert_eq!(word >> 40, expected.map_or(0, |_| u64::from(SITE)));
    assert_eq!(Fault::from_word(word).map(|fault| fault.index), expected);
}

/// y\[o, j\] = x\[o, ids\[j\]\] for rows of `inner` bytes; the bytes of y.
fn select(
    device: &Device,
    variant: (Select, Unit),
    format: Ids,
    [outer, extent, inner]: [usize; 3],
    ids: &[i64],
) -> Vec<u8> {
    let (variant, unit) = variant;
    let x = bytes(outer * extent * inner);
    let (units, count) = (inner / unit.bytes() as usize, outer * ids.len() * inner);
    let (indexed, word) = indexed(device, extent, units);
    let arguments = SelectArguments {
        x: device.put(&x),
        ids: put_ids(device, format, ids),
        y: device.room(count),
        outer: outer as u64,
        chosen: ids.len() as u64,
        inner: units as u64,
        indexed,
    };
    let launch = variant.launch(arguments.units()).unwrap();
    let counters = device.run(&variant, launch, &arguments.arguments(&variant));
    if ids.iter().all(|id| (0..extent as i64).contains(id)) {
        let of_ids = outer * ids.len() * units * format.size() as usize;
        let moved = [counters.total.bytes_read, counters.total.bytes_written];
        assert_eq!(moved, [count + of_ids, count].map(|bytes| bytes as u64));
    }

    let y = device.bytes(arguments.y, count);
    for (at, row) in y.chunks(inner).enumerate() {
        let (o, id) = (at / ids.len(), ids[at % ids.len()]);
        match usize::try_from(id).ok().filter(|id| *id < extent) {
            Some(id) => assert_eq!(row, &x[(o * extent + id) * inner..][..inner]),
            None => assert!(row.iter().all(|byte| *byte == 0)),
        }
    }
    assert_told(device, word, ids, extent);
    y
}

#[test]
fn rows_are_selected() {
    for device in Device::all() {
        for format in Ids::ALL {
            for inner in [1, 6, 20, 24, 256] {
                let variant = || Select::new(Unit::B1, format, inner as u64, 0, 1);
                select(&device, variant(), format, [1, 9, inner], &[3, 0, 8, 8, 1]);
                select(&device, variant(), format, [4, 5, inner], &[4, 4, 2]);
                select(&device, variant(), format, [2, 5, inner], &[0, 5, 1 << 20]);
            }
        }
        let negative = [2, -3, -9, 70];
        let variant = Select::new(Unit::B1, Ids::I64, 32, 0, 1);
        select(&device, variant, Ids::I64, [1, 9, 32], &negative);
    }
}

/// y\[r, c\] = x\[r, index\[r, c\]\] with the index tensor turned; the bytes of y.
fn gather(device: &Device, unit: Unit, format: Ids, wide: bool, ids: &[i64; 15]) -> Vec<u8> {
    let size = unit.bytes() as usize;
    let x = bytes(3 * 7 * size);
    let (indexed, word) = indexed(device, 7, 1);
    let walk = |far| Walk::new(&[3, 5], &[5, 1], &[&[1, 3], &[far, 0]]).unwrap();
    let variant = Gather::new(unit, format, &walk(if wide { 1 << 40 } else { 7 }));
    let arguments = GatherArguments {
        x: device.put(&x),
        index: put_ids(device, format, ids),
        y: device.room(15 * size),
        walk: &walk(7),
        indexed,
    };
    let launch = variant.launch(15).unwrap();
    device.run(&variant, launch, &arguments.arguments(&variant));

    let y = device.bytes(arguments.y, 15 * size);
    for (at, y) in y.chunks(size).enumerate() {
        let (row, column) = (at / 5, at % 5);
        let id = ids[column * 3 + row];
        match usize::try_from(id).ok().filter(|id| *id < 7) {
            Some(id) => assert_eq!(y, &x[(row * 7 + id) * size..][..size]),
            None => assert!(y.iter().all(|byte| *byte == 0)),
        }
    }
    assert_told(device, word, ids, 7);
    y
}

const INSIDE: [i64; 15] = [0, 6, 3, 3, 3, 1, 5, 2, 4, 6, 0, 0, 1, 2, 3];
const OUTSIDE: [i64; 15] = [0, 6, 3, 7, 3, 1, 5, 2, 900, 6, 0, 0, 1, 2, 3];

#[test]
fn elements_are_gathered() {
    for device in Device::all() {
        for unit in [Unit::B1, Unit::B2, Unit::B4, Unit::B8] {
            for format in Ids::ALL {
                gather(&device, unit, format, false, &INSIDE);
                gather(&device, unit, format, true, &OUTSIDE);
            }
        }
        let mut negative = OUTSIDE;
        negative[2] = -1;
        gather(&device, Unit::B4, Ids::I32, false, &negative);
    }
}

/// Every kernel of the catalogue.
pub(crate) fn exercise(device: &Device) -> Vec<u8> {
    let mut bits = Vec::new();
    for (unit, format, wide) in [
        (Unit::B1, Ids::I64, false),
        (Unit::B2, Ids::I32, false),
        (Unit::B4, Ids::U32, false),
        (Unit::B8, Ids::I64, false),
        (Unit::B4, Ids::I32, true),
    ] {
        bits.extend(gather(device, unit, format, wide, &OUTSIDE));
    }
    for (inner, format, elements) in [
        (1, Ids::I64, 100),
        (2, Ids::I32, 100),
        (4, Ids::U32, 100),
        (8, Ids::I64, 100),
        (16, Ids::I64, 100),
        (16, Ids::I32, 1 << 40),
    ] {
        let variant = Select::new(Unit::B1, format, inner as u64, 0, elements);
        bits.extend(select(
            device,
            variant,
            format,
            [3, 5, inner],
            &[4, 0, 7, 2],
        ));
    }
    bits
}
