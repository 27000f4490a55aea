//! Loads regions of a checkpoint into tensors, which are the targets of a
//! [plan](meshgrad_ckpt::plan). This crate does not depend on models.
//!
//! ```text
//! CPU   file -> the tensor's own memory
//! GPU   file -> pinned host memory -> the tensor; copies overlap with reads
//! ```
//!
//! Pinned memory is bounded ([`LoadOptions::pinned`]). Tensors are split into chunks that are much
//! smaller than the bound. Chunks that are being filled take at most half of the bound, and a
//! buffer is at most twice as large as its chunk, so the buffers always fit. A thread that waits
//! for memory therefore waits only for the GPU to finish copies. Tensors that do not fit into one
//! such plan are loaded in several passes.

mod finite;
mod memory;
mod passes;
mod pool;
mod upload;

use std::fmt;

use meshgrad_ckpt::exec::{Sink, Slices, Stats, execute};
use meshgrad_ckpt::graph::Graph;
use meshgrad_ckpt::plan::{Catalog, LoadPlan, LoadRequest, Options, Target};
use meshgrad_ckpt::source::{BackendChoice, Sources};
use meshgrad_ckpt::{Committed, Folder};
pub use meshgrad_error::{Error, Kind, Result};
use meshgrad_runtime::{Device, Tensor};

use memory::HostTensors;
pub use memory::{not_loaded, stored_dtype};

/// Options of [`load`].
#[derive(Clone, Copy)]
pub struct LoadOptions<'a> {
    /// The bound on pinned host memory for loading to a GPU, in bytes. Default 256 MiB.
    pub pinned: u64,
    /// Ranges of a file that are at most this many bytes apart are read as one, with the gap. With 0,
    /// only bytes that are kept are read, unless they are compared with digests. Default `None`: as
    /// suits the file system ([`Options::for_folder`]).
    pub max_gap: Option<u64>,
    /// Called after each read, from any thread, with the bytes read so far and the total.
    pub progress: &'a (dyn Fn(u64, u64) + Sync),
    /// The checkpoint that the folder belongs to: all bytes are compared with the digests of its
    /// manifest as they are read. Default `None`: no comparison.
    pub sealed_by: Option<&'a Committed>,
    /// Whether NaN and infinities are errors. Default `false`.
    pub only_finite: bool,
}

/// The bound on pinned memory is too small: details of an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PinnedBound {
    /// A bound that is large enough, in bytes.
    pub needed: u64,
    /// The current bound, in bytes.
    pub bound: u64,
}

impl fmt::Display for PinnedBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "loading to the device needs {} bytes of pinned host memory but the bound is {}: raise it \
             (LoadOptions::pinned) or load fewer tensors at a time",
            self.needed, self.bound
        )
    }
}

impl Default for LoadOptions<'_> {
    fn default() -> Self {
        LoadOptions {
            pinned: 256 << 20,
            max_gap: None,
            progress: &|_, _| {},
            sealed_by: None,
            only_finite: false,
        }
    }
}

impl fmt::Debug for LoadOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("LoadOptions");
        debug
            .field("pinned", &self.pinned)
            .field("max_gap", &self.max_gap)
            .field("sealed_by", &self.sealed_by)
            .field("only_finite", &self.only_finite)
            .finish_non_exhaustive()
    }
}

impl LoadOptions<'_> {
    /// The options of a plan that loads from `folder`.
    fn for_folder(&self, folder: &Folder) -> Options {
        let default = Options::for_folder(folder);
        Options { gap: self.max_gap.unwrap_or(default.gap), ..default }
    }

    fn sources(&self, folder: &Folder) -> Result<Sources> {
        match self.sealed_by {
            None => Sources::open(folder, BackendChoice::Auto),
            Some(checkpoint) => Sources::open_sealed(folder, BackendChoice::Auto, checkpoint),
        }
    }
}

/// Reads regions of `graph`'s expressions from `folder` into tensors. Each tensor must have its
/// region's dtype and shape, be contiguous, and be of a mutable kind. Tensors may share a storage,
/// but not elements. All must be on one device. All reads and copies are complete when this returns.
/// After an error the contents of the tensors are unspecified.
///
/// ```
/// use meshgrad_ckpt::graph::Graph;
/// use meshgrad_ckpt::plan::LoadRequest;
/// use meshgrad_ckpt::{Dtype, FileWriter, Folder};
/// use meshgrad_load::{LoadOptions, load};
/// use meshgrad_runtime::{DType, Device, Kind, Tensor};
///
/// # let temp = tempfile::tempdir()?;
/// # let mut file = FileWriter::new();
/// # file.add("w", Dtype::F32, &[2, 2])?;
/// # let bytes: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|it| it.to_le_bytes()).collect();
/// # file.save(temp.path().join("model.safetensors"), |_, data| data.append(&bytes))?;
/// let device = Device::cpu(); // or Device::cuda(0)?
/// let folder = Folder::open(temp.path())?;
/// let mut graph = Graph::new();
/// let w = graph.source("w", Dtype::F32, &[2, 2])?;
///
/// let column = Tensor::zeros(&device, &[2, 1], DType::F32, Kind::Parameter)?;
/// let request = LoadRequest::new("column", w, [0..2, 1..2]);
/// load(&folder, &graph, &[(request, &column)], &LoadOptions::default())?;
/// assert_eq!(column.to_vec::<f32>()?, [2.0, 4.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// When a file cannot be read, the regions are not those of the folder or their tensors, a tensor
/// cannot be written, the bound is too small ([`PinnedBound`]), or, with
/// [`LoadOptions::only_finite`], a value is not finite ([`Kind::NotFinite`]).
pub fn load(
    folder: &Folder,
    graph: &Graph,
    requests: &[(LoadRequest, &Tensor)],
    options: &LoadOptions<'_>,
) -> Result<Stats> {
    match requests.iter().map(|(_, tensor)| tensor.device()).find(is_gpu) {
        Some(gpu) => upload::load(gpu, folder, graph, requests, options),
        None => load_to_host(folder, graph, requests, options),
    }
}

fn is_gpu(device: &&Device) -> bool {
    device.is_gpu()
}

/// Reads directly into the tensors' memory.
fn load_to_host(
    folder: &Folder,
    graph: &Graph,
    requests: &[(LoadRequest, &Tensor)],
    options: &LoadOptions<'_>,
) -> Result<Stats> {
    let regions: Vec<LoadRequest> = requests.iter().map(|(request, _)| request.clone()).collect();
    let plan = LoadPlan::new(graph, &Catalog::of(folder), &regions, &options.for_folder(folder))?;
    let named = requests.iter();
    let named = named.map(|(request, tensor)| (&*request.target, *tensor));
    let mut targets = HostTensors::new(named)?;
    let slices = Slices::new(targets.bytes()?);
    let sink = HostTargets { slices, requests, only_finite: options.only_finite };
    let total = plan.read_bytes();
    let progress = |read| (options.progress)(read, total);
    execute(&plan, &options.sources(folder)?, &sink, &progress)
}

/// The memory of the tensors.
struct HostTargets<'a> {
    slices: Slices<'a>,
    requests: &'a [(LoadRequest, &'a Tensor)],
    only_finite: bool,
}

impl<'a> Sink for HostTargets<'a> {
    type Buffer = &'a mut [u8];
    type Error = Error;

    fn buffer(&self, target: &Target) -> Result<&'a mut [u8]> {
        self.slices.buffer(target)
    }

    fn complete(&self, target: &Target, bytes: &'a mut [u8]) -> Result<()> {
        match self.only_finite {
            true => finite::check(&target.name, self.requests[target.index].1, bytes),
            false => Ok(()),
        }
    }
}
