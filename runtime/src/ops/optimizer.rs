//! Optimizer ops: the global norm of gradients, clipping, and AdamW.
//!
//! Values that change from step to step are one-element f32 tensors, and nothing is read back, so a
//! whole step can be captured as a graph. Constants of a run are plain numbers.

mod squares;

pub use squares::sum_of_squares;

pub use crate::core::arguments::optimizer::{AdamWConstants, AdamWOperands, StepScalars};
use meshgrad_error::{bail, ensure};

use crate::cpu::optimizer::{self as kernels, Factors, Update};
use crate::cpu::random::Words;
use crate::cpu::strided::Source;
use crate::cpu::writes::Writes;
use crate::launch::global_norm;
use crate::launch::optimizer as launch;
use crate::{Call, Element, Float, Result, Signature, Tensor, for_float, ops};

static ADAMW_STEP: Signature = Signature::new(
    "adamw_step",
    "param: F[..], gradient: A[..], exp_avg: A[..], exp_avg_sq: A[..], \
     learning_rate: f32[], step: f32[], scale: f32[] -> param: F[..], exp_avg: A[..], exp_avg_sq: A[..]",
    16,
);
static GLOBAL_NORM: Signature = Signature::new("global_norm", "x: F[*] -> norm: f32[]", 2);
/// Checks two of the tensors: both are on one device, and they have one mesh and rank or no
/// sharding.
static GLOBAL_NORM_PAIR: Signature =
    Signature::new("global_norm", "first: F[*], other: G[*] -> norm: f32[]", 0);
static CLIP_SCALE: Signature =
    Signature::new("clip_scale", "norm: f32[], weight: f32[] -> scale: f32[], mean_norm: f32[]", 4);

pub(super) static SIGNATURES: &[&Signature] = &[&ADAMW_STEP, &GLOBAL_NORM, &CLIP_SCALE];

/// One step of AdamW in place (Loshchilov & Hutter 2019), in the order of `torch.optim.AdamW`:
///
/// ```text
/// g          = scale * gradient
/// param      = param * (1 - learning_rate * weight_decay)
/// exp_avg    = exp_avg + (1 - beta1) * (g - exp_avg)
/// exp_avg_sq = beta2 * exp_avg_sq + (1 - beta2) * g^2
/// param      = param - learning_rate / (1 - beta1^step) * exp_avg
///                      / (sqrt(exp_avg_sq) / sqrt(1 - beta2^step) + eps)
/// ```
///
/// If `scale` is not finite, nothing changes. A NaN or infinity in a gradient therefore never
/// reaches the parameters, even if the host reads the norm one step later.
///
/// # Shapes
/// `param` any shape, f64, f32 or bf16; the others have its shape and its accumulator dtype (f32;
/// f64 for f64). All except the gradient are contiguous and of mutable kinds.
///
/// A bf16 parameter is rounded to nearest, which drops changes below 2^-9 of its value. Train f32
/// parameters instead, or round stochastically ([`AdamWOperands::rounding`]).
///
/// # Errors
/// When a written tensor is a value or not contiguous; while the storage is in use; when two share
/// elements, or on a CPU for a step below 1 (a GPU then changes nothing).
pub fn adamw_step(
    param: &Tensor,
    gradient: &Tensor,
    exp_avg: &Tensor,
    exp_avg_sq: &Tensor,
    scalars: StepScalars<'_>,
    constants: AdamWConstants,
) -> Result<()> {
    let [param, gradient, exp_avg, exp_avg_sq] =
        [param, gradient, exp_avg, exp_avg_sq].map(Tensor::clone);
    let operands =
        AdamWOperands { param, gradient, exp_avg, exp_avg_sq, constants, rounding: None };
    adamw_step_many(&[operands], scalars)
}

/// [`adamw_step`] for many parameters in one parallel loop, or one launch on a GPU. The results
/// equal those of separate steps bit for bit.
///
/// The GPU needs a table of the parameters. This function uploads it at each call; use an
/// [`AdamWTable`] to keep it.
///
/// # Shapes
/// As [`adamw_step`], for each parameter; dtypes may differ, and several may be views of one
/// storage.
///
/// # Errors
/// As [`adamw_step`]; when the region of a rounding key has another shape. Shapes, dtypes and
/// layouts of all operands are checked before any is written.
pub fn adamw_step_many(operands: &[AdamWOperands<'_>], scalars: StepScalars<'_>) -> Result<()> {
    AdamWTable::default().step(operands, scalars)
}

/// A table of the parameters' addresses in GPU memory, kept from step to step; empty on a CPU. It
/// is uploaded when it changes, so run one step before you [capture](crate::Device::capture) the
/// next.
#[derive(Debug, Default)]
pub struct AdamWTable(launch::Table);

impl AdamWTable {
    /// Runs [`adamw_step_many`] with this table.
    ///
    /// # Errors
    /// As [`adamw_step_many`]; when the table has to be uploaded inside a capture.
    pub fn step(&mut self, operands: &[AdamWOperands<'_>], scalars: StepScalars<'_>) -> Result<()> {
        step_many(&mut self.0, operands, scalars)
    }
}

fn step_many(
    table: &mut launch::Table,
    operands: &[AdamWOperands<'_>],
    scalars: StepScalars<'_>,
) -> Result<()> {
    let calls: Result<Vec<Call>> = operands.iter().map(|one| check(one, scalars)).collect();
    let calls = calls?;
    let Some(call) = calls.last() else {
        return Ok(());
    };

    // Every parameter counts as an op. The call of the last one runs the kernel for all.
    let others = &calls[..calls.len() - 1];
    if call.device().is_gpu() {
        let gradients = operands.iter().map(|one| ops::contiguous(&one.gradient));
        let gradients: Vec<Tensor> = gradients.collect::<Result<_>>()?;
        others.iter().try_for_each(|call| call.launch(|_| Ok(())))?;
        return call.launch(|gpu| launch::adamw(gpu, table, operands, &gradients, scalars));
    }
    others.iter().try_for_each(|call| call.compute(|| Ok(())))?;
    call.compute(|| {
        let Some(now) = Now::read(call.name(), scalars)? else {
            return Ok(());
        };
        for dtype in [crate::DType::F64, crate::DType::F32, crate::DType::BF16] {
            let same = operands.iter().filter(|one| one.param.dtype() == dtype);
            let same: Vec<&AdamWOperands<'_>> = same.collect();
            for_float!(dtype, T => update::<T>(&same, &now))?;
        }
        Ok(())
    })
}

fn check(operands: &AdamWOperands<'_>, scalars: StepScalars<'_>) -> Result<Call> {
    let AdamWOperands { param, gradient, exp_avg, exp_avg_sq, .. } = operands;
    let StepScalars { learning_rate, step, scale } = scalars;
    let call =
        ADAMW_STEP.call(&[param, gradient, exp_avg, exp_avg_sq, learning_rate, step, scale])?;
    for written in [param, exp_avg, exp_avg_sq] {
        written.contiguous_range(call.name())?;
    }
    if let Some(key) = operands.rounding {
        key.indices_of(call.name(), param)?;
    }
    Ok(call)
}

/// The values of a step's scalars.
struct Now {
    learning_rate: f64,
    step: u32,
    scale: f64,
}

impl Now {
    fn read(op: &'static str, scalars: StepScalars<'_>) -> Result<Option<Now>> {
        let step = scalars.step.item::<f32>()?;
        if step.is_nan() || step < 1.0 {
            bail!(Invalid, "{op}: step is {step}; steps count from 1");
        }
        let scale = scalars.scale.item::<f32>()?;
        let learning_rate = scalars.learning_rate.item::<f32>()?.into();
        let now = Now { learning_rate, step: step as u32, scale: scale.into() };
        Ok(scale.is_finite().then_some(now))
    }
}

/// Updates parameters of one dtype.
fn update<T: Float>(operands: &[&AdamWOperands<'_>], now: &Now) -> Result<()> {
    let op = ADAMW_STEP.name();
    let params: Vec<&Tensor> = operands.iter().map(|one| &one.param).collect();
    let states: Vec<&Tensor> =
        operands.iter().flat_map(|one| [&one.exp_avg, &one.exp_avg_sq]).collect();
    let mut param_writes = Writes::<T>::new(op, &params)?;
    let mut state_writes = Writes::<T::Wide>::new(op, &states)?;
    let params = param_writes.parts(op, &params)?;
    let states = state_writes.parts(op, &states)?;

    let mut updates = Vec::with_capacity(operands.len());
    let mut states = states.into_iter();
    for (one, param) in operands.iter().zip(params) {
        let (Some(exp_avg), Some(exp_avg_sq)) = (states.next(), states.next()) else {
            break;
        };
        let gradient = Source::new(&one.gradient)?;
        let factors = Factors::new(one.constants, now.learning_rate, now.step, now.scale);
        updates.push(Update {
            param,
            gradient,
            exp_avg,
            exp_avg_sq,
            factors,
            words: words(one, now.step)?,
        });
    }
    kernels::adamw::<T>(updates);
    Ok(())
}

/// The random words for stochastic rounding, if the parameter has a rounding key.
fn words(one: &AdamWOperands<'_>, step: u32) -> Result<Option<Words>> {
    let words = one.rounding.map(|key| {
        let places = key.indices_of(ADAMW_STEP.name(), &one.param)?;
        Ok(Words::new(key.key().fold(step.into()), &places))
    });
    words.transpose()
}

/// The L2 norm over all elements of all `tensors`, which are whole on each rank. For sharded
/// tensors, see [`sum_of_squares`].
///
/// The squares are summed in f64, in blocks of each tensor and in the same order for any number of
/// threads. The norm is NaN or infinite if an element is.
///
/// # Shapes
/// Tensors of any shape, layout and float dtype; returns f32 \[\].
///
/// # Errors
/// For no tensors; when the operands are on several devices.
pub fn global_norm(tensors: &[&Tensor]) -> Result<Tensor> {
    let op = GLOBAL_NORM.name();
    let Some((first, others)) = tensors.split_first() else {
        bail!(Invalid, "{op}: needs at least one tensor");
    };
    let mut call = GLOBAL_NORM.call(&[first])?;
    if call.device().is_gpu() {
        return norm_on_gpu(call, tensors);
    }
    for other in others {
        GLOBAL_NORM_PAIR.call(&[first, other])?;
        GLOBAL_NORM.call(&[other])?.compute(|| Ok(()))?;
    }

    let mut norm = call.output(0)?;
    let blocks = kernels::blocks(tensors);
    let mut sums = call.workspace(blocks.len(), f64::DTYPE)?;
    call.compute(|| {
        let total = kernels::sum_of_squares(&blocks, sums.slice()?)?;
        norm.slice()?[0] = total.sqrt() as f32;
        Ok(())
    })?;
    Ok(norm.finish())
}

/// Launches one kernel per tensor, so the number of tensors is not limited.
fn norm_on_gpu(mut call: Call, tensors: &[&Tensor]) -> Result<Tensor> {
    let norm = call.output(0)?;
    let partials = call.workspace(global_norm::partials(tensors), f64::DTYPE)?;
    let mut next = 0;
    for (at, tensor) in tensors.iter().enumerate() {
        GLOBAL_NORM_PAIR.call(&[tensors[0], tensor])?;
        let of_tensor = GLOBAL_NORM.call(&[tensor])?;
        let x = ops::contiguous(tensor)?;
        of_tensor.launch(|gpu| {
            next = global_norm::sum_squares(gpu, &x, &partials, next)?;
            match at + 1 == tensors.len() {
                true => global_norm::norm_of_partials(gpu, &partials, &norm),
                false => Ok(()),
            }
        })?;
    }
    Ok(norm.finish())
}

/// The factor that scales and clips gradients. The gradients are sums over `weight` samples or
/// tokens and have global norm `norm`; times the factor, they are means with norm at most
/// `max_norm`:
///
/// ```text
/// mean_norm = norm / weight
/// scale     = min(1, max_norm / (mean_norm + 1e-6)) / weight
/// ```
///
/// as in `torch.nn.utils.clip_grad_norm_`. Returns (scale, mean_norm). A `max_norm` that is
/// infinite or not positive does not clip: scale = 1 / weight.
///
/// If the mean norm is not finite (an overflow in a gradient, or weight 0), the scale is NaN, and
/// [`adamw_step`] then changes nothing.
///
/// # Shapes
/// `norm` and `weight` f32 \[\]; returns two f32 \[\].
///
/// # Errors
/// When `max_norm` is NaN.
pub fn clip_scale(norm: &Tensor, weight: &Tensor, max_norm: f64) -> Result<(Tensor, Tensor)> {
    let mut call = CLIP_SCALE.call(&[norm, weight])?;
    ensure!(
        !max_norm.is_nan(),
        Invalid,
        "{}: max_norm is NaN; pass 0 to disable clipping",
        call.name()
    );

    let (mut scale, mut mean_norm) = (call.output(0)?, call.output(1)?);
    if call.device().is_gpu() {
        let operands = [norm, weight];
        call.launch(|gpu| global_norm::clip_scale(gpu, operands, max_norm, &scale, &mean_norm))?;
        return Ok((scale.finish(), mean_norm.finish()));
    }
    call.compute(|| {
        let weight = f64::from(weight.item::<f32>()?);
        let mean = f64::from(norm.item::<f32>()?) / weight;
        let clip = match max_norm > 0.0 {
            true => (max_norm / (mean + 1e-6)).min(1.0),
            false => 1.0,
        };
        let factor = if mean.is_finite() { clip / weight } else { f64::NAN };
        scale.slice()?[0] = factor as f32;
        mean_norm.slice()?[0] = mean as f32;
        Ok(())
    })?;
    Ok((scale.finish(), mean_norm.finish()))
}

#[cfg(test)]
mod tests;
