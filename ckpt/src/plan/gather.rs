//! Turns requests into copies in bytes: traces each region, then finds and checks its tensors.

use std::collections::BTreeSet;
use std::sync::Arc;

use hashbrown::HashMap;
use meshgrad_error::{Error, Result, bail, ensure, error};
use twox_hash::XxHash3_64;

use super::catalog::{Catalog, Entry};
use super::computed::ComputedTensor;
use super::copy::{ByteCopy, ByteLoop, Loops};
use super::fill::Fill;
use super::request::{LoadRequest, Target};
use crate::Dtype;
use crate::graph::{ElementCopy, ElementOp, Expr, Graph, Leaf, SourceId};
use crate::names::Listed;

/// Targets in the order of the requests. Copies are sorted by file, offset and target,
/// independently of the order of the requests.
pub(super) struct Gathered {
    pub(super) targets: Vec<Target>,
    /// The rank of each target in an order that depends only on names.
    pub(super) ranks: Vec<u32>,
    /// The names of the tensors that copies read.
    pub(super) tensors: Vec<Arc<str>>,
    pub(super) copies: Vec<ByteCopy>,
    pub(super) conversions: Vec<Conversion>,
    pub(super) fills: Vec<Fill>,
    /// Computed tensors. In copies, they are numbered after the files.
    pub(super) computed: Vec<ComputedTensor>,
}

/// The operations on each element of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conversion {
    /// The dtype in the file.
    pub(crate) from: Dtype,
    pub(crate) steps: Vec<ElementOp>,
}

pub(super) fn gather(
    graph: &Graph,
    catalog: &Catalog<'_>,
    requests: &[LoadRequest],
) -> Result<Gathered> {
    let ranks = ranks(requests)?;
    let mut leaves = Leaves::new(graph, catalog);
    let mut targets = Vec::with_capacity(requests.len());
    let (mut copies, mut conversions) = (Vec::with_capacity(requests.len()), Vec::new());
    let (mut fills, mut element_copies) = (Vec::new(), Vec::new());
    for ((request, index), rank) in requests.iter().zip(0..).zip(&ranks) {
        let target = trace(graph, request, index, &mut element_copies)?;
        for (element_copy, at) in element_copies.iter().zip(0..) {
            if let Leaf::Fill(value) = element_copy.from {
                fills.push((*rank, Fill::new(element_copy, value, &target)));
            } else if let Some(tensor) = leaves.find(element_copy.from, (*rank, at))? {
                let mut copy = copy(graph, element_copy, tensor, &target)?;
                copy.conversion = conversion(&mut conversions, tensor.dtype, &element_copy.steps);
                copies.push(copy);
            }
        }
        targets.push(target);
    }
    let Found { names: tensors, computed, places } = leaves.finish()?;
    let files = catalog.files.len();
    for copy in &mut copies {
        if let Some(number) = (copy.file as usize).checked_sub(files) {
            copy.file = (files + places[number]) as u32;
        }
    }

    fills.sort_by_key(|(rank, fill)| (*rank, fill.to));
    Ok(Gathered {
        targets,
        copies: sorted(copies, &ranks),
        ranks,
        tensors,
        conversions,
        fills: fills.into_iter().map(|(_, fill)| fill).collect(),
        computed,
    })
}

/// The ranks of the requests in an order that depends only on their names: by hash, because long
/// names with a common prefix are slow to compare.
fn ranks(requests: &[LoadRequest]) -> Result<Vec<u32>> {
    let hash = |request: &LoadRequest| XxHash3_64::oneshot(request.target.as_bytes());
    let mut hashed: Vec<(u64, u32)> = requests.iter().map(hash).zip(0..).collect();
    let name = |index: u32| &*requests[index as usize].target;
    hashed.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| name(a.1).cmp(name(b.1))));

    let same = |a: (u64, u32), b: (u64, u32)| a.0 == b.0 && name(a.1) == name(b.1);
    if let Some(pair) = hashed.windows(2).find(|pair| same(pair[0], pair[1])) {
        bail!(
            Invalid,
            "target `{}` is requested twice: give each region its own name",
            name(pair[0].1).escape_debug()
        );
    }
    let mut ranks = vec![0; requests.len()];
    for ((_, index), rank) in hashed.into_iter().zip(0..) {
        ranks[index as usize] = rank;
    }
    Ok(ranks)
}

/// Sorts the copies by file, offset and target, independently of the order of the requests.
fn sorted(mut copies: Vec<ByteCopy>, ranks: &[u32]) -> Vec<ByteCopy> {
    let key = |copy: &ByteCopy| (copy.file, copy.from, ranks[copy.target as usize]);
    if copies.is_sorted_by(|a, b| key(a) < key(b)) {
        return copies;
    }
    // Sorting keys moves fewer bytes than sorting copies.
    let keys = copies.iter().map(key).zip(0..);
    let mut order: Vec<((u32, u64, u32), u32)> = keys.collect();
    order.sort_unstable_by(|(a, first), (b, second)| {
        let copies = || copies[*first as usize].cmp(&copies[*second as usize]);
        a.cmp(b).then_with(copies)
    });
    let take = |(_, at): ((u32, u64, u32), u32)| {
        let copy = &mut copies[at as usize];
        let loops = std::mem::take(&mut copy.loops);
        ByteCopy { loops, ..*copy }
    };
    order.into_iter().map(take).collect()
}

/// The target of a request, with its copies.
fn trace(
    graph: &Graph,
    request: &LoadRequest,
    index: usize,
    element_copies: &mut Vec<ElementCopy>,
) -> Result<Target> {
    let name = || request.target.escape_debug();
    let traced = graph.copies_into(request.expr, &request.region, element_copies);
    traced.map_err(|error| error.context(format_args!("target `{}`", name())))?;
    let shape: Vec<u64> = request.region.iter().map(|it| it.end - it.start).collect();
    let dtype = graph.dtype(request.expr);
    let bits = shape.iter().try_fold(dtype.bits() as u64, |bits, it| bits.checked_mul(*it));
    let bits = bits.ok_or_else(|| {
        error!(Invalid, "target `{}` of shape {shape:?} has more than 2^64 bits", name())
    })?;
    if let (false, Some(element_copy)) = (bits.is_multiple_of(8), element_copies.first()) {
        let source_tensor = graph.leaf_name(element_copy.from);
        return Err(part_of_a_byte(&request.target, source_tensor, dtype));
    }
    Ok(Target { name: request.target.clone(), index, dtype, shape, bytes: bits / 8 })
}

/// The location of a tensor's bytes.
#[derive(Clone, Copy)]
struct Placed {
    /// Its name's index in the plan.
    number: u32,
    file: u32,
    /// Its first byte in the file.
    start: u64,
    dtype: Dtype,
}

/// The leaves that copies read.
struct Found {
    /// Indexed by number.
    names: Vec<Arc<str>>,
    /// Computed tensors, in an order that does not depend on the order of the requests.
    computed: Vec<ComputedTensor>,
    /// For each computed tensor in the order of discovery, its index in `computed`.
    places: Vec<usize>,
}

/// The leaves of copies, located and checked on first use.
struct Leaves<'a, 'f> {
    graph: &'a Graph,
    catalog: &'a Catalog<'f>,
    /// By source: `None` until it is needed, then `Some(None)` if no file has it.
    read: Vec<Option<Option<Placed>>>,
    /// Never iterated, so its order does not matter.
    made: HashMap<Expr, Placed>,
    names: Vec<Arc<str>>,
    computed: Vec<ComputedTensor>,
    /// For each computed tensor: the rank of the first target that needs it, and its copy.
    needed_by: Vec<(u32, u32)>,
    missing: BTreeSet<String>,
}

impl<'a, 'f> Leaves<'a, 'f> {
    fn new(graph: &'a Graph, catalog: &'a Catalog<'f>) -> Leaves<'a, 'f> {
        Leaves {
            graph,
            catalog,
            read: vec![None; graph.sources().len()],
            made: HashMap::new(),
            names: Vec::new(),
            computed: Vec::new(),
            needed_by: Vec::new(),
            missing: BTreeSet::new(),
        }
    }

    /// The location of a leaf's bytes; `None` if it is missing, which [`Leaves::finish`] reports.
    fn find(&mut self, leaf: Leaf, by: (u32, u32)) -> Result<Option<Placed>> {
        match leaf {
            Leaf::Source(source) => self.find_source(source),
            Leaf::Computed(expr) => Ok(self.find_computed(expr, by)),
            Leaf::Fill(_) => Ok(None),
        }
    }

    fn find_source(&mut self, source: SourceId) -> Result<Option<Placed>> {
        if let Some(known) = self.read[source.index()] {
            return Ok(known);
        }
        let name = self.graph.shared_name(source);
        // If the graph has all tensors of a folder in order, each has the same index in both.
        let placed = match self.catalog.get(name, source.index()) {
            Some(entry) => {
                check(self.graph, source, entry)?;
                Some(Placed {
                    number: self.number(name.clone()),
                    file: entry.file,
                    start: entry.tensor.range.start,
                    dtype: entry.tensor.dtype,
                })
            }
            None => {
                self.missing.insert(name.to_string());
                None
            }
        };
        self.read[source.index()] = Some(placed);
        Ok(placed)
    }

    fn find_computed(&mut self, expr: Expr, by: (u32, u32)) -> Option<Placed> {
        let files = self.catalog.files.len();
        if let Some(known) = self.made.get(&expr) {
            let needed_by = &mut self.needed_by[known.file as usize - files];
            *needed_by = by.min(*needed_by);
            return Some(*known);
        }
        let computed = ComputedTensor::new(self.graph, expr)?;
        let placed = Placed {
            number: self.number(computed.computation.name().into()),
            file: (files + self.computed.len()) as u32,
            start: 0,
            dtype: self.graph.dtype(expr),
        };
        self.computed.push(computed);
        self.needed_by.push(by);
        self.made.insert(expr, placed);
        Some(placed)
    }

    fn number(&mut self, name: Arc<str>) -> u32 {
        self.names.push(name);
        self.names.len() as u32 - 1
    }

    fn finish(self) -> Result<Found> {
        if !self.missing.is_empty() {
            let names: Vec<String> = self.missing.into_iter().collect();
            bail!(Missing, "the files lack {}", Listed(&names));
        }
        let mut order: Vec<usize> = (0..self.computed.len()).collect();
        order.sort_by_key(|number| self.needed_by[*number]);
        let mut places = vec![0; order.len()];
        for (number, place) in order.iter().zip(0..) {
            places[*number] = place;
        }
        let computed = order.iter().map(|number| self.computed[*number].clone());
        Ok(Found { names: self.names, computed: computed.collect(), places })
    }
}

/// Checks that a tensor has the dtype and shape of the graph.
fn check(graph: &Graph, source: SourceId, entry: Entry<'_>) -> Result<()> {
    let (dtype, shape) = (graph.source_dtype(source), graph.source_shape(source));
    let tensor = entry.tensor;
    let found = tensor.shape.iter().map(|extent| *extent as u64);
    ensure!(
        tensor.dtype == dtype && found.eq(shape.iter().copied()),
        Mismatch,
        "tensor `{}` is {} {:?} in the file, but the graph defines it as {dtype} {shape:?}",
        tensor.name.escape_debug(),
        tensor.dtype,
        tensor.shape
    );
    Ok(())
}

/// The index of a conversion; `None` for no conversion.
fn conversion(known: &mut Vec<Conversion>, from: Dtype, steps: &[ElementOp]) -> Option<u32> {
    if steps.is_empty() {
        return None;
    }
    let conversion = Conversion { from, steps: steps.to_vec() };
    let at = known.iter().position(|it| *it == conversion);
    let at = at.unwrap_or_else(|| {
        known.push(conversion);
        known.len() - 1
    });
    Some(at as u32)
}

/// A copy in bytes, without its conversion.
fn copy(
    graph: &Graph,
    element_copy: &ElementCopy,
    tensor: Placed,
    target: &Target,
) -> Result<ByteCopy> {
    let bytes = loops_in_bytes(element_copy, tensor.dtype, target.dtype);
    let (from, to, loops) = bytes.ok_or_else(|| {
        let name = graph.leaf_name(element_copy.from);
        part_of_a_byte(&target.name, name, tensor.dtype)
    })?;
    Ok(ByteCopy {
        file: tensor.file,
        from: tensor.start + from,
        target: target.index as u32,
        to,
        element: tensor.dtype.bits().div_ceil(8) as u32,
        to_element: target.dtype.bits().div_ceil(8) as u32,
        loops,
        conversion: None,
        tensor: tensor.number,
    })
}

/// The first offset in the source, the first in the target, and the loops. Elements smaller than a
/// byte are copied as whole bytes; `None` if a range does not consist of whole bytes.
pub(crate) fn loops_in_bytes(
    element_copy: &ElementCopy,
    from: Dtype,
    to: Dtype,
) -> Option<(u64, u64, Loops)> {
    let (bits, to_bits) = (from.bits() as u64, to.bits() as u64);
    let bytes_of = |elements: u64, bits: u64| {
        let all = elements * bits;
        all.is_multiple_of(8).then_some(all / 8)
    };

    let mut loops = Loops::with_capacity(element_copy.loops.len());
    let mut outer = &element_copy.loops[..];
    if bits < 8 {
        // These elements have no conversion, so source and target have the same dtype.
        loops.push(ByteLoop { count: bytes_of(element_copy.run(), bits)?, from: 1, to: 1 });
        outer = &outer[usize::from(element_copy.run() > 1)..];
    }
    for it in outer {
        loops.push(ByteLoop {
            count: it.count,
            from: bytes_of(it.source_stride, bits)?,
            to: bytes_of(it.destination_stride, to_bits)?,
        });
    }
    let from = bytes_of(element_copy.source_offset, bits)?;
    Some((from, bytes_of(element_copy.destination_offset, to_bits)?, loops))
}

fn part_of_a_byte(target: &str, source_tensor: &str, dtype: Dtype) -> Error {
    error!(
        Invalid,
        "target `{}` would split or join bytes of {dtype} elements of `{}`: elements can be moved \
         only in whole bytes; slice and concatenate along dims whose rows are whole bytes",
        target.escape_debug(),
        source_tensor.escape_debug()
    )
}
