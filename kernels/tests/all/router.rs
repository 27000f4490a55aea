//! What routing and its gradient read and write, and out-of-range experts.

use meshgrad_kernel_catalogue::ROUTED_EXPERTS;
use meshgrad_kernels::faults::{Fault, FaultSite};
use meshgrad_kernels::router::{
    RouterTopK, RouterTopKArguments, RouterTopKGrad, RouterTopKGradArguments,
};
use meshgrad_kernels::{Dtype, In, Out};

use crate::device::{Device, encoded, values};
use crate::token_permute::lanes_of;
use crate::traffic::assert_moved;

/// [tokens, experts, choices]: one or several lanes per token; rows that are whole vectors and rows
/// that are not; all experts chosen; more choices than lanes; more experts than fit in registers.
const EXTENTS: [[usize; 3]; 9] = [
    [3, 1, 1],
    [9, 8, 2],
    [5, 24, 24],
    [17, 57, 4],
    [6, 128, 8],
    [2, 130, 40],
    [2, 512, 6],
    [2, 520, 5],
    [1, 601, 34],
];

/// Operands on a device and on the host.
struct Problem {
    dtype: Dtype,
    extents: [usize; 3],
    probabilities: Vec<f32>,
    on_device: [u64; 2],
}

/// The experts of each token, and their weights.
#[derive(Debug, PartialEq)]
struct Chosen {
    indices: Vec<i32>,
    weights: Vec<f32>,
}

impl Problem {
    /// Coarse values, so that there are ties; some zeros of either sign.
    fn new(device: &Device, dtype: Dtype, extents: [usize; 3]) -> Problem {
        let [tokens, experts, _] = extents;
        let coarse = |value: &f32| (value * 16.0).round() / 16.0;
        let probabilities: Vec<f32> =
            values(dtype, tokens * experts, 5).iter().map(coarse).collect();
        let bias: Vec<f32> = values(dtype, experts, 6).iter().map(coarse).collect();
        let on_device =
            [device.put_floats(dtype, &probabilities), device.put_floats(Dtype::F32, &bias)];
        Problem { dtype, extents, probabilities, on_device }
    }

    fn slots(&self) -> usize {
        self.extents[0] * self.extents[2]
    }

    fn choose(&self, device: &Device, flags: [bool; 2]) -> Chosen {
        let [tokens, experts, top_k] = self.extents;
        let size = self.dtype.size() as usize;
        let (weights, indices) = (device.room(size * self.slots()), device.room(4 * self.slots()));
        let variant = RouterTopK::new(self.dtype, experts as u32, true, flags);
        let arguments = RouterTopKArguments {
            probabilities: In(self.on_device[0]),
            bias: In(self.on_device[1]),
            weights: Out(weights),
            indices: Out(indices),
            tokens: tokens as u64,
            experts: experts as u32,
            top_k: top_k as u32,
        };
        let launch = variant.launch(tokens as u64).unwrap();
        let counters = device.run(&variant, launch, &arguments);

        // Renormalization reads the indices that the kernel has just written.
        let [biased, renormalize] = flags;
        let read = size * self.probabilities.len()
            + if biased { 4 * experts } else { 0 }
            + if renormalize { 4 * self.slots() } else { 0 };
        let written = (4 + size) * self.slots();
        assert_eq!(counters.unique_bytes_read, read as u64);
        if !counters.kernel.ends_with("loop") {
            // The bias is read for each token. All lanes of a token read each chosen probability
            // again; with renormalization, one lane reads it a second time.
            let of_row = size + if biased { 4 } else { 0 };
            let times = lanes_of(&counters) as usize + usize::from(renormalize);
            let again = if renormalize { 4 * self.slots() } else { 0 };
            let all = tokens * experts * of_row + times * size * self.slots() + again;
            assert_moved(&counters, [all, written], [read, written]);
        }
        assert_eq!(counters.total.bytes_written, written as u64);
        let indices = device.bytes(indices, 4 * self.slots());
        Chosen {
            indices: indices.as_chunks().0.iter().map(|it| i32::from_le_bytes(*it)).collect(),
            weights: device.floats(self.dtype, weights, self.slots()),
        }
    }

    /// The gradient for these choices, and the reported fault.
    fn gradient(
        &self,
        device: &Device,
        indices: &[i32],
        renormalize: bool,
    ) -> (Vec<f32>, Option<Fault>) {
        let [tokens, experts, top_k] = self.extents;
        let bytes: Vec<u8> = indices.iter().flat_map(|it| it.to_le_bytes()).collect();
        let word = device.put(&[0; 8]);
        let dprobabilities = device.room(self.probabilities.len() * self.dtype.size() as usize);
        let variant = RouterTopKGrad::new(self.dtype, experts as u32, true, renormalize);
        let arguments = RouterTopKGradArguments {
            probabilities: In(self.on_device[0]),
            indices: In(device.put(&bytes)),
            dweights: In(device.put_floats(self.dtype, &self.dweights())),
            dprobabilities: Out(dprobabilities),
            tokens: tokens as u64,
            experts: experts as u32,
            top_k: top_k as u32,
            faults: FaultSite::new(word, 3),
        };
        let launch = variant.launch(tokens as u64).unwrap();
        let counters = device.run(&variant, launch, &arguments);
        let all = device.floats(self.dtype, dprobabilities, self.probabilities.len());
        let fault = device.fault(word);
        let written = self.probabilities.len() * self.dtype.size() as usize;
        let fault_bytes = if fault.is_some() { 8 } else { 0 };
        assert_eq!(counters.unique_bytes_written as usize, written + fault_bytes);
        if fault.is_none() {
            assert_eq!(counters.total.bytes_written as usize, written);
            // Indices and dweights, and with renormalization the chosen probabilities.
            let size = self.dtype.size() as usize;
            let read = 4 + size + if renormalize { size } else { 0 };
            assert_eq!(counters.unique_bytes_read as usize, read * self.slots());
        }
        (all, fault)
    }

    fn dweights(&self) -> Vec<f32> {
        values(self.dtype, self.slots(), 7)
    }
}

const FLAGS: [[bool; 2]; 4] = [[false, false], [true, false], [false, true], [true, true]];

#[test]
fn rows_in_registers_are_read_once() {
    let device = Device::plain();
    for dtype in Dtype::ALL {
        for (extents, flags) in EXTENTS.into_iter().zip(FLAGS.into_iter().cycle()) {
            let problem = Problem::new(&device, dtype, extents);
            let chosen = problem.choose(&device, flags);
            for renormalize in [false, true] {
                let (_, fault) = problem.gradient(&device, &chosen.indices, renormalize);
                assert_eq!(fault, None);
            }
        }
    }
}

/// An out-of-range index has no gradient and is reported.
#[test]
fn out_of_range_indices_are_reported() {
    let device = Device::plain();
    let problem = Problem::new(&device, Dtype::Bf16, [2, 24, 2]);
    for (wild, reported) in [([3, 24, 5, 6], 24), ([3, -7, 5, 6], -7)] {
        let (slopes, fault) = problem.gradient(&device, &wild, false);
        let index = reported;
        assert_eq!(fault, Some(Fault { site: 3, index }));
        let dweights = problem.dweights();
        let mut expected = vec![0.0; 48];
        (expected[3], expected[24 + 5], expected[24 + 6]) = (dweights[0], dweights[2], dweights[3]);
        assert_eq!(slopes, expected);
    }
}

/// Runs every kernel of the catalogue, with one out-of-range index.
pub(crate) fn exercise(device: &Device) -> Vec<u8> {
    let mut bits = Vec::new();
    for dtype in Dtype::ALL {
        for experts in ROUTED_EXPERTS {
            let problem = Problem::new(device, dtype, [3, experts as usize, 3]);
            for flags in [[false, false], [true, true]] {
                let mut chosen = problem.choose(device, flags);
                bits.extend(encoded(dtype, &chosen.weights));
                chosen.indices[4] = experts as i32;
                if experts <= 128 {
                    let (slopes, _) = problem.gradient(device, &chosen.indices, flags[1]);
                    bits.extend(encoded(dtype, &slopes));
                }
            }
        }
    }
    bits
}
