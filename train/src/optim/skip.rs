//! Steps that change nothing: their scale is not finite.

use meshgrad_runtime::{Function, Number, Signature, Tensor};

use super::assign::{assign, map};
use crate::Result;

static UNLESS: Signature =
    Signature::new("scale_unless", "scale: F[~], skip: F[~] -> scale: F[~]", 1);
static COUNT: Signature =
    Signature::new("count_skipped", "skipped: F[~], scale: F[~], skip: F[~] -> skipped: F[~]", 1);

/// `scale`, or NaN if `skip` is nonzero; all scalars.
pub(crate) fn unless(scale: &Tensor, skip: &Tensor) -> Result<Tensor> {
    map(&UNLESS, &Unless, [scale, skip], scale.dtype())
}

/// Adds one to `skipped` if `scale` is not finite and `skip` is zero.
pub(crate) fn count_skipped(skipped: &Tensor, scale: &Tensor, skip: &Tensor) -> Result<()> {
    assign(&COUNT, &Count, [skipped, scale, skip], skipped)
}

struct Unless;

impl Function<2> for Unless {
    #[inline(always)]
    fn value<W: Number>(&self, [scale, skip]: [W; 2]) -> W {
        skip.if_eq(W::ZERO, scale, W::constant(f64::NAN))
    }
}

struct Count;

impl Function<3> for Count {
    #[inline(always)]
    fn value<W: Number>(&self, [skipped, scale, skip]: [W; 3]) -> W {
        skip.if_eq(W::ZERO, scale.if_finite(skipped, skipped + W::ONE), skipped)
    }
}
