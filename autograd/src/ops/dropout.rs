//! Dropout (Srivastava et al. 2014).

use meshgrad_runtime::{RegionKey, ops};

use crate::{Operand, Result, Track};

/// Sets each element of `x` to zero with `probability`, and divides the others by 1 -
/// `probability`.
///
/// The mask depends on `draw` alone, so a checkpoint drops the same elements when it recomputes. No
/// tensor is saved: backward generates the mask again.
///
/// # Shapes
/// `x` any shape, float; returns the same.
///
/// # Errors
/// As [`meshgrad_runtime::ops::dropout`].
pub fn dropout<V: Operand>(x: &V, draw: impl Into<RegionKey>, probability: f64) -> Result<V> {
    let draw = draw.into();
    let y = ops::dropout(x.value(), draw.clone(), probability)?;
    y.tracked_linear([x], move |dy, [dx]| {
        dx.add(|| ops::dropout_grad(dy, draw.clone(), probability))
    })
}

#[cfg(test)]
mod tests {
    use meshgrad_runtime::{DType, Device, Key, Tensor};

    use super::*;
    use crate::ops::square;
    use crate::{Tape, Var, checkpoint};

    const KEY: u64 = 11;

    /// dropout(x)^2, its gradient, and the bytes that it saves.
    fn run(x: &Tensor, checkpointed: bool) -> (Vec<f32>, Vec<f32>, usize) {
        let block = |x: &Var| square(&dropout(x, Key::new(KEY), 0.4)?);
        let ((x, y), tape) = Tape::record(|| {
            let x = Var::input(x.clone());
            let y = match checkpointed {
                true => {
                    let [y] = checkpoint([&x], move |[x]| Ok([block(&x)?]))?;
                    y
                }
                false => block(&x)?,
            };
            Ok((x, y))
        })
        .unwrap();

        let saved = tape.saved_bytes();
        let dy = ops::full(y.value().device(), y.shape(), DType::F32, 1.0).unwrap();
        let (gradients, _weights) = tape.backward_inputs(&[(&y, dy)], &[&x]).unwrap();
        let values = |tensor: &Tensor| tensor.to_vec::<f32>().unwrap();
        (values(y.value()), values(&gradients[0]), saved)
    }

    /// A checkpoint computes the same gradient, because it generates the same mask.
    #[test]
    fn recomputation_generates_the_same_mask() {
        let device = Device::cpu();
        let x = ops::normal(&device, &[16, 33], DType::F32, Key::new(1), 0.0, 1.0).unwrap();

        let (y, dx, _) = run(&x, false);
        let (again, dx_again, _) = run(&x, true);
        assert!(y == again && dx == dx_again);

        let dropped = y.iter().filter(|y| **y == 0.0).count();
        assert!((100..320).contains(&dropped), "{dropped} of 528 dropped");
        assert!(y.iter().zip(&dx).all(|(y, dx)| (*y == 0.0) == (*dx == 0.0)));
    }

    /// Only the operand of the square is saved; dropout saves nothing.
    #[test]
    fn the_mask_is_not_saved() {
        let device = Device::cpu();
        let x = ops::normal(&device, &[8, 32], DType::F32, Key::new(1), 0.0, 1.0).unwrap();
        assert_eq!(run(&x, false).2, 8 * 32 * size_of::<f32>());

        let (_, tape) = Tape::record(|| dropout(&Var::input(x), Key::new(KEY), 0.4)).unwrap();
        assert_eq!(tape.saved_bytes(), 0);
    }
}
