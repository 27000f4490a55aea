//! What the residual addition, the norm that follows it, and their gradient read and write.

use meshgrad_emulator::Counters;
use meshgrad_kernel_catalogue as catalogue;
use meshgrad_kernels::add_rms_norm::{
    AddRmsNorm, AddRmsNormArguments, AddRmsNormGradInput, AddRmsNormGradInputArguments,
};
use meshgrad_kernels::row::RowTile;
use meshgrad_kernels::{Dtype, In, Out};

use crate::device::{Device, values};
use crate::traffic::{assert_moved, assert_whole_sectors};

const EPS: f32 = 1e-5;

/// Rows of a few lanes, of a warp, of a CTA, and longer; ragged ends; one element; no features.
const EXTENTS: [[usize; 2]; 9] =
    [[1, 8], [9, 128], [7, 136], [2, 2000], [2, 4096], [2, 16_384], [3, 1025], [4, 1], [3, 0]];

/// Operands on a device.
struct Problem {
    dtype: Dtype,
    rows: usize,
    features: usize,
    /// x, b, dh and dy.
    matrices: [u64; 4],
    w: u64,
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
        let matrix = |seed| device.put_floats(dtype, &values(dtype, rows * features, seed));
        let w = device.put_floats(dtype, &values(dtype, features, 5));
        Problem { dtype, rows, features, matrices: [1, 2, 3, 4].map(matrix), w }
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
        let [x, b, dh, dy] = self.matrices;
        let (rows, features) = (self.rows as u64, self.features as u32);

        let variant = AddRmsNorm::new(self.dtype, self.features, true);
        let arguments = AddRmsNormArguments {
            x: In(x),
            b: In(b),
            w: In(self.w),
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
            w: In(self.w),
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
}

#[test]
fn rows_in_registers_are_read_once() {
    let device = Device::plain();
    for dtype in Dtype::ALL {
        for extents in EXTENTS {
            Problem::new(&device, dtype, extents).run(&device);
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
