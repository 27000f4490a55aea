//! Compares the residual addition, the norm that follows it, and their gradient with f64 results.

use meshgrad_emulator::Counters;
use meshgrad_kernel_catalogue as catalogue;
use meshgrad_kernels::add_rms_norm::{
    AddRmsNorm, AddRmsNormArguments, AddRmsNormGradInput, AddRmsNormGradInputArguments,
};
use meshgrad_kernels::row::RowTile;
use meshgrad_kernels::{Dtype, In, Out};

use crate::device::{Device, decoded, encoded, values};
use crate::traffic::{assert_moved, assert_whole_sectors};

const EPS: f32 = 1e-5;

/// Rows of a few lanes, of a warp, of a CTA, and longer; ragged ends; one element; no features.
const EXTENTS: [[usize; 2]; 9] =
    [[1, 8], [9, 128], [7, 136], [2, 2000], [2, 4096], [2, 16_384], [3, 1025], [4, 1], [3, 0]];

/// Operands on a device and on the host.
struct Problem {
    dtype: Dtype,
    rows: usize,
    features: usize,
    /// x, b, dh and dy.
    matrices: [Vec<f32>; 4],
    w: Vec<f32>,
    on_device: [u64; 4],
    w_on_device: u64,
}

/// Bytes that the kernels have written.
struct Results {
    h: Vec<u8>,
    y: Vec<u8>,
    inv_rms: Vec<u8>,
    dx: Vec<u8>,
}

impl Problem {
    fn new(device: &Device, dtype: Dtype, [rows, features]: [usize; 2]) -> Problem {
        let matrices = [1, 2, 3, 4].map(|seed| values(dtype, rows * features, seed));
        let on_device = matrices.each_ref().map(|it| device.put_floats(dtype, it));
        let w = values(dtype, features, 5);
        Problem {
            dtype,
            rows,
            features,
            matrices,
            w_on_device: device.put_floats(dtype, &w),
            w,
            on_device,
        }
    }

    /// Bytes of a matrix.
    fn bytes(&self) -> usize {
        self.rows * self.features * self.dtype.size() as usize
    }

    fn tile(&self) -> Option<RowTile> {
        RowTile::new(self.dtype, self.features)
    }

    fn run(&self, device: &Device) -> Results {
        let bytes = self.bytes();
        let [h, y, dx] = [(); 3].map(|()| device.room(bytes));
        let inv_rms = device.room(4 * self.rows);
        let [x, b, dh, dy] = self.on_device;
        let (rows, features) = (self.rows as u64, self.features as u32);

        let variant = AddRmsNorm::new(self.dtype, self.features, true);
        let arguments = AddRmsNormArguments {
            x: In(x),
            b: In(b),
            w: In(self.w_on_device),
            h: Out(h),
            y: Out(y),
            inv_rms: Out(inv_rms),
            rows,
            features,
            eps: EPS,
        };
        let launch = variant.launch(rows).unwrap();
        let counters = device.run(&variant, launch, &arguments);
        // x, b and w are read for every row. A loop also reads the h that it has written.
        let again = if self.tile().is_some() { 3 } else { 4 };
        let size = self.dtype.size() as usize;
        let of_w = self.features * size;
        let written = 2 * bytes + 4 * self.rows;
        let unique = (again - 1) * bytes + of_w;
        self.assert_traffic(&counters, [again * bytes, written], [unique, written]);

        let variant = AddRmsNormGradInput::new(self.dtype, self.features, true);
        let arguments = AddRmsNormGradInputArguments {
            dh: In(dh),
            dy: In(dy),
            h: In(h),
            w: In(self.w_on_device),
            inv_rms: In(inv_rms),
            dx: Out(dx),
            rows,
            features,
        };
        let launch = variant.launch(rows).unwrap();
        let counters = device.run(&variant, launch, &arguments);
        // dh, dy, h and w are read for every row; a loop reads all but dh twice. inv_rms is read by
        // all threads that have elements of the row.
        let (matrices, threads) = match self.tile() {
            Some(tile) => {
                let lanes = (tile.threads() / tile.rows()) as usize;
                let vectors = self.features / self.dtype.per_vector() as usize;
                (4, lanes.min(vectors))
            }
            None => (7, launch.block[0] as usize),
        };
        let all = matrices * bytes + 4 * self.rows * threads;
        let unique = 3 * bytes + of_w + 4 * self.rows;
        self.assert_traffic(&counters, [all, bytes], [unique, bytes]);

        Results {
            h: device.bytes(h, bytes),
            y: device.bytes(y, bytes),
            inv_rms: device.bytes(inv_rms, 4 * self.rows),
            dx: device.bytes(dx, bytes),
        }
    }

    /// Asserts the bytes read and written, in total and without repetitions, no bank conflicts, and
    /// whole sectors.
    #[track_caller]
    fn assert_traffic(&self, counters: &Counters, all: [usize; 2], different: [usize; 2]) {
        assert_moved(counters, all, different);
        let bytes = self.features * self.dtype.size() as usize;
        if self.tile().is_some() && bytes.is_multiple_of(32) {
            assert_whole_sectors(counters);
        }
    }

    fn check(&self, results: &Results) {
        let [h, y, dx] =
            [&results.h, &results.y, &results.dx].map(|bytes| decoded(self.dtype, bytes));
        let inv_rms = decoded(Dtype::F32, &results.inv_rms);
        let [x, b, dh, dy] = &self.matrices;

        // The sum has the same bits as on the host.
        let sums: Vec<f32> = x.iter().zip(b).map(|(x, b)| x + b).collect();
        assert!(encoded(self.dtype, &sums) == results.h);

        for (row, inv_rms) in inv_rms.iter().enumerate() {
            let range = row * self.features..(row + 1) * self.features;
            let of_row = |matrix: &[f32]| -> Vec<f64> {
                matrix[range.clone()].iter().map(|x| f64::from(*x)).collect()
            };
            let (h, dh, dy) = (of_row(&h), of_row(dh), of_row(dy));
            let w: Vec<f64> = self.w.iter().map(|w| f64::from(*w)).collect();
            let count = self.features.max(1) as f64;
            let squares: f64 = h.iter().map(|h| h * h).sum();
            let inv = 1.0 / (squares / count + f64::from(EPS)).sqrt();
            assert!((f64::from(*inv_rms) / inv - 1.0).abs() < 1e-6);

            let products = (0..self.features).map(|i| dy[i] * w[i] * h[i]);
            let mean = products.sum::<f64>() / count;
            for (i, at) in range.enumerate() {
                self.assert_close("y", y[at], h[i] * inv * w[i]);
                let slope = dh[i] + inv * (dy[i] * w[i] - h[i] * inv * inv * mean);
                self.assert_close("dx", dx[at], slope);
            }
        }
    }

    #[track_caller]
    fn assert_close(&self, what: &str, found: f32, expected: f64) {
        let bound = match self.dtype {
            Dtype::F32 => 3e-6,
            Dtype::Bf16 => 8e-3,
        };
        let error = (f64::from(found) - expected).abs();
        let (dtype, rows, features) = (self.dtype, self.rows, self.features);
        assert!(
            error <= bound * (1.0 + expected.abs()),
            "{what} of {dtype:?} [{rows}, {features}]: {found}, not {expected}"
        );
    }
}

#[test]
fn forward_and_gradient_match_f64() {
    for device in Device::all() {
        for dtype in Dtype::ALL {
            for extents in EXTENTS {
                let problem = Problem::new(&device, dtype, extents);
                problem.check(&problem.run(&device));
            }
        }
    }
}

/// Runs every kernel of the catalogue on three rows.
pub(crate) fn exercise(device: &Device) -> Vec<u8> {
    let mut bits = Vec::new();
    for dtype in Dtype::ALL {
        for features in catalogue::ROW_FEATURES {
            let results = Problem::new(device, dtype, [3, features]).run(device);
            bits.extend([results.h, results.y, results.inv_rms, results.dx].concat());
        }
    }
    bits
}
