//! Parameters of rotary position embedding.

use crate::Tensor;

/// Which features of a head form pair i. H is the number of pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeStyle {
    /// i and i + H, as in Hugging Face and GPT-NeoX.
    Half,
    /// 2 i and 2 i + 1, as in the paper.
    Interleaved,
}

/// Rotation by the angle, or by its negative.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rotation {
    Forward,
    Inverse,
}

/// Tables of the cosine and sine of the angles, and the number of heads that share each row.
pub(crate) struct Angles<'a> {
    pub(crate) cos: &'a Tensor,
    pub(crate) sin: &'a Tensor,
    pub(crate) heads: usize,
    pub(crate) style: RopeStyle,
}
