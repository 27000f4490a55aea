//! The threads of CPU devices: a pool, and the parallel loops that run on it. This module does not
//! depend on tensors.

mod parallel;
mod pool;
mod workers;

pub(crate) use parallel::{BLOCK, SharedSlice, blocks, for_blocks, for_parts, for_tasks};
pub(crate) use pool::{threads, with_threads};
