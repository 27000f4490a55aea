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
    let (saved_x, saved_w) = (x.save(), w.save());
    y.tracked([x, w], move |dy, [dx, dw]| {
        dx.add(|| ops::linear_grad_input(dy, &saved_w.get()?))?;
        dw.accumulate(|dw| ops::linear_grad_weight_into(dy, &saved_x.get()?, dw))
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
    let (saved_a, saved_b) = (a.save(), b.save());
    c.tracked([a, b], move |dc, [da, db]| {
        da.add(|| ops::matmul(dc, &saved_b.get()?.transpose(-1, -2)?))?;
        db.add(|| ops::matmul(&saved_a.get()?.transpose(-1, -2)?, dc))
    })
}
