//! What the gated linear unit and its gradient read and write.

use meshgrad_emulator::Counters;
use meshgrad_kernels::swiglu::{SwiGlu, SwiGluArguments, SwiGluGrad, SwiGluGradArguments};
use meshgrad_kernels::{Dtype, In, Out};

use crate::device::{Device, values};
use crate::traffic::{assert_once, assert_whole_sectors};

/// Fewer and more elements than one CTA handles; short and long rows; rows that are not whole
/// vectors; a single element.
const EXTENTS: [[usize; 2]; 6] = [[1, 8], [70, 64], [3, 1544], [5, 7], [2, 301], [1, 1]];

/// Operands on a device.
struct Problem {
    dtype: Dtype,
    rows: usize,
    features: usize,
    on_device: [u64; 2],
}

impl Problem {
    fn new(device: &Device, dtype: Dtype, [rows, features]: [usize; 2]) -> Problem {
        // The sigmoid of the gates ranges from almost 0 to almost 1.
        let gate_up = values(dtype, 2 * rows * features, 1);
        let gate_up: Vec<f32> = gate_up.iter().map(|x| x * 8.0).collect();
        let dy = values(dtype, rows * features, 2);
        let on_device = [&gate_up, &dy].map(|values| device.put_floats(dtype, values));
        Problem { dtype, rows, features, on_device }
    }

    /// Bytes of y.
    fn bytes(&self) -> usize {
        self.rows * self.features * self.dtype.size() as usize
    }

    fn extents(&self) -> [u64; 2] {
        [self.rows as u64, self.features as u64]
    }

    fn is_vectorized(&self, aligned: bool) -> bool {
        aligned && self.features.is_multiple_of(self.dtype.per_vector() as usize)
    }

    /// Runs the forward kernel and returns the bytes of y.
    fn forward(&self, device: &Device, aligned: bool) -> Vec<u8> {
        let bytes = self.bytes();
        let y = device.room(bytes);
        let variant = SwiGlu::new(self.dtype, self.extents(), aligned);
        let arguments = SwiGluArguments {
            gate_up: In(self.on_device[0]),
            y: Out(y),
            rows: self.rows as u64,
            features: self.features as u32,
        };
        let launch = variant.launch(self.extents()).unwrap();
        let counters = device.run(&variant, launch, &arguments);
        self.assert_traffic(&counters, [2 * bytes, bytes], aligned);
        device.bytes(y, bytes)
    }

    /// Runs the backward kernel and returns the bytes of dgate_up.
    fn backward(&self, device: &Device, aligned: bool) -> Vec<u8> {
        let bytes = self.bytes();
        let dgate_up = device.room(2 * bytes);
        let variant = SwiGluGrad::new(self.dtype, self.extents(), aligned);
        let arguments = SwiGluGradArguments {
            gate_up: In(self.on_device[0]),
            dy: In(self.on_device[1]),
            dgate_up: Out(dgate_up),
            rows: self.rows as u64,
            features: self.features as u32,
        };
        let launch = variant.launch(self.extents()).unwrap();
        let counters = device.run(&variant, launch, &arguments);
        self.assert_traffic(&counters, [3 * bytes, 2 * bytes], aligned);
        device.bytes(dgate_up, 2 * bytes)
    }

    /// Asserts that each byte moves once, in whole sectors if rows are multiples of 32 bytes.
    #[track_caller]
    fn assert_traffic(&self, counters: &Counters, bytes: [usize; 2], aligned: bool) {
        assert_once(counters, bytes);
        let sectors = (self.features * self.dtype.size() as usize).is_multiple_of(32);
        if self.is_vectorized(aligned) && sectors {
            assert_whole_sectors(counters);
        }
    }
}

/// Aligned and unaligned kernels give the same bits and move each byte once.
#[test]
fn alignment_changes_no_bit() {
    let device = Device::plain();
    for dtype in Dtype::ALL {
        for extents in EXTENTS {
            let problem = Problem::new(&device, dtype, extents);
            let results = [true, false].map(|aligned| {
                let y = problem.forward(&device, aligned);
                (y, problem.backward(&device, aligned))
            });
            assert!(results[0] == results[1], "{dtype:?} {extents:?}");
        }
    }
}

/// Runs every kernel of the catalogue on a few short rows.
pub(crate) fn exercise(device: &Device) -> Vec<u8> {
    let mut bits = Vec::new();
    for dtype in Dtype::ALL {
        for aligned in [true, false] {
            let problem = Problem::new(device, dtype, [3, 64]);
            bits.extend(problem.forward(device, aligned));
            bits.extend(problem.backward(device, aligned));
        }
    }
    bits
}
