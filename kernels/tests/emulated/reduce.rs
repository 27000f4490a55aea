//! Compares sums, maxima and minima with f64 results.

use meshgrad_emulator::Counters;
use meshgrad_kernel_catalogue as catalogue;
use meshgrad_kernels::reduce::{Extents, Reduce, ReduceArguments};
use meshgrad_kernels::reduce_op::ReduceOp;
use meshgrad_kernels::{Dtype, In, Out};

use crate::device::{Device, encoded, values};
use crate::traffic::{assert_once, assert_whole_sectors_of};

/// One pass: formats, extents, and whether the operand begins at a multiple of 16 bytes.
#[derive(Clone, Copy, Debug)]
struct Pass {
    op: ReduceOp,
    from: Dtype,
    to: Dtype,
    extents: Extents,
    aligned: bool,
}

impl Pass {
    fn new(op: ReduceOp, from: Dtype, to: Dtype, [outer, reduced, inner]: [u64; 3]) -> Pass {
        let extents = Extents { outer, reduced, inner };
        Pass { op, from, to, extents, aligned: true }
    }

    /// Reduces `x`. Asserts that each byte is moved once, without bank conflicts.
    fn run(&self, device: &Device, x: &[f32]) -> Vec<f32> {
        let Extents { outer, inner, .. } = self.extents;
        let results = (outer * self.extents.chunks() * inner) as usize;
        let padding = if self.aligned { 0 } else { 1 };
        let size = self.from.size() as usize;
        let bytes = [vec![0; padding * size], encoded(self.from, x)].concat();
        let arguments = ReduceArguments::new(
            In(device.put(&bytes) + (padding * size) as u64),
            Out(device.room(results * self.to.size() as usize)),
            self.extents,
            1.0,
        );
        let variant = Reduce::new(self.op, self.from, self.to, self.extents, self.aligned);
        if let Some(launch) = variant.launch(self.extents) {
            let counters = device.run(&variant, launch, &arguments);
            let moved = [x.len() * size, results * self.to.size() as usize];
            assert_once(&counters, moved);
            self.assert_sectors(&counters);
        }
        device.floats(self.to, arguments.y.0, results)
    }

    /// Asserts that rows of whole sectors are read in whole sectors. Stores are not checked: the
    /// threads that store one result per row are not adjacent.
    fn assert_sectors(&self, counters: &Counters) {
        let Extents { reduced, inner, .. } = self.extents;
        let line = if inner == 1 { reduced } else { inner };
        let chunk = self.extents.chunk() * inner;
        let whole = |elements: u64| (elements * u64::from(self.from.size())).is_multiple_of(32);
        if self.aligned && whole(line) && whole(chunk) {
            assert_whole_sectors_of(counters, "ld.global");
        }
    }

    fn check(&self, device: &Device) {
        let Extents { outer, reduced, inner } = self.extents;
        let x = values(self.from, (outer * reduced * inner) as usize, 5);
        let found = self.run(device, &x);

        let (chunk, chunks) = (self.extents.chunk(), self.extents.chunks());
        for (at, found) in (0..).zip(found) {
            let (line, column) = (at / inner, at % inner);
            let (outer, first) = (line / chunks, line % chunks * chunk);
            let rows = first..reduced.min(first + chunk);
            let elements = rows.map(|row| {
                let element = (outer * reduced + row) * inner + column;
                f64::from(x[element as usize])
            });
            let (expected, error) = match self.op {
                ReduceOp::Add => (elements.sum::<f64>(), 2e-6 * (1.0 + chunk as f64).sqrt()),
                ReduceOp::Max => (elements.fold(f64::NEG_INFINITY, f64::max), 0.0),
                ReduceOp::Min => (elements.fold(f64::INFINITY, f64::min), 0.0),
            };
            let rounding = match self.to {
                Dtype::F32 => 1e-6,
                Dtype::Bf16 => 4e-3,
            };
            let close = (f64::from(found) - expected).abs() <= error + rounding * expected.abs();
            assert!(
                close || f64::from(found) == expected,
                "{self:?}: result {at} is {found}, not {expected}"
            );
        }
    }
}

/// Reductions of rows and of columns: short, long, and in chunks; to a single result and to none;
/// of no elements.
const EXTENTS: [[u64; 3]; 15] = [
    [1, 1, 1],
    [300, 4, 1],
    [5, 64, 1],
    [2, 1100, 1],
    [2, 133, 1],
    [1, 9000, 1],
    [1, 1, 100],
    [3, 4, 8],
    [2, 5, 7],
    [1, 200, 6],
    [5, 9, 48],
    [3, 0, 1],
    [2, 0, 3],
    [0, 3, 1],
    [0, 3, 2],
];

#[test]
fn rows_and_columns() {
    for device in Device::all() {
        for dtype in Dtype::ALL {
            for extents in EXTENTS {
                for aligned in [true, false] {
                    let pass = Pass::new(ReduceOp::Add, dtype, Dtype::F32, extents);
                    Pass { aligned, ..pass }.check(&device);
                }
            }
        }
        for op in [ReduceOp::Max, ReduceOp::Min] {
            for extents in EXTENTS {
                Pass::new(op, Dtype::F32, Dtype::Bf16, extents).check(&device);
                Pass::new(op, Dtype::Bf16, Dtype::Bf16, extents).check(&device);
            }
        }
    }
}

/// A NaN in the first access of a row or a column, or in the remainder, gives NaN.
#[test]
fn nan_propagates_from_any_position() {
    let device = Device::plain();
    for op in ReduceOp::ALL {
        for (extents, result) in [([1, 9, 1], 0), ([2, 33, 1], 0), ([1, 9, 4], 0)] {
            for place in [0, 8] {
                let pass = Pass::new(op, Dtype::F32, Dtype::F32, extents);
                let mut x = values(Dtype::F32, extents.iter().product::<u64>() as usize, 1);
                x[place * extents[2] as usize] = f32::NAN;
                let found = pass.run(&device, &x);
                for (at, found) in found.iter().enumerate() {
                    assert_eq!(found.is_nan(), at == result, "{pass:?}");
                }
            }
        }
    }
}

/// Runs every kernel of the catalogue.
pub(crate) fn exercise(device: &Device) -> Vec<u8> {
    let results = catalogue::REDUCTIONS.map(|(op, from, to, extents)| {
        let pass = Pass::new(op, from, to, extents);
        let x = values(from, extents.iter().product::<u64>() as usize, 2);
        encoded(to, &pass.run(device, &x))
    });
    results.concat()
}
