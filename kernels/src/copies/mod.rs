//! Elements that move and keep their bits, or only change their format: copies of any layout,
//! transposes, casts, fills; and elements that count.
//!
//! A copy knows elements by their size alone. Where neighbours lie side by side in both tensors it
//! moves 16 bytes at once, whatever they are elements of.

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
