//! The execution of programs: grids, CTAs, warps of 32 lanes, their registers and their memory.

mod access;
mod addresses;
pub(crate) mod asynchronous;
mod atomic;
mod barrier;
mod carry;
mod check;
mod coalesced;
pub(crate) mod counters;
pub(crate) mod cta;
mod exchange;
mod frames;
pub(crate) mod grid;
pub(crate) mod happens_before;
pub(crate) mod lanes;
mod livelock;
mod matrix;
pub(crate) mod random;
pub(crate) mod registers;
pub(crate) mod step;
pub(crate) mod warp;
mod warp_matrix;
pub(crate) mod windows;
