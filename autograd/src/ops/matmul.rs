//! Matrix products.

use meshgrad_runtime::ops;

use crate::{Operand, Result, Track};

/// y = x w^T: a linear layer without bias.
///
/// # Shapes
/// `x` [.., I], `w` [O, I], both of one float dtype; returns [.., O].
///
/// # Errors
/// As [`meshgrad_runtime::ops::linear`].
pub fn linear<V: Operand>(x: &V, w: &V) -> Result<V> {
    let y = ops::linear(x.value(), w.value())?;
    let (saved_x, saved_w) = (x.save_for(w), w.save_for(x));
    y.tracked([x, w], move |dy, [dx, dw]| {
        if let Some(w) = &saved_w {
            dx.add(|| ops::linear_grad_input(dy, &w.get()?))?;
        }
        if let Some(x) = &saved_x {
            dw.accumulate(|dw| ops::linear_grad_weight_into(dy, &x.get()?, dw))?;
        }
        Ok(())
    })
}

/// c = a b, for one matrix or a batch of them.
///
/// # Shapes
/// `a` [.., M, K], `b` [.., K, N] with the same leading dims, of one float dtype; returns [.., M,
/// N].
///
/// # Errors
/// As [`meshgrad_runtime::ops::matmul`].
pub fn matmul<V: Operand>(a: &V, b: &V) -> Result<V> {
    let c = ops::matmul(a.value(), b.value())?;
    let (saved_a, saved_b) = (a.save_for(b), b.save_for(a));
    c.tracked([a, b], move |dc, [da, db]| {
        if let Some(b) = &saved_b {
            da.add(|| ops::matmul(dc, &b.get()?.transpose(-1, -2)?))?;
        }
        if let Some(a) = &saved_a {
            db.add(|| ops::matmul(&a.get()?.transpose(-1, -2)?, dc))?;
        }
        Ok(())
    })
}
