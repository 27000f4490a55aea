//! Launches of random values and dropout.

use meshgrad_error::error;
use meshgrad_kernels::random::{
    Distribution, DistributionParams, Random, RandomArguments, RandomSpace,
};

use super::elementwise::Target;
use crate::launch::{Launcher, Operand, Plan, PlanError, float};
use crate::{DType, Key, Layout, Result, Tensor};

/// y\[i\] = f(word), or f(word, x\[i\]) for dropout, where word is the random word of `key` at the
/// global index of element i. `global_indices` maps elements to global indices.
pub(crate) fn random(
    gpu: &Launcher<'_>,
    (key, global_indices): (Key, &Layout),
    values: DistributionParams,
    x: Option<&Tensor>,
    y: &Target,
) -> Result<()> {
    let plan = plan(
        values.distribution(),
        global_indices,
        x.map(|x| with_dims_of(global_indices, Operand::of(x))).transpose()?,
        with_dims_of(global_indices, y.operand)?,
    );
    let plan = gpu.planned(plan)?;
    let arguments = RandomArguments {
        operand: x.map(|x| gpu.ptr(x)).transpose()?,
        result: y.address,
        key: key.words(),
        values,
        space: plan.space,
    };
    gpu.run(&plan.kernel, &arguments)
}

/// `operand` viewed in the shape of `indices`, which may split one of its dims.
///
/// # Errors
/// When `operand` has no such view.
fn with_dims_of(indices: &Layout, operand: Operand) -> Result<Operand> {
    let view = operand.layout.reshape(indices.shape())?;
    let layout = view.ok_or_else(|| {
        error!(
            Invalid,
            "reshape: shape {} has {} elements, but {} has {}",
            operand.layout.shape(),
            operand.layout.shape().elements(),
            indices.shape(),
            indices.shape().elements()
        )
    })?;
    Ok(Operand { layout, ..operand })
}

/// The plan of random values.
struct RandomPlan {
    kernel: Plan<Random>,
    space: RandomSpace,
}

fn plan(
    distribution: Distribution,
    global_indices: &Layout,
    x: Option<Operand>,
    y: Operand,
) -> Result<RandomPlan, PlanError> {
    let dtype = match distribution {
        Distribution::Mask => float(DType::F32)?,
        _ => float(y.dtype)?,
    };
    let space = RandomSpace::new(
        y.layout.shape(),
        y.layout.strides(),
        (global_indices.offset() as u64, global_indices.strides()),
        x.as_ref().map(|x| x.layout.strides()),
    )?;
    let aligned = y.is_aligned() && x.as_ref().is_none_or(Operand::is_aligned);
    let variant = Random::new(distribution, dtype, space.form(aligned));
    Ok(RandomPlan {
        kernel: Plan::new(variant.launch(y.layout.shape().elements() as u64), variant),
        space,
    })
}

#[cfg(test)]
mod tests {
    use meshgrad_kernels::elementwise::Layout as Form;

    use super::*;
    use crate::Region;

    fn form(region: &Region, offset: usize) -> Form {
        let key = Key::new(0).within(region);
        let global_indices = key.global_indices("test", region.shape()).unwrap();
        let y = Operand { dtype: DType::BF16, layout: Layout::contiguous(*region.shape(), offset) };
        let plan = plan(Distribution::Normal, &global_indices, None, y).unwrap();
        plan.kernel.variant.layout()
    }

    /// Whole rows of a matrix start at a Philox block and are contiguous; columns are strided.
    #[test]
    fn regions_choose_the_form() {
        let whole = Region::whole(&[8, 12]).unwrap();
        let (dims, wide) = (1, false);
        assert_eq!(form(&whole.slice(0, 2..7).unwrap(), 8), Form::Contiguous);
        assert_eq!(form(&whole, 1), Form::Strided { dims, wide });
        let unaligned = Region::whole(&[8, 13]).unwrap().slice(0, 3..5).unwrap();
        assert_eq!(form(&unaligned, 0), Form::Strided { dims, wide });
        let columns = whole.slice(1, 4..8).unwrap();
        assert_eq!(form(&columns, 0), Form::Strided { dims: 2, wide });
    }
}
