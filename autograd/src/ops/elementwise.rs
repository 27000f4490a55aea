//! Elementwise functions of one and two operands.

use meshgrad_runtime::{Shape, Tensor, ops};

use crate::{Result, Save, Slot, Track, Var};

/// Defines a differentiable op for each function of one operand whose derivative is taken from its
/// operand or its result.
macro_rules! unary_ops {
    ($($(#[$doc:meta])* $name:ident, $grad:ident of $kept:ident;)+) => {
        $(
            $(#[$doc])*
            ///
            /// # Shapes
            /// `x` any shape, f64, f32 or bf16; returns the same.
            ///
            /// # Errors
            /// As [`meshgrad_runtime::ops`].
            pub fn $name(x: &Var) -> Result<Var> {
                let y = ops::$name(x.value())?;
                unary_ops!(@record $kept, $grad, x, y)
            }
        )+
    };

    (@record x, $grad:ident, $x:ident, $y:ident) => {{
        let kept = $x.save();
        $y.tracked([$x], move |dy, [dx]| dx.add(|| Ok(ops::$grad(&kept.get()?, dy)?)))
    }};

    (@record y, $grad:ident, $x:ident, $y:ident) => {{
        let kept = $y.save();
        $y.tracked([$x], move |dy, [dx]| dx.add(|| Ok(ops::$grad(&kept.get()?, dy)?)))
    }};
}

unary_ops! {
    /// |x|; its derivative at 0 is 0.
    abs, abs_grad of x;

    /// x^2.
    square, square_grad of x;

    /// The square root.
    sqrt, sqrt_grad of y;

    /// 1 / sqrt(x).
    rsqrt, rsqrt_grad of y;

    /// 1 / x.
    reciprocal, reciprocal_grad of y;

    /// e^x.
    exp, exp_grad of y;

    /// The natural logarithm.
    ln, ln_grad of x;

    /// The sine of an angle in radians.
    sin, sin_grad of x;

    /// The cosine of an angle in radians.
    cos, cos_grad of x;

    /// The hyperbolic tangent.
    tanh, tanh_grad of y;

    /// 1 / (1 + e^-x).
    sigmoid, sigmoid_grad of y;

    /// x * sigmoid(x) (Ramachandran et al. 2017).
    silu, silu_grad of x;

    /// max(x, 0); its derivative at 0 is 0.
    relu, relu_grad of x;
}

/// -x.
///
/// # Errors
/// As [`meshgrad_runtime::ops::neg`].
pub fn neg(x: &Var) -> Result<Var> {
    affine(x, -1.0, 0.0)
}

/// scale * x + shift, with constants of the program.
///
/// # Shapes
/// `x` any shape, float; returns the same.
///
/// # Errors
/// As [`meshgrad_runtime::ops::affine`].
pub fn affine(x: &Var, scale: f64, shift: f64) -> Result<Var> {
    let y = ops::affine(x.value(), scale, shift)?;
    y.tracked_linear([x], move |dy, [dx]| {
        dx.add(|| Ok(ops::affine(dy, scale, 0.0)?))
    })
}

/// x, but at least `low` and at most `high`.
///
/// # Shapes
/// `x` any shape, float; returns the same.
///
/// # Errors
/// As [`meshgrad_runtime::ops::clamp`].
pub fn clamp(x: &Var, low: f64, high: f64) -> Result<Var> {
    let y = ops::clamp(x.value(), low, high)?;
    let kept_x = x.save();
    y.tracked([x], move |dy, [dx]| {
        dx.add(|| Ok(ops::clamp_grad(&kept_x.get()?, dy, low, high)?))
    })
}

/// a + b; keeps nothing.
///
/// # Shapes
/// `a` and `b` of one float dtype and of shapes that broadcast; returns the common shape.
///
/// # Errors
/// As [`meshgrad_runtime::ops::add`].
pub fn add(a: &Var, b: &Var) -> Result<Var> {
    let y = ops::add(a.value(), b.value())?;
    let (a_shape, b_shape) = (*a.shape(), *b.shape());
    y.tracked_linear([a, b], move |dy, [da, db]| {
        add_summed(da, a_shape, || Ok(dy.clone()))?;
        add_summed(db, b_shape, || Ok(dy.clone()))
    })
}

/// a - b; keeps nothing.
///
/// # Shapes
/// As [`add`].
///
/// # Errors
/// As [`add`].
pub fn sub(a: &Var, b: &Var) -> Result<Var> {
    let y = ops::sub(a.value(), b.value())?;
    let (a_shape, b_shape) = (*a.shape(), *b.shape());
    y.tracked_linear([a, b], move |dy, [da, db]| {
        add_summed(da, a_shape, || Ok(dy.clone()))?;
        add_summed(db, b_shape, || Ok(ops::neg(dy)?))
    })
}

/// a * b.
///
/// # Shapes
/// As [`add`].
///
/// # Errors
/// As [`add`].
pub fn mul(a: &Var, b: &Var) -> Result<Var> {
    let y = ops::mul(a.value(), b.value())?;
    let (a_shape, b_shape) = (*a.shape(), *b.shape());
    // Each is kept only for the gradient of the other.
    let (kept_a, kept_b) = (
        b.is_tracked().then(|| a.save()),
        a.is_tracked().then(|| b.save()),
    );
    y.tracked([a, b], move |dy, [da, db]| {
        if let Some(b) = &kept_b {
            add_summed(da, a_shape, || Ok(ops::mul(dy, &b.get()?)?))?;
        }
        if let Some(a) = &kept_a {
            add_summed(db, b_shape, || Ok(ops::mul(dy, &a.get()?)?))?;
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
pub fn div(a: &Var, b: &Var) -> Result<Var> {
    let y = ops::div(a.value(), b.value())?;
    let (a_shape, b_shape) = (*a.shape(), *b.shape());
    let (kept_y, kept_b) = (b.is_tracked().then(|| y.save()), b.save());
    y.tracked([a, b], move |dy, [da, db]| {
        add_summed(da, a_shape, || Ok(ops::div(dy, &kept_b.get()?)?))?;
        let Some(y) = &kept_y else { return Ok(()) };
        // d(a/b)/db = -(a/b)/b.
        add_summed(db, b_shape, || {
            Ok(ops::neg(&ops::div(
                &ops::mul(dy, &y.get()?)?,
                &kept_b.get()?,
            )?)?)
        })
    })
}

/// The larger of a and b; where they are equal each gets half of the gradient.
///
/// # Shapes
/// As [`add`].
///
/// # Errors
/// As [`add`].
pub fn maximum(a: &Var, b: &Var) -> Result<Var> {
    let y = ops::maximum(a.value(), b.value())?;
    extreme(y, a, b, 1.0)
}

/// The smaller of a and b; where they are equal each gets half of the gradient.
///
/// # Shapes
/// As [`add`].
///
/// # Errors
/// As [`add`].
pub fn minimum(a: &Var, b: &Var) -> Result<Var> {
    let y = ops::minimum(a.value(), b.value())?;
    extreme(y, a, b, -1.0)
}

/// `sign` is 1 for the larger of two, -1 for the smaller.
fn extreme(y: Tensor, a: &Var, b: &Var, sign: f64) -> Result<Var> {
    let (a_shape, b_shape) = (*a.shape(), *b.shape());
    let (kept_a, kept_b) = (a.save(), b.save());
    y.tracked([a, b], move |dy, [da, db]| {
        let (a, b) = (kept_a.get()?, kept_b.get()?);
        let share_of = |a: &Tensor, b: &Tensor| match sign > 0.0 {
            true => ops::maximum_share(a, b),
            false => ops::maximum_share(b, a),
        };
        add_summed(da, a_shape, || Ok(ops::mul(dy, &share_of(&a, &b)?)?))?;
        add_summed(db, b_shape, || Ok(ops::mul(dy, &share_of(&b, &a)?)?))
    })
}

/// `a` where `condition` holds, `b` elsewhere.
///
/// # Shapes
/// `condition` bool, `a` and `b` of one float dtype, all of shapes that broadcast; returns the
/// common shape.
///
/// # Errors
/// As [`meshgrad_runtime::ops::select`].
pub fn where_(condition: &Tensor, a: &Var, b: &Var) -> Result<Var> {
    let y = ops::where_(condition, a.value(), b.value())?;
    let (a_shape, b_shape, kept) = (*a.shape(), *b.shape(), condition.save());
    y.tracked_linear([a, b], move |dy, [da, db]| {
        let zero = ops::full(dy.device(), &[], dy.dtype(), 0.0)?;
        let condition = kept.get()?;
        add_summed(da, a_shape, || Ok(ops::where_(&condition, dy, &zero)?))?;
        add_summed(db, b_shape, || Ok(ops::where_(&condition, &zero, dy)?))
    })
}

/// Adds a gradient of the broadcast shape to an operand of `shape`.
fn add_summed(
    slot: Slot<'_>,
    shape: Shape,
    gradient: impl FnOnce() -> Result<Tensor>,
) -> Result<()> {
    slot.add(|| Ok(ops::sum_to(&gradient()?, &shape)?))
}
