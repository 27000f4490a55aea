//! What softmax and its logarithm read and write.

use meshgrad_emulator::Counters;
use meshgrad_kernel_catalogue as catalogue;
use meshgrad_kernels::row::RowTile;
use meshgrad_kernels::softmax::{Function, Softmax, SoftmaxArguments};
use meshgrad_kernels::{Dtype, In, Out};

use crate::device::{Device, encoded, values};
use crate::traffic::{assert_moved, assert_whole_sectors};

/// Rows of a few lanes, of a warp, of a CTA, and longer; ragged ends; one element; many rows, and
/// none.
const EXTENTS: [[usize; 2]; 7] = [[9, 64], [2, 520], [1, 1160], [2, 301], [3, 1], [20, 24], [0, 8]];

/// Operands on the host.
struct Problem<'a> {
    device: &'a Device,
    function: Function,
    dtype: Dtype,
    rows: usize,
    features: usize,
    x: Vec<f32>,
}

impl<'a> Problem<'a> {
    fn new(
        device: &'a Device,
        function: Function,
        dtype: Dtype,
        [rows, features]: [usize; 2],
    ) -> Problem<'a> {
        let x = values(dtype, rows * features, 1);
        Problem {
            device,
            function,
            dtype,
            rows,
            features,
            // Between -8 and 8, exact in either dtype.
            x: x.into_iter().map(|x| x * 8.0).collect(),
        }
    }

    fn bytes(&self) -> usize {
        self.x.len() * self.dtype.size() as usize
    }

    /// Asserts how many matrices a kernel reads and writes, and that it has no bank conflicts. Rows
    /// in registers are moved in whole sectors.
    #[track_caller]
    fn assert_traffic(&self, counters: &Counters, [read, different, written]: [usize; 3]) {
        let [all, different] = [[read, written], [different, written]];
        let bytes = |times: usize| times * self.bytes();
        assert_moved(counters, all.map(bytes), different.map(bytes));

        let row = self.features * self.dtype.size() as usize;
        if self.in_registers() && row.is_multiple_of(32) {
            assert_whole_sectors(counters);
        }
    }

    fn in_registers(&self) -> bool {
        RowTile::new(self.dtype, self.features).is_some()
    }

    fn forward(&self) -> u64 {
        let variant = Softmax::new(self.function, self.dtype, self.features, true);
        let arguments = SoftmaxArguments {
            x: In(self.device.put_floats(self.dtype, &self.x)),
            y: Out(self.device.room(self.bytes())),
            rows: self.rows as u64,
            features: self.features as u32,
        };
        let Some(launch) = variant.launch(self.rows as u64) else {
            return arguments.y.0; // nothing to do
        };
        let counters = self.device.run(&variant, launch, &arguments);
        let read = if self.in_registers() { 1 } else { 2 };
        self.assert_traffic(&counters, [read, 1, 1]);
        arguments.y.0
    }

    fn floats(&self, from: u64) -> Vec<f32> {
        self.device.floats(self.dtype, from, self.x.len())
    }
}

#[test]
fn rows_in_registers_are_read_once() {
    let device = Device::plain();
    for function in Function::ALL {
        for dtype in Dtype::ALL {
            for extents in EXTENTS {
                Problem::new(&device, function, dtype, extents).forward();
            }
        }
    }
}

/// Runs every kernel of the catalogue, on few rows.
pub(crate) fn exercise(device: &Device) -> Vec<u8> {
    let mut bits = Vec::new();
    for function in Function::ALL {
        for (dtype, features) in catalogue::SOFTMAX_ROWS {
            let rows = if features < 100 { 3 } else { 1 };
            let problem = Problem::new(device, function, dtype, [rows, features]);
            bits.extend(encoded(dtype, &problem.floats(problem.forward())));
        }
    }
    bits
}
