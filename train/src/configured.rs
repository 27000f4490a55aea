//! The optimizer that `[optimizer]` configures.

use meshgrad_runtime::DType;

use crate::Result;
use crate::config::{Algorithm, ComputeDType, OptimizerConfig};
use crate::optim::{AdamW, AdamWConfig, Groups, Lion, Muon, MuonConfig, Optimizer, Part, Sgd};

/// The optimizer of `config` for `parts` of a model whose parameters are named `names`. `seed` is
/// that of the run, for stochastic rounding.
///
/// # Errors
/// [`OptimError`](crate::optim::OptimError); when memory runs out.
pub fn optimizer(
    config: &OptimizerConfig,
    parts: &[Part],
    names: &[&str],
    seed: u64,
) -> Result<Box<dyn Optimizer>> {
    let groups = &Groups::new(config.groups.clone(), names)?;
    let seeded = |constants: &AdamWConfig| AdamWConfig { seed, ..*constants };
    Ok(match &config.algorithm {
        Algorithm::AdamW(constants) => Box::new(AdamW::new(parts, seeded(constants), groups)?),
        Algorithm::Sgd(constants) => Box::new(Sgd::new(parts, *constants, groups)?),
        Algorithm::Lion(constants) => Box::new(Lion::new(parts, *constants, groups)?),
        Algorithm::Muon(constants) => {
            let adamw = seeded(&constants.adamw);
            let constants = MuonConfig {
                adamw,
                ..constants.clone()
            };
            Box::new(Muon::new(parts, constants, groups)?)
        }
    })
}

/// The dtype that a configuration names.
pub fn dtype(choice: ComputeDType) -> DType {
    match choice {
        ComputeDType::F32 => DType::F32,
        ComputeDType::Bf16 => DType::BF16,
    }
}
