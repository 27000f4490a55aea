//! Plans for a GPU: what is wanted in pieces, and the pieces in as many passes over the files as it
//! takes for no pass to open more of them at once than there is pinned memory for.
//!
//! One pass does where the file has rows in the tensor's order. Where it has them in another, as for
//! a transposed tensor, every piece is open until the last row is read: smaller pieces help, and
//! fewer threads. Where the whole tensor is too large even so, a pass reads some of its rows, and the
//! next reads the same stretch of the file again for others.

use std::ops::Range;

use meshgrad_ckpt::Folder;
use meshgrad_ckpt::graph::Graph;
use meshgrad_ckpt::plan::{Catalog, LoadPlan, LoadRequest, Options, Targets};
use meshgrad_runtime::Tensor;

use super::pieces::cut;
use crate::{Error, Result};

/// How many pieces fill the pinned memory: enough for each thread to fill one or two while the GPU
/// copies others.
const PIECES: u64 = 16;

/// Pieces are not cut smaller to keep to a bound: there would be too many of them.
const LEAST_PIECE: u64 = 4 << 10;

/// A plan, and the pieces that are its targets.
pub(super) struct Pass<'t> {
    pub(super) plan: LoadPlan,
    pub(super) pieces: Vec<Piece<'t>>,
}

/// A stretch of a tensor.
pub(super) struct Piece<'t> {
    pub(super) name: &'t str,
    pub(super) tensor: &'t Tensor,
    pub(super) bytes: Range<usize>,
}

/// What is read into a piece.
type Region<'t> = (LoadRequest, Piece<'t>);

/// A tensor, and what goes there.
type Wanted<'t> = (LoadRequest, &'t Tensor);

/// Where passes read, and the bound that they keep to.
pub(super) struct Passes<'a> {
    folder: &'a Folder,
    graph: &'a Graph,
    base: Options,
    bound: u64,
    /// Bytes of pieces that may be open at once: a buffer may be nearly twice as large as its piece.
    most: u64,
}

impl<'a> Passes<'a> {
    pub(super) fn new(folder: &'a Folder, graph: &'a Graph, bound: u64) -> Passes<'a> {
        Passes {
            folder,
            graph,
            base: Options::for_folder(folder),
            bound,
            most: bound / 2,
        }
    }

    /// As few passes as it takes: one for all tensors, else one for those that need no more each,
    /// and several for each of the others.
    ///
    /// # Errors
    /// [`Error::PinnedBound`] where a single piece is too large; what planning gives.
    pub(super) fn plan<'t>(&self, wants: &'t [Wanted<'_>]) -> Result<Vec<Pass<'t>>> {
        let all: Vec<&Wanted<'_>> = wants.iter().collect();
        if let Some(pass) = self.in_one(&all)? {
            return Ok(vec![pass]);
        }

        let (mut plain, mut alone, mut passes) = (Vec::new(), Vec::new(), Vec::new());
        for want in wants {
            match self.in_one(&[want])? {
                Some(pass) => {
                    plain.push(want);
                    alone.push(pass);
                }
                None => passes.extend(self.in_several(want)?),
            }
        }
        match self.in_one(&plain)? {
            Some(pass) => passes.push(pass),
            None => passes.extend(alone),
        }
        Ok(passes)
    }

    /// A single pass over some tensors, in pieces as large as the bound allows. `None` if in each
    /// too many of them are open.
    fn in_one<'t>(&self, wants: &[&'t Wanted<'_>]) -> Result<Option<Pass<'t>>> {
        for threads in [self.base.threads, 1] {
            let mut piece = self.largest_piece();
            while piece >= LEAST_PIECE {
                let regions = wants.iter().flat_map(|want| self.regions(want, piece));
                let pass = self.pass(regions.collect(), piece, threads)?;
                if pass.plan.memory().targets <= self.most {
                    return Ok(Some(pass));
                }
                piece /= 2;
            }
        }
        Ok(None)
    }

    /// Passes over one tensor, each for as many of its rows as may be open.
    fn in_several<'t>(&self, want: &'t Wanted<'_>) -> Result<Vec<Pass<'t>>> {
        let largest = self.largest_piece();
        let (mut passes, mut open, mut bytes) = (Vec::new(), Vec::new(), 0);
        for region in self.regions(want, largest) {
            let more = region.1.bytes.len() as u64;
            if more > self.most {
                return Err(Error::PinnedBound {
                    needed: (2 * more).max(2 * LEAST_PIECE),
                    bound: self.bound,
                });
            }
            if bytes + more > self.most {
                let regions = std::mem::take(&mut open);
                passes.push(self.pass(regions, largest, self.base.threads)?);
                bytes = 0;
            }
            bytes += more;
            open.push(region);
        }
        passes.push(self.pass(open, largest, self.base.threads)?);
        Ok(passes)
    }

    fn largest_piece(&self) -> u64 {
        1 << (self.bound / PIECES).max(LEAST_PIECE).ilog2()
    }

    fn pass<'t>(&self, regions: Vec<Region<'t>>, piece: u64, threads: usize) -> Result<Pass<'t>> {
        let (wants, pieces): (Vec<LoadRequest>, _) = regions.into_iter().unzip();
        let options = Options {
            window: self.base.window.min(piece / 2),
            threads,
            targets: Targets::Leave,
            ..self.base
        };
        let plan = LoadPlan::new(self.graph, &Catalog::of(self.folder), &wants, &options)?;
        Ok(Pass { plan, pieces })
    }

    /// What is wanted in pieces of at most so many bytes, or an element.
    fn regions<'t>(&self, (want, tensor): &'t Wanted<'_>, most: u64) -> Vec<Region<'t>> {
        let element = self.graph.dtype(want.expr).bits() as u64 / 8;
        let mut start = 0;
        let cut = cut(&want.region, most / element.max(1)).into_iter();
        let region = |region: Vec<Range<u64>>| {
            let elements: u64 = region.iter().map(|it| it.end - it.start).product();
            let end = start + (elements * element) as usize;
            let bytes = std::mem::replace(&mut start, end)..end;
            let name = format!("{} {region:?}", want.target);
            let piece = Piece {
                name: &want.target,
                tensor,
                bytes,
            };
            (LoadRequest::new(name, want.expr, region), piece)
        };
        cut.map(region).collect()
    }
}
