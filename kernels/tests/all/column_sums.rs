//! What sums over rows read and write.

use meshgrad_kernel_catalogue as catalogue;
use meshgrad_kernels::assembler::List;
use meshgrad_kernels::column_sums::{
    ColumnSumsArguments, SumPartials, SumPartialsArguments, rows_per_partial,
};
use meshgrad_kernels::{Dtype, In, Out, Variant};

use crate::device::{Device, encoded, values};
use crate::traffic::{assert_moved, assert_once, assert_whole_sectors_of};

/// Few columns and many, not whole vectors; one row, and several blocks of rows.
const EXTENTS: [[usize; 2]; 8] =
    [[1, 8], [5, 64], [7, 136], [2, 4096], [3, 1025], [4, 1], [130, 24], [200, 7]];

struct Problem<'a> {
    device: &'a Device,
    dtype: Dtype,
    rows: usize,
    features: usize,
    dy: Vec<f32>,
    x: Vec<f32>,
    /// The mean, if it is subtracted, and the inverse of the root, per row.
    numbers: Vec<Vec<f32>>,
}

impl<'a> Problem<'a> {
    fn new(
        device: &'a Device,
        dtype: Dtype,
        [rows, features]: [usize; 2],
        centered: bool,
    ) -> Problem<'a> {
        let seeds = if centered { vec![3, 4] } else { vec![4] };
        let numbers = seeds.into_iter();
        Problem {
            device,
            dtype,
            rows,
            features,
            dy: values(dtype, rows * features, 1),
            x: values(dtype, rows * features, 2),
            numbers: numbers.map(|seed| values(Dtype::F32, rows, seed)).collect(),
        }
    }

    /// Runs the first kernel; returns the address and the number of the partial sums.
    fn partials(&self) -> [u64; 2] {
        let Problem { device, dtype, .. } = self;
        let (rows, features) = (self.rows as u64, self.features as u32);
        let count = rows.div_ceil(rows_per_partial(rows));
        let partials = device.room(4 * count as usize * self.features);
        let centered = self.numbers.len() == 2;
        let variant = catalogue::weight_gradient(*dtype, self.features, centered);
        let put = |values: &Vec<f32>| In(device.put_floats(Dtype::F32, values));
        let arguments = ColumnSumsArguments {
            matrices: List::new(&[&self.dy, &self.x].map(|it| In(device.put_floats(*dtype, it)))),
            numbers: self.numbers.iter().map(put).collect(),
            partials: Out(partials),
            scalars: List::new(&[]),
            rows,
            rows_per_partial: rows_per_partial(rows),
            features,
        };
        let launch = variant.launch(rows, features).unwrap();
        let counters = device.run(&variant, launch, &arguments);

        // Each thread of a row reads the row's numbers.
        let (matrices, size) = (2 * self.x.len(), dtype.size() as usize);
        let vectors = match variant.entry().contains("_w1_") {
            true => self.features,
            false => self.features / dtype.per_vector() as usize,
        };
        let written = 4 * count as usize * self.features;
        let numbers = 4 * self.rows * self.numbers.len();
        assert_moved(
            &counters,
            [matrices * size + numbers * vectors, written],
            [matrices * size + numbers, written],
        );
        // A thread stores its eight sums in two accesses of half a sector, so only loads are
        // checked.
        if vectors < self.features && (self.features * size).is_multiple_of(32) {
            assert_whole_sectors_of(&counters, "ld.global");
        }
        [partials, count]
    }

    /// Adds `count` partial sums to `before`, or replaces it.
    fn sum(&self, partials: u64, count: u64, before: &[f32], accumulate: bool) -> Vec<f32> {
        let to = self.device.put_floats(Dtype::F32, before);
        let variant = SumPartials::new(accumulate);
        let arguments = SumPartialsArguments {
            partials: In(partials),
            to: Out(to),
            rows: count,
            features: self.features as u32,
        };
        let launch = variant.launch(self.features as u32).unwrap();
        let counters = self.device.run(&variant, launch, &arguments);
        let of_sums = 4 * self.features;
        let read = count as usize * of_sums + if accumulate { of_sums } else { 0 };
        assert_once(&counters, [read, of_sums]);
        self.device.floats(Dtype::F32, to, self.features)
    }

    /// Replaces the old sums, and adds to them.
    fn run(&self) -> Vec<f32> {
        let [partials, count] = self.partials();
        let before = values(Dtype::F32, self.features, 9);
        let none = self.sum(partials, 0, &before, false);
        assert!(none.iter().all(|sum| *sum == 0.0));
        self.sum(partials, count, &before, true);
        self.sum(partials, count, &before, false)
    }
}

#[test]
fn matrices_are_read_once() {
    let device = Device::plain();
    for dtype in Dtype::ALL {
        for extents in EXTENTS {
            for centered in [false, true] {
                Problem::new(&device, dtype, extents, centered).run();
            }
        }
    }
}

/// Runs every kernel of the catalogue, on several blocks of rows.
pub(crate) fn exercise(device: &Device) -> Vec<u8> {
    let mut bits = Vec::new();
    for dtype in Dtype::ALL {
        for features in catalogue::COLUMN_FEATURES {
            for centered in [false, true] {
                let problem = Problem::new(device, dtype, [70, features], centered);
                bits.extend(encoded(Dtype::F32, &problem.run()));
            }
        }
    }
    bits
}
