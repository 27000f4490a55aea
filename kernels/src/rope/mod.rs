//! Rotary positions (Su et al. 2021): tables of angles, and heads turned by them.
//!
//! Legend: B batch, T positions, N heads, D features of a head, H pairs of features that are turned
//! (2 H <= D).
//!
//! ```text
//! angle_bth        = position_bt inv_freq_h
//! (y_a, y_b)_bthn  = (x_a cos - x_b sin, x_b cos + x_a sin)
//! ```
//!
//! The gradient is the turn back: by minus the angle. What a pair is made of says [`Style`].
//!
//! A kernel that turns is bound by memory: it reads and writes each head once, 2 B T N D elements,
//! and the heads of a position find the tables in the caches. Heads may be a view of something
//! larger, as of a product that holds queries, keys and values: dims have strides.

mod form;
mod head;
mod loops;
mod rotate;
mod tables;

pub use form::{Form, HeadStrides, Heads, Style, TableStrides};
pub use rotate::{Direction, Rope, RopeArguments};
pub use tables::{PositionFormat, RopeTables, RopeTablesArguments};

pub(crate) use form::Shape;
pub(crate) use head::{Head, HeadTile, Place, Strides};
pub(crate) use loops::{HeadLoop, element};
