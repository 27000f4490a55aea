//! Compares functions of rows with f64 results.

use meshgrad_emulator::Counters;
use meshgrad_kernel_catalogue as catalogue;
use meshgrad_kernels::assembler::List;
use meshgrad_kernels::row::RowTile;
use meshgrad_kernels::row_map::{RowMap, RowMapArguments};
use meshgrad_kernels::{Dtype, In, Out};

use crate::device::{Device, decoded, encoded, values};
use crate::traffic::{assert_moved, assert_whole_sectors};

/// Operands on the host, and the results of both functions.
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
        // A mean far from 0 shows elements that do not exist but are counted.
        let x = values(dtype, rows * features, 1).into_iter();
        let x: Vec<f32> = x.map(|x| x + 4.0).collect();
        Problem {
            device,
            dtype,
            rows,
            features,
            x: decoded(dtype, &encoded(dtype, &x)),
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

    fn check(&self) {
        let [y, means, inverses] = self.standardize();
        let centered = self.scaled_center();
        let bound = match self.dtype {
            Dtype::F32 => 1e-5,
            Dtype::Bf16 => 8e-3,
        };
        let assert_close = |found: f32, expected: f64, bound: f64| {
            let error = (f64::from(found) - expected).abs();
            let (dtype, extents) = (self.dtype, [self.rows, self.features]);
            assert!(
                error <= bound * (1.0 + expected.abs()),
                "{dtype:?} {extents:?}: {found}, not {expected}"
            );
        };
        let features = self.features as f64;
        for row in 0..self.rows {
            let range = row * self.features..(row + 1) * self.features;
            let x = || self.x[range.clone()].iter().map(|x| f64::from(*x));
            let mean = x().sum::<f64>() / features;
            let variance = x().map(|x| (x - mean) * (x - mean)).sum::<f64>() / features;
            let inverse = 1.0 / variance.sqrt();
            assert_close(means[row], mean, 1e-5);
            assert_close(inverses[row], inverse, 1e-4);
            let sum: f64 = self.b[range.clone()].iter().map(|b| f64::from(*b)).sum();
            for (at, x) in range.clone().zip(x()) {
                let w = f64::from(self.w[at % self.features]);
                assert_close(y[at], (x - mean) * inverse * w, 10.0 * bound);
                assert_close(centered[at], f64::from(self.a[row]) * (x - sum), 10.0 * bound);
            }
        }
    }
}

/// Rows of a few lanes, of a warp, of a CTA, and longer; ragged ends; many rows, and none.
#[test]
fn numbers_and_values_match_f64() {
    for device in Device::all() {
        for dtype in Dtype::ALL {
            for extents in [[9, 64], [2, 520], [1, 1160], [2, 301], [20, 24], [0, 8]] {
                Problem::new(&device, dtype, extents).check();
            }
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
