//! The machine that runs programs: warps of 32 lanes, their registers, the memory of a CTA.

mod access;
pub(crate) mod asynchronous;
mod atomic;
mod barrier;
mod carry;
mod check;
pub(crate) mod counters;
pub(crate) mod cta;
mod exchange;
mod frames;
pub(crate) mod grid;
mod home;
pub(crate) mod lanes;
mod matrix;
pub(crate) mod order;
pub(crate) mod random;
pub(crate) mod registers;
mod side_by_side;
pub(crate) mod step;
mod waiting;
pub(crate) mod warp;
mod warp_matrix;
pub(crate) mod windows;
