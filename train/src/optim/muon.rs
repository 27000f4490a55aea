//! Muon: momentum with orthogonal updates of matrices.

use meshgrad_error::bail;
use meshgrad_runtime::ops::{self, StepScalars};
use meshgrad_runtime::{Accumulator, DType, Function, Number, Signature, Tensor};

use super::assign::{assign, averaged, map};
use super::groups::parse;
use super::optimizer_part::viewed;
use super::slots::{Slot, Slots, check_count, zeros};
use super::{AdamW, Granularity, Groups, MuonConfig, OptimizerPart, OptimizerState, UpdateRule};
use crate::Result;

const NAME: &str = "muon";

static MOMENTUM: Signature =
    Signature::new("muon_momentum", "buffer: F[~], gradient: F[~], scale: F[~] -> buffer: F[~]", 4);
static NESTEROV: Signature = Signature::new(
    "muon_nesterov",
    "gradient: F[~], buffer: F[~], scale: F[~] -> direction: F[~]",
    4,
);
static NORMALIZE: Signature =
    Signature::new("muon_normalize", "x: F[~], squares: F[~] -> y: F[~]", 2);
static COMBINE: Signature = Signature::new("muon_combine", "x: F[~], y: F[~] -> z: F[~]", 3);
static STEP: Signature = Signature::new(
    "muon_step",
    "param: F[~], update: F[~], learning_rate: F[~], scale: F[~] -> param: F[~]",
    6,
);

/// Muon (Jordan et al. 2024), in the order of `torch.optim.Muon`:
///
/// ```text
/// g         = scale * gradient
/// buffer    = buffer + (1 - momentum) * (g - buffer)
/// direction = g + momentum * (buffer - g)               with Nesterov, else the buffer
/// param     = param * (1 - learning_rate * weight_decay)
///             - learning_rate * factor * orthogonalized(direction)
/// ```
///
/// Orthogonalizing sets all singular values to about 1. It repeats a Newton-Schulz iteration on X,
/// the direction divided by its norm and transposed if it has more rows than columns:
///
/// ```text
/// A = X X^T
/// X = a X + (b A + c A A) X
/// ```
///
/// [`AdjustLearningRate`](super::AdjustLearningRate) gives the factor. A matrix whose direction has a
/// norm below [`MuonConfig::eps`], such as a router with one expert per token, is not updated.
///
/// Parameters with more than two dims are lists of matrices, such as the weights of experts. AdamW
/// updates parameters with fewer than two dims and those of [`MuonConfig::adamw_names`].
///
/// The state is `momentum_buffer`, f32 (f64 for f64), and AdamW's. A bf16 matrix is rounded to
/// nearest.
pub struct Muon {
    config: MuonConfig,
    matrices: Slots<Tensor>,
    others: AdamW,
    /// For each part, whether it is in `matrices`.
    is_matrix: Vec<bool>,
}

/// Selects the parameters that Muon updates itself; its AdamW updates the others.
pub(crate) struct Matrices {
    adamw_names: Vec<glob::Pattern>,
}

impl Matrices {
    pub(crate) fn new(config: &MuonConfig) -> Result<Matrices> {
        let patterns = config.adamw_names.iter().map(|pattern| parse(pattern));
        Ok(Matrices { adamw_names: patterns.collect::<Result<_>>()? })
    }

    pub(crate) fn contains(&self, name: &str, shape: &[usize]) -> bool {
        let mut patterns = self.adamw_names.iter();
        shape.len() > 1 && !patterns.any(|pattern| pattern.matches(name))
    }
}

impl Muon {
    /// Muon of `parts` with zero state.
    ///
    /// # Errors
    /// For a part of a matrix, a constant outside of its range, another dtype of products than bf16 and
    /// f32, or an invalid pattern; as [`AdamW::new`].
    pub fn new(parts: &[OptimizerPart], config: MuonConfig, groups: &Groups) -> Result<Muon> {
        config.ranges().check(NAME)?;
        match config.product_dtype {
            DType::BF16 | DType::F32 => (),
            dtype => bail!(Invalid, "muon: products cannot be {dtype}; use bf16 or f32"),
        }
        let matrices = Matrices::new(&config)?;
        let is_matrix = |part: &OptimizerPart| matrices.contains(part.name(), part.global_shape());
        let is_matrix: Vec<bool> = parts.iter().map(is_matrix).collect();
        let chosen = |matrix: bool| -> Vec<&OptimizerPart> {
            let choices = parts.iter().zip(&is_matrix);
            let chosen = choices.filter(|(_, is_matrix)| **is_matrix == matrix);
            chosen.map(|(part, _)| part).collect()
        };
        let matrices = Slots::new(chosen(true), groups, config.weight_decay, |part, value| {
            part.matrices(NAME)?;
            zeros(value, value.dtype().accumulator())
        })?;
        Ok(Muon {
            matrices,
            others: AdamW::of(&chosen(false), config.adamw, groups)?,
            is_matrix,
            config,
        })
    }

    fn update(
        &self,
        slot: &Slot<Tensor>,
        [param, gradient]: [&Tensor; 2],
        StepScalars { learning_rate, scale, .. }: StepScalars<'_>,
    ) -> Result<()> {
        let [count, rows, columns] = slot.part.matrices(NAME)?;
        let buffer = &slot.state;
        let momentum = Momentum(self.config.momentum);

        assign(&MOMENTUM, &momentum, [buffer, gradient, scale], buffer)?;
        let direction = match self.config.nesterov {
            true => {
                let inputs = [gradient, buffer, scale];
                map(&NESTEROV, &Nesterov(momentum), inputs, buffer.dtype())?
            }
            false => buffer.clone(),
        };
        let direction = viewed(&direction, &[count, rows, columns])?;
        let update = viewed(&orthogonalized(&direction, &self.config)?, param.shape())?;

        let step = Step {
            weight_decay: slot.settings.weight_decay,
            factor: self.config.adjust_learning_rate.factor(rows, columns),
        };
        let inputs = [param, &update, learning_rate, scale];
        assign(&STEP, &step, inputs, param)
    }
}

impl UpdateRule for Muon {
    fn name(&self) -> &str {
        NAME
    }

    fn granularity(&self) -> Granularity {
        Granularity::Matrix
    }

    fn state(&self) -> Vec<OptimizerState> {
        let mut state = vec![self.matrices.state("momentum_buffer", Some)];
        state.extend(self.others.state());
        state
    }

    fn step(&mut self, gradients: &[Tensor], scalars: StepScalars<'_>) -> Result<()> {
        let (mut matrices, mut others) = (Vec::new(), Vec::new());
        check_count(self.is_matrix.len(), gradients)?;
        for (gradient, is_matrix) in gradients.iter().zip(&self.is_matrix) {
            match is_matrix {
                true => matrices.push(gradient.clone()),
                false => others.push(gradient.clone()),
            }
        }
        self.matrices
            .each(&matrices, scalars, |slot, tensors, now| self.update(slot, tensors, now))?;
        self.others.step(&others, scalars)
    }
}

/// The Newton-Schulz iterations of [`Muon`] on `x`, [count, rows, columns].
fn orthogonalized(x: &Tensor, config: &MuonConfig) -> Result<Tensor> {
    let [a, b, c] = config.coefficients;
    let (dtype, products) = (x.dtype(), config.product_dtype);
    let squares = ops::sum(&ops::square(x)?, &[-2, -1])?;
    let squares = squares.unsqueeze(1)?.unsqueeze(2)?;
    let unit = map(&NORMALIZE, &Normalize { eps: config.eps }, [x, &squares], dtype)?;

    let is_tall = x.extent(-2)? > x.extent(-1)?;
    let oriented = |x: Tensor| match is_tall {
        true => x.transpose(-2, -1),
        false => Ok(x),
    };
    let mut x = oriented(unit)?;
    for _ in 0..config.iterations {
        let gram = product(&x, &x.transpose(-2, -1)?, products)?;
        let square = product(&gram, &gram, products)?;
        let polynomial = map(&COMBINE, &Combine(b, c), [&gram, &square], dtype)?;
        let rest = product(&polynomial, &x, products)?;
        x = map(&COMBINE, &Combine(a, 1.0), [&x, &rest], dtype)?;
    }
    oriented(x)
}

/// a b. If `dtype` is bf16, the operands are rounded to bf16 and the sums are f32.
fn product(a: &Tensor, b: &Tensor, dtype: DType) -> Result<Tensor> {
    if dtype != DType::BF16 {
        return ops::matmul(a, b);
    }
    let shape = a.shape().with(a.dim("matmul", -1)?, b.extent(-1)?);
    let mut sum = Accumulator::new(a.device(), shape, DType::F32)?;
    ops::matmul_into(&ops::cast(a, dtype)?, &ops::cast(b, dtype)?, &mut sum)?;
    ops::cast(sum.total()?, a.dtype())
}

#[derive(Clone, Copy)]
struct Momentum(f64);

impl Function<3> for Momentum {
    #[inline(always)]
    fn value<W: Number>(&self, [buffer, gradient, scale]: [W; 3]) -> W {
        scale.if_finite(averaged(self.0, buffer, scale * gradient), buffer)
    }
}

struct Nesterov(Momentum);

impl Function<3> for Nesterov {
    #[inline(always)]
    fn value<W: Number>(&self, [gradient, buffer, scale]: [W; 3]) -> W {
        let Momentum(momentum) = self.0;
        averaged(momentum, buffer, scale * gradient)
    }
}

struct Normalize {
    eps: f64,
}

impl Function<2> for Normalize {
    #[inline(always)]
    fn value<W: Number>(&self, [x, squares]: [W; 2]) -> W {
        let (norm, eps) = (squares.sqrt(), W::constant(self.eps));
        // A smaller direction is rounding noise, which the iteration would make a full update.
        norm.if_lt(eps, W::constant(0.0), x / norm)
    }
}

/// Factors of two operands.
struct Combine(f64, f64);

impl Function<2> for Combine {
    #[inline(always)]
    fn value<W: Number>(&self, [x, y]: [W; 2]) -> W {
        W::constant(self.0) * x + W::constant(self.1) * y
    }
}

struct Step {
    weight_decay: f64,
    factor: f64,
}

impl Function<4> for Step {
    #[inline(always)]
    fn value<W: Number>(&self, [param, update, learning_rate, scale]: [W; 4]) -> W {
        let kept = param * (W::ONE - learning_rate * W::constant(self.weight_decay));
        let new = kept - learning_rate * W::constant(self.factor) * update;
        scale.if_finite(new, param)
    }
}
