//! What permuting tokens, its inverse and the gradient of their weights read and write, and
//! out-of-range rows.

use meshgrad_emulator::Counters;
use meshgrad_kernel_catalogue::TOKEN_FEATURES;
use meshgrad_kernels::faults::{Fault, FaultSite};
use meshgrad_kernels::token_permute::{
    PermuteTokens, PermuteTokensArguments, UnpermuteGradWeights, UnpermuteGradWeightsArguments,
    UnpermuteTokens, UnpermuteTokensArguments,
};
use meshgrad_kernels::{Dtype, In, Out};

use crate::device::{Device, encoded, values};
use crate::traffic::{assert_moved, assert_whole_sectors_of};

/// Segments of permuted rows: uneven for most numbers of rows.
const SEGMENTS: u32 = 5;

/// [tokens, slots per token, rows with a slot, features]: rows that are whole vectors and rows that are
/// not, fewer rows than slots, more slots than are in flight, no rows.
const EXTENTS: [[usize; 4]; 6] =
    [[5, 2, 10, 64], [9, 3, 20, 24], [3, 6, 11, 520], [4, 2, 5, 7], [2, 1, 0, 8], [1, 1, 1, 1]];

/// Operands on a device and on the host.
struct Problem {
    dtype: Dtype,
    tokens: usize,
    top_k: usize,
    features: usize,
    /// The slot of each row, or -1.
    order: Vec<i32>,
    /// Rows with a slot.
    filled: usize,
    /// The first row after those in use.
    end: usize,
    x: Vec<f32>,
    on_device: OnDevice,
    /// Whether indices are out of range, so that traffic is not checked.
    wild: bool,
}

/// Addresses of the operands and of the fault word.
struct OnDevice {
    x: u64,
    y: u64,
    weights: u64,
    order: u64,
    row_of_slot: u64,
    end: u64,
    word: u64,
}

impl Problem {
    /// The last `filled` slots have rows, in rotated order; the others have none. The first rows have
    /// slots, as after a sort. With `gaps` every second row has one, and there may be more rows than
    /// slots.
    fn new(
        device: &Device,
        dtype: Dtype,
        [tokens, top_k, filled, features]: [usize; 4],
        gaps: bool,
    ) -> Problem {
        let slots = tokens * top_k;
        let (rows, end) = if gaps { (2 * filled + 3, 2 * filled + 1) } else { (slots, filled) };
        let (mut order, mut row_of_slot) = (vec![-1; rows], vec![-1; slots]);
        // A permutation of the last `filled` slots.
        let mut taken: Vec<usize> = (slots - filled..slots).collect();
        taken.rotate_left(filled / 3);
        for (at, slot) in taken.into_iter().enumerate() {
            let row = if gaps { 2 * at + 1 } else { at };
            order[row] = slot as i32;
            row_of_slot[slot] = row as i32;
        }
        let x = values(dtype, tokens * features, 1);
        let ints = |values: &[i32]| {
            let bytes: Vec<u8> = values.iter().flat_map(|it| it.to_le_bytes()).collect();
            device.put(&bytes)
        };
        let on_device = OnDevice {
            x: device.put_floats(dtype, &x),
            y: device.put_floats(dtype, &values(dtype, rows * features, 2)),
            weights: device.put_floats(Dtype::F32, &values(Dtype::F32, slots, 3)),
            order: ints(&order),
            row_of_slot: ints(&row_of_slot),
            end: device.put(&(end as i64).to_le_bytes()),
            word: device.put(&[0; 8]),
        };
        Problem { dtype, tokens, top_k, features, order, filled, end, x, on_device, wild: false }
    }

    fn slots(&self) -> usize {
        self.tokens * self.top_k
    }

    fn rows(&self) -> usize {
        self.order.len()
    }

    fn bytes(&self, rows: usize) -> u64 {
        (rows * self.features * self.dtype.size() as usize) as u64
    }

    /// The number of tokens that have a row.
    fn tokens_in_use(&self) -> usize {
        let slots = self.order.iter().filter_map(|slot| usize::try_from(*slot).ok());
        let mut tokens: Vec<usize> = slots.map(|slot| slot / self.top_k).collect();
        tokens.sort_unstable();
        tokens.dedup();
        tokens.len()
    }

    /// The permuted rows without weights.
    fn permuted(&self) -> Vec<f32> {
        let row = |slot: &i32| match usize::try_from(*slot) {
            Ok(slot) => self.x[slot / self.top_k * self.features..][..self.features].to_vec(),
            Err(_) => vec![0.0; self.features],
        };
        self.order.iter().flat_map(row).collect()
    }

    fn permute(&self, device: &Device, weighted: bool) -> Vec<f32> {
        let rows = self.rows() as u32;
        let y = device.room(self.bytes(self.rows()) as usize);
        let variant = PermuteTokens::new(self.dtype, self.features as u32, true, weighted);
        let arguments = PermuteTokensArguments {
            x: In(self.on_device.x),
            weights: In(self.on_device.weights),
            order: In(self.on_device.order),
            end: In(self.on_device.end),
            y: Out(y),
            rows,
            segments: SEGMENTS,
            slots: self.slots() as u32,
            top_k: self.top_k as u32,
            features: self.features as u32,
            faults: FaultSite::new(self.on_device.word, 2),
            end_faults: FaultSite::new(self.on_device.word, 3),
        };
        let launch = variant.launch(rows, SEGMENTS).unwrap();
        let counters = device.run(&variant, launch, &arguments);
        // All threads read the end. Each lane of a row in use reads the row's slot, and the weight if
        // there is a slot.
        let weights = if weighted { 4 * self.filled as u64 } else { 0 };
        let small = 4 * self.end as u64 + weights;
        let read = self.bytes(self.tokens_in_use()) + 8 + small;
        let threads = u64::from(launch.grid[0]) * u64::from(launch.block[0]);
        let all = self.bytes(self.filled) + lanes_of(&counters) * small + 8 * threads;
        self.assert_traffic(&counters, [all, read, self.bytes(self.rows())]);
        device.floats(self.dtype, y, self.rows() * self.features)
    }

    fn collect(&self, device: &Device, weighted: bool) -> Vec<f32> {
        let out = device.room(self.bytes(self.tokens) as usize);
        let variant = UnpermuteTokens::new(self.dtype, self.features as u32, true, weighted);
        let arguments = UnpermuteTokensArguments {
            y: In(self.on_device.y),
            weights: In(self.on_device.weights),
            row_of_slot: In(self.on_device.row_of_slot),
            out: Out(out),
            tokens: self.tokens as u64,
            rows: self.rows() as u32,
            top_k: self.top_k as u32,
            features: self.features as u32,
            faults: FaultSite::new(self.on_device.word, 2),
        };
        let launch = variant.launch(self.tokens as u64).unwrap();
        let counters = device.run(&variant, launch, &arguments);
        // Each access to a row reads the row's index and weight.
        let weights = if weighted { 4 * self.filled as u64 } else { 0 };
        let small = 4 * self.slots() as u64 + weights;
        let accesses = self.bytes(1)
            / if counters.kernel.contains("_w1_") { self.dtype.size().into() } else { 16 };
        let [all, read] = [accesses, 1].map(|times| self.bytes(self.filled) + times * small);
        self.assert_traffic(&counters, [all, read, self.bytes(self.tokens)]);
        device.floats(self.dtype, out, self.tokens * self.features)
    }

    fn dots(&self, device: &Device) -> Vec<f32> {
        let slots = self.slots() as u32;
        let dweights = device.room(4 * self.slots());
        let variant = UnpermuteGradWeights::new(self.dtype, self.features as u32, true);
        let arguments = UnpermuteGradWeightsArguments {
            dout: In(self.on_device.x),
            y: In(self.on_device.y),
            row_of_slot: In(self.on_device.row_of_slot),
            dweights: Out(dweights),
            slots,
            rows: self.rows() as u32,
            top_k: self.top_k as u32,
            features: self.features as u32,
            faults: FaultSite::new(self.on_device.word, 2),
        };
        let launch = variant.launch(slots).unwrap();
        let counters = device.run(&variant, launch, &arguments);
        // Each lane of a slot reads the index of the slot's row.
        let rows = self.bytes(self.tokens_in_use()) + self.bytes(self.filled);
        let written = 4 * u64::from(slots);
        let all = 2 * self.bytes(self.filled) + lanes_of(&counters) * written;
        self.assert_traffic(&counters, [all, rows + written, written]);
        device.floats(Dtype::F32, dweights, self.slots())
    }

    /// Asserts the bytes read, in total (`all`) and without repetitions (`read`), that each byte is
    /// written once, and that rows of whole sectors are moved in whole sectors.
    #[track_caller]
    fn assert_traffic(&self, counters: &Counters, [all, read, written]: [u64; 3]) {
        if self.wild {
            return;
        }
        let [all, different] = [[all, written], [read, written]];
        let bytes = |moved: u64| moved as usize;
        assert_moved(counters, all.map(bytes), different.map(bytes));
        if self.bytes(1).is_multiple_of(32) {
            assert_whole_sectors_of(counters, "global.v4");
        }
    }
}

/// Lanes per row, parsed from the kernel's name.
pub(crate) fn lanes_of(counters: &Counters) -> u64 {
    let mut parts = counters.kernel.split('_');
    let lanes = parts.find_map(|part| part.strip_prefix('t')?.parse().ok());
    lanes.expect("a kernel for groups of lanes")
}

impl Problem {
    /// Runs all kernels; returns the bytes of their results.
    fn all(&self, device: &Device) -> Vec<u8> {
        let mut bits = encoded(Dtype::F32, &self.dots(device));
        for weighted in [false, true] {
            bits.extend(encoded(self.dtype, &self.permute(device, weighted)));
            bits.extend(encoded(self.dtype, &self.collect(device, weighted)));
        }
        bits
    }

    /// Replaces the end and all slots and rows by out-of-range values.
    fn be_wild(&mut self, device: &Device) {
        let wild: Vec<u8> = [1 << 20; 15].iter().flat_map(|it: &i32| it.to_le_bytes()).collect();
        self.on_device.order = device.put(&wild);
        self.on_device.row_of_slot = self.on_device.order;
        self.on_device.end = device.put(&99i64.to_le_bytes());
        self.wild = true;
    }
}

#[test]
fn rows_are_read_once() {
    let device = Device::plain();
    for dtype in Dtype::ALL {
        for extents in EXTENTS {
            for gaps in [false, true] {
                let problem = Problem::new(&device, dtype, extents, gaps);
                problem.all(&device);
                assert_eq!(device.fault(problem.on_device.word), None);
            }
        }
    }
}

/// A row without a slot is zero, before the end and after it. The number of rows is not that of slots.
#[test]
fn rows_without_a_slot_are_zero() {
    let device = Device::plain();
    for dtype in Dtype::ALL {
        for extents in EXTENTS {
            let problem = Problem::new(&device, dtype, extents, true);
            assert_eq!(problem.permute(&device, false), problem.permuted(), "{extents:?}");
        }
    }
}

/// Out-of-range slots and rows, and an end beyond all rows, are reported. They count as absent.
#[test]
fn out_of_range_slots_and_rows_are_absent() {
    let device = Device::plain();
    let mut problem = Problem::new(&device, Dtype::F32, [3, 2, 6, 8], false);
    let ints =
        |values: &[i32]| -> Vec<u8> { values.iter().flat_map(|it| it.to_le_bytes()).collect() };
    // There are six slots, one less than rows.
    let wild = [6, -2, i32::MIN, i32::MAX, -1, 1, 0];
    problem.on_device.order = device.put(&ints(&wild));
    problem.on_device.row_of_slot = problem.on_device.order;
    let (of_slot, of_end) = (2, 3);
    let faults = [
        (-1, Fault { site: of_end, index: -1 }),
        (7, Fault { site: of_slot, index: -2 }),
        (8, Fault { site: of_end, index: 8 }),
    ];

    for (end, fault) in faults {
        let word = device.put(&[0; 8]);
        problem.on_device.end = device.put(&i64::to_le_bytes(end));
        let y = device.room(4 * 56);
        let variant = PermuteTokens::new(Dtype::F32, 8, true, false);
        let arguments = PermuteTokensArguments {
            x: In(problem.on_device.x),
            weights: In(problem.on_device.weights),
            order: In(problem.on_device.order),
            end: In(problem.on_device.end),
            y: Out(y),
            rows: 7,
            segments: SEGMENTS,
            slots: 6,
            top_k: 2,
            features: 8,
            faults: FaultSite::new(word, of_slot),
            end_faults: FaultSite::new(word, of_end),
        };
        device.run(&variant, variant.launch(7, SEGMENTS).unwrap(), &arguments);
        assert_eq!(device.fault(word), Some(fault));
        let rows = device.floats(Dtype::F32, y, 56);
        assert!(rows[..40].iter().all(|value| *value == 0.0), "{end}");
        let last = if end < 0 { vec![0.0; 8] } else { problem.x[..8].to_vec() };
        assert_eq!(rows[40..], [&last[..], &last].concat(), "{end}");
    }

    let word = device.put(&[0; 8]);
    let variant = UnpermuteGradWeights::new(Dtype::F32, 8, true);
    let dweights = device.room(4 * 6);
    let arguments = UnpermuteGradWeightsArguments {
        dout: In(problem.on_device.x),
        y: In(problem.on_device.y),
        row_of_slot: In(problem.on_device.row_of_slot),
        dweights: Out(dweights),
        slots: 6,
        rows: 6,
        top_k: 2,
        features: 8,
        faults: FaultSite::new(word, 2),
    };
    device.run(&variant, variant.launch(6).unwrap(), &arguments);
    assert_eq!(device.fault(word), Some(Fault { site: 2, index: -2 }));
    let found = device.floats(Dtype::F32, dweights, 6);
    assert!(found[..5].iter().all(|value| *value == 0.0) && found[5] != 0.0);
}

/// Runs every kernel of the catalogue, with valid operands and with out-of-range values.
pub(crate) fn exercise(device: &Device) -> Vec<u8> {
    let mut bits = Vec::new();
    for dtype in Dtype::ALL {
        for features in TOKEN_FEATURES {
            let extents = [3, 5, 11, features as usize];
            let mut problem = Problem::new(device, dtype, extents, false);
            bits.extend(problem.all(device));
            problem.be_wild(device);
            bits.extend(problem.all(device));
        }
    }
    bits
}
