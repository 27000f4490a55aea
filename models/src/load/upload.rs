//! Tensors of a GPU as targets, piece by piece through pinned memory.

use meshgrad_ckpt::Folder;
use meshgrad_ckpt::exec::{Sink, Stats, execute};
use meshgrad_ckpt::graph::Graph;
use meshgrad_ckpt::plan::{LoadRequest, Target};
use meshgrad_ckpt::source::{BackendChoice, Sources};
use meshgrad_runtime::{Device, PinnedBuffer, Tensor};

use super::LoadOptions;
use super::passes::{Pass, Passes, Piece};
use super::pool::Pool;
use crate::{Error, Result};

pub(super) fn load(
    device: &Device,
    folder: &Folder,
    graph: &Graph,
    wants: &[(LoadRequest, &Tensor)],
    options: &LoadOptions<'_>,
) -> Result<Stats> {
    check(device, graph, wants)?;
    // Threads put their copies into the first stream. What any stream was given is done before.
    device.synchronize()?;
    let passes = Passes::new(folder, graph, options.pinned).plan(wants)?;
    let sources = Sources::open(folder, BackendChoice::Auto)?;
    let all: u64 = passes.iter().map(|pass| pass.plan.read_bytes()).sum();
    let pool = Pool::new(device, options.pinned);

    let mut total = Stats {
        read_bytes: 0,
        written_bytes: 0,
    };
    for Pass { plan, pieces } in &passes {
        let before = total.read_bytes;
        let progress = |read| (options.progress)(before + read, all);
        let uploads = Uploads {
            pool: &pool,
            pieces,
        };
        let stats = execute(plan, &sources, &uploads, &progress)?;
        total.read_bytes += stats.read_bytes;
        total.written_bytes += stats.written_bytes;
    }
    pool.finish()?;
    Ok(total)
}

/// That each tensor is there, and as large as its region: pieces are cut by regions.
fn check(device: &Device, graph: &Graph, wants: &[(LoadRequest, &Tensor)]) -> Result<()> {
    for (want, tensor) in wants {
        if tensor.device() != device {
            let source = meshgrad_runtime::Error::Devices {
                op: "load",
                devices: format!("{device}, {}", tensor.device()),
            };
            return Err(Error::not_loaded(&want.target, source));
        }
        let elements: u64 = want.region.iter().map(|it| it.end - it.start).product();
        let expected = elements * graph.dtype(want.expr).bits() as u64 / 8;
        let actual = tensor.dtype().bytes(tensor.elements()) as u64;
        if expected != actual {
            return Err(Error::Checkpoint(meshgrad_ckpt::Error::TargetSize {
                target: want.target.to_string(),
                expected,
                actual,
            }));
        }
    }
    Ok(())
}

/// The pieces of a pass as targets.
struct Uploads<'p, 't> {
    /// Uploads in it end before the tensors do.
    pool: &'p Pool<'t>,
    pieces: &'p [Piece<'t>],
}

/// The first bytes of a buffer.
struct Filled {
    buffer: PinnedBuffer,
    bytes: usize,
}

impl AsMut<[u8]> for Filled {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.buffer.as_mut()[..self.bytes]
    }
}

impl Sink for Uploads<'_, '_> {
    type Buffer = Filled;
    type Error = Error;

    fn buffer(&self, target: &Target) -> Result<Filled> {
        let name = self.pieces[target.index].name;
        Ok(Filled {
            buffer: self.pool.take(name, target.bytes)?,
            bytes: target.bytes as usize,
        })
    }

    fn complete(&self, target: &Target, filled: Filled) -> Result<()> {
        let Piece {
            name,
            tensor,
            bytes,
        } = &self.pieces[target.index];
        self.pool.upload(name, tensor, bytes.clone(), filled.buffer)
    }
}
