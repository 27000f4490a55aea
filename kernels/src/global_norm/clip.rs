//! The scale factor of gradients.

use crate::assembler::{Arguments, Kernel, Launch, Ptx, Target, Variant};

/// Threads per CTA; only the first stores.
const THREADS: u32 = 32;

/// mean = norm / weight and scale = min(1, max_norm / (mean + 1e-6)) / weight. Without clipping,
/// scale = 1 / weight. If the mean is not finite, scale is NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClipScale {
    clips: bool,
}

impl ClipScale {
    /// The kernel that limits the norm to `max_norm` if `clips`.
    pub fn new(clips: bool) -> ClipScale {
        ClipScale { clips }
    }

    /// The launch.
    pub fn launch(&self) -> Option<Launch> {
        Launch::new([1, 1, 1], THREADS)
    }
}

impl Variant for ClipScale {
    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let (norm, weight) = (k.pointer("norm"), k.pointer("weight"));
        let (scale, mean_norm) = (k.pointer("scale"), k.pointer("mean_norm"));
        let max_norm = k.u64_param("max_norm").to_f64_bits();

        let weight = weight.load::<f32>().to_f64();
        let mean = norm.load::<f32>().to_f64() / weight;
        let one = k.constant(1.0_f64);
        let clip = match self.clips {
            true => {
                let ratio = max_norm / (mean + 1e-6);
                ratio.lt(1.0).select(ratio, one)
            }
            false => one,
        };
        let finite = mean.abs().lt(f64::INFINITY);
        let factor = finite.select(clip / weight, f64::NAN);

        let first = k.thread().equals(0);
        scale.store_if(first, factor.to_f32());
        mean_norm.store_if(first, mean.to_f32());
        k.finish()
    }

    fn entry(&self) -> String {
        match self.clips {
            true => "clip_scale".to_owned(),
            false => "clip_scale_to_mean".to_owned(),
        }
    }
}

/// Arguments of [`ClipScale`]; pointers are device addresses.
#[derive(Clone, Copy, Debug)]
pub struct ClipScaleArguments {
    /// One f32, read.
    pub norm: u64,
    /// One f32, read.
    pub weight: u64,
    /// One f32, written.
    pub scale: u64,
    /// One f32, written.
    pub mean_norm: u64,
    /// The largest mean norm that is not clipped; ignored by kernels that do not clip.
    pub max_norm: f64,
}

impl ClipScaleArguments {
    /// The bytes of the kernel's parameters.
    pub fn arguments(&self) -> Arguments {
        let mut arguments = Arguments::new();
        for pointer in [self.norm, self.weight, self.scale, self.mean_norm] {
            arguments.push_pointer(pointer);
        }
        arguments.push_u64(self.max_norm.to_bits());
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_fill_the_parameter_space() {
        let arguments = ClipScaleArguments {
            norm: 1,
            weight: 2,
            scale: 3,
            mean_norm: 4,
            max_norm: 5.0,
        };
        for clips in [true, false] {
            let bytes = arguments.arguments();
            assert_eq!(
                bytes.bytes().len(),
                ClipScale::new(clips).ptx().parameter_bytes()
            );
        }
    }
}
