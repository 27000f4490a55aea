//! Tensors of the runtime as the targets of a [plan](meshgrad_ckpt::plan): regions of a checkpoint
//! go to where the tensors live. No model is known here.
//!
//! ```text
//! CPU   file -> the tensor's own memory
//! GPU   file -> pinned memory of the host -> the tensor; the GPU copies while the next is read
//! ```
//!
//! Pinned memory is bounded ([`LoadOptions::pinned`]). Tensors are cut into pieces that are far
//! smaller than that, a plan opens no more of them at once than half of it, and a buffer is at most
//! twice as large as its piece. So whoever waits for memory waits for a copy of the GPU, and for
//! nothing else. What no single plan can do within the bound is done by several, one after the
//! other.

mod memory;
mod passes;
mod pieces;
mod pool;
mod upload;

use std::fmt;

use meshgrad_ckpt::Folder;
use meshgrad_ckpt::exec::{Slices, Stats, execute};
use meshgrad_ckpt::graph::Graph;
use meshgrad_ckpt::plan::{Catalog, LoadPlan, LoadRequest, Options};
use meshgrad_ckpt::source::{BackendChoice, Sources};
use meshgrad_runtime::{Device, Tensor};

use crate::Result;
use memory::Lent;
pub(crate) use memory::dtype_of;

/// Choices that loading follows.
#[derive(Clone, Copy)]
pub struct LoadOptions<'a> {
    /// The most bytes of the host's memory that are pinned at a time, to load to a GPU (256 MiB).
    pub pinned: u64,
    /// Called with the bytes that have been read and those that will have been, after each read
    /// and from any thread.
    pub progress: &'a (dyn Fn(u64, u64) + Sync),
}

impl Default for LoadOptions<'_> {
    fn default() -> Self {
        LoadOptions {
            pinned: 256 << 20,
            progress: &|_, _| {},
        }
    }
}

impl fmt::Debug for LoadOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("LoadOptions");
        debug.field("pinned", &self.pinned).finish_non_exhaustive()
    }
}

/// Reads regions of `graph`'s expressions from `folder` into tensors, each of its region's dtype
/// and shape, contiguous, of a kind that may change, and all on one device. When this returns, all
/// of them are there; after an error nobody knows what they hold.
///
/// ```
/// use meshgrad_ckpt::graph::Graph;
/// use meshgrad_ckpt::plan::LoadRequest;
/// use meshgrad_ckpt::{Dtype, FileWriter, Folder};
/// use meshgrad_models::load::{LoadOptions, load};
/// use meshgrad_runtime::{DType, Device, Kind, Tensor};
///
/// # let place = tempfile::tempdir()?;
/// # let mut file = FileWriter::new();
/// # file.add("w", Dtype::F32, &[2, 2])?;
/// # let bytes: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|it| it.to_le_bytes()).collect();
/// # file.save(place.path().join("model.safetensors"), |_, data| data.append(&bytes))?;
/// let device = Device::cpu(); // or Device::cuda(0)?
/// let folder = Folder::open(place.path())?;
/// let mut graph = Graph::new();
/// let w = graph.source("w", Dtype::F32, &[2, 2])?;
///
/// let column = Tensor::zeros(&device, &[2, 1], DType::F32, Kind::Parameter)?;
/// let want = LoadRequest::new("column", w, [0..2, 1..2]);
/// load(&folder, &graph, &[(want, &column)], &LoadOptions::default())?;
/// assert_eq!(column.to_vec::<f32>()?, [2.0, 4.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Error::Plan`](crate::Error::Plan), [`Error::Checkpoint`](crate::Error::Checkpoint);
/// [`Error::NotLoaded`](crate::Error::NotLoaded) when a tensor cannot be written;
/// [`Error::PinnedBound`](crate::Error::PinnedBound).
pub fn load(
    folder: &Folder,
    graph: &Graph,
    wants: &[(LoadRequest, &Tensor)],
    options: &LoadOptions<'_>,
) -> Result<Stats> {
    match wants.iter().map(|(_, tensor)| tensor.device()).find(is_gpu) {
        Some(gpu) => upload::load(gpu, folder, graph, wants, options),
        None => load_here(folder, graph, wants, options),
    }
}

fn is_gpu(device: &&Device) -> bool {
    device.is_gpu()
}

/// Straight to the memory of the tensors.
fn load_here(
    folder: &Folder,
    graph: &Graph,
    wants: &[(LoadRequest, &Tensor)],
    options: &LoadOptions<'_>,
) -> Result<Stats> {
    let regions: Vec<LoadRequest> = wants.iter().map(|(want, _)| want.clone()).collect();
    let plan = LoadPlan::new(
        graph,
        &Catalog::of(folder),
        &regions,
        &Options::for_folder(folder),
    )?;
    let places = wants
        .iter()
        .map(|(want, tensor)| Lent::of(&want.target, tensor));
    let mut places = places.collect::<Result<Vec<Lent<'_>>>>()?;
    let slices = Slices::new(places.iter_mut().map(Lent::bytes));
    let sources = Sources::open(folder, BackendChoice::Auto)?;
    let all = plan.read_bytes();
    let progress = |read| (options.progress)(read, all);
    Ok(execute(&plan, &sources, &slices, &progress)?)
}
