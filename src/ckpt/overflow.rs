//! Elements that a conversion to a smaller float type makes infinite.

use std::collections::BTreeMap;

use indicatif::ProgressBar;
use meshgrad::ckpt::graph::{Expr, Graph};
use meshgrad::ckpt::mapping::{Bound, TensorSpec};
use meshgrad::ckpt::plan::LoadRequest;
use meshgrad::ckpt::{Dtype, TensorInfo};
use serde::Serialize;

use super::source::Source;
use super::stream::{Limits, Stream, file_shape};

/// The number of a tensor's finite elements that became infinite.
#[derive(Serialize)]
pub(super) struct Overflow {
    pub(super) tensor: String,
    pub(super) elements: u64,
}

/// Counts the infinite elements of rounded tensors while a conversion writes them.
pub(super) struct InfiniteElements {
    /// The outputs without rounding.
    graph: Graph,
    /// The outputs that are rounded, by name, as expressions before rounding.
    unrounded: BTreeMap<String, Expr>,
    found: BTreeMap<String, u64>,
}

impl InfiniteElements {
    /// Starts at zero. `map` is the map without `--dtype`; `written` are the tensors to write.
    pub(super) fn new(map: &Bound, written: &[TensorSpec]) -> anyhow::Result<InfiniteElements> {
        let (graph, unrounded) = map.unrounded()?;
        let rounded = written.iter().filter_map(|spec| {
            let expr = *unrounded.get(&*spec.name)?;
            (graph.dtype(expr) != spec.dtype).then(|| (spec.name.clone(), expr))
        });
        Ok(InfiniteElements { unrounded: rounded.collect(), found: BTreeMap::new(), graph })
    }

    pub(super) fn add(&mut self, tensor: &TensorInfo, bytes: &[u8]) {
        if !self.unrounded.contains_key(&tensor.name) {
            return;
        }
        let found = infinite(tensor.dtype, bytes);
        if found > 0 {
            *self.found.entry(tensor.name.clone()).or_default() += found;
        }
    }

    /// The tensors that have more infinite elements than without rounding. Only tensors with
    /// infinite elements are computed again, without rounding.
    pub(super) fn overflows(
        &self,
        source: &Source,
        limits: &Limits,
    ) -> anyhow::Result<Vec<Overflow>> {
        let request = |(name, expr): (&String, &Expr)| {
            let is_found = self.found.contains_key(name);
            is_found.then(|| LoadRequest::all(&**name, &self.graph, *expr))
        };
        let requests = self.unrounded.iter().filter_map(request).collect();
        let hidden = ProgressBar::hidden();
        let mut stream = Stream::new(&self.graph, source, requests, limits, &hidden)?;
        let mut overflows = Vec::new();
        for (name, after) in &self.found {
            let Some(expr) = self.unrounded.get(name) else {
                continue;
            };
            let tensor = TensorInfo {
                name: name.clone(),
                dtype: self.graph.dtype(*expr),
                shape: file_shape(self.graph.shape(*expr)),
                range: 0..0,
            };
            let mut before = 0;
            stream.each_part(&tensor, |bytes| {
                before += infinite(tensor.dtype, bytes);
                Ok(())
            })?;
            if *after > before {
                overflows.push(Overflow { tensor: tensor.name, elements: after - before });
            }
        }
        Ok(overflows)
    }
}

/// The number of infinite elements; 0 for dtypes other than floats of 16 bits and more.
fn infinite(dtype: Dtype, bytes: &[u8]) -> u64 {
    let count = |width: usize, infinity: u64| {
        let is_infinite = |element: &&[u8]| {
            let mut bits = [0; 8];
            bits[..width].copy_from_slice(element);
            let sign = 1 << (8 * width - 1);
            u64::from_le_bytes(bits) & !sign == infinity
        };
        bytes.chunks_exact(width).filter(is_infinite).count() as u64
    };
    match dtype {
        Dtype::F16 => count(2, 0x7c00),
        Dtype::BF16 => count(2, 0x7f80),
        Dtype::F32 => count(4, 0x7f80_0000),
        Dtype::F64 => count(8, 0x7ff0_0000_0000_0000),
        _ => 0,
    }
}
