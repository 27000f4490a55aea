//! Elements that a conversion to a smaller float type makes infinite.

use std::collections::BTreeMap;

use indicatif::ProgressBar;
use meshgrad::ckpt::mapping::Bound;
use meshgrad::ckpt::{Dtype, TensorInfo};
use serde::Serialize;

use super::source::Source;
use super::stream::{Limits, Stream, file_shape};

/// A tensor of which finite elements became infinite.
#[derive(Serialize)]
pub(super) struct Overflow {
    pub(super) tensor: String,
    pub(super) elements: u64,
}

/// Counts infinite elements by tensor, while a conversion writes them.
#[derive(Default)]
pub(super) struct InfiniteElements(BTreeMap<String, u64>);

impl InfiniteElements {
    pub(super) fn add(&mut self, tensor: &TensorInfo, bytes: &[u8]) {
        let found = infinite(tensor.dtype, bytes);
        if found > 0 {
            *self.0.entry(tensor.name.clone()).or_default() += found;
        }
    }

    /// The tensors with more infinite elements than the conversion without rounding has. Computes
    /// only tensors with infinite elements again.
    pub(super) fn overflows(
        self,
        exact: &Bound,
        source: &Source,
        limits: &Limits,
    ) -> anyhow::Result<Vec<Overflow>> {
        let mut requests = exact.requests();
        requests.retain(|request| self.0.contains_key(&*request.target));
        let hidden = ProgressBar::hidden();
        let mut stream = Stream::new(exact.graph(), source, requests, limits, &hidden)?;
        let mut overflows = Vec::new();
        for spec in exact.outputs() {
            let Some(after) = self.0.get(&spec.name) else {
                continue;
            };
            let tensor = TensorInfo {
                name: spec.name,
                dtype: spec.dtype,
                shape: file_shape(&spec.shape),
                range: 0..0,
            };
            let mut before = 0;
            stream.each_part(&tensor, |bytes| {
                before += infinite(tensor.dtype, bytes);
                Ok(())
            })?;
            if *after > before {
                overflows.push(Overflow {
                    tensor: tensor.name,
                    elements: after - before,
                });
            }
        }
        Ok(overflows)
    }
}

/// The number of infinite elements; 0 for other dtypes than floats of 16 bits and more.
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
