//! What the back end needs to know of a kernel. Text in, numbers in; no driver.

use std::fmt::Debug;
use std::hash::Hash;

/// A kernel as PTX text.
#[derive(Clone, Debug)]
pub(crate) struct Ptx {
    pub(crate) entry: String,
    pub(crate) text: String,
    pub(crate) dynamic_shared: u32,
}

/// What a kernel was made for: the key of its cache.
pub(crate) trait Variant: Clone + Eq + Hash + Debug + Send + Sync + 'static {
    fn ptx(&self) -> Ptx;
    fn entry(&self) -> String;
}

/// How many threads run a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Launch {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) dynamic_shared: u32,
}

/// The arguments of a launch, as the driver wants them.
#[derive(Clone, Debug)]
pub(crate) struct Arguments {
    bytes: [u8; 512],
    len: usize,
}

impl Arguments {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
