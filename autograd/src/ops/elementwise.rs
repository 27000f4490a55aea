//! Elementwise functions of two operands, and of one with constants.

use meshgrad_runtime::{Shape, Tensor, ops};

use crate::{Operand, Result, Save, Slot, Track};

/// -x.
///
/// # Errors
/// As [`meshgrad_runtime::ops::neg`].
pub fn neg<V: Operand>(x: &V) -> Result<V> {
    affine(x, -1.0, 0.0)
}

/// scale * x + shift, with constants.
///
/// # Shapes
/// `x` any shape, float; returns the same.
///
/// # Errors
/// As [`meshgrad_runtime::ops::affine`].
pub fn affine<V: Operand>(x: &V, scale: f64, shift: f64) -> Result<V> {
    let y = ops::affine(x.value(), scale, shift)?;
    y.tracked_linear([x], move |dy, [dx]| dx.add(|| ops::affine(dy, scale, 0.0)))
}

/// x clamped to [`low`, `high`].
///
/// # Shapes
/// `x` any shape, float; returns the same.
///
/// # Errors
/// As [`meshgrad_runtime::ops::clamp`].
pub fn clamp<V: Operand>(x: &V, low: f64, high: f64) -> Result<V> {
    let y = ops::clamp(x.value(), low, high)?;
    let saved_x = x.save();
    y.tracked([x], move |dy, [dx]| dx.add(|| ops::clamp_grad(&saved_x.get()?, dy, low, high)))
}

/// a + b. Saves nothing.
///
/// # Shapes
/// `a` and `b` of one float dtype and of shapes that broadcast; returns the common shape.
///
/// # Errors
/// As [`meshgrad_runtime::ops::add`].
pub fn add<V: Operand>(a: &V, b: &V) -> Result<V> {
    let y = ops::add(a.value(), b.value())?;
    let (a_shape, b_shape) = (a.global_shape(), b.global_shape());
    y.tracked_linear([a, b], move |dy, [da, db]| {
        add_summed(da, a_shape, || Ok(dy.clone()))?;
        add_summed(db, b_shape, || Ok(dy.clone()))
    })
}

/// a - b. Saves nothing.
///
/// # Shapes
/// As [`add`].
///
/// # Errors
/// As [`add`].
pub fn sub<V: Operand>(a: &V, b: &V) -> Result<V> {
    let y = ops::sub(a.value(), b.value())?;
    let (a_shape, b_shape) = (a.global_shape(), b.global_shape());
    y.tracked_linear([a, b], move |dy, [da, db]| {
        add_summed(da, a_shape, || Ok(dy.clone()))?;
        add_summed(db, b_shape, || ops::neg(dy))
    })
}

/// a * b.
///
/// # Shapes
/// As [`add`].
///
/// # Errors
/// As [`add`].
pub fn mul<V: Operand>(a: &V, b: &V) -> Result<V> {
    let y = ops::mul(a.value(), b.value())?;
    let (a_shape, b_shape) = (a.global_shape(), b.global_shape());
    let (saved_a, saved_b) = (a.save_for(b), b.save_for(a));
    y.tracked([a, b], move |dy, [da, db]| {
        if let Some(b) = &saved_b {
            add_summed(da, a_shape, || ops::mul(dy, &b.get()?))?;
        }
        if let Some(a) = &saved_a {
            add_summed(db, b_shape, || ops::mul(dy, &a.get()?))?;
        }
        Ok(())
    })
}

/// a / b.
///
/// # Shapes
/// As [`add`].
///
/// # Errors
/// As [`add`].
pub fn div<V: Operand>(a: &V, b: &V) -> Result<V> {
    let y = ops::div(a.value(), b.value())?;
    let (a_shape, b_shape) = (a.global_shape(), b.global_shape());
    let (saved_y, saved_b) = (b.is_tracked().then(|| y.save()), b.save());
    y.tracked([a, b], move |dy, [da, db]| {
        add_summed(da, a_shape, || ops::div(dy, &saved_b.get()?))?;
        let Some(y) = &saved_y else { return Ok(()) };
        // d(a/b)/db = -(a/b)/b.
        add_summed(db, b_shape, || ops::neg(&ops::div(&ops::mul(dy, &y.get()?)?, &saved_b.get()?)?))
    })
}

/// The elementwise maximum of a and b. Where they are equal, each gets half of the gradient.
///
/// # Shapes
/// As [`add`].
///
/// # Errors
/// As [`add`].
pub fn maximum<V: Operand>(a: &V, b: &V) -> Result<V> {
    let y = ops::maximum(a.value(), b.value())?;
    extreme(y, a, b, 1.0)
}

/// The elementwise minimum of a and b. Where they are equal, each gets half of the gradient.
///
/// # Shapes
/// As [`add`].
///
/// # Errors
/// As [`add`].
pub fn minimum<V: Operand>(a: &V, b: &V) -> Result<V> {
    let y = ops::minimum(a.value(), b.value())?;
    extreme(y, a, b, -1.0)
}

/// `sign` is 1 for the maximum, -1 for the minimum.
fn extreme<V: Operand>(y: Tensor, a: &V, b: &V, sign: f64) -> Result<V> {
    let (a_shape, b_shape) = (a.global_shape(), b.global_shape());
    let (saved_a, saved_b) = (a.save(), b.save());
    y.tracked([a, b], move |dy, [da, db]| {
        let (a, b) = (saved_a.get()?, saved_b.get()?);
        let grad_of = |a: &Tensor, b: &Tensor| match sign > 0.0 {
            true => ops::maximum_grad(a, b),
            false => ops::maximum_grad(b, a),
        };
        add_summed(da, a_shape, || ops::mul(dy, &grad_of(&a, &b)?))?;
        add_summed(db, b_shape, || ops::mul(dy, &grad_of(&b, &a)?))
    })
}

/// `a` where `condition` is true, `b` elsewhere.
///
/// # Shapes
/// `condition` bool, `a` and `b` of one float dtype, all of shapes that broadcast; returns the
/// common shape.
///
/// # Errors
/// As [`meshgrad_runtime::ops::where_`].
pub fn where_<V: Operand>(condition: &Tensor, a: &V, b: &V) -> Result<V> {
    let y = ops::where_(condition, a.value(), b.value())?;
    let (a_shape, b_shape, saved) = (a.global_shape(), b.global_shape(), condition.save());
    y.tracked_linear([a, b], move |dy, [da, db]| {
        let zero = dy.zeros_beside(&[])?;
        let condition = saved.get()?;
        add_summed(da, a_shape, || ops::where_(&condition, dy, &zero))?;
        add_summed(db, b_shape, || ops::where_(&condition, &zero, dy))
    })
}

/// Adds a gradient of the broadcast shape, summed to the operand's `shape`.
fn add_summed(
    slot: Slot<'_>,
    shape: Shape,
    gradient: impl FnOnce() -> Result<Tensor>,
) -> Result<()> {
    slot.add(|| ops::sum_to(&gradient()?, &shape))
}
