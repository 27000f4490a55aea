//! The norm of gradients whose rows are divided over ranks.

use meshgrad_error::{bail, error};
use meshgrad_runtime::{DType, Error, Result, Tensor, ops};

use crate::Param;

/// The L2 norm of the gradients of parameters with homes. An f32 scalar without a sharding, equal
/// on all ranks.
pub(crate) fn norm_over_ranks(gradients: &[(Param, Tensor)]) -> Result<Tensor> {
    let mut counted = Vec::with_capacity(gradients.len());
    let mut unit = None;
    for (param, gradient) in gradients {
        let home = param.home().ok_or_else(|| no_home(param.name()))?;
        if home.kept().is_first_copy() {
            counted.push(gradient.local());
        }
        unit.get_or_insert_with(|| home.unit());
    }
    let Some((unit, (_, first))) = unit.zip(gradients.first()) else {
        bail!(Invalid, "norm: needs at least one gradient");
    };
    if counted.is_empty() {
        // Not of a first copy, so it counts as nothing.
        counted.push(first.local().slice(0, 0..0)?);
    }
    let squares = ops::sum_of_squares(&counted.iter().collect::<Vec<_>>())?;
    ops::cast(&ops::sqrt(&unit.sum(&squares)?)?, DType::F32)
}

fn no_home(name: &str) -> Error {
    error!(Invalid, "norm: `{name}` has no home; give homes to all trained parameters, or to none")
}
