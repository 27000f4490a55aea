//! Random values: uniform, normal, dropout. The value of an element depends only on the key and on
//! its global index, not on layout, threads, device or sharding (see [`Key`](crate::Key)).
//!
//! Dtypes differ by rounding only. A uniform f32 differs from the f64 value by less than 2^-24 of
//! the interval's length, and a bf16 is the rounded f32.

mod boxes;

use meshgrad_error::ensure;
use meshgrad_kernels::random::DistributionParams;

use boxes::by_boxes;

use crate::core::dtype::not_a_float;
use crate::cpu::random::{self as kernels, Variate, Words};
use crate::for_float;
use crate::launch::Launcher;
use crate::launch::elementwise::Target;
use crate::launch::random as launch;
use crate::{
    Call, DType, Device, Element, Float, Key, Layout, RegionKey, Result, Shape, Signature, Tensor,
    UninitTensor, ops,
};

static UNIFORM_INTO: Signature = Signature::new("uniform_into", "into: F[..] -> into: F[..]", 2);
static NORMAL_INTO: Signature = Signature::new("normal_into", "into: F[..] -> into: F[..]", 40);
static DROPOUT: Signature = Signature::new("dropout", "x: F[..] -> y: F[..]", 1).linear_in(&["x"]);
static DROPOUT_GRAD: Signature =
    Signature::new("dropout_grad", "dy: F[..] -> dx: F[..]", 1).linear_in(&["dy"]);

pub(super) static SIGNATURES: &[&Signature] =
    &[&UNIFORM_INTO, &NORMAL_INTO, &DROPOUT, &DROPOUT_GRAD];

/// Fills `into` with values uniform in [low, high).
///
/// A value is low + (high - low) u, where u in [0, 1) is a multiple of 2^-24 (2^-53 in f64). A
/// result that rounds to `high` becomes the largest value below it. If `low == high`, all values
/// are `low`.
///
/// # Shapes
/// `into` contiguous, any shape, f64, f32 or bf16.
///
/// # Errors
/// When `low > high`, when either is not finite, when `into` is not contiguous, or when the key's
/// region has another shape; when the tensor is a value; while the storage is in use.
pub fn uniform_into(into: &Tensor, key: impl Into<RegionKey>, low: f64, high: f64) -> Result<()> {
    let interval = Interval::new(UNIFORM_INTO.name(), low, high)?;
    let (call, key) = (UNIFORM_INTO.call(&[into])?, key.into());
    let drawn = by_boxes(&key, into, |part, key| {
        uniform(part.device(), part.shape(), part.dtype(), key, low, high)
    })?;
    if let Some(drawn) = drawn {
        return ops::copy_into(&drawn, &into.local());
    }
    let indices = KeyedIndices::of(call.name(), key, into)?;
    let range = into.contiguous_range(call.name())?;
    if call.device().is_gpu() {
        return indices.fill_on_gpu(&call, interval.values(into.dtype())?, into);
    }
    call.compute(|| {
        for_float!(into.dtype(), T => {
            fill_uniform::<T>(&indices.words(), interval, &mut into.write("uniform_into")?[range]);
            Ok(())
        })
    })
}

/// A new tensor with values uniform in [low, high); see [`uniform_into`].
///
/// # Errors
/// As [`uniform_into`]; for a dtype without arithmetic.
pub fn uniform(
    device: &Device,
    shape: &[usize],
    dtype: DType,
    key: impl Into<RegionKey>,
    low: f64,
    high: f64,
) -> Result<Tensor> {
    let interval = Interval::new("uniform", low, high)?;
    let out = RandomOutput::new("uniform", device, shape, dtype, key.into())?;
    let values = interval.values(dtype)?;
    out.fill(values, |words, out| {
        for_float!(dtype, T => {
            fill_uniform::<T>(words, interval, out.slice()?);
            Ok(())
        })
    })
}

/// Fills `into` with normal values with mean `mean` and standard deviation `std`.
///
/// A value is mean + std z, where z is the normal quantile of a uniform value of 32 bits (64 in
/// f64), so |z| < 6.4 (9.2 in f64). No C library function is used, so the bits are the same on
/// every machine.
///
/// # Shapes
/// `into` contiguous, any shape, f64, f32 or bf16.
///
/// # Errors
/// When `std` is negative, when `mean` or `std` is not finite, when `into` is not contiguous, or
/// when the key's region has another shape; when the tensor is a value; while the storage is in
/// use.
pub fn normal_into(into: &Tensor, key: impl Into<RegionKey>, mean: f64, std: f64) -> Result<()> {
    let bell = Bell::new(NORMAL_INTO.name(), mean, std)?;
    let (call, key) = (NORMAL_INTO.call(&[into])?, key.into());
    let drawn = by_boxes(&key, into, |part, key| {
        normal(part.device(), part.shape(), part.dtype(), key, mean, std)
    })?;
    if let Some(drawn) = drawn {
        return ops::copy_into(&drawn, &into.local());
    }
    let indices = KeyedIndices::of(call.name(), key, into)?;
    let range = into.contiguous_range(call.name())?;
    if call.device().is_gpu() {
        return indices.fill_on_gpu(&call, bell.values(), into);
    }
    call.compute(|| {
        for_float!(into.dtype(), T => {
            fill_normal::<T>(&indices.words(), bell, &mut into.write("normal_into")?[range]);
            Ok(())
        })
    })
}

/// A new tensor with normal values with mean `mean` and standard deviation `std`; see
/// [`normal_into`].
///
/// # Errors
/// As [`normal_into`]; for a dtype without arithmetic.
pub fn normal(
    device: &Device,
    shape: &[usize],
    dtype: DType,
    key: impl Into<RegionKey>,
    mean: f64,
    std: f64,
) -> Result<Tensor> {
    let bell = Bell::new("normal", mean, std)?;
    let out = RandomOutput::new("normal", device, shape, dtype, key.into())?;
    out.fill(bell.values(), |words, out| {
        for_float!(dtype, T => {
            fill_normal::<T>(words, bell, out.slice()?);
            Ok(())
        })
    })
}

/// Sets each element of `x` to zero with `probability`, and divides the others by 1 - `probability`
/// (Srivastava et al. 2014). Returns `x` itself if `probability` is 0.
///
/// No mask is saved: [`dropout_grad`] generates the same mask from the key.
///
/// # Shapes
/// `x` any shape, f64, f32 or bf16; returns the same.
///
/// # Errors
/// When `probability` is not in [0, 1), or when the key's region has another shape.
pub fn dropout(x: &Tensor, key: impl Into<RegionKey>, probability: f64) -> Result<Tensor> {
    drop_elements(&DROPOUT, x, key.into(), probability)
}

/// The gradient of [`dropout`] with respect to its operand, for the same key and probability.
///
/// # Shapes
/// As [`dropout`].
///
/// # Errors
/// As [`dropout`].
pub fn dropout_grad(dy: &Tensor, key: impl Into<RegionKey>, probability: f64) -> Result<Tensor> {
    drop_elements(&DROPOUT_GRAD, dy, key.into(), probability)
}

/// The mask of [`dropout`]: a bool tensor that is true for elements that are kept, with probability
/// 1 - `probability`.
///
/// # Errors
/// As [`dropout`].
pub fn dropout_mask(
    device: &Device,
    shape: &[usize],
    key: impl Into<RegionKey>,
    probability: f64,
) -> Result<Tensor> {
    let threshold = threshold("dropout_mask", probability)?;
    let out = RandomOutput::new("dropout_mask", device, shape, DType::Bool, key.into())?;
    out.fill(DistributionParams::Mask { threshold }, |words, out| {
        kernels::mask(words, threshold, out.slice()?);
        Ok(())
    })
}

fn drop_elements(
    signature: &'static Signature,
    x: &Tensor,
    key: RegionKey,
    probability: f64,
) -> Result<Tensor> {
    let threshold = threshold(signature.name(), probability)?;
    let mut call = signature.call(&[x])?;
    let drop_part = |part: &Tensor, key| drop_elements(signature, part, key, probability);
    if let Some(y) = by_boxes(&key, x, drop_part)? {
        let tag = call.result_tag(0, y.shape())?;
        return Ok(y.with_tag(tag));
    }
    let indices = KeyedIndices::of(call.name(), key, x)?;
    if probability == 0.0 {
        return Ok(x.clone());
    }

    let mut y = call.output(0)?;
    let scale = 1.0 / (1.0 - probability);
    match call.device().is_gpu() {
        true => call.launch(|gpu| {
            let scale = scale as f32;
            let values = DistributionParams::Dropout { threshold, scale };
            indices.generate_on_gpu(gpu, values, Some(x), &Target::uninit(gpu, &y)?)
        }),
        false => call.compute(|| {
            let words = &indices.words();
            for_float!(x.dtype(), T => {
                kernels::dropout::<T>(x, words, threshold, scale, y.slice()?)
            })
        }),
    }?;
    Ok(y.finish())
}

/// An element is dropped when its random word is below this.
fn threshold(op: &'static str, probability: f64) -> Result<u32> {
    ensure!(
        (0.0..1.0).contains(&probability),
        Invalid,
        "{op}: probability {probability} is not in [0, 1)"
    );
    Ok((probability * 2f64.powi(32)).round() as u32)
}

/// A key, and the global indices of the elements to generate.
struct KeyedIndices {
    key: Key,
    global_indices: Layout,
}

impl KeyedIndices {
    /// For the elements of `x`.
    fn of(op: &'static str, key: RegionKey, x: &Tensor) -> Result<KeyedIndices> {
        Ok(KeyedIndices { key: key.key(), global_indices: key.indices_of(op, x)? })
    }

    fn new(op: &'static str, key: RegionKey, shape: &Shape) -> Result<KeyedIndices> {
        Ok(KeyedIndices { key: key.key(), global_indices: key.global_indices(op, shape)? })
    }

    fn words(&self) -> Words {
        Words::new(self.key, &self.global_indices)
    }

    fn fill_on_gpu(&self, call: &Call, values: DistributionParams, into: &Tensor) -> Result<()> {
        call.launch(|gpu| self.generate_on_gpu(gpu, values, None, &Target::changed(gpu, into)?))
    }

    fn generate_on_gpu(
        &self,
        gpu: &Launcher<'_>,
        values: DistributionParams,
        x: Option<&Tensor>,
        y: &Target,
    ) -> Result<()> {
        launch::random(gpu, (self.key, &self.global_indices), values, x, y)
    }
}

/// A new tensor to fill with random values.
struct RandomOutput {
    op: &'static str,
    indices: KeyedIndices,
    out: UninitTensor,
}

impl RandomOutput {
    fn new(
        op: &'static str,
        device: &Device,
        shape: &[usize],
        dtype: DType,
        key: RegionKey,
    ) -> Result<RandomOutput> {
        if !dtype.computes() && dtype != DType::Bool {
            return Err(not_a_float(dtype));
        }
        let shape = Shape::new(shape)?;
        let mut out = UninitTensor::new(device, shape, dtype)?;
        if key.is_whole() {
            out.replicated()?;
        }
        Ok(RandomOutput { op, indices: KeyedIndices::new(op, key, &shape)?, out })
    }

    /// Fills the tensor with `values` on a GPU, or by calling `fill` on the CPU.
    fn fill(
        mut self,
        values: DistributionParams,
        fill: impl FnOnce(&Words, &mut UninitTensor) -> Result<()>,
    ) -> Result<Tensor> {
        let device = self.out.device().clone();
        if device.is_gpu() {
            let gpu = Launcher::new(self.op, &device);
            let target = Target::uninit(&gpu, &self.out)?;
            self.indices.generate_on_gpu(&gpu, values, None, &target)?;
        } else if device.computes() {
            fill(&self.indices.words(), &mut self.out)?;
        }
        Ok(self.out.finish())
    }
}

/// The interval of uniform values.
#[derive(Clone, Copy)]
struct Interval {
    low: f64,
    high: f64,
}

impl Interval {
    fn new(op: &'static str, low: f64, high: f64) -> Result<Interval> {
        ensure!(
            low <= high && (high - low).is_finite(),
            Invalid,
            "{op}: [{low}, {high}) is not a finite interval"
        );
        Ok(Interval { low, high })
    }

    /// The distribution as the GPU kernel's parameter.
    fn values(self, dtype: DType) -> Result<DistributionParams> {
        let last = for_float!(dtype, T => Ok(self.last::<T>()))?;
        Ok(DistributionParams::Uniform {
            low: self.low as f32,
            length: (self.high - self.low) as f32,
            last: last as f32,
        })
    }

    /// The largest `T` in the interval: below `high`, unless that would be below `low`.
    fn last<T: Float>(self) -> f64 {
        let (low, high) = (T::from_f64(self.low).to_f64(), T::from_f64(self.high).to_f64());
        if high < self.high {
            return high;
        }
        below::<T>(high).max(low)
    }
}

/// The largest `T` below x, found by halving a step down from x until x - step rounds to x.
fn below<T: Float>(x: f64) -> f64 {
    let mut step = x.abs().max(f64::from(f32::MIN_POSITIVE));
    let mut last = T::from_f64(x - step).to_f64();
    loop {
        step *= 0.5;
        match T::from_f64(x - step).to_f64() {
            closer if closer < x => last = closer,
            _ => return last,
        }
    }
}

fn fill_uniform<T: Float<Wide: Variate>>(words: &Words, interval: Interval, out: &mut [T]) {
    let wide = T::Wide::from_f64;
    let (low, length) = (wide(interval.low), wide(interval.high - interval.low));
    let last = wide(interval.last::<T>());
    kernels::fill::<T>(
        words,
        out,
        #[inline(always)]
        move |high_word, low_word| {
            let value = T::narrow(T::Wide::unit(high_word, low_word) * length + low);
            if value.wide() > last { T::narrow(last) } else { value }
        },
    );
}

/// The parameters of normal values.
#[derive(Clone, Copy)]
struct Bell {
    mean: f64,
    std: f64,
}

impl Bell {
    fn new(op: &'static str, mean: f64, std: f64) -> Result<Bell> {
        ensure!(
            mean.is_finite() && std.is_finite() && std >= 0.0,
            Invalid,
            "{op}: mean {mean} and standard deviation {std} must be finite, and the deviation not \
             negative"
        );
        Ok(Bell { mean, std })
    }

    /// The distribution as the GPU kernel's parameter.
    fn values(self) -> DistributionParams {
        DistributionParams::Normal { mean: self.mean as f32, std: self.std as f32 }
    }
}

fn fill_normal<T: Float<Wide: Variate>>(words: &Words, bell: Bell, out: &mut [T]) {
    let (mean, std) = (T::Wide::from_f64(bell.mean), T::Wide::from_f64(bell.std));
    kernels::fill::<T>(
        words,
        out,
        #[inline(always)]
        move |high, low| T::narrow(T::Wide::normal(high, low) * std + mean),
    );
}

#[cfg(test)]
mod tests;
