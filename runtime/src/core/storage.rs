//! The memory of a tensor: one block, borrowed by many readers or one writer.
//!
//! A storage never changes after the op that created it, except for the four mutable kinds in
//! [`Kind`]. Borrows are checked at run time, so that no thread reads while another one writes.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use meshgrad_error::error;

use crate::core::memory::{Block, Place};
use crate::core::stream_uses::StreamUses;
use crate::driver::{self, Pool};
use crate::{DType, Device, Element, Error, Result};

/// What a storage is used for, and so whether it may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The result of an op: never changes.
    Value,
    /// A parameter: optimizers and checkpoint loading change it.
    Parameter,
    /// A gradient buffer: ops accumulate into it.
    Gradient,
    /// State that an optimizer keeps between steps.
    OptimizerState,
    /// A cache that grows, such as the keys and values in decoding.
    Cache,
}

/// A block of device memory with its version and its borrows.
pub(crate) struct Storage {
    pub(super) block: Block,
    bytes: usize,
    device: Device,
    /// The pool that its memory belongs to.
    pool: Pool,
    kind: Kind,
    version: AtomicU64,
    /// Whether a stream other than its pool's has used it.
    used_elsewhere: AtomicBool,
    /// The id of the last scope that keeps it alive.
    kept_by: AtomicU64,
    /// Uses by enqueued work, for a mutable storage.
    uses: StreamUses,
    /// Borrows by the host: the number of readers, -1 for one writer, or [`ASLEEP`].
    borrows: AtomicIsize,
}

/// The borrows of a storage that sleeps.
const ASLEEP: isize = isize::MIN;

impl Storage {
    /// Allocates `bytes` bytes; on a GPU from `pool`.
    pub(crate) fn new(device: &Device, pool: Pool, bytes: usize, kind: Kind) -> Result<Storage> {
        let block = device.allocate(pool, bytes)?;
        Ok(Storage {
            block,
            bytes,
            device: device.clone(),
            pool,
            kind,
            version: AtomicU64::new(0),
            used_elsewhere: AtomicBool::new(false),
            kept_by: AtomicU64::new(0),
            uses: StreamUses::default(),
            borrows: AtomicIsize::new(0),
        })
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// How often the storage was written after it was created.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// All elements, for reading.
    pub(crate) fn read<T: Element>(&self) -> Result<ReadGuard<'_, T>> {
        let release = self.begin_read()?;
        let bytes = self.slice()?;
        Ok(ReadGuard { elements: elements(bytes), _release: release })
    }

    /// All elements, for writing by `op`. Counts as a new version.
    pub(crate) fn write<T: Element>(&self, op: &'static str) -> Result<WriteGuard<'_, T>> {
        let release = self.begin_write(op)?;
        let (address, bytes) = self.raw()?;
        self.raise_version();
        // SAFETY: the borrow count excludes other readers and writers until `release` is dropped,
        // and a block is always initialized.
        let bytes = unsafe { std::slice::from_raw_parts_mut(address, bytes) };
        Ok(WriteGuard { elements: elements_mut(bytes), _release: release })
    }

    /// Begins a borrow by a reader.
    fn begin_read(&self) -> Result<Release<'_>> {
        let free = |borrows| (borrows >= 0).then_some(borrows + 1);
        let borrowed = self.borrows.fetch_update(Ordering::Acquire, Ordering::Relaxed, free);
        borrowed.map_err(|borrows| in_use(borrows, "read"))?;
        Ok(Release { borrows: &self.borrows })
    }

    /// Begins a borrow by `op` for writing.
    fn begin_write(&self, op: &'static str) -> Result<Release<'_>> {
        if self.kind == Kind::Value {
            return Err(immutable(op));
        }
        let borrowed = self.borrows.compare_exchange(0, -1, Ordering::Acquire, Ordering::Relaxed);
        borrowed.map_err(|borrows| in_use(borrows, op))?;
        Ok(Release { borrows: &self.borrows })
    }

    /// Makes it sleep: later borrows fail. Returns whether it was awake.
    pub(super) fn begin_sleep(&self, op: &'static str) -> Result<bool> {
        let free = self.borrows.compare_exchange(0, ASLEEP, Ordering::Acquire, Ordering::Relaxed);
        match free {
            Ok(_) => Ok(true),
            Err(ASLEEP) => Ok(false),
            Err(borrows) => Err(in_use(borrows, op)),
        }
    }

    pub(super) fn end_sleep(&self) {
        self.borrows.store(0, Ordering::Release);
    }

    pub(super) fn is_asleep(&self) -> bool {
        self.borrows.load(Ordering::Acquire) == ASLEEP
    }

    /// Calls `f` with the block of GPU memory, for `op`. It does not move meanwhile.
    pub(super) fn with_gpu_block<T>(
        &self,
        op: &'static str,
        f: impl FnOnce(&driver::Block) -> Result<T>,
    ) -> Result<T> {
        let Block::Gpu(block) = &self.block else {
            return Err(self.no_values());
        };
        match &*block.read().unwrap_or_else(PoisonError::into_inner) {
            Place::Gpu(block) => f(block),
            Place::Host(_) | Place::Forgotten | Place::Lost => Err(asleep(op)),
        }
    }

    /// Its address on a GPU (on a meta device, the address that it would have on a GPU), for an `op`
    /// that creates this storage or has recorded its use.
    pub(crate) fn raw_address(&self, op: &'static str) -> Result<u64> {
        self.with_gpu_block(op, |block| Ok(block.address()))
    }

    pub(crate) fn pool(&self) -> Pool {
        self.pool
    }

    /// Whether a stream other than its pool's may still use its memory when it is freed.
    ///
    /// Blocks of the base stream need no flush: the base stream waits for a side stream before the
    /// side stream's uses of these blocks end.
    pub(super) fn is_used_elsewhere(&self) -> bool {
        self.pool.stream != 0 && self.used_elsewhere.load(Ordering::Acquire)
    }

    /// Marks it as used by a stream other than its pool's.
    pub(crate) fn mark_used_elsewhere(&self) {
        self.used_elsewhere.store(true, Ordering::Release);
    }

    /// The uses by enqueued work that has not been waited for.
    pub(crate) fn uses(&self) -> &StreamUses {
        &self.uses
    }

    /// Records `scope` as the last scope that keeps it alive. Returns false if it already was.
    pub(crate) fn is_new_to(&self, scope: u64) -> bool {
        self.kept_by.swap(scope, Ordering::Relaxed) != scope
    }

    pub(crate) fn raise_version(&self) {
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    /// All elements, for the op that creates this storage and has not shared it yet.
    pub(crate) fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        let (address, bytes) = self.raw()?;
        // SAFETY: `&mut self` proves that the storage is not shared, and a block is always
        // initialized.
        let bytes = unsafe { std::slice::from_raw_parts_mut(address, bytes) };
        Ok(elements_mut(bytes))
    }

    fn slice(&self) -> Result<&[u8]> {
        let (address, bytes) = self.raw()?;
        // SAFETY: the caller holds a read borrow, which excludes writers; a block is always
        // initialized.
        Ok(unsafe { std::slice::from_raw_parts(address, bytes) })
    }

    fn raw(&self) -> Result<(*mut u8, usize)> {
        match &self.block {
            Block::Host(block) => Ok((block.address().as_ptr(), self.bytes)),
            Block::Gpu(_) | Block::None => Err(self.no_values()),
        }
    }

    fn expect_values(&self) -> Result<()> {
        match self.device.computes() {
            true => Ok(()),
            false => Err(self.no_values()),
        }
    }

    /// The error for access to values that are not in host memory.
    pub(super) fn no_values(&self) -> Error {
        match self.device.computes() {
            true => not_on_host(&self.device),
            false => no_values(&self.device),
        }
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        let block = std::mem::replace(&mut self.block, Block::None);
        self.device.free(self.bytes, block, self.is_used_elsewhere());
    }
}

/// The error of `op` for a storage with `borrows`.
fn in_use(borrows: isize, op: &str) -> Error {
    match borrows {
        ASLEEP => asleep(op),
        _ => busy(op),
    }
}

/// The error of `op` for a conflicting access to a storage: by another operand, by another thread,
/// or by pending work on another stream.
pub(crate) fn busy(op: &str) -> Error {
    error!(
        Busy,
        "{op}: the storage is in use; it can have many readers or one writer. Copy the operand \
         that shares the result's storage, or wait for the Pending that uses it"
    )
}

/// The error of `op` for a write to a value.
pub(crate) fn immutable(op: &str) -> Error {
    error!(
        Invalid,
        "{op}: the tensor is a value, which is immutable; only parameters, gradients, optimizer \
         state and caches can be written"
    )
}

fn asleep(op: &str) -> Error {
    error!(Invalid, "{op}: the tensor is asleep; call `wake` first")
}

/// The error for access to the values of a tensor on a meta device.
pub(super) fn no_values(device: &Device) -> Error {
    error!(NoValues, "tensors on {device} have shapes but no values; use a CPU or GPU device")
}

/// The error for direct access to values in GPU memory.
pub(super) fn not_on_host(device: &Device) -> Error {
    error!(
        Invalid,
        "the values on {device} are not in host memory; copy them with Tensor::to_vec or \
         ops::to_device"
    )
}

/// Blocks are aligned for every element type and `whole` drops a partial element, so the cast
/// cannot fail.
fn elements<T: Element>(bytes: &[u8]) -> &[T] {
    bytemuck::cast_slice(whole(bytes, T::DTYPE))
}

fn elements_mut<T: Element>(bytes: &mut [u8]) -> &mut [T] {
    let whole = bytes.len() / T::DTYPE.bytes(1) * T::DTYPE.bytes(1);
    bytemuck::cast_slice_mut(&mut bytes[..whole])
}

fn whole(bytes: &[u8], dtype: DType) -> &[u8] {
    &bytes[..bytes.len() / dtype.bytes(1) * dtype.bytes(1)]
}

/// Ends a borrow when dropped: a reader's or the writer's.
struct Release<'a> {
    borrows: &'a AtomicIsize,
}

impl Drop for Release<'_> {
    fn drop(&mut self) {
        let free = |borrows| Some(if borrows < 0 { 0 } else { borrows - 1 });
        let _ = self.borrows.fetch_update(Ordering::Release, Ordering::Relaxed, free);
    }
}

/// The elements of a storage, borrowed for reading. Indexed by a layout's offset and strides.
pub struct ReadGuard<'a, T> {
    elements: &'a [T],
    _release: Release<'a>,
}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.elements
    }
}

/// The elements of a storage, borrowed for writing.
pub struct WriteGuard<'a, T> {
    elements: &'a mut [T],
    _release: Release<'a>,
}

impl<T> Deref for WriteGuard<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.elements
    }
}

impl<T> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.elements
    }
}

/// A reader's borrow that owns the storage, for work that outlives the call that starts it.
pub(crate) struct OwnedRead(Arc<Storage>);

impl OwnedRead {
    pub(crate) fn new(storage: Arc<Storage>) -> Result<OwnedRead> {
        let release = storage.begin_read()?;
        storage.expect_values()?;
        std::mem::forget(release); // ends in `drop`
        Ok(OwnedRead(storage))
    }

    pub(crate) fn storage(&self) -> &Arc<Storage> {
        &self.0
    }

    pub(crate) fn slice<T: Element>(&self) -> Result<&[T]> {
        Ok(elements(self.0.slice()?))
    }
}

impl Drop for OwnedRead {
    fn drop(&mut self) {
        drop(Release { borrows: &self.0.borrows });
    }
}

/// The writer's borrow that owns the storage, for work that outlives the call that starts it.
pub(crate) struct OwnedWrite(Arc<Storage>);

impl OwnedWrite {
    /// Counts as a new version.
    pub(crate) fn new(storage: Arc<Storage>, op: &'static str) -> Result<OwnedWrite> {
        let release = storage.begin_write(op)?;
        storage.expect_values()?;
        storage.raise_version();
        std::mem::forget(release); // ends in `drop`
        Ok(OwnedWrite(storage))
    }

    /// The borrow of a storage that is not shared yet.
    pub(crate) fn of_new(storage: Arc<Storage>) -> OwnedWrite {
        storage.borrows.store(-1, Ordering::Relaxed);
        OwnedWrite(storage)
    }

    pub(crate) fn slice<T: Element>(&mut self) -> Result<&mut [T]> {
        let (address, bytes) = self.0.raw()?;
        // SAFETY: this is the storage's only borrow until it is dropped, and `&mut self` makes the
        // slice its only use. A block is always initialized.
        let bytes = unsafe { std::slice::from_raw_parts_mut(address, bytes) };
        Ok(elements_mut(bytes))
    }
}

impl Drop for OwnedWrite {
    fn drop(&mut self) {
        drop(Release { borrows: &self.0.borrows });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assert_error;

    #[test]
    fn a_storage_has_many_readers_or_one_writer() {
        let device = Device::cpu();
        let storage = Storage::new(&device, Pool::default(), 16, Kind::Cache).unwrap();

        let (first, second) = (storage.read::<f32>().unwrap(), storage.read::<f32>().unwrap());
        assert_eq!(storage.write::<f32>("test").err(), Some(busy("test")));
        drop((first, second));

        let writer = storage.write::<f32>("test").unwrap();
        assert_error(storage.read::<f32>(), "the storage is in use");
        drop(writer);

        assert!(storage.read::<f32>().is_ok());
        assert_eq!(storage.version(), 1);
    }

    #[test]
    fn a_value_cannot_be_written() {
        let storage = Storage::new(&Device::cpu(), Pool::default(), 16, Kind::Value).unwrap();
        assert_eq!(storage.write::<u8>("test").err(), Some(immutable("test")));
        assert_eq!(storage.version(), 0);
    }
}
