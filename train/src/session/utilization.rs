//! How much of the peak of its GPUs a run uses.

use std::collections::BTreeSet;

use meshgrad_models::Model;
use meshgrad_runtime::{DType, Device, Properties};

use crate::ranks::RunRanks;
use crate::{Result, memory};

/// What model FLOPs utilization (MFU) is measured by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Utilization {
    flops_per_token: f64,
    /// FLOP/s of all GPUs.
    peak: f64,
}

impl Utilization {
    /// Of `model` on `gpus` GPUs like `like`, on sequences of `tokens` tokens; `None` where its operations
    /// or the peak are not known, or a part of the parameters is not trained.
    pub(super) fn of(
        model: &impl Model,
        like: &Properties,
        dtype: DType,
        gpus: usize,
        tokens: usize,
    ) -> Option<Utilization> {
        let peak = peak(like, dtype)?;
        let is_whole = model.trained().len() == model.params().len();
        let flops_per_token = model.flops_per_token(tokens).filter(|_| is_whole)?;
        Some(Utilization { flops_per_token, peak: peak * gpus as f64 })
    }

    pub(super) fn at(&self, tokens_per_s: f64) -> f64 {
        tokens_per_s * self.flops_per_token / self.peak
    }
}

/// The number of devices on which all ranks compute, which threads may share. All ranks make this call
/// with their own.
///
/// # Errors
/// When ranks cannot communicate.
pub(super) fn devices(ranks: &RunRanks<'_>, own: &Device) -> Result<usize> {
    let all = ranks.gather(&(memory::host(), own.to_string()))?;
    Ok(all.into_iter().collect::<BTreeSet<(String, String)>>().len())
}

/// The FLOP/s of a device, if known.
pub(super) fn peak(properties: &Properties, dtype: DType) -> Option<f64> {
    let gpu = properties.gpu.as_ref().filter(|_| dtype == DType::BF16)?;
    gpu.peak_bf16_flops()
}

#[cfg(test)]
mod tests {
    use meshgrad_autograd::Module;
    use meshgrad_runtime::GpuProperties;

    use super::*;
    use crate::config::Config;
    use crate::decoder;

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
    fn utilization_is_the_share_of_the_peak_of_all_gpus() {
        let config = Config::parse::<decoder::Tables>("", "the test", &[]).unwrap();
        let model = decoder::model(&config, 300, None).unwrap();
        let of = |like, gpus| Utilization::of(&model, &gpu(like), DType::BF16, gpus, 256);
        let two = of("NVIDIA H200", 2).unwrap();
        let per_token = model.flops_per_token(256).unwrap();
        assert_eq!(two.at(0.5 * 2.0 * 989.5e12 / per_token), 0.5);
        assert_eq!(of("NVIDIA H200", 1).unwrap().at(1e6), 2.0 * two.at(1e6));

        assert_eq!(of("NVIDIA H200 (meshgrad emulator)", 1), None);
        let f32 = Utilization::of(&model, &gpu("NVIDIA H200"), DType::F32, 1, 256);
        assert_eq!(f32, None);
        model.embedding.as_ref().unwrap().freeze();
        assert_eq!(of("NVIDIA H200", 1), None);
    }
}
