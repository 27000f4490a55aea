//! What the communicators of a rank have in common.

use meshgrad_nccl::Library;
use meshgrad_runtime::{Device, Stream};

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) device: Device,
    pub(super) library: &'static Library,
    /// The stream of all communicators, with a library that does not start them in the order of the program.
    pub(super) stream: Option<Stream>,
    pub(super) is_strict: bool,
    pub(super) is_tree: bool,
}
