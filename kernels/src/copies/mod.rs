//! Copies between arbitrary layouts, transposes, casts, fills and ranges.
//!
//! A copy treats elements as opaque units of 1 to 16 bytes. If consecutive elements are contiguous
//! in both tensors, it moves 16 bytes per access, whatever the dtype.

mod arange;
mod cast;
mod fill;
mod strided;
mod transpose;
mod unit;

pub use arange::{Arange, ArangeArguments};
pub use cast::{Cast, CastArguments, Format};
pub use fill::{Fill, FillArguments};
pub use strided::{At, Copy, CopyArguments};
pub use transpose::{Transpose, TransposeArguments, TransposeSpace};
pub use unit::Unit;

pub(crate) use unit::Raw;
