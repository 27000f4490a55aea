//! Tensors of a GPU as targets, piece by piece through pinned memory.

use std::ops::Range;

use meshgrad_ckpt::Folder;
use meshgrad_ckpt::exec::{Sink, Stats, execute};
use meshgrad_ckpt::graph::Graph;
use meshgrad_ckpt::plan::{Catalog, LoadPlan, Options, Target, Targets, Want};
use meshgrad_runtime::{Device, PinnedBuffer, Tensor};

use super::pieces::cut;
use super::pool::Pool;
use super::{LoadOptions, carry_out};
use crate::{Error, Result};

/// How many pieces fill the pinned memory: enough for each thread to fill one or two while the GPU
/// copies others.
const PIECES: u64 = 16;

/// Pieces are not cut smaller to keep to a bound: there would be too many of them.
const LEAST_PIECE: u64 = 4 << 10;

pub(super) fn load(
    device: &Device,
    folder: &Folder,
    graph: &Graph,
    wants: &[(Want, &Tensor)],
    options: &LoadOptions<'_>,
) -> Result<Stats> {
    check(device, graph, wants)?;
    // Threads put their copies into the first stream. What any stream was given is done before.
    device.synchronize()?;
    let (plan, pieces) = plan(folder, graph, wants, options.pinned)?;
    let uploads = Uploads {
        pool: Pool::new(device, options.pinned),
        pieces,
    };
    let stats = carry_out(&plan, folder, options, |sources, progress| {
        execute(&plan, sources, &uploads, progress)
    })?;
    uploads.pool.finish()?;
    Ok(stats)
}

/// That each tensor is there, and as large as its region: pieces are cut by regions.
fn check(device: &Device, graph: &Graph, wants: &[(Want, &Tensor)]) -> Result<()> {
    for (want, tensor) in wants {
        if tensor.device() != device {
            let source = meshgrad_runtime::Error::Devices {
                op: "load",
                devices: format!("{device}, {}", tensor.device()),
            };
            return Err(Error::not_loaded(&want.target, source));
        }
        let elements: u64 = want.region.iter().map(|it| it.end - it.start).product();
        let wanted = elements * graph.dtype(want.expr).bits() as u64 / 8;
        let given = tensor.dtype().bytes(tensor.elements()) as u64;
        if wanted != given {
            return Err(Error::Checkpoint(meshgrad_ckpt::Error::TargetSize {
                target: want.target.to_string(),
                wanted,
                given,
            }));
        }
    }
    Ok(())
}

/// A stretch of a tensor.
struct Piece<'t> {
    name: &'t str,
    tensor: &'t Tensor,
    bytes: Range<usize>,
}

/// A plan with no more open than there is pinned memory for, and the pieces that are its targets.
///
/// Where much would be open at once, as where the file has rows in another order than the tensor,
/// smaller pieces help, and fewer threads.
fn plan<'t>(
    folder: &Folder,
    graph: &Graph,
    wants: &'t [(Want, &Tensor)],
    pinned: u64,
) -> Result<(LoadPlan, Vec<Piece<'t>>)> {
    // A buffer may be nearly twice as large as its piece.
    let most = pinned / 2;
    let largest = 1u64 << (pinned / PIECES).max(LEAST_PIECE).ilog2();
    let base = Options::for_folder(folder);
    let mut least_open = u64::MAX;
    for threads in [base.threads, 1] {
        let mut piece = largest;
        while piece >= LEAST_PIECE {
            let (regions, pieces) = pieces(graph, wants, piece);
            let options = Options {
                window: base.window.min(piece / 2),
                threads,
                targets: Targets::Leave,
                ..base
            };
            let plan = LoadPlan::new(graph, &Catalog::of(folder), &regions, &options)?;
            let open = plan.memory().targets;
            if open <= most {
                return Ok((plan, pieces));
            }
            least_open = least_open.min(open);
            piece /= 2;
        }
    }
    Err(Error::PinnedBound {
        needed: least_open.saturating_mul(2),
        bound: pinned,
    })
}

/// What is wanted in pieces of at most so many bytes, or an element.
fn pieces<'t>(
    graph: &Graph,
    wants: &'t [(Want, &Tensor)],
    most: u64,
) -> (Vec<Want>, Vec<Piece<'t>>) {
    let (mut regions, mut pieces) = (Vec::new(), Vec::new());
    for (want, tensor) in wants {
        let element = graph.dtype(want.expr).bits() as u64 / 8;
        let mut start = 0;
        for region in cut(&want.region, most / element.max(1)) {
            let elements: u64 = region.iter().map(|it| it.end - it.start).product();
            let end = start + (elements * element) as usize;
            let name = format!("{} {region:?}", want.target);
            regions.push(Want::new(name, want.expr, region));
            pieces.push(Piece {
                name: &want.target,
                tensor,
                bytes: start..end,
            });
            start = end;
        }
    }
    (regions, pieces)
}

struct Uploads<'t> {
    /// Uploads in it end before the tensors do.
    pool: Pool<'t>,
    pieces: Vec<Piece<'t>>,
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

impl Sink for Uploads<'_> {
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
