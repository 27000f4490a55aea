//! Compares the gated linear unit and its gradient with f64 results.

use meshgrad_emulator::Counters;
use meshgrad_kernels::swiglu::{SwiGlu, SwiGluArguments, SwiGluGrad, SwiGluGradArguments};
use meshgrad_kernels::{Dtype, In, Out};

use crate::device::{Device, decoded, values};
use crate::traffic::{assert_once, assert_whole_sectors};

/// Fewer and more elements than one CTA handles; short and long rows; rows that are not whole
/// vectors; a single element.
const EXTENTS: [[usize; 2]; 6] = [[1, 8], [70, 64], [3, 1544], [5, 7], [2, 301], [1, 1]];

/// Operands on a device and on the host.
struct Problem {
    dtype: Dtype,
    rows: usize,
    features: usize,
    gate_up: Vec<f32>,
    dy: Vec<f32>,
    on_device: [u64; 2],
}

impl Problem {
    fn new(device: &Device, dtype: Dtype, [rows, features]: [usize; 2]) -> Problem {
        // The sigmoid of the gates ranges from almost 0 to almost 1.
        let gate_up = values(dtype, 2 * rows * features, 1);
        let gate_up: Vec<f32> = gate_up.iter().map(|x| x * 8.0).collect();
        let dy = values(dtype, rows * features, 2);
        let on_device = [&gate_up, &dy].map(|values| device.put_floats(dtype, values));
        Problem { dtype, rows, features, gate_up, dy, on_device }
    }

    fn extents(&self) -> [u64; 2] {
        [self.rows as u64, self.features as u64]
    }

    fn is_vectorized(&self, aligned: bool) -> bool {
        aligned && self.features.is_multiple_of(self.dtype.per_vector() as usize)
    }

    /// Runs the forward kernel and returns the bytes of y.
    fn forward(&self, device: &Device, aligned: bool) -> Vec<u8> {
        let bytes = self.dy.len() * self.dtype.size() as usize;
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
        let bytes = self.dy.len() * self.dtype.size() as usize;
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

    fn check(&self, y: &[u8], dgate_up: &[u8]) {
        let (y, dgate_up) = (decoded(self.dtype, y), decoded(self.dtype, dgate_up));
        for row in 0..self.rows {
            for column in 0..self.features {
                let at = row * self.features + column;
                let gate_at = 2 * row * self.features + column;
                let up_at = gate_at + self.features;
                let [gate, up] = [gate_at, up_at].map(|at| f64::from(self.gate_up[at]));
                let (s, dy) = (1.0 / (1.0 + (-gate).exp()), f64::from(self.dy[at]));
                self.assert_close("y", y[at], gate * s * up);
                let slope = s * (1.0 + gate * (1.0 - s));
                self.assert_close("dgate", dgate_up[gate_at], dy * up * slope);
                self.assert_close("dup", dgate_up[up_at], dy * gate * s);
            }
        }
    }

    #[track_caller]
    fn assert_close(&self, what: &str, found: f32, expected: f64) {
        let bound = match self.dtype {
            Dtype::F32 => 1e-6,
            Dtype::Bf16 => 4e-3,
        };
        let error = (f64::from(found) - expected).abs();
        let (dtype, rows, features) = (self.dtype, self.rows, self.features);
        assert!(
            error <= bound * (0.1 + expected.abs()),
            "{what} of {dtype:?} [{rows}, {features}]: {found}, not {expected}",
        );
    }
}

/// Aligned and unaligned kernels give the same bits and move each byte once.
#[test]
fn forward_and_gradient() {
    for device in Device::all() {
        for dtype in Dtype::ALL {
            for extents in EXTENTS {
                let problem = Problem::new(&device, dtype, extents);
                let results = [true, false].map(|aligned| {
                    let y = problem.forward(&device, aligned);
                    (y, problem.backward(&device, aligned))
                });
                assert!(results[0] == results[1], "{dtype:?} {extents:?}");
                problem.check(&results[0].0, &results[0].1);
            }
        }
    }
}

/// For a gate far from 0 the result is gate * up or 0, never NaN.
#[test]
fn large_gates_do_not_give_nan() {
    let device = Device::plain();
    let (features, size) = (8, 4);
    let gates = [-1e30, -200.0, -90.0, -0.0, 0.0, 90.0, 200.0, 1e30];
    let gate_up: Vec<f32> = gates.into_iter().chain([2.0; 8]).collect();
    let y = device.room(features * size);
    let arguments = SwiGluArguments {
        gate_up: In(device.put_floats(Dtype::F32, &gate_up)),
        y: Out(y),
        rows: 1,
        features: features as u32,
    };
    let variant = SwiGlu::new(Dtype::F32, [1, 8], true);
    let launch = variant.launch([1, 8]).unwrap();
    device.run(&variant, launch, &arguments);
    let y = device.floats(Dtype::F32, y, features);
    for (gate, y) in gates.into_iter().zip(y) {
        let expected = if gate > 0.0 { 2.0 * gate } else { 0.0 };
        assert!((y - expected).abs() <= 1e-30 + 1e-6 * expected.abs(), "{gate}: {y}");
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
