//! Tensors: a shared storage and a layout. Views copy nothing; ops are in [`ops`](crate::ops).

use std::ops::Range;
use std::sync::Arc;

use meshgrad_error::{bail, ensure, error};
use meshgrad_mesh::{Reduction, Sharding};

use crate::core::layout::no_dim;
use crate::core::lent;
use crate::core::sharding::tag::Tag;
use crate::core::sharding::{scope, views};
use crate::core::storage::{Kind, ReadGuard, Storage, WriteGuard};
use crate::core::stream;
use crate::driver::{Pinned, PinnedCopy};
use crate::{DType, Device, Element, Layout, Result, Shape};

/// An n-dimensional array on a device. Cloning shares the storage.
#[derive(Clone)]
pub struct Tensor {
    storage: Arc<Storage>,
    layout: Layout,
    dtype: DType,
    /// `None` without a sharding.
    tag: Option<Tag>,
}

impl Tensor {
    /// A tensor of `shape` with the values of `elements`, in row-major order.
    ///
    /// # Errors
    /// When their number does not match `shape`; when memory runs out.
    pub fn from_slice<T: Element>(
        device: &Device,
        shape: &[usize],
        elements: &[T],
    ) -> Result<Tensor> {
        let mut out = UninitTensor::new(device, Shape::new(shape)?, T::DTYPE)?;
        if elements.len() != out.layout.shape().elements() {
            let shape = out.layout.shape();
            bail!(
                Invalid,
                "shape {shape} has {} elements, but {} were given",
                shape.elements(),
                elements.len()
            );
        }
        out.copy_from("from_slice", elements)?;
        Ok(out.finish())
    }

    /// A tensor with no dims and one value.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn scalar<T: Element>(device: &Device, value: T) -> Result<Tensor> {
        Tensor::from_slice(device, &[], &[value])
    }

    /// A mutable tensor of zeros, of the given `kind`, without a sharding, also inside of
    /// [`with_mesh`](crate::with_mesh). For a [`Kind::Value`] use [`ops::full`](crate::ops::full).
    ///
    /// # Errors
    /// When memory runs out.
    pub fn zeros(device: &Device, shape: &[usize], dtype: DType, kind: Kind) -> Result<Tensor> {
        let mut out = UninitTensor::with_kind(device, Shape::new(shape)?, dtype, kind)?;
        out.fill_zero()?;
        Ok(out.finish())
    }

    /// The extents, outermost first; of this rank's part, if the tensor is sharded.
    pub fn shape(&self) -> &Shape {
        self.layout.shape()
    }

    /// The extent of dim `dim`. Negative dims count from the back (-1 is the last).
    ///
    /// # Errors
    /// When there is no such dim.
    pub fn extent(&self, dim: isize) -> Result<usize> {
        Ok(self.shape()[self.dim("extent", dim)?])
    }

    /// The index of dim `dim`, which counts from the back when negative.
    ///
    /// # Errors
    /// When there is no such dim.
    pub fn dim(&self, op: &'static str, dim: isize) -> Result<usize> {
        let dims = self.shape().len();
        let at = if dim < 0 { dim + dims as isize } else { dim };
        let at = usize::try_from(at).ok().filter(|at| *at < dims);
        at.ok_or_else(|| no_dim(op, dim, self.shape()))
    }

    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.shape().elements()
    }

    /// The elements of a contiguous tensor, among all that were `read` in its storage.
    pub(crate) fn elements_of<'a, T>(&self, read: &'a [T]) -> &'a [T] {
        let start = self.layout().offset();
        &read[start..start + self.elements()]
    }

    /// The dtype of its elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The device that it is on.
    pub fn device(&self) -> &Device {
        self.storage.device()
    }

    /// The layout of its elements in its storage.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Whether its elements are contiguous in row-major order.
    pub fn is_contiguous(&self) -> bool {
        self.layout.is_contiguous()
    }

    /// The kind of its storage.
    pub fn kind(&self) -> Kind {
        self.storage.kind()
    }

    /// How often its storage was written after it was created; always 0 for a [`Kind::Value`].
    pub fn version(&self) -> u64 {
        self.storage.version()
    }

    /// An id of its storage, unique among live storages. Views of one storage have the same id.
    pub fn storage_id(&self) -> usize {
        Arc::as_ptr(&self.storage) as usize
    }

    /// Bytes of the whole storage, even if this tensor is a view of only a part.
    pub fn storage_bytes(&self) -> usize {
        self.storage.bytes()
    }

    /// Its place in its storage, without the storage.
    pub fn storage_view(&self) -> StorageView {
        StorageView { layout: self.layout, tag: self.tag.clone() }
    }

    /// A view of the indices `range` of dim `dim`. Copies nothing.
    ///
    /// # Errors
    /// When there is no such dim; when the range exceeds the dim; when the shardings do not fit.
    pub fn slice(&self, dim: isize, range: Range<usize>) -> Result<Tensor> {
        let dim = self.dim("slice", dim)?;
        let tag = self.map_tag(|tag| views::sliced(tag, dim, range.len()))?;
        Ok(self.with(self.layout.slice(dim, range)?, tag))
    }

    /// Swaps dims `a` and `b`. Copies nothing.
    ///
    /// # Errors
    /// When there is no such dim; when the shardings do not fit.
    pub fn transpose(&self, a: isize, b: isize) -> Result<Tensor> {
        let (a, b) = (self.dim("transpose", a)?, self.dim("transpose", b)?);
        let tag = self.map_tag(|tag| views::transposed(tag, a, b))?;
        Ok(self.with(self.layout.transpose(a, b)?, tag))
    }

    /// Reorders the dims to `order`. Copies nothing.
    ///
    /// # Errors
    /// When `order` is not a permutation of the dims; when the shardings do not fit.
    pub fn permute(&self, order: &[usize]) -> Result<Tensor> {
        let layout = self.layout.permute(order)?;
        let tag = self.map_tag(|tag| views::permuted(tag, order))?;
        Ok(self.with(layout, tag))
    }

    /// Broadcasts to `shape`: adds dims in front, and repeats dims of extent 1. Copies nothing. For
    /// a sharded tensor, `shape` is the global shape.
    ///
    /// # Errors
    /// When the shape does not broadcast; when the shardings do not fit.
    pub fn broadcast_to(&self, shape: &[usize]) -> Result<Tensor> {
        let tag = self.map_tag(|tag| views::broadcast(tag, shape))?;
        let layout = self.layout.broadcast_to(local(&tag, shape))?;
        Ok(self.with(layout, tag))
    }

    /// Inserts a dim of extent 1 before dim `dim`. Copies nothing.
    ///
    /// # Errors
    /// When there is no such dim; for too many dims; when the shardings do not fit.
    pub fn unsqueeze(&self, dim: usize) -> Result<Tensor> {
        let layout = self.layout.unsqueeze(dim)?;
        let tag = self.map_tag(|tag| views::unsqueezed(tag, dim))?;
        Ok(self.with(layout, tag))
    }

    /// The same elements in another shape; `None` when that requires a copy (see
    /// [`ops::reshape`](crate::ops::reshape), which then copies). For a sharded tensor, `shape` is
    /// the global shape.
    ///
    /// # Errors
    /// When the number of elements differs; when the shardings do not fit.
    pub fn view(&self, shape: &[usize]) -> Result<Option<Tensor>> {
        let tag = self.map_tag(|tag| views::reshaped(tag, shape))?;
        let layout = self.layout.reshape(local(&tag, shape))?;
        Ok(layout.map(|layout| self.with(layout, tag)))
    }

    /// The bytes of the elements, as [`Tensor::to_vec`].
    ///
    /// # Errors
    /// As [`Tensor::to_vec`].
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        crate::for_any!(self.dtype, T => Ok(bytemuck::cast_slice(&self.to_vec::<T>()?).to_vec()))
    }

    /// The elements in row-major order. On a GPU it waits for the current stream.
    ///
    /// # Errors
    /// For another dtype; on a meta device; while the storage is in use; with the failure of
    /// earlier work; if the rank has only a part of the tensor.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.expect_whole("to_vec")?;
        if self.device().gpu().is_some() {
            self.expect_dtype(T::DTYPE)?;
            return self.download();
        }

        let elements = self.read::<T>()?;
        if self.is_contiguous() {
            let start = self.layout.offset();
            return Ok(elements[start..start + self.elements()].to_vec());
        }

        let mut out = Vec::with_capacity(self.elements());
        super::strides::for_each_offset(&self.layout, |at| out.push(elements[at]));
        Ok(out)
    }

    /// The only element of a one-element tensor.
    ///
    /// # Errors
    /// When it does not have one element; otherwise as [`Tensor::to_vec`].
    pub fn item<T: Element>(&self) -> Result<T> {
        match self.to_vec()?.as_slice() {
            [only] => Ok(*only),
            _ => Err(error!(
                Invalid,
                "item: shape {} has {} elements, but must have exactly one",
                self.shape(),
                self.shape().elements()
            )),
        }
    }

    /// The elements of the whole storage, for reading. [`Tensor::layout`] maps this tensor's
    /// elements to them.
    ///
    /// # Errors
    /// For another dtype; on a meta device; on a GPU; while the storage is being written.
    pub fn read<T: Element>(&self) -> Result<ReadGuard<'_, T>> {
        self.expect_dtype(T::DTYPE)?;
        self.storage.read()
    }

    /// The elements of the whole storage, for writing by `op`. Increments the version.
    ///
    /// # Errors
    /// For a [`Kind::Value`]; for another dtype; on a meta device; on a GPU; while the storage is
    /// in use.
    pub fn write<T: Element>(&self, op: &'static str) -> Result<WriteGuard<'_, T>> {
        self.expect_dtype(T::DTYPE)?;
        self.storage.write(op)
    }

    pub(crate) fn storage(&self) -> &Arc<Storage> {
        &self.storage
    }

    /// Enqueues a copy of the first `bytes` bytes of pinned memory to byte `offset` of this
    /// contiguous tensor, on the current stream of a GPU.
    pub(crate) fn upload_pinned(
        &self,
        op: &'static str,
        from: Pinned,
        bytes: usize,
        offset: usize,
    ) -> Result<PinnedCopy> {
        let offset = self.offset_bytes() as usize + offset;
        self.storage.upload_pinned(op, from, bytes, offset)
    }

    /// Enqueues a copy of the elements of this contiguous tensor to pinned memory, on the current
    /// stream of a GPU.
    pub(crate) fn download_async(&self) -> Result<PinnedCopy> {
        let bytes = self.dtype.bytes(self.elements());
        self.storage.download_async(self.offset_bytes() as usize, bytes)
    }

    /// The address of its first element on a GPU, for work that the caller enqueues next on the
    /// current stream.
    ///
    /// # Errors
    /// While work on another stream writes it.
    pub(crate) fn address(&self, op: &'static str) -> Result<u64> {
        Ok(self.storage.address(op)? + self.offset_bytes())
    }

    /// As [`Tensor::address`], for an `op` that changes the tensor. Increments the version.
    pub(crate) fn address_to_write(&self, op: &'static str) -> Result<u64> {
        Ok(self.storage.address_to_write(op)? + self.offset_bytes())
    }

    pub(crate) fn address_to_claim(&self, op: &'static str) -> Result<u64> {
        Ok(self.storage.address_to_claim(op)? + self.offset_bytes())
    }

    pub(crate) fn raise_version(&self) {
        self.storage.raise_version();
    }

    fn offset_bytes(&self) -> u64 {
        self.dtype.bytes(self.layout.offset()) as u64
    }

    /// The elements in row-major order, copied from a GPU. One copy transfers everything between
    /// the first and the last element.
    fn download<T: Element>(&self) -> Result<Vec<T>> {
        let mut elements = vec![T::zeroed(); self.layout.span()];
        let bytes = bytemuck::cast_slice_mut(&mut elements);
        self.storage.download(self.offset_bytes() as usize, bytes)?;
        if self.is_contiguous() {
            return Ok(elements);
        }

        let start = self.layout.offset();
        let mut out = Vec::with_capacity(self.elements());
        super::strides::for_each_offset(&self.layout, |at| out.push(elements[at - start]));
        Ok(out)
    }

    /// The range of its elements in its storage.
    ///
    /// # Errors
    /// When it is not contiguous.
    pub(crate) fn contiguous_range(&self, op: &'static str) -> Result<Range<usize>> {
        ensure!(
            self.is_contiguous(),
            Invalid,
            "{op}: writes to {self}, which is not contiguous; pass a contiguous tensor"
        );
        let start = self.layout.offset();
        Ok(start..start + self.elements())
    }

    pub(crate) fn expect_dtype(&self, asked: DType) -> Result<()> {
        lent::expect_dtype(self.dtype, asked)
    }

    /// The tag of a view; `None` if this tensor has no tag.
    fn map_tag(&self, of_view: impl FnOnce(&Tag) -> Result<Tag>) -> Result<Option<Tag>> {
        self.tag().map(of_view).transpose()
    }

    fn with(&self, layout: Layout, tag: Option<Tag>) -> Tensor {
        debug_assert!(tag.as_ref().is_none_or(|tag| tag.local() == layout.shape()));
        Tensor { storage: self.storage.clone(), layout, dtype: self.dtype, tag }
    }
}

/// The place of a tensor in its storage, for a storage that is freed and computed again.
#[derive(Clone)]
pub struct StorageView {
    layout: Layout,
    tag: Option<Tag>,
}

impl StorageView {
    /// The tensor at this place of `whole`, which is a whole storage with the same contents.
    ///
    /// # Errors
    /// When `whole` is too short or not a whole storage.
    pub fn of(&self, whole: &Tensor) -> Result<Tensor> {
        let end = self.layout.offset() + self.layout.span();
        if !whole.is_contiguous() || whole.layout.offset() != 0 || whole.elements() < end {
            bail!(Invalid, "storage_view: {whole} is not a storage of at least {end} elements");
        }
        Ok(whole.with(self.layout, self.tag.clone()))
    }
}

/// Shardings.
impl Tensor {
    /// The sharding of the global tensor of which this is a rank's part; `None` if it has none, as
    /// on a single rank.
    pub fn sharding(&self) -> Option<&Sharding> {
        self.tag.as_ref().map(Tag::sharding)
    }

    /// This tensor as the part of rank `rank` of a tensor with this sharding. Copies nothing. The
    /// caller states it: the values are not checked.
    ///
    /// # Errors
    /// If the rank is not in the mesh, its part has another shape, or the tensor has another
    /// sharding; for partial sums of bool, and partial means of integers or bool.
    pub fn with_sharding(&self, sharding: &Sharding, rank: usize) -> Result<Tensor> {
        let tag = Tag::new(sharding.clone(), rank)?;
        tag.check("with_sharding", self.shape())?;
        for (axis, reduction) in sharding.partials() {
            let needed = match reduction {
                Reduction::Sum if self.dtype() == DType::Bool => "an integer or float",
                Reduction::Avg if !self.dtype().is_float() => "a float",
                _ => continue,
            };
            bail!(
                Invalid,
                "with_sharding: a tensor of dtype {} cannot be partial({reduction}) on axis \
                 `{axis}`; cast it to {needed} before",
                self.dtype()
            );
        }
        if let Some(own) = self.tag().filter(|own| **own != tag) {
            bail!(
                Invalid,
                "with_sharding: the tensor already has the sharding {}, not {sharding}; \
                 redistribute it, or call with_sharding on Tensor::local",
                own.sharding()
            );
        }
        Ok(self.with(self.layout, Some(tag)))
    }

    /// Its sharding, for `op`.
    ///
    /// # Errors
    /// If it has none.
    pub fn expect_sharding(&self, op: &str) -> Result<&Sharding> {
        self.sharding().ok_or_else(|| {
            error!(
                Invalid,
                "{op}: {self} has no sharding; state it with Tensor::with_sharding, or call {op} \
                 outside of with_redistribution on a single rank"
            )
        })
    }

    /// This tensor as equal on all ranks of the enclosing [`with_mesh`](crate::with_mesh), such as a
    /// table of constants that every rank computes; itself outside of any. Copies nothing. The
    /// caller states it: the values are not checked.
    ///
    /// # Errors
    /// If the tensor has another sharding.
    pub fn as_replicated(&self) -> Result<Tensor> {
        match scope::replicated(self.shape())? {
            Some(tag) => self.with_sharding(tag.sharding(), tag.rank()),
            None => Ok(self.clone()),
        }
    }

    /// This rank's part as a tensor without sharding. Copies nothing.
    pub fn local(&self) -> Tensor {
        self.with(self.layout, None)
    }

    /// The extents of the global tensor; [`Tensor::shape`] without sharding.
    pub fn global_shape(&self) -> Shape {
        let mut shape = *self.shape();
        if let Some(tag) = &self.tag {
            for (dim, extent) in tag.sharding().shape().iter().enumerate() {
                shape = shape.with(dim, *extent);
            }
        }
        shape
    }

    /// The extent of dim `dim` of the global tensor. Negative dims count from the back.
    ///
    /// # Errors
    /// When there is no such dim.
    pub fn global_extent(&self, dim: isize) -> Result<usize> {
        Ok(self.global_shape()[self.dim("global_extent", dim)?])
    }

    /// Whether an axis shards dim `dim`.
    pub(crate) fn is_sharded(&self, dim: usize) -> bool {
        let tag = self.tag();
        tag.is_some_and(|tag| !tag.sharding().axes_of_dim(dim).is_empty())
    }

    pub(crate) fn tag(&self) -> Option<&Tag> {
        self.tag.as_ref()
    }

    /// As [`Tensor::broadcast_to`] of [`Tensor::local`], with one copy of the layout less.
    pub(crate) fn local_broadcast_to(&self, shape: &[usize]) -> Result<Tensor> {
        Ok(self.with(self.layout.broadcast_to(shape)?, None))
    }

    pub(crate) fn with_tag(&self, tag: Option<Tag>) -> Tensor {
        self.with(self.layout, tag)
    }

    /// Checks that the rank has all values, for `op`.
    pub(crate) fn expect_whole(&self, op: &'static str) -> Result<()> {
        match self.sharding() {
            Some(sharding) if !sharding.is_replicated() => {
                bail!(
                    Invalid,
                    "{op}: this rank has only a part of the tensor, or partial values \
                     ({sharding}); redistribute it to replicate, or use the rank's part \
                     (Tensor::local)"
                )
            }
            _ => Ok(()),
        }
    }
}

/// The local shape of a tensor with global shape `global`.
fn local<'a>(tag: &'a Option<Tag>, global: &'a [usize]) -> &'a [usize] {
    tag.as_ref().map_or(global, |tag| tag.local())
}

/// A contiguous tensor whose elements an op has yet to write. It is not shared.
pub struct UninitTensor {
    storage: Storage,
    layout: Layout,
    dtype: DType,
    tag: Option<Tag>,
}

impl UninitTensor {
    /// Allocates a result of `shape`. Its memory has stale values: the op must write every element.
    ///
    /// # Errors
    /// When memory runs out; when the tensor is larger than the address space.
    pub fn new(device: &Device, shape: Shape, dtype: DType) -> Result<UninitTensor> {
        UninitTensor::with_kind(device, shape, dtype, Kind::Value)
    }

    /// As [`UninitTensor::new`], for a tensor of the given `kind`.
    ///
    /// # Errors
    /// As [`UninitTensor::new`].
    pub fn with_kind(
        device: &Device,
        shape: Shape,
        dtype: DType,
        kind: Kind,
    ) -> Result<UninitTensor> {
        let elements =
            shape.iter().try_fold(1usize, |product, extent| product.checked_mul(*extent));
        let bytes = elements.and_then(|elements| elements.checked_mul(dtype.bits()));
        let bytes =
            bytes.map(|bits| bits.div_ceil(8)).filter(|bytes| *bytes < isize::MAX as usize / 2);
        let bytes = bytes.ok_or_else(|| {
            error!(Invalid, "shape {shape} of {dtype} is larger than the address space")
        })?;

        let storage = Storage::new(device, stream::pool(device), bytes, kind)?;
        Ok(UninitTensor { storage, layout: Layout::contiguous(shape, 0), dtype, tag: None })
    }

    pub(crate) fn set_tag(&mut self, tag: Option<Tag>) {
        self.tag = tag;
    }

    /// Inside of [`with_mesh`](crate::with_mesh), declares that the values will be equal on all
    /// ranks.
    pub(crate) fn replicated(&mut self) -> Result<()> {
        self.tag = scope::replicated(self.shape())?;
        Ok(())
    }

    /// The extents.
    pub fn shape(&self) -> &Shape {
        self.layout.shape()
    }

    /// The dtype of its elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The device that it is on.
    pub fn device(&self) -> &Device {
        self.storage.device()
    }

    /// The elements, for writing.
    ///
    /// # Errors
    /// For another dtype; on a meta device; on a GPU.
    pub fn slice<T: Element>(&mut self) -> Result<&mut [T]> {
        lent::expect_dtype(self.dtype, T::DTYPE)?;
        self.storage.as_mut_slice()
    }

    /// Sets every element to zero. Does nothing on a meta device.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn fill_zero(&mut self) -> Result<()> {
        self.storage.fill_zero()
    }

    /// Copies `elements`, whose number must match, for `op`. Does nothing on a meta device.
    pub(crate) fn copy_from<T: Element>(&mut self, op: &'static str, elements: &[T]) -> Result<()> {
        let device = self.storage.device();
        if device.gpu().is_some() {
            return self.storage.upload(op, bytemuck::cast_slice(elements));
        }
        if device.computes() {
            self.slice()?.copy_from_slice(elements);
        }
        Ok(())
    }

    /// Enqueues a copy of `x`, which is contiguous and of this shape and dtype, on the current
    /// stream of a GPU.
    pub(crate) fn copy_from_gpu(&mut self, x: &Tensor) -> Result<()> {
        let from = (&x.storage, x.offset_bytes() as usize);
        self.storage.copy_from(0, from, self.dtype.bytes(x.elements()))
    }

    /// The address of its first element on a GPU, for the op that writes it.
    pub(crate) fn address(&self) -> Result<u64> {
        self.storage.raw_address("address")
    }

    /// The finished tensor. A [`Kind::Value`] can no longer change.
    pub fn finish(self) -> Tensor {
        Tensor {
            storage: Arc::new(self.storage),
            layout: self.layout,
            dtype: self.dtype,
            tag: self.tag,
        }
    }
}
