//! Rotary position embeddings (RoPE, Su et al. 2021): angle tables, and the rotation of heads.
//!
//! Legend: B batch, T positions, N heads, D features per head, H rotated pairs of features (2 H <=
//! D).
//!
//! ```text
//! angle_bth        = position_bt inv_freq_h
//! (y_a, y_b)_bthn  = (x_a cos - x_b sin, x_b cos + x_a sin)
//! ```
//!
//! The gradient is the inverse rotation, by minus the angle. [`Style`] says which features form a
//! pair.
//!
//! The kernel is bound by memory. It reads and writes each head once, 2 B T N D elements; the heads
//! of one position share the tables through the caches. Heads may be a strided view, for example of
//! a fused query-key-value projection.

mod form;
mod head;
mod rotate;
mod tables;
mod tile;

pub use form::{Form, HeadStrides, Heads, Style, TableStrides};
pub use rotate::{Direction, Rope, RopeArguments};
pub use tables::{PositionFormat, RopeTables, RopeTablesArguments};

pub(crate) use head::{Head, HeadCoordinates};
pub(crate) use tile::HeadTile;
