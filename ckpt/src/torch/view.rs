//! Views of storages that are not contiguous.

use meshgrad_error::Result;

use super::error::{damaged, unsupported};
use super::tensor::TorchTensor;
use crate::graph::{Expr, Graph, span_of_view};

/// A strided view of a storage, in elements. A stride of 0 repeats elements.
pub(super) struct View {
    offset: u64,
    strides: Vec<u64>,
}

/// With more repetitions, plans would need too much memory.
const MAX_REPETITIONS: u64 = 1 << 12;

impl View {
    /// A tensor as a view of its whole storage.
    pub(super) fn new(tensor: &TorchTensor, name: &str) -> Result<View> {
        if tensor.dtype.packed > 1 {
            let problem = "its strides do not keep bytes together; save tensor.contiguous()";
            return Err(unsupported(name, problem));
        }
        let view = View { offset: tensor.offset, strides: tensor.strides.clone() };
        let repeated = view.repeated(&tensor.shape).into_iter();
        let repeated = repeated.map(|dim| tensor.shape[dim]);
        let repeated = repeated.fold(1, u64::saturating_mul);
        if repeated > MAX_REPETITIONS {
            let problem = format!(
                "it is expanded and repeats its elements {repeated} times, more than \
                 {MAX_REPETITIONS}; save tensor.contiguous(), or the tensor before expand()"
            );
            return Err(unsupported(name, &problem));
        }
        let (shape, strides) = view.kept(&tensor.shape);
        let span = span_of_view(&shape, &strides).ok_or_else(|| {
            let problem = "its elements overlap in memory; save tensor.contiguous()";
            unsupported(name, problem)
        })?;
        let elements = tensor.storage_bytes / tensor.dtype.bytes();
        match view.offset.checked_add(span) {
            Some(last) if last < elements => Ok(view),
            _ => Err(damaged(name, "it exceeds its storage")),
        }
    }

    /// The dims that repeat the same elements: torch expands a dim by a stride of 0.
    fn repeated(&self, shape: &[u64]) -> Vec<usize> {
        let repeats = |dim: &usize| self.strides[*dim] == 0 && shape[*dim] > 1;
        (0..shape.len()).filter(repeats).collect()
    }

    /// Extents and strides of the other dims.
    fn kept(&self, shape: &[u64]) -> (Vec<u64>, Vec<u64>) {
        let dims = shape.iter().zip(&self.strides);
        let kept = dims.filter(|(extent, stride)| **stride != 0 || **extent == 1);
        kept.map(|(extent, stride)| (*extent, *stride)).unzip()
    }

    /// The view of a storage, in which expanded dims are repeated.
    pub(super) fn of(&self, graph: &mut Graph, storage: Expr, shape: &[u64]) -> Result<Expr> {
        let (extents, strides) = self.kept(shape);
        let mut made = graph.view(storage, self.offset, &extents, &strides)?;
        for dim in self.repeated(shape) {
            made = graph.stack(&vec![made; shape[dim] as usize], dim)?;
        }
        Ok(made)
    }
}
