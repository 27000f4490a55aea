//! What a configuration's values are for the libraries: the optimizer, and how a model computes.

use meshgrad_autograd::Param;
use meshgrad_models::Compute;
use meshgrad_runtime::DType;

use crate::Result;
use crate::config::{Algorithm, ComputeDType, OptimizerConfig, TrainConfig};
use crate::optim::{
    AdamW, AdamWConfig, Groups, Lion, Matrices, Muon, MuonConfig, OptimizerPart, Sgd, UpdateRule,
};

/// Creates the update rule of `config` for `parts` of a model that trains `params`. `seed` is the
/// run's seed, used for stochastic rounding.
///
/// # Errors
/// When the configuration is invalid or does not fit the parameters; when memory runs out.
pub fn rule(
    config: &OptimizerConfig,
    parts: &[OptimizerPart],
    params: &[Param],
    seed: u64,
) -> Result<Box<dyn UpdateRule>> {
    let names: Vec<&str> = params.iter().map(Param::name).collect();
    let groups = &Groups::new(config.groups.clone(), &names)?;
    check_rounding(&config.algorithm, params)?;
    let seeded = |constants: &AdamWConfig| AdamWConfig { seed, ..*constants };
    Ok(match &config.algorithm {
        Algorithm::AdamW(constants) => Box::new(AdamW::new(parts, seeded(constants), groups)?),
        Algorithm::Sgd(constants) => Box::new(Sgd::new(parts, *constants, groups)?),
        Algorithm::Lion(constants) => Box::new(Lion::new(parts, *constants, groups)?),
        Algorithm::Muon(constants) => {
            let adamw = seeded(&constants.adamw);
            let constants = MuonConfig { adamw, ..constants.clone() };
            Box::new(Muon::new(parts, constants, groups)?)
        }
    })
}

/// Checks that stochastic rounding has an effect on one of the model's parameters.
fn check_rounding(algorithm: &Algorithm, params: &[Param]) -> Result<()> {
    match algorithm {
        Algorithm::AdamW(constants) => constants.check_rounding(params),
        Algorithm::Muon(constants) => {
            let matrices = Matrices::new(constants)?;
            let is_matrix = |param: &&Param| matrices.contains(param.name(), param.shape());
            let others = params.iter().filter(|param| !is_matrix(param));
            constants.adamw.check_rounding(others)
        }
        Algorithm::Sgd(_) | Algorithm::Lion(_) => Ok(()),
    }
}

/// How the passes of training compute.
pub(crate) fn compute(config: &TrainConfig) -> Compute {
    Compute { dtype: dtype(config.dtype), checkpointing: config.activation_checkpointing }
}

/// The dtype that a configuration names.
pub fn dtype(choice: ComputeDType) -> DType {
    match choice {
        ComputeDType::F32 => DType::F32,
        ComputeDType::Bf16 => DType::BF16,
    }
}
