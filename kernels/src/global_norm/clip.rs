//! The scale factor of gradients.

use crate::assembler::{In, Kernel, Launch, Out, Ptx, Target, Variant};
use crate::params;

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

params! {
    /// Arguments of [`ClipScale`].
    pub struct ClipScaleArguments => Call {
        /// One f32.
        norm: In,
        /// One f32.
        weight: In,
        /// One f32.
        scale: Out,
        /// One f32.
        mean_norm: Out,
        /// The largest mean norm that is not clipped; ignored by kernels that do not clip.
        max_norm: f64,
    }
}

impl Variant for ClipScale {
    type Arguments = ClipScaleArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let Call { norm, weight, scale, mean_norm, max_norm } = self.parameters(k);

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
