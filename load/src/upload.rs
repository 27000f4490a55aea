//! Loading to a GPU, chunk by chunk through pinned memory.

use meshgrad_ckpt::Folder;
use meshgrad_ckpt::exec::{Sink, Stats, execute};
use meshgrad_ckpt::graph::Graph;
use meshgrad_ckpt::plan::{LoadRequest, Target};
use meshgrad_error::{Error, Result, ensure, error};
use meshgrad_runtime::{Device, PinnedBuffer, Tensor};

use crate::memory::not_loaded;
use crate::passes::{Chunk, Pass, Planner};
use crate::pool::PinnedPool;
use crate::{LoadOptions, finite};

pub(crate) fn load(
    device: &Device,
    folder: &Folder,
    graph: &Graph,
    requests: &[(LoadRequest, &Tensor)],
    options: &LoadOptions<'_>,
) -> Result<Stats> {
    check(device, graph, requests)?;
    // The copies must not overtake work of other streams on these tensors.
    device.synchronize()?;
    let passes = Planner::new(folder, graph, options).plan(requests)?;
    let sources = options.sources(folder)?;
    let bytes: u64 = passes.iter().map(|pass| pass.plan.read_bytes()).sum();
    let pool = PinnedPool::new(device, options.pinned);

    let mut total = Stats { read_bytes: 0, written_bytes: 0 };
    for Pass { plan, chunks } in &passes {
        let before = total.read_bytes;
        let on_read = |read| (options.progress)(before + read, bytes);
        let uploads = Uploads { pool: &pool, chunks, only_finite: options.only_finite };
        let stats = execute(plan, &sources, &uploads, &on_read)?;
        total.read_bytes += stats.read_bytes;
        total.written_bytes += stats.written_bytes;
    }
    pool.finish()?;
    Ok(total)
}

/// Checks that each tensor is on the device and as large as its region.
fn check(device: &Device, graph: &Graph, requests: &[(LoadRequest, &Tensor)]) -> Result<()> {
    for (request, tensor) in requests {
        if tensor.device() != device {
            let source = error!(
                Invalid,
                "load: operands are on different devices ({device}, {}); copy them to one device \
                 first",
                tensor.device()
            );
            return Err(not_loaded(&request.target, source));
        }
        let elements: u64 = request.region.iter().map(|it| it.end - it.start).product();
        let expected = elements * graph.dtype(request.expr).bits() as u64 / 8;
        let actual = tensor.dtype().bytes(tensor.elements()) as u64;
        ensure!(
            expected == actual,
            Invalid,
            "target `{}` has {expected} bytes, but its memory has {actual}: allocate the size that \
             the plan gives for the target",
            request.target.escape_debug()
        );
    }
    Ok(())
}

/// The chunks of a pass, which are the targets of its plan.
struct Uploads<'p, 't> {
    pool: &'p PinnedPool<'t>,
    chunks: &'p [Chunk<'t>],
    only_finite: bool,
}

/// The first `bytes` of a buffer.
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
        let name = self.chunks[target.index].name;
        Ok(Filled { buffer: self.pool.take(name, target.bytes)?, bytes: target.bytes as usize })
    }

    fn complete(&self, target: &Target, filled: Filled) -> Result<()> {
        let Chunk { name, tensor, bytes } = &self.chunks[target.index];
        if self.only_finite {
            finite::check(name, tensor, &filled.buffer.as_ref()[..filled.bytes])?;
        }
        self.pool.upload(name, tensor, bytes.clone(), filled.buffer)
    }
}
