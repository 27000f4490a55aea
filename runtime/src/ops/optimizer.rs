//! What an optimizer does to parameters. What changes from step to step enters as a tensor of one element, so that a step
//! can be captured and replayed.

#[cfg(doc)]
use crate::Error;
use crate::cpu::optimizer as kernel;
use crate::ops::contiguous_range;
use crate::{Float, Result, Signature, Tensor, for_float};

static ADAMW_STEP: Signature = Signature::new(
    "adamw_step",
    "param: F[..], gradient: A[..], mean: A[..], square: A[..], learning_rate: f32[], step: f32[], \
     scale: f32[] -> param: F[..], mean: A[..], square: A[..]",
    16,
);
static GLOBAL_NORM: Signature = Signature::new("global_norm", "x: F[*] -> norm: f32[]", 2);
static CLIP_SCALE: Signature = Signature::new(
    "clip_scale",
    "norm: f32[], weight: f32[] -> scale: f32[], mean_norm: f32[]",
    4,
);

pub(super) static SIGNATURES: &[&Signature] = &[&ADAMW_STEP, &GLOBAL_NORM, &CLIP_SCALE];

/// The constants of AdamW.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Decay of the gradient's running mean.
    pub beta1: f64,
    /// Decay of the squared gradient's running mean.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decay of the parameter a step, times the learning rate.
    pub weight_decay: f64,
}

/// What changes from step to step, each an f32 scalar.
#[derive(Clone, Copy, Debug)]
pub struct StepScalars<'a> {
    /// The learning rate.
    pub learning_rate: &'a Tensor,
    /// The step, from 1.
    pub step: &'a Tensor,
    /// What gradients are multiplied by first: clipping, and the division by a loss's weight.
    pub scale: &'a Tensor,
}

/// One step of AdamW (Loshchilov & Hutter 2019) in place, as `torch.optim.AdamW` computes it:
///
/// ```text
/// g = scale gradient;  param *= 1 - lr decay
/// mean = beta1 mean + (1 - beta1) g;  square = beta2 square + (1 - beta2) g^2
/// param -= lr (mean / (1 - beta1^step)) / (sqrt(square / (1 - beta2^step)) + eps)
/// ```
///
/// # Shapes
/// `param` any shape, float; the others of the same shape in the accumulator dtype. All but the gradient are of kinds that may
/// change; all are contiguous.
///
/// # Errors
/// [`Error::Signature`]; [`Error::Immutable`]; [`Error::Argument`] when one is not contiguous; [`Error::Busy`].
pub fn adamw_step(
    param: &Tensor,
    gradient: &Tensor,
    mean: &Tensor,
    square: &Tensor,
    scalars: StepScalars<'_>,
    adamw: AdamW,
) -> Result<()> {
    let StepScalars {
        learning_rate,
        step,
        scale,
    } = scalars;
    let operands = [param, gradient, mean, square, learning_rate, step, scale];
    let call = ADAMW_STEP.call(&operands)?;
    let op = call.name();
    let of_param = contiguous_range(op, param)?;
    let of_gradient = contiguous_range(op, gradient)?;
    let (of_mean, of_square) = (contiguous_range(op, mean)?, contiguous_range(op, square)?);
    call.compute(|| {
        let [learning_rate, step, scale] = [
            learning_rate.item::<f32>()?,
            step.item::<f32>()?,
            scale.item::<f32>()?,
        ];
        for_float!(param.dtype(), T => {
            let factors =
                kernel::Factors::new(adamw, learning_rate.into(), step.into(), scale.into());
            let gradient = gradient.read::<<T as Float>::Wide>()?;
            let (mut mean, mut square) = (mean.write(op)?, square.write(op)?);
            kernel::adamw::<T>(
                &mut param.write(op)?[of_param],
                &gradient[of_gradient],
                &mut mean[of_mean],
                &mut square[of_square],
                &factors,
            );
            Ok(())
        })
    })
}

/// The root of the sum of squares of all elements; summed in f64 in a fixed order.
///
/// # Shapes
/// `x` any shape, float, contiguous; returns a scalar, f32.
///
/// # Errors
/// [`Error::Signature`]; [`Error::Argument`] when it is not contiguous.
pub fn global_norm(x: &Tensor) -> Result<Tensor> {
    let mut call = GLOBAL_NORM.call(&[x])?;
    let range = contiguous_range(call.name(), x)?;
    let mut norm = call.output(0)?;
    call.compute(|| {
        for_float!(x.dtype(), T => {
            let sum = kernel::sum_of_squares(&x.read::<T>()?[range]);
            norm.slice::<f32>()?[0] = sum.sqrt() as f32;
            Ok(())
        })
    })?;
    Ok(norm.finish())
}

/// What sums of gradients over `weight` tokens are multiplied by to become a mean whose norm is at most `max_norm`, as
/// `torch.nn.utils.clip_grad_norm_` computes it: min(1, max_norm / (mean_norm + 1e-6)) / weight, with mean_norm = norm /
/// weight. Returns (scale, mean_norm). A `max_norm` that is not positive clips nothing.
///
/// A norm that is no number gives a scale that is none: whoever reads the norm, a step late, stops there.
///
/// # Shapes
/// `norm` and `weight` scalars, f32; returns two scalars, f32.
///
/// # Errors
/// [`Error::Signature`].
pub fn clip_scale(norm: &Tensor, weight: &Tensor, max_norm: f64) -> Result<(Tensor, Tensor)> {
    let mut call = CLIP_SCALE.call(&[norm, weight])?;
    let (mut scale, mut mean_norm) = (call.output(0)?, call.output(1)?);
    call.compute(|| {
        let (norm, weight) = (norm.item::<f32>()?, weight.item::<f32>()?);
        let mean = f64::from(norm) / f64::from(weight);
        let clipped = max_norm / (mean + 1e-6);
        let clip = if max_norm > 0.0 && !(clipped >= 1.0) {
            clipped
        } else {
            1.0
        };
        scale.slice::<f32>()?[0] = (clip / f64::from(weight)) as f32;
        mean_norm.slice::<f32>()?[0] = mean as f32;
        Ok(())
    })?;
    Ok((scale.finish(), mean_norm.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Device, Kind, ops};

    const ADAMW: AdamW = AdamW {
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        weight_decay: 0.1,
    };

    fn numbers(count: usize, salt: usize) -> Vec<f32> {
        (0..count)
            .map(|i| ((i * 3 + salt * 17) as f32 * 0.7).sin())
            .collect()
    }

    /// A tensor that may change, of these values.
    fn changing(device: &Device, values: &[f32], kind: Kind) -> Tensor {
        let own = Tensor::zeros(device, &[values.len()], DType::F32, kind).unwrap();
        ops::copy_into(
            &Tensor::from_slice(device, &[values.len()], values).unwrap(),
            &own,
        )
        .unwrap();
        own
    }

    /// Twenty steps against the formula in f64, element by element, over more than one block.
    #[test]
    fn adamw_follows_its_formula() {
        let (device, count) = (Device::cpu(), 40_000);
        let param = changing(&device, &numbers(count, 0), Kind::Parameter);
        let zeros = || changing(&device, &vec![0.0; count], Kind::OptimizerState);
        let (mean, square) = (zeros(), zeros());
        let mut expected: Vec<[f64; 3]> = numbers(count, 0)
            .iter()
            .map(|p| [f64::from(*p), 0.0, 0.0])
            .collect();

        for step in 1..=20u32 {
            let gradient = numbers(count, step as usize);
            let scalar = |x: f64| Tensor::scalar(&device, x as f32).unwrap();
            let (rate, at, scale) = (scalar(1e-2), scalar(step.into()), scalar(0.5));
            let scalars = StepScalars {
                learning_rate: &rate,
                step: &at,
                scale: &scale,
            };
            let given = Tensor::from_slice(&device, &[count], &gradient).unwrap();
            adamw_step(&param, &given, &mean, &square, scalars, ADAMW).unwrap();

            for ([p, m, v], g) in expected.iter_mut().zip(&gradient) {
                let g = 0.5 * f64::from(*g);
                *p *= 1.0 - 1e-2 * 0.1;
                *m = 0.9 * *m + 0.1 * g;
                *v = 0.95 * *v + 0.05 * g * g;
                let corrected = |x: f64, beta: f64| x / (1.0 - beta.powi(step as i32));
                *p -= 1e-2 * corrected(*m, 0.9) / (corrected(*v, 0.95).sqrt() + 1e-8);
            }
        }
        for (actual, [expected, ..]) in param.to_vec::<f32>().unwrap().iter().zip(&expected) {
            assert!(
                (f64::from(*actual) - expected).abs() < 1e-5,
                "{actual} {expected}"
            );
        }
    }

    #[test]
    fn clipping() {
        let device = Device::cpu();
        let x = Tensor::from_slice(&device, &[2], &[30.0f32, 40.0]).unwrap();
        let norm = global_norm(&x).unwrap();
        assert_eq!(norm.item::<f32>().unwrap(), 50.0);

        let weight = Tensor::scalar(&device, 10.0f32).unwrap();
        let clipped = |max_norm: f64| {
            let (scale, mean) = clip_scale(&norm, &weight, max_norm).unwrap();
            (scale.item::<f32>().unwrap(), mean.item::<f32>().unwrap())
        };
        assert_eq!(clipped(0.0), (0.1, 5.0));
        assert_eq!(clipped(6.0), (0.1, 5.0));
        let (scale, _) = clipped(1.0);
        assert!((scale - 0.02).abs() < 1e-7);

        let nan = Tensor::scalar(&device, f32::NAN).unwrap();
        assert!(
            clip_scale(&nan, &weight, 1.0)
                .unwrap()
                .0
                .item::<f32>()
                .unwrap()
                .is_nan()
        );
    }

    #[test]
    fn norms_do_not_depend_on_threads() {
        let norm = |threads: usize| {
            let device = Device::cpu_with_threads(threads).unwrap();
            device.run(|| {
                let x = Tensor::from_slice(&device, &[100_000], &numbers(100_000, 3)).unwrap();
                global_norm(&x).unwrap().item::<f32>().unwrap().to_bits()
            })
        };
        assert_eq!(norm(1), norm(3));
    }
}
