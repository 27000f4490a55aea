//! Distribution: parallel configurations, and the communicators that they need.
//!
//! - [`parallel`]: degrees of parallelism, checked and turned into meshes and groups of ranks.
//! - [`registry`]: creates and shares communicators.

pub mod parallel;
pub mod registry;

pub use meshgrad_error::{Error, Kind, Result};

/// Compiles and runs the examples of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../docs/groups.md")]
struct Guide;
