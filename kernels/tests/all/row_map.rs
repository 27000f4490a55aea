//! What functions of rows read and write.

use meshgrad_emulator::Counters;
use meshgrad_kernel_catalogue as catalogue;
use meshgrad_kernels::assembler::List;
use meshgrad_kernels::row::RowTile;
use meshgrad_kernels::row_map::{RowMap, RowMapArguments};
use meshgrad_kernels::{Dtype, In, Out};

use crate::device::{Device, encoded, values};
use crate::traffic::{assert_moved, assert_whole_sectors};

/// Operands on the host.
struct Problem<'a> {
    device: &'a Device,
    dtype: Dtype,
    rows: usize,
    features: usize,
    x: Vec<f32>,
    b: Vec<f32>,
    w: Vec<f32>,
    a: Vec<f32>,
}

impl<'a> Problem<'a> {
    fn new(device: &'a Device, dtype: Dtype, [rows, features]: [usize; 2]) -> Problem<'a> {
        Problem {
            device,
            dtype,
            rows,
            features,
            x: values(dtype, rows * features, 1),
            b: values(dtype, rows * features, 2),
            w: values(dtype, features, 3),
            a: values(Dtype::F32, rows, 4),
        }
    }

    fn run(&self, variant: &RowMap, operands: &[&[f32]], given: &[&[f32]]) -> [Vec<f32>; 3] {
        let Problem { device, dtype, .. } = self;
        let put = |dtype, of: &[&[f32]]| -> Vec<In> {
            of.iter().map(|it| In(device.put_floats(dtype, it))).collect()
        };
        let y = Out(device.room(self.x.len() * dtype.size() as usize));
        let numbers = [0, 1].map(|_| Out(device.room(4 * self.rows)));
        let arguments = RowMapArguments {
            operands: List::new(&put(*dtype, operands)),
            given: List::new(&put(Dtype::F32, given)),
            y,
            numbers: List::new(&numbers),
            scalars: List::new(&[self.features as f32]),
            rows: self.rows as u64,
            features: self.features as u32,
        };
        if let Some(launch) = variant.launch(self.rows as u64) {
            let counters = device.run(variant, launch, &arguments);
            self.assert_traffic(&counters, operands, given, launch.block[0]);
        }
        let written = |number: Out| match given {
            [] => device.floats(Dtype::F32, number.0, self.rows),
            _ => Vec::new(),
        };
        let y = device.floats(*dtype, y.0, self.x.len());
        [y, written(numbers[0]), written(numbers[1])]
    }

    /// A row in registers is read once. A loop reads each operand once for each expression that needs
    /// it: of `standardize`, x three times and w once; of `scaled_center`, each operand once.
    #[track_caller]
    fn assert_traffic(
        &self,
        counters: &Counters,
        operands: &[&[f32]],
        given: &[&[f32]],
        threads: u32,
    ) {
        let size = self.dtype.size() as usize;
        let (count, vectors) = (self.x.len() * size, operands.len());
        let tile = RowTile::new(self.dtype, self.features);
        // A given number is read by every thread that has elements of the row, or that loops.
        let (passes, readers) = match &tile {
            Some(tile) => {
                let lanes = (tile.threads() / tile.rows()) as usize;
                let per_vector = self.dtype.per_vector() as usize;
                (vectors, lanes.min(self.features / per_vector))
            }
            None if given.is_empty() => (4, 0),
            None => (2, threads as usize),
        };
        let of_numbers = 4 * self.rows;
        let written = count + if given.is_empty() { 2 * of_numbers } else { 0 };
        let read = passes * count + given.len() * of_numbers * readers;
        let different: usize = operands.iter().map(|it| it.len() * size).sum();
        let different = different + given.len() * of_numbers;
        assert_moved(counters, [read, written], [different, written]);
        if tile.is_some() && (self.features * size).is_multiple_of(32) {
            assert_whole_sectors(counters);
        }
    }

    fn standardize(&self) -> [Vec<f32>; 3] {
        let variant = catalogue::standardize(self.dtype, self.features).unwrap();
        self.run(&variant, &[&self.x, &self.w], &[])
    }

    fn scaled_center(&self) -> Vec<f32> {
        let variant = catalogue::scaled_center(self.dtype, self.features).unwrap();
        let [y, ..] = self.run(&variant, &[&self.x, &self.b], &[&self.a]);
        y
    }
}

/// Rows of a few lanes, of a warp, of a CTA, and longer; ragged ends; many rows, and none.
#[test]
fn rows_in_registers_are_read_once() {
    let device = Device::plain();
    for dtype in Dtype::ALL {
        for extents in [[9, 64], [2, 520], [1, 1160], [2, 301], [20, 24], [0, 8]] {
            let problem = Problem::new(&device, dtype, extents);
            problem.standardize();
            problem.scaled_center();
        }
    }
}

/// Runs every kernel of the catalogue, on a few rows.
pub(crate) fn exercise(device: &Device) -> Vec<u8> {
    let mut bits = Vec::new();
    for dtype in Dtype::ALL {
        for features in catalogue::ROW_FEATURES {
            let problem = Problem::new(device, dtype, [3, features]);
            let [y, means, inverses] = problem.standardize();
            bits.extend(encoded(dtype, &y));
            bits.extend(encoded(Dtype::F32, &[means, inverses].concat()));
            bits.extend(encoded(dtype, &problem.scaled_center()));
        }
    }
    bits
}
