//! The state of one GPU that a device handle owns, except for its memory.

use std::sync::{Arc, Mutex, PoisonError};

use meshgrad_error::{Error, Result};
use meshgrad_kernels::faults::FaultSite;
use meshgrad_kernels::{Launch, Variant};

use super::MemoryStats;
use super::allocator::{Allocator, Block};
use super::context::relaxed;
use super::faults::{self, Faults};
use super::graph::Capture;
use super::memory::{DeviceMemory, Part, Pinned, PinnedCopy, Staging};
use super::module::Modules;
use super::stream::RawStream;
use super::streams::Streams;
use super::{Context, GpuProperties, Library};

/// The size of a download buffer is a multiple of this, so that pooled buffers fit later downloads.
const DOWNLOAD_GRAIN: usize = 4096;

/// The most download buffers that are pooled.
const MAX_POOLED: usize = 32;

/// A GPU: its streams, kernels, staging buffers and fault word.
pub(crate) struct Gpu {
    streams: Arc<Streams>,
    modules: Modules,
    /// Pinned buffers of finished downloads. They are reused, because pinning may wait for the GPU.
    pooled: Mutex<Vec<Pinned>>,
    /// Created at the first copy.
    staging: Mutex<Option<Staging>>,
    faults: Faults,
    /// Why its values are not valid any more.
    failure: Mutex<Option<Error>>,
    context: Arc<Context>,
}

impl Gpu {
    pub(crate) fn new(library: Library, ordinal: usize) -> Result<(Gpu, GpuProperties)> {
        let (context, properties) = Context::new(library, ordinal)?;
        let context = Arc::new(context);
        let streams = Streams::new(&context)?;
        let faults = Faults::new(&context, streams.base())?;
        let gpu = Gpu {
            streams: Arc::new(streams),
            modules: Modules::new(&context),
            pooled: Mutex::default(),
            staging: Mutex::default(),
            faults,
            failure: Mutex::default(),
            context,
        };
        Ok((gpu, properties))
    }

    /// An allocator for this GPU, which has `capacity` bytes of memory.
    pub(crate) fn allocator(&self, capacity: usize) -> Allocator {
        Allocator::new(Box::new(DeviceMemory::new(&self.streams)), capacity)
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn base(&self) -> &Arc<RawStream> {
        self.streams.base()
    }

    pub(crate) fn new_stream(&self) -> Result<Arc<RawStream>> {
        self.streams.new_stream()
    }

    /// Begins to capture a graph.
    pub(crate) fn capture(&self) -> Result<Capture> {
        Capture::begin(&self.streams)
    }

    /// Waits on the host until all work of all streams is done.
    ///
    /// # Errors
    /// When a kernel found an index out of range; other failures of the driver.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.streams.synchronize()?;
        match self.faults.word() {
            None => self.check(),
            Some(_) => relaxed(|| self.wait_for(self.base())),
        }
    }

    /// The site where kernels of `op` report indices outside of 0..extent.
    pub(crate) fn fault_site(&self, op: &'static str, extent: usize) -> FaultSite {
        self.faults.site(op, extent)
    }

    /// Waits on the host for the base stream, on which graphs are launched. Allowed while another
    /// graph is captured.
    pub(crate) fn wait_for_graphs(&self) -> Result<()> {
        relaxed(|| self.base().synchronize())
    }

    /// Launches a kernel on `stream`; see [`Modules::launch`].
    pub(crate) fn launch<V: Variant>(
        &self,
        variant: &V,
        launch: &Launch,
        arguments: &V::Arguments,
        stream: &RawStream,
    ) -> Result<()> {
        self.modules.launch(variant, launch, arguments, stream)
    }

    /// Pinned host memory, zeroed.
    pub(crate) fn pin(&self, bytes: usize) -> Result<Pinned> {
        Pinned::new(&self.context, bytes)
    }

    /// Statistics of pinned host memory.
    pub(crate) fn pinned_stats(&self) -> MemoryStats {
        self.context.pinned_stats()
    }

    /// Resets the peak of pinned memory to the bytes pinned now.
    pub(crate) fn reset_pinned_peak(&self) {
        self.context.reset_pinned_peak();
    }

    /// The first `bytes` bytes of `from` in pinned memory of their own, after all work of all
    /// streams. Waits for the copy.
    ///
    /// # Errors
    /// As [`Gpu::synchronize`]; when the host has no memory left.
    pub(crate) fn move_to_host(&self, from: &Block, bytes: usize) -> Result<Pinned> {
        self.synchronize()?;
        let (buffer, from) = (self.pin(bytes + faults::WORD)?, Part::new(from, 0));
        PinnedCopy::download(self.base(), buffer, bytes, from, None)?.synchronize()
    }

    /// Copies the first `bytes` bytes of `from` to `to`, on the base stream. Waits for the copy.
    ///
    /// # Errors
    /// When the driver fails.
    pub(crate) fn move_from_host(&self, from: Pinned, bytes: usize, to: &Block) -> Result<()> {
        let copy = PinnedCopy::upload(self.base(), from, bytes, Part::new(to, 0))?;
        copy.synchronize().map(drop)
    }

    /// Enqueues a copy of `bytes` bytes of `from` to pinned memory on `stream`.
    pub(crate) fn download_async(
        &self,
        stream: &Arc<RawStream>,
        from: Part<'_>,
        bytes: usize,
    ) -> Result<PinnedCopy> {
        let needed = bytes + faults::WORD;
        let pooled = {
            let mut pooled = self.pooled.lock().unwrap_or_else(PoisonError::into_inner);
            let fits = pooled.iter().position(|buffer| buffer.bytes().len() >= needed);
            fits.map(|at| pooled.swap_remove(at))
        };
        let buffer = match pooled {
            Some(buffer) => buffer,
            None => self.pin(needed.next_multiple_of(DOWNLOAD_GRAIN))?,
        };
        PinnedCopy::download(stream, buffer, bytes, from, self.faults.word())
    }

    /// Waits on the host until a download is done, and copies its bytes to `to`.
    ///
    /// # Errors
    /// As [`Gpu::synchronize`], for work before the copy. The fault word is then cleared on
    /// `stream`.
    pub(crate) fn finish_download(
        &self,
        stream: &Arc<RawStream>,
        copy: PinnedCopy,
        to: &mut [u8],
    ) -> Result<()> {
        let buffer = copy.synchronize()?;
        to.copy_from_slice(&buffer.bytes()[..to.len()]);
        let word = buffer.word(to.len());
        let mut pooled = self.pooled.lock().unwrap_or_else(PoisonError::into_inner);
        if pooled.len() < MAX_POOLED {
            pooled.push(buffer);
        }
        drop(pooled);
        self.report(stream, word)
    }

    /// Enqueues a copy of `from` to the start of `to` on `stream`. Returns whether the host waited
    /// for space in the staging buffers.
    pub(crate) fn upload(&self, stream: &Arc<RawStream>, from: &[u8], to: &Block) -> Result<bool> {
        match from.is_empty() {
            true => Ok(false),
            false => self.staged(|staging| staging.upload(stream, from, to)),
        }
    }

    /// Fills `to` with the bytes of `from` that start at `offset`, after all work of `stream`.
    /// Waits for the copy.
    pub(crate) fn download(
        &self,
        stream: &Arc<RawStream>,
        from: &Block,
        offset: usize,
        to: &mut [u8],
    ) -> Result<()> {
        match to.is_empty() {
            // An empty read also reports earlier failures.
            true => self.wait_for(stream),
            false => {
                let word = self.faults.word();
                let value = self.staged(|staging| {
                    staging.start_word(stream, word)?;
                    staging.download(stream, from, offset, to)?;
                    Ok(staging.word(word))
                })?;
                self.report(stream, value)
            }
        }
    }

    /// Waits on the host until all work of `stream` is done.
    ///
    /// # Errors
    /// As [`Gpu::synchronize`].
    pub(crate) fn wait_for(&self, stream: &Arc<RawStream>) -> Result<()> {
        let word = self.faults.word();
        if word.is_none() {
            return stream.synchronize().and_then(|()| self.check());
        }
        let value = self.staged(|staging| {
            staging.start_word(stream, word)?;
            stream.synchronize()?;
            Ok(staging.word(word))
        })?;
        self.report(stream, value)
    }

    /// Makes all later reads of values fail.
    pub(crate) fn fail(&self, reason: Error) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(reason);
    }

    /// The failure of the device, if it has failed.
    pub(crate) fn check(&self) -> Result<()> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.as_ref().map_or(Ok(()), |reason| Err(reason.clone()))
    }

    /// Returns the error that the word encodes, if any, and clears the word.
    fn report(&self, stream: &RawStream, word: u64) -> Result<()> {
        self.check()?;
        match self.faults.error(word) {
            None => Ok(()),
            Some(error) => self.faults.clear(stream).and(Err(error)),
        }
    }

    fn staged<T>(&self, copy: impl FnOnce(&mut Staging) -> Result<T>) -> Result<T> {
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *staging {
            Some(staging) => copy(staging),
            none => copy(none.insert(Staging::new(&self.context)?)),
        }
    }
}
