//! All of one GPU that a device handle owns beside its memory.

use std::sync::{Arc, Mutex, PoisonError};

use meshgrad_kernels::faults::FaultSite;
use meshgrad_kernels::{Arguments, Launch, Variant};

use super::MemoryStats;
use super::allocator::{Allocator, Block};
use super::faults::{self, Faults};
use super::graph::Capture;
use super::memory::{DeviceMemory, Part, Pinned, PinnedCopy, Staging, relaxed};
use super::module::Modules;
use super::stream::RawStream;
use super::streams::Streams;
use super::{Context, CudaError, GpuProperties, Library};

/// Pinned memory of a reading is at least so much, so that the next ones fit it too.
const READING: usize = 4096;

/// How many of such are kept.
const READINGS: usize = 32;

/// A GPU: its first stream, its kernels, and the way to it.
pub(crate) struct Gpu {
    streams: Arc<Streams>,
    modules: Modules,
    /// Pinned memory of readings that were waited for: to pin memory may wait for the GPU.
    read: Mutex<Vec<Pinned>>,
    /// Made at the first copy.
    staging: Mutex<Option<Staging>>,
    faults: Faults,
    context: Arc<Context>,
}

impl Gpu {
    pub(crate) fn new(library: Library, ordinal: usize) -> Result<(Gpu, GpuProperties), CudaError> {
        let (context, properties) = Context::new(library, ordinal)?;
        let context = Arc::new(context);
        let streams = Streams::new(&context)?;
        let faults = Faults::new(&context, streams.base())?;
        let gpu = Gpu {
            streams: Arc::new(streams),
            modules: Modules::new(&context),
            read: Mutex::default(),
            staging: Mutex::default(),
            faults,
            context,
        };
        Ok((gpu, properties))
    }

    /// An allocator of this GPU's memory, which is `capacity` bytes.
    pub(crate) fn allocator(&self, capacity: usize) -> Allocator {
        Allocator::new(Box::new(DeviceMemory::new(&self.streams)), capacity)
    }

    pub(crate) fn base(&self) -> &Arc<RawStream> {
        self.streams.base()
    }

    pub(crate) fn new_stream(&self) -> Result<Arc<RawStream>, CudaError> {
        self.streams.new_stream()
    }

    /// Begins to record a graph.
    pub(crate) fn capture(&self) -> Result<Capture, CudaError> {
        Capture::begin(&self.streams)
    }

    /// Waits on the host until all streams are done.
    ///
    /// # Errors
    /// [`CudaError::IndexOutOfRange`] where a kernel met such an index; what else failed.
    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        self.streams.synchronize()?;
        match self.faults.word() {
            None => Ok(()),
            Some(_) => relaxed(|| self.wait_for(self.base())),
        }
    }

    /// Where kernels of `op` report indices that are not in 0..extent.
    pub(crate) fn fault_site(&self, op: &'static str, extent: usize) -> FaultSite {
        self.faults.site(op, extent)
    }

    /// Waits on the host for the first stream, into which graphs are launched. Possible also while
    /// another graph is captured.
    pub(crate) fn wait_for_graphs(&self) -> Result<(), CudaError> {
        relaxed(|| self.base().synchronize())
    }

    /// Puts a launch into `stream`; see [`Modules::launch`].
    pub(crate) fn launch<V: Variant>(
        &self,
        variant: &V,
        launch: &Launch,
        arguments: &Arguments,
        stream: &RawStream,
    ) -> Result<(), CudaError> {
        self.modules.launch(variant, launch, arguments, stream)
    }

    /// Pinned memory of the host, of zeros.
    pub(crate) fn pin(&self, bytes: usize) -> Result<Pinned, CudaError> {
        Pinned::new(&self.context, bytes)
    }

    /// How much memory of the host is pinned.
    pub(crate) fn pinned(&self) -> MemoryStats {
        self.context.pinned()
    }

    /// Starts measuring the peak of what is pinned anew.
    pub(crate) fn reset_pinned_peak(&self) {
        self.context.reset_pinned_peak();
    }

    /// Puts a copy of `bytes` bytes of `from` to pinned memory into `stream`.
    pub(crate) fn download_async(
        &self,
        stream: &Arc<RawStream>,
        from: Part<'_>,
        bytes: usize,
    ) -> Result<PinnedCopy, CudaError> {
        let room = bytes + faults::WORD;
        let kept = {
            let mut kept = self.read.lock().unwrap_or_else(PoisonError::into_inner);
            let fits = kept.iter().position(|buffer| buffer.bytes().len() >= room);
            fits.map(|at| kept.swap_remove(at))
        };
        let buffer = match kept {
            Some(buffer) => buffer,
            None => self.pin(room.next_multiple_of(READING))?,
        };
        PinnedCopy::download(stream, buffer, bytes, from, self.faults.word())
    }

    /// Waits on the host until a copy is done, and then copies over `to`.
    ///
    /// # Errors
    /// As [`Gpu::synchronize`], of what was before the copy; `stream` clears the word.
    pub(crate) fn finish_reading(
        &self,
        stream: &Arc<RawStream>,
        copy: PinnedCopy,
        to: &mut [u8],
    ) -> Result<(), CudaError> {
        let buffer = copy.synchronize()?;
        to.copy_from_slice(&buffer.bytes()[..to.len()]);
        let met = buffer.word(to.len());
        let mut kept = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < READINGS {
            kept.push(buffer);
        }
        drop(kept);
        self.tell(stream, met)
    }

    /// Puts a copy of `from` to the start of `to` into `stream`; tells whether the host had to wait
    /// for room in pinned memory.
    pub(crate) fn upload(
        &self,
        stream: &Arc<RawStream>,
        from: &[u8],
        to: &Block,
    ) -> Result<bool, CudaError> {
        match from.is_empty() {
            true => Ok(false),
            false => self.staged(|staging| staging.upload(stream, from, to)),
        }
    }

    /// Copies the bytes of `from` behind `offset` over `to`, after all that is in `stream`.
    pub(crate) fn download(
        &self,
        stream: &Arc<RawStream>,
        from: &Block,
        offset: usize,
        to: &mut [u8],
    ) -> Result<(), CudaError> {
        match to.is_empty() {
            // Also an empty read tells of what failed before.
            true => self.wait_for(stream),
            false => {
                let word = self.faults.word();
                let met = self.staged(|staging| {
                    staging.start_word(stream, word)?;
                    staging.download(stream, from, offset, to)?;
                    Ok(staging.word(word))
                })?;
                self.tell(stream, met)
            }
        }
    }

    /// Waits on the host until all that was put into `stream` is done.
    ///
    /// # Errors
    /// As [`Gpu::synchronize`].
    pub(crate) fn wait_for(&self, stream: &Arc<RawStream>) -> Result<(), CudaError> {
        let word = self.faults.word();
        if word.is_none() {
            return stream.synchronize();
        }
        let met = self.staged(|staging| {
            staging.start_word(stream, word)?;
            stream.synchronize()?;
            Ok(staging.word(word))
        })?;
        self.tell(stream, met)
    }

    /// Tells of the index out of range that the word had, if it had one, and clears the word.
    fn tell(&self, stream: &RawStream, word: u64) -> Result<(), CudaError> {
        match self.faults.error(word) {
            None => Ok(()),
            Some(error) => self.faults.clear(stream).and(Err(error)),
        }
    }

    fn staged<T>(
        &self,
        copy: impl FnOnce(&mut Staging) -> Result<T, CudaError>,
    ) -> Result<T, CudaError> {
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *staging {
            Some(staging) => copy(staging),
            none => copy(none.insert(Staging::new(&self.context)?)),
        }
    }
}
