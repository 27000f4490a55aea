//! Distribution: degrees of [parallelism](parallel), checked and turned into meshes and groups of
//! ranks.

pub mod parallel;

pub use meshgrad_error::{Error, Kind, Result};
