//! How much of the peak of its GPUs a run uses.

use meshgrad_models::Model;
use meshgrad_runtime::{DType, Properties};

/// What model FLOPs utilization (MFU) is measured by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Utilization {
    flops_per_token: f64,
    /// FLOP/s of all ranks.
    peak: f64,
}

impl Utilization {
    /// Of `model` on ranks with devices like `like`, on sequences of `tokens` tokens; `None` where its
    /// operations or the peak are not known.
    pub(super) fn of(
        model: &impl Model,
        like: &Properties,
        dtype: DType,
        ranks: usize,
        tokens: usize,
    ) -> Option<Utilization> {
        let peak = peak(like, dtype)?;
        let flops_per_token = model.flops_per_token(tokens)?;
        Some(Utilization { flops_per_token, peak: peak * ranks as f64 })
    }

    pub(super) fn at(&self, tokens_per_s: f64) -> f64 {
        tokens_per_s * self.flops_per_token / self.peak
    }
}

/// The FLOP/s of a device, if known.
pub(super) fn peak(properties: &Properties, dtype: DType) -> Option<f64> {
    let gpu = properties.gpu.as_ref().filter(|_| dtype == DType::BF16)?;
    gpu.peak_bf16_flops()
}

#[cfg(test)]
mod tests {
    use meshgrad_runtime::GpuProperties;

    use super::*;
    use crate::config::Config;
    use crate::qwen3;

    fn gpu(model: &str) -> Properties {
        Properties {
            name: "cuda:0".to_owned(),
            threads: 0,
            simd: "ptx",
            native_bf16: true,
            gpu: Some(GpuProperties {
                model: model.to_owned(),
                compute_capability: (9, 0),
                multiprocessors: 132,
                memory: 1 << 30,
                l2_cache: 1 << 20,
                shared_memory: 1 << 17,
            }),
        }
    }

    #[test]
    fn utilization_is_the_share_of_the_peak_of_all_ranks() {
        let config = Config::parse::<qwen3::Tables>("", "the test", &[]).unwrap();
        let model = qwen3::model(&config, 300, None).unwrap();
        let of = |like, ranks| Utilization::of(&model, &gpu(like), DType::BF16, ranks, 256);
        let two = of("NVIDIA H200", 2).unwrap();
        let per_token = model.flops_per_token(256).unwrap();
        assert_eq!(two.at(0.5 * 2.0 * 989.5e12 / per_token), 0.5);
        assert_eq!(of("NVIDIA H200", 1).unwrap().at(1e6), 2.0 * two.at(1e6));

        assert_eq!(of("NVIDIA H200 (meshgrad emulator)", 1), None);
        let f32 = Utilization::of(&model, &gpu("NVIDIA H200"), DType::F32, 1, 256);
        assert_eq!(f32, None);
    }
}
