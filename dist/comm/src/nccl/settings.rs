//! What the communicators of a rank have in common.

use std::time::Duration;

use meshgrad_nccl::Library;
use meshgrad_runtime::{Device, Stream};

/// The time limit of collectives whose group has no `timeout` option.
pub(super) const LIMIT: Duration = Duration::from_secs(300);

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) device: Device,
    pub(super) library: &'static Library,
    /// The stream of all communicators, with a library that does not start them in the order of the program.
    pub(super) stream: Option<Stream>,
    pub(super) is_strict: bool,
    pub(super) is_tree: bool,
}
