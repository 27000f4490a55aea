//! Compares RMSNorm and its gradients with f64 results.

use meshgrad_emulator::Counters;
use meshgrad_kernel_catalogue as catalogue;
use meshgrad_kernels::rms_norm::{
    RmsNorm, RmsNormArguments, RmsNormGradInput, RmsNormGradInputArguments,
};
use meshgrad_kernels::row::RowTile;
use meshgrad_kernels::{Dtype, In, Out};

use crate::device::{Device, values};
use crate::traffic::{assert_moved, assert_whole_sectors};

const EPS: f32 = 1e-5;

/// Rows of a few lanes, of a warp, of a CTA, and longer; ragged ends; many rows; no features.
const EXTENTS: [[usize; 2]; 13] = [
    [1, 8],
    [5, 64],
    [9, 128],
    [7, 136],
    [3, 1024],
    [2, 2000],
    [2, 4096],
    [3, 1025],
    [1, 8196],
    [4, 1],
    [130, 24],
    [200, 7],
    [3, 0],
];

/// Operands on a device and on the host.
struct Problem {
    dtype: Dtype,
    rows: usize,
    features: usize,
    x: Vec<f32>,
    w: Vec<f32>,
    dy: Vec<f32>,
    on_device: [u64; 3],
}

impl Problem {
    fn new(device: &Device, dtype: Dtype, [rows, features]: [usize; 2]) -> Problem {
        let count = rows * features;
        let x = values(dtype, count, 1);
        let w = values(dtype, features, 2);
        let dy = values(dtype, count, 3);
        let on_device = [&x, &w, &dy].map(|values| device.put_floats(dtype, values));
        Problem {
            dtype,
            rows,
            features,
            x,
            w,
            dy,
            on_device,
        }
    }

    /// 1 / sqrt(mean(x^2) + eps) of a row.
    fn inv_rms(&self, row: usize) -> f64 {
        let x = &self.x[row * self.features..][..self.features];
        let squares: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
        1.0 / (squares / self.features.max(1) as f64 + f64::from(EPS)).sqrt()
    }

    fn at(&self, row: usize, column: usize) -> [f64; 3] {
        let index = row * self.features + column;
        [self.x[index], self.w[column], self.dy[index]].map(f64::from)
    }

    fn assert_close(&self, what: &str, found: f32, expected: f64) {
        let bound = match self.dtype {
            Dtype::F32 => 3e-6,
            Dtype::Bf16 => 8e-3,
        };
        let error = (f64::from(found) - expected).abs();
        let (rows, features) = (self.rows, self.features);
        assert!(
            error <= bound * (1.0 + expected.abs()),
            "{what} of {:?} [{rows}, {features}]: {found}, not {expected}",
            self.dtype,
        );
    }

    /// Asserts that rows in registers move in whole sectors if they are multiples of 32 bytes.
    #[track_caller]
    fn assert_whole_sectors(&self, counters: &Counters) {
        let bytes = self.features * self.dtype.size() as usize;
        if RowTile::new(self.dtype, self.features).is_some() && bytes.is_multiple_of(32) {
            assert_whole_sectors(counters);
        }
    }

    /// Runs the forward kernel; returns the addresses of y and of inv_rms.
    fn forward(&self, device: &Device) -> [u64; 2] {
        let count = self.rows * self.features;
        let size = self.dtype.size() as usize;
        let (y, inv_rms) = (device.room(count * size), device.room(4 * self.rows));
        let [x, w, _] = self.on_device;
        let variant = RmsNorm::new(self.dtype, self.features, true);
        let arguments = RmsNormArguments {
            x: In(x),
            w: In(w),
            y: Out(y),
            inv_rms: Out(inv_rms),
            rows: self.rows as u64,
            features: self.features as u32,
            eps: EPS,
        };
        let launch = variant.launch(self.rows as u64).unwrap();
        let counters = device.run(&variant, launch, &arguments);

        // x is read once or twice, and w once per row.
        let of_x = match RowTile::new(self.dtype, self.features) {
            Some(_) => count,
            None => 2 * count,
        };
        let written = count * size + 4 * self.rows;
        let different = (count + self.features) * size;
        let all = (of_x + count) * size;
        assert_moved(&counters, [all, written], [different, written]);
        self.assert_whole_sectors(&counters);
        [y, inv_rms]
    }
}

#[test]
fn forward_and_grad_input_match_f64() {
    for device in Device::all() {
        for dtype in Dtype::ALL {
            for extents in EXTENTS {
                let problem = Problem::new(&device, dtype, extents);
                let [y, inv_rms] = problem.forward(&device);
                let dx = grad_input(&device, &problem, inv_rms);
                check_rows(&device, &problem, [y, inv_rms, dx]);
            }
        }
    }
}

fn grad_input(device: &Device, problem: &Problem, inv_rms: u64) -> u64 {
    let [x, w, dy] = problem.on_device;
    let dx = device.room(problem.x.len() * problem.dtype.size() as usize);
    let variant = RmsNormGradInput::new(problem.dtype, problem.features, true);
    let arguments = RmsNormGradInputArguments {
        dy: In(dy),
        x: In(x),
        w: In(w),
        inv_rms: In(inv_rms),
        dx: Out(dx),
        rows: problem.rows as u64,
        features: problem.features as u32,
    };
    let launch = variant.launch(problem.rows as u64).unwrap();
    let counters = device.run(&variant, launch, &arguments);

    // inv_rms is read by every thread that has elements of a row in registers, or that loops.
    let (count, size) = (problem.x.len(), problem.dtype.size() as usize);
    let per_vector = problem.dtype.per_vector() as usize;
    let tile = RowTile::new(problem.dtype, problem.features);
    let (passes, threads) = match tile {
        Some(tile) => {
            let lanes = (tile.threads() / tile.rows()) as usize;
            (1, lanes.min(problem.features / per_vector))
        }
        None => (2, launch.block[0] as usize),
    };
    let all = passes * 3 * count * size + 4 * problem.rows * threads;
    let different = (2 * count + problem.features) * size + 4 * problem.rows;
    let written = count * size;
    assert_moved(&counters, [all, written], [different, written]);
    problem.assert_whole_sectors(&counters);
    dx
}

fn check_rows(device: &Device, problem: &Problem, [y, inv_rms, dx]: [u64; 3]) {
    let [y, dx] = [y, dx].map(|from| device.floats(problem.dtype, from, problem.x.len()));
    let inv_rms = device.floats(Dtype::F32, inv_rms, problem.rows);
    for (row, &found) in inv_rms.iter().enumerate() {
        let inv = problem.inv_rms(row);
        assert!((f64::from(found) / inv - 1.0).abs() < 1e-6);

        let products = (0..problem.features).map(|column| {
            let [x, w, dy] = problem.at(row, column);
            dy * w * x
        });
        let mean = products.sum::<f64>() / problem.features.max(1) as f64;
        for column in 0..problem.features {
            let ([x, w, dy], index) = (problem.at(row, column), row * problem.features + column);
            problem.assert_close("y", y[index], x * inv * w);
            let slope = inv * (dy * w - x * inv * inv * mean);
            problem.assert_close("dx", dx[index], slope);
        }
    }
}

/// Runs every kernel of the catalogue, on a few rows.
pub(crate) fn exercise(device: &Device) -> Vec<u8> {
    let mut bits = Vec::new();
    for dtype in Dtype::ALL {
        for features in catalogue::ROW_FEATURES {
            let problem = Problem::new(device, dtype, [3, features]);
            let [y, inv_rms] = problem.forward(device);
            let dx = grad_input(device, &problem, inv_rms);
            let bytes = problem.x.len() * dtype.size() as usize;
            bits.extend(device.bytes(y, bytes));
            bits.extend(device.bytes(dx, bytes));
        }
    }
    bits
}
