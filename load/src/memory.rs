//! Tensors in host memory as mutable bytes.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;

use half::bf16;
use meshgrad_ckpt::Dtype;
use meshgrad_error::{Error, Result, bail, error};
use meshgrad_runtime::{DType, Tensor, WriteGuard};

/// Adds the name of a tensor of the model that could not be allocated or filled.
pub fn not_loaded(tensor: &str, cause: Error) -> Error {
    cause.context(format_args!("`{}` was not loaded", tensor.escape_debug()))
}

/// The dtype in a file for a tensor of `dtype`.
///
/// # Errors
/// For any but f32 and bf16.
pub fn stored_dtype(dtype: DType) -> Result<Dtype> {
    match dtype {
        DType::F32 => Ok(Dtype::F32),
        DType::BF16 => Ok(Dtype::BF16),
        dtype => {
            bail!(Unsupported, "tensors of {dtype:?} cannot be stored: use f32 or bf16")
        }
    }
}

/// Contiguous tensors on the CPU, borrowed for writing. Several may share a storage, such as the rows
/// of the parameters of one home.
pub(crate) struct HostTensors<'t> {
    storages: Vec<HostStorage<'t>>,
    ranges: Vec<ByteRange<'t>>,
}

/// All elements of a storage.
enum HostStorage<'t> {
    F32(WriteGuard<'t, f32>),
    BF16(WriteGuard<'t, bf16>),
}

/// Where a tensor is.
struct ByteRange<'t> {
    name: &'t str,
    /// The position of its storage in the list.
    storage: usize,
    bytes: Range<usize>,
}

impl<'t> HostTensors<'t> {
    /// # Errors
    /// For a dtype that files do not store, or a storage that is in use.
    pub(crate) fn new(
        tensors: impl IntoIterator<Item = (&'t str, &'t Tensor)>,
    ) -> Result<HostTensors<'t>> {
        let (mut storages, mut ranges, mut known) = (Vec::new(), Vec::new(), HashMap::new());
        for (name, tensor) in tensors {
            let storage = match known.entry(tensor.storage_id()) {
                Entry::Occupied(storage) => *storage.get(),
                Entry::Vacant(new) => {
                    storages.push(HostStorage::new(name, tensor)?);
                    *new.insert(storages.len() - 1)
                }
            };
            let start = tensor.dtype().bytes(tensor.layout().offset());
            let bytes = start..start + tensor.dtype().bytes(tensor.elements());
            ranges.push(ByteRange { name, storage, bytes });
        }
        Ok(HostTensors { storages, ranges })
    }

    /// The bytes of each tensor.
    ///
    /// # Errors
    /// For tensors that overlap.
    pub(crate) fn bytes(&mut self) -> Result<Vec<&mut [u8]>> {
        let mut order: Vec<usize> = (0..self.ranges.len()).collect();
        order.sort_by_key(|at| {
            let ByteRange { storage, bytes, .. } = &self.ranges[*at];
            (*storage, bytes.start, bytes.end)
        });
        let storages = self.storages.iter_mut().map(HostStorage::bytes);
        let mut left: Vec<(usize, &mut [u8])> = storages.map(|bytes| (0, bytes)).collect();

        let mut found: Vec<&mut [u8]> = Vec::new();
        found.resize_with(self.ranges.len(), Default::default);
        for at in order {
            let ByteRange { name, storage, bytes } = &self.ranges[at];
            let (start, rest) = &mut left[*storage];
            let before = bytes.start.checked_sub(*start).ok_or_else(|| {
                let source =
                    error!(Invalid, "load: shares elements with another tensor that is loaded");
                not_loaded(name, source)
            })?;
            let (own, after) = std::mem::take(rest)[before..].split_at_mut(bytes.len());
            (*start, *rest) = (bytes.end, after);
            found[at] = own;
        }
        Ok(found)
    }
}

impl<'t> HostStorage<'t> {
    fn new(name: &str, tensor: &'t Tensor) -> Result<HostStorage<'t>> {
        let failed = |source| not_loaded(name, source);
        Ok(match stored_dtype(tensor.dtype())? {
            Dtype::BF16 => HostStorage::BF16(tensor.write("load").map_err(failed)?),
            _ => HostStorage::F32(tensor.write("load").map_err(failed)?),
        })
    }

    fn bytes(&mut self) -> &mut [u8] {
        match self {
            HostStorage::F32(write) => bytemuck::cast_slice_mut(write),
            HostStorage::BF16(write) => bytemuck::cast_slice_mut(write),
        }
    }
}
