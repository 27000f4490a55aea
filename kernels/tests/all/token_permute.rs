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

/// [tokens, slots per token, rows in use, features]: rows that are whole vectors and rows that are
/// not, fewer rows than slots, more slots than are in flight, no rows.
const EXTENTS: [[usize; 4]; 6] =
    [[5, 2, 10, 64], [9, 3, 20, 24], [3, 6, 11, 520], [4, 2, 5, 7], [2, 1, 0, 8], [1, 1, 1, 1]];

/// Operands on a device and on the host.
struct Problem {
    dtype: Dtype,
    tokens: usize,
    top_k: usize,
    features: usize,
    order: Vec<i32>,
    used: usize,
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
    /// The last `used` slots have rows, in rotated order; the others have none.
    fn new(device: &Device, dtype: Dtype, [tokens, top_k, used, features]: [usize; 4]) -> Problem {
        let slots = tokens * top_k;
        let (mut order, mut row_of_slot) = (vec![-1; slots], vec![-1; slots]);
        // A permutation of the last `used` slots.
        let mut taken: Vec<usize> = (slots - used..slots).collect();
        taken.rotate_left(used / 3);
        for (row, slot) in taken.into_iter().enumerate() {
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
            y: device.put_floats(dtype, &values(dtype, slots * features, 2)),
            weights: device.put_floats(Dtype::F32, &values(Dtype::F32, slots, 3)),
            order: ints(&order),
            row_of_slot: ints(&row_of_slot),
            end: device.put(&(used as i64).to_le_bytes()),
            word: device.put(&[0; 8]),
        };
        Problem { dtype, tokens, top_k, features, order, used, x, on_device, wild: false }
    }

    fn slots(&self) -> usize {
        self.order.len()
    }

    fn bytes(&self, rows: usize) -> u64 {
        (rows * self.features * self.dtype.size() as usize) as u64
    }

    /// The number of tokens that have a row.
    fn tokens_in_use(&self) -> usize {
        let mut tokens: Vec<usize> = (0..self.used).map(|row| self.token(row)).collect();
        tokens.sort_unstable();
        tokens.dedup();
        tokens.len()
    }

    fn token(&self, row: usize) -> usize {
        self.order[row] as usize / self.top_k
    }

    fn permute(&self, device: &Device, weighted: bool) -> Vec<f32> {
        let rows = self.slots() as u32;
        let y = device.room(self.bytes(self.slots()) as usize);
        let variant = PermuteTokens::new(self.dtype, self.features as u32, true, weighted);
        let arguments = PermuteTokensArguments {
            x: In(self.on_device.x),
            weights: In(self.on_device.weights),
            order: In(self.on_device.order),
            end: In(self.on_device.end),
            y: Out(y),
            rows,
            segments: SEGMENTS,
            top_k: self.top_k as u32,
            features: self.features as u32,
            faults: FaultSite::new(self.on_device.word, 2),
        };
        let launch = variant.launch(rows, SEGMENTS).unwrap();
        let counters = device.run(&variant, launch, &arguments);
        // All threads read the end. Each lane of a used row reads the row's slot and weight.
        let of_row = if weighted { 8 } else { 4 };
        let (used, lanes) = (self.used as u64, lanes_of(&counters));
        let read = self.bytes(self.tokens_in_use()) + 8 + of_row * used;
        let threads = u64::from(launch.grid[0]) * u64::from(launch.block[0]);
        let all = self.bytes(self.used) + lanes * of_row * used + 8 * threads;
        self.assert_traffic(&counters, [all, read, self.bytes(self.slots())]);
        device.floats(self.dtype, y, self.slots() * self.features)
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
            rows: self.slots() as u32,
            top_k: self.top_k as u32,
            features: self.features as u32,
            faults: FaultSite::new(self.on_device.word, 2),
        };
        let launch = variant.launch(self.tokens as u64).unwrap();
        let counters = device.run(&variant, launch, &arguments);
        // Each access to a row reads the row's index and weight.
        let weights = if weighted { 4 * self.used as u64 } else { 0 };
        let small = 4 * self.slots() as u64 + weights;
        let accesses = self.bytes(1)
            / if counters.kernel.contains("_w1_") { self.dtype.size().into() } else { 16 };
        let [all, read] = [accesses, 1].map(|times| self.bytes(self.used) + times * small);
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
            rows: slots,
            top_k: self.top_k as u32,
            features: self.features as u32,
            faults: FaultSite::new(self.on_device.word, 2),
        };
        let launch = variant.launch(slots).unwrap();
        let counters = device.run(&variant, launch, &arguments);
        // Each lane of a slot reads the index of the slot's row.
        let rows = self.bytes(self.tokens_in_use()) + self.bytes(self.used);
        let written = 4 * u64::from(slots);
        let all = 2 * self.bytes(self.used) + lanes_of(&counters) * written;
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
            let problem = Problem::new(&device, dtype, extents);
            problem.all(&device);
            assert_eq!(device.fault(problem.on_device.word), None);
        }
    }
}

/// Out-of-range slots and rows, and an end beyond all rows, are reported. They count as absent.
#[test]
fn out_of_range_slots_and_rows_are_absent() {
    let device = Device::plain();
    let mut problem = Problem::new(&device, Dtype::F32, [3, 2, 6, 8]);
    let ints =
        |values: &[i32]| -> Vec<u8> { values.iter().flat_map(|it| it.to_le_bytes()).collect() };
    let wild = [6, -2, i32::MIN, i32::MAX, 1, 0];
    problem.on_device.order = device.put(&ints(&wild));
    problem.on_device.row_of_slot = problem.on_device.order;
    let ends = [-1, 6, 1 << 40];

    for end in ends {
        let word = device.put(&[0; 8]);
        problem.on_device.end = device.put(&i64::to_le_bytes(end));
        let y = device.room(4 * 48);
        let variant = PermuteTokens::new(Dtype::F32, 8, true, false);
        let arguments = PermuteTokensArguments {
            x: In(problem.on_device.x),
            weights: In(problem.on_device.weights),
            order: In(problem.on_device.order),
            end: In(problem.on_device.end),
            y: Out(y),
            rows: 6,
            segments: SEGMENTS,
            top_k: 2,
            features: 8,
            faults: FaultSite::new(word, 2),
        };
        device.run(&variant, variant.launch(6, SEGMENTS).unwrap(), &arguments);
        let index = if end == -1 { -1 } else { -2 };
        assert_eq!(device.fault(word), Some(Fault { site: 2, index }));
        let rows = device.floats(Dtype::F32, y, 48);
        assert!(rows[..32].iter().all(|value| *value == 0.0), "{end}");
        let last = if end < 0 { vec![0.0; 8] } else { problem.x[..8].to_vec() };
        assert_eq!(rows[40..], last, "{end}");
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
    assert!(found[..4].iter().all(|value| *value == 0.0) && found[5] != 0.0);
}

/// Runs every kernel of the catalogue, with valid operands and with out-of-range values.
pub(crate) fn exercise(device: &Device) -> Vec<u8> {
    let mut bits = Vec::new();
    for dtype in Dtype::ALL {
        for features in TOKEN_FEATURES {
            let mut problem = Problem::new(device, dtype, [3, 5, 11, features as usize]);
            bits.extend(problem.all(device));
            problem.be_wild(device);
            bits.extend(problem.all(device));
        }
    }
    bits
}
