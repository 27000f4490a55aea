//! Distribution: what a parallel configuration means for each rank, and the communicators it needs.
//!
//! - [`parallel`]: degrees of parallelism, checked, as meshes and groups of ranks.
//! - [`registry`]: which communicators exist, and when they are made.

pub mod parallel;
pub mod registry;

/// Compiles and runs the examples of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../docs/groups.md")]
struct Guide;
