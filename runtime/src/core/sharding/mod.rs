//! The sharding of a tensor: which part of a global tensor it is. Ops check and propagate it as
//! they do shapes and dtypes.
//!
//! Layers: [`tag`] (what a tensor carries) <- [`memo`] (results of earlier calls) <- [`gate`] (the
//! check) <- [`views`] <- [`shape`]; [`scope`] and [`draw`] need only
//! the tags; [`ranges`] needs nothing.

mod draw;
pub(crate) mod gate;
pub(crate) mod memo;
mod ranges;
pub(crate) mod scope;
pub(crate) mod shape;
pub(crate) mod tag;
pub(crate) mod views;
