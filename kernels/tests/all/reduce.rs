//! What sums, maxima and minima read and write.

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
fn rows_and_columns_are_read_once() {
    let device = Device::plain();
    let run = |pass: Pass| {
        let elements = pass.extents.outer * pass.extents.reduced * pass.extents.inner;
        pass.run(&device, &values(pass.from, elements as usize, 5));
    };
    for extents in EXTENTS {
        for dtype in Dtype::ALL {
            for aligned in [true, false] {
                let pass = Pass::new(ReduceOp::Add, dtype, Dtype::F32, extents);
                run(Pass { aligned, ..pass });
            }
        }
        for op in [ReduceOp::Max, ReduceOp::Min] {
            run(Pass::new(op, Dtype::F32, Dtype::Bf16, extents));
            run(Pass::new(op, Dtype::Bf16, Dtype::Bf16, extents));
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
