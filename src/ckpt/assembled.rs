//! Reads byte ranges of tensors that are stored in parts, such as the tensors of PyTorch.

use std::ops::Range;

use meshgrad::ckpt::TensorInfo;
use meshgrad::ckpt::exec::{Slices, execute};
use meshgrad::ckpt::graph::{Expr, Graph};
use meshgrad::ckpt::plan::{Catalog, LoadPlan, LoadRequest, Options};
use meshgrad::ckpt::source::{BackendChoice, Sources};
use meshgrad::ckpt::torch::TorchModel;

/// The smallest window of a read.
const MIN_WINDOW: u64 = 64 << 10;

/// A model of PyTorch whose tensors are read as if each were contiguous.
pub(crate) struct Assembled {
    model: TorchModel,
    /// The name, dtype and shape of each tensor. Its byte range starts at 0.
    tensors: Vec<TensorInfo>,
    /// Each tensor as an expression of `graph` over the stored tensors.
    exprs: Vec<Expr>,
    graph: Graph,
    sources: Sources,
}

impl Assembled {
    /// Opens the files of `model`; reads no data.
    pub(crate) fn new(model: TorchModel) -> anyhow::Result<Assembled> {
        let assembly = &model.assembly;
        let (mut tensors, mut graph, mut all) = (Vec::new(), Graph::new(), Vec::new());
        for spec in assembly.specs() {
            let expr = graph.source(&spec.name, spec.dtype, &spec.shape)?;
            all.push(LoadRequest::all(spec.name.as_str(), &graph, expr));
            tensors.push(TensorInfo {
                range: 0..super::source::bytes_of(&spec),
                shape: spec.shape.iter().map(|extent| *extent as usize).collect(),
                dtype: spec.dtype,
                name: spec.name,
            });
        }
        let (graph, all) = assembly.inline(&graph, all)?;
        Ok(Assembled {
            sources: Sources::open(assembly.folder(), BackendChoice::Auto)?,
            tensors,
            exprs: all.into_iter().map(|request| request.expr).collect(),
            graph,
            model,
        })
    }

    /// The model.
    pub(crate) fn model(&self) -> &TorchModel {
        &self.model
    }

    /// The tensors, sorted by name.
    pub(crate) fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// A reader of any number of tensors.
    pub(crate) fn reader(&self) -> Reader<'_> {
        Reader { of: self, catalog: Catalog::of(self.model.assembly.folder()) }
    }
}

/// Reads tensors. The catalog of stored tensors is made once, because it lists all of them.
pub(crate) struct Reader<'a> {
    of: &'a Assembled,
    catalog: Catalog<'a>,
}

impl Reader<'_> {
    /// Fills `data` with the bytes of a tensor from `offset` on. Allocates a window of the same
    /// size, but of at least [`MIN_WINDOW`] bytes.
    pub(crate) fn read(&self, tensor: usize, offset: usize, data: &mut [u8]) -> anyhow::Result<()> {
        let TensorInfo { dtype, shape, .. } = &self.of.tensors[tensor];
        let shape: Vec<u64> = shape.iter().map(|extent| *extent as u64).collect();
        let element_at = |byte: usize| byte as u64 * 8 / dtype.bits() as u64;
        let elements = element_at(offset)..element_at(offset + data.len());
        let regions = boxes(&shape, elements).into_iter().enumerate();
        let requests: Vec<LoadRequest> = regions
            .map(|(at, region)| LoadRequest::new(at.to_string(), self.of.exprs[tensor], region))
            .collect();

        let options = Options {
            threads: 1,
            window: (data.len() as u64).max(MIN_WINDOW),
            ..Options::default()
        };
        let plan = LoadPlan::new(&self.of.graph, &self.catalog, &requests, &options)?;
        let mut rest = data;
        let parts = plan.targets().iter().map(|target| {
            let (part, after) = std::mem::take(&mut rest).split_at_mut(target.bytes as usize);
            rest = after;
            part
        });
        let slices = Slices::new(parts);
        execute(&plan, &self.of.sources, &slices, &|_| {})?;
        Ok(())
    }
}

/// Splits consecutive elements of a row-major tensor into regions, in order.
fn boxes(shape: &[u64], Range { start, end }: Range<u64>) -> Vec<Vec<Range<u64>>> {
    if start == end {
        return Vec::new();
    }
    let Some((_, inner)) = shape.split_first() else {
        return vec![Vec::new()];
    };
    let row: u64 = inner.iter().product();
    let in_row = |number: u64, elements: Range<u64>| {
        let regions = boxes(inner, elements).into_iter();
        regions.map(move |mut region| {
            region.insert(0, number..number + 1);
            region
        })
    };
    let (first, last) = (start.div_ceil(row), end / row);
    if first > last {
        return in_row(last, start % row..end % row).collect();
    }
    let before = in_row(start / row, start % row..(first - start / row) * row);
    let whole = inner.iter().map(|extent| 0..*extent);
    let whole: Vec<Range<u64>> = std::iter::once(first..last).chain(whole).collect();
    let whole = (first < last).then_some(whole);
    let after = in_row(last, 0..end % row);
    before.chain(whole).chain(after).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The row-major indices of a region's elements.
    fn numbers(shape: &[u64], region: &[Range<u64>]) -> Vec<u64> {
        let dims = shape.iter().zip(region);
        dims.fold(vec![0], |outer, (extent, range)| {
            let of_row = |row: u64| range.clone().map(move |at| row * extent + at);
            outer.into_iter().flat_map(of_row).collect()
        })
    }

    /// The regions cover each element of the range once, in order.
    #[test]
    fn boxes_cover_their_range_in_order() {
        for shape in [&[][..], &[7], &[3, 4], &[1, 5, 1], &[2, 3, 4], &[3, 1, 2, 2], &[0, 4]] {
            let all: u64 = shape.iter().product();
            for start in 0..=all {
                for end in start..=all {
                    let found = boxes(shape, start..end);
                    let found: Vec<u64> = found.iter().flat_map(|it| numbers(shape, it)).collect();
                    assert!(found.into_iter().eq(start..end), "{shape:?} {start}..{end}");
                }
            }
        }
    }
}
