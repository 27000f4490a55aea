//! Matrix products of ragged groups of rows.

use meshgrad_runtime::{Tensor, ops};

use crate::{Operand, Result, Save, Track};

/// y = x w_g^T for the rows of each group g: one linear layer per expert.
///
/// # Shapes
/// `x` [C, I], `w` [G, O, I], `offsets` [G + 1] i64; returns [C, O]. Rows past the last offset are
/// not read, and unspecified in the result.
///
/// # Errors
/// As [`meshgrad_runtime::ops::grouped_matmul_nt`].
pub fn grouped_matmul<V: Operand>(x: &V, w: &V, offsets: &Tensor) -> Result<V> {
    let y = ops::grouped_matmul_nt(x.value(), w.value(), offsets)?;

    let (saved_x, saved_w, offsets) = (x.save_for(w), w.save_for(x), offsets.save());
    y.tracked([x, w], move |dy, [dx, dw]| {
        let offsets = offsets.get()?;
        if let Some(w) = &saved_w {
            dx.add(|| ops::grouped_matmul_grad_input(dy, &w.get()?, &offsets))?;
        }
        if let Some(x) = &saved_x {
            dw.accumulate(|dw| ops::grouped_matmul_grad_weight_into(dy, &x.get()?, &offsets, dw))?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use meshgrad_runtime::Device;

    use super::*;
    use crate::{Tolerance, Var, gradcheck};

    /// Gradients are correct, even for groups without rows and rows without a group.
    #[test]
    fn grouped_gradients_agree_with_finite_differences() {
        let device = Device::cpu();
        let numbered = |shape: &[usize], step: f64| {
            let count: usize = shape.iter().product();
            let values: Vec<f64> = (0..count).map(|i| (i as f64 * step).sin()).collect();
            Tensor::from_slice(&device, shape, &values).unwrap()
        };
        let inputs = [numbered(&[7, 3], 0.9), numbered(&[3, 2, 3], 1.7)];
        for ends in [[0i64, 2, 2, 5], [0, 0, 7, 7], [0, 0, 0, 0]] {
            let offsets = Tensor::from_slice(&device, &[4], &ends).unwrap();
            let product =
                |inputs: &[Var]| Ok(vec![grouped_matmul(&inputs[0], &inputs[1], &offsets)?]);
            gradcheck(product, &inputs, Tolerance::default()).unwrap();
        }
    }
}
