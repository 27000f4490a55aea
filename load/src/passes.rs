//! Plans for a GPU: tensors are split into chunks, and the chunks are loaded in as few passes over
//! the files as the bound on pinned memory allows.
//!
//! One pass is enough if the file stores rows in the tensor's order. For another order, such as
//! that of a transposed tensor, no chunk is complete until the last row of the file is read.
//! Smaller chunks and fewer threads then need less memory. If the tensor is still too large, each
//! pass loads some of its rows, and every pass reads the same part of the file.

use std::ops::Range;

use meshgrad_ckpt::Folder;
use meshgrad_ckpt::exec::split;
use meshgrad_ckpt::graph::Graph;
use meshgrad_ckpt::plan::{Catalog, LoadPlan, LoadRequest, Options, Targets};
use meshgrad_error::{Error, Kind, Result};
use meshgrad_runtime::Tensor;

use crate::{LoadOptions, PinnedBound};

/// The number of chunks that fit into the pinned memory: enough for each thread to fill one or two
/// while the GPU copies others.
const CHUNKS: u64 = 16;

/// The smallest chunk, in bytes. Smaller chunks would be too many.
const MIN_CHUNK: u64 = 4 << 10;

/// A plan and the chunks that are its targets.
pub(crate) struct Pass<'t> {
    pub(crate) plan: LoadPlan,
    pub(crate) chunks: Vec<Chunk<'t>>,
}

/// A contiguous part of a tensor.
pub(crate) struct Chunk<'t> {
    pub(crate) name: &'t str,
    pub(crate) tensor: &'t Tensor,
    pub(crate) bytes: Range<usize>,
}

/// A chunk and the region that is read into it.
type Region<'t> = (LoadRequest, Chunk<'t>);

/// A tensor and the region that is read into it.
type Requested<'t> = (LoadRequest, &'t Tensor);

/// Plans passes over a folder within a bound on pinned memory.
pub(crate) struct Planner<'a> {
    folder: &'a Folder,
    graph: &'a Graph,
    base: Options,
    bound: u64,
    /// The most bytes of chunks that are being filled at a time: half of the bound, because a
    /// buffer may be nearly twice as large as its chunk.
    max_open: u64,
}

impl<'a> Planner<'a> {
    pub(crate) fn new(
        folder: &'a Folder,
        graph: &'a Graph,
        options: &LoadOptions<'_>,
    ) -> Planner<'a> {
        Planner {
            folder,
            graph,
            base: options.for_folder(folder),
            bound: options.pinned,
            max_open: options.pinned / 2,
        }
    }

    /// Plans one pass for all tensors if they fit. Otherwise, each larger tensor gets several
    /// passes. The others share a pass or, if they do not fit together, get one each.
    ///
    /// # Errors
    /// With a [`PinnedBound`] if a single chunk is too large; errors of planning.
    pub(crate) fn plan<'t>(&self, requests: &'t [Requested<'_>]) -> Result<Vec<Pass<'t>>> {
        let all: Vec<&Requested<'_>> = requests.iter().collect();
        if let Some(pass) = self.in_one(&all)? {
            return Ok(vec![pass]);
        }

        let (mut small, mut single, mut passes) = (Vec::new(), Vec::new(), Vec::new());
        for request in requests {
            match self.in_one(&[request])? {
                Some(pass) => {
                    small.push(request);
                    single.push(pass);
                }
                None => passes.extend(self.in_several(request)?),
            }
        }
        match self.in_one(&small)? {
            Some(pass) => passes.push(pass),
            None => passes.extend(single),
        }
        Ok(passes)
    }

    /// Plans a single pass over some tensors, in the largest chunks that stay within the bound.
    /// `None` if even the smallest chunks exceed it.
    fn in_one<'t>(&self, requests: &[&'t Requested<'_>]) -> Result<Option<Pass<'t>>> {
        for threads in [self.base.threads, 1] {
            let mut chunk = self.max_chunk();
            while chunk >= MIN_CHUNK {
                let regions = requests.iter().flat_map(|request| self.regions(request, chunk));
                let pass = self.pass(regions.collect(), chunk, threads)?;
                if pass.plan.memory().targets <= self.max_open {
                    return Ok(Some(pass));
                }
                chunk /= 2;
            }
        }
        Ok(None)
    }

    /// Plans several passes over one tensor. Each pass fills as many chunks as may be open at a
    /// time.
    fn in_several<'t>(&self, request: &'t Requested<'_>) -> Result<Vec<Pass<'t>>> {
        let max_chunk = self.max_chunk();
        let (mut passes, mut open, mut bytes) = (Vec::new(), Vec::new(), 0);
        for region in self.regions(request, max_chunk) {
            let more = region.1.bytes.len() as u64;
            if more > self.max_open {
                let needed = (2 * more).max(2 * MIN_CHUNK);
                let too_small = PinnedBound { needed, bound: self.bound };
                return Err(Error::with_details(Kind::OutOfMemory, too_small));
            }
            if bytes + more > self.max_open {
                let regions = std::mem::take(&mut open);
                passes.push(self.pass(regions, max_chunk, self.base.threads)?);
                bytes = 0;
            }
            bytes += more;
            open.push(region);
        }
        passes.push(self.pass(open, max_chunk, self.base.threads)?);
        Ok(passes)
    }

    fn max_chunk(&self) -> u64 {
        1 << (self.bound / CHUNKS).max(MIN_CHUNK).ilog2()
    }

    fn pass<'t>(&self, regions: Vec<Region<'t>>, chunk: u64, threads: usize) -> Result<Pass<'t>> {
        let (requests, chunks): (Vec<LoadRequest>, _) = regions.into_iter().unzip();
        let options = Options {
            window: self.base.window.min(chunk / 2),
            threads,
            targets: Targets::Released,
            ..self.base
        };
        let plan = LoadPlan::new(self.graph, &Catalog::of(self.folder), &requests, &options)?;
        Ok(Pass { plan, chunks })
    }

    /// A region split into chunks of at most `most` bytes, but at least one element.
    fn regions<'t>(&self, (request, tensor): &'t Requested<'_>, most: u64) -> Vec<Region<'t>> {
        let element = self.graph.dtype(request.expr).bits() as u64 / 8;
        let mut start = 0;
        let region = |region: Vec<Range<u64>>| {
            let elements: u64 = region.iter().map(|it| it.end - it.start).product();
            let end = start + (elements * element) as usize;
            let bytes = std::mem::replace(&mut start, end)..end;
            let name = format!("{} {region:?}", request.target);
            let chunk = Chunk { name: &request.target, tensor, bytes };
            (LoadRequest::new(name, request.expr, region), chunk)
        };
        let regions = split(&request.region, most / element.max(1));
        regions.into_iter().map(region).collect()
    }
}
