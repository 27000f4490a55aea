//! Memory of a GPU, pinned memory of the host, and copies between them.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult, CUstreamCaptureMode};

use super::allocator::{Block, Segments};
use super::library::{call, check, reason};
use super::stream::{Event, RawStream};
use super::streams::Streams;
use super::{Context, CudaError, faults};

/// Segments of a GPU's memory, for the streams of one device.
pub(crate) struct DeviceMemory(Arc<Streams>);

impl DeviceMemory {
    pub(crate) fn new(streams: &Arc<Streams>) -> DeviceMemory {
        DeviceMemory(streams.clone())
    }
}

impl Segments for DeviceMemory {
    fn take(&mut self, bytes: usize) -> Result<Option<u64>, CudaError> {
        let context = self.0.context();
        context.bind()?;
        let mut address = 0;
        // Memory may be taken while a graph is captured: it orders nothing.
        let code = relaxed(|| {
            // SAFETY: the context is current; writes one address.
            unsafe { sys::cuMemAlloc_v2(&mut address, bytes) }
        });
        match code {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Ok(None),
            code => check(&**context, "cuMemAlloc_v2", code).map(|()| Some(address)),
        }
    }

    fn give_back(&mut self, address: u64, _bytes: usize) {
        if self.0.context().bind().is_err() {
            return;
        }
        // An error here is one of a kernel before, which the next call reports.
        let _ = relaxed(|| {
            // SAFETY: taken above, given back once, and unused as `settle` made sure.
            unsafe { sys::cuMemFree_v2(address) }
        });
    }

    fn settle(&mut self) -> bool {
        self.0.synchronize().is_ok()
    }
}

/// Runs `f` as if the calling thread captured no graph.
pub(super) fn relaxed<T>(f: impl FnOnce() -> T) -> T {
    let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: exchanges one value of this thread.
    let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
    let result = f();
    // SAFETY: as above; puts back what was there.
    let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
    result
}

/// Memory of the host that the GPU can copy from and to by itself.
pub(crate) struct Pinned {
    context: Arc<Context>,
    address: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory that belongs to its holder alone.
unsafe impl Send for Pinned {}
// SAFETY: through a shared reference the memory is only read.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Memory of zeros.
    pub(crate) fn new(context: &Arc<Context>, bytes: usize) -> Result<Pinned, CudaError> {
        context.bind()?;
        let mut address = std::ptr::null_mut();
        let code = relaxed(|| {
            // SAFETY: the context is current; writes one address.
            unsafe { sys::cuMemHostAlloc(&mut address, bytes, 0) }
        });
        if code == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return Err(CudaError::Pinned {
                device: context.to_string(),
                bytes,
                reason: reason(code),
            });
        }
        check(&**context, "cuMemHostAlloc", code)?;
        let address = address.cast::<u8>();
        // SAFETY: just allocated with this size; zeroed so that it is never uninitialised.
        unsafe { address.write_bytes(0, bytes) };
        context.count_pinned(bytes);
        Ok(Pinned {
            context: context.clone(),
            address,
            bytes,
        })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: allocated with this size, initialised, and the GPU writes only while `Staging`
        // waits for it.
        unsafe { std::slice::from_raw_parts(self.address, self.bytes) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` proves that nobody shares it; the GPU reads only what
        // `Staging` does not touch or an `PinnedCopy` owns.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.bytes) }
    }
}

impl Pinned {
    /// The word behind the first `bytes` bytes, as [`PinnedCopy::download`] leaves it.
    pub(crate) fn word(&self, bytes: usize) -> u64 {
        let word = self.bytes()[bytes..].first_chunk();
        word.map_or(0, |word| u64::from_ne_bytes(*word))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            let _ = relaxed(|| {
                // SAFETY: made in `new`, and nobody else has it.
                unsafe { sys::cuMemFreeHost(self.address.cast()) }
            });
        }
        self.context.count_unpinned(self.bytes);
    }
}

/// A copy out of pinned memory or into it, which is its own until the GPU is done with it.
pub(crate) struct PinnedCopy {
    buffer: Option<Pinned>,
    /// When the GPU is done; `None` where nothing is copied.
    done: Option<Event>,
}

impl PinnedCopy {
    /// Puts a copy of the first `bytes` bytes of `buffer` to `to` into `stream`.
    pub(crate) fn upload(
        stream: &Arc<RawStream>,
        buffer: Pinned,
        bytes: usize,
        to: Part<'_>,
    ) -> Result<PinnedCopy, CudaError> {
        let (from, to) = (buffer.address.cast(), to.checked(&buffer, bytes));
        let copy = PinnedCopy::not_begun(buffer);
        if bytes == 0 {
            return Ok(copy);
        }
        stream.context().bind()?;
        // SAFETY: the block is large enough, and its memory is given to others in the order of
        // streams only; the buffer is pinned, large enough, and given to nobody before `done`.
        unsafe {
            call!(
                &**stream.context(),
                cuMemcpyHtoDAsync_v2(to, from, bytes, stream.raw())
            )
        }?;
        copy.begun(stream)
    }

    /// Puts a copy of `bytes` bytes of `from` to the start of `buffer` into `stream`, and behind it
    /// one of the device's word of faults, if it has one: [`Pinned::word`] then.
    pub(crate) fn download(
        stream: &Arc<RawStream>,
        mut buffer: Pinned,
        bytes: usize,
        from: Part<'_>,
        word: Option<u64>,
    ) -> Result<PinnedCopy, CudaError> {
        let from = from.checked(&buffer, bytes);
        let behind = buffer.bytes_mut()[bytes..].first_chunk_mut::<{ faults::WORD }>();
        let Some(behind) = behind else {
            unreachable!("the buffer of a reading has room for a word");
        };
        *behind = [0; faults::WORD];
        let word = word.map(|from| (behind.as_mut_ptr().cast(), from, faults::WORD));
        let values = (bytes > 0).then_some((buffer.address.cast(), from, bytes));
        let mut copy = PinnedCopy::not_begun(buffer);
        stream.context().bind()?;
        for (to, from, bytes) in values.into_iter().chain(word) {
            // SAFETY: block and word are large enough, and their memory is given to others in the
            // order of streams only, or not at all; the buffer is pinned, large enough, and given to
            // nobody before `done`.
            let begun = unsafe {
                call!(
                    &**stream.context(),
                    cuMemcpyDtoHAsync_v2(to, from, bytes, stream.raw())
                )
            };
            if let Err(error) = begun {
                copy.lose(); // another copy may have begun
                return Err(error);
            }
        }
        copy.begun(stream)
    }

    fn not_begun(buffer: Pinned) -> PinnedCopy {
        PinnedCopy {
            buffer: Some(buffer),
            done: None,
        }
    }

    /// The copy was the last that `stream` was given.
    fn begun(mut self, stream: &Arc<RawStream>) -> Result<PinnedCopy, CudaError> {
        match stream.record() {
            Ok(done) => self.done = Some(done),
            Err(error) => {
                self.lose();
                return Err(error);
            }
        }
        Ok(self)
    }

    /// Waits on the host until the copy is done, and gives the memory back.
    pub(crate) fn synchronize(mut self) -> Result<Pinned, CudaError> {
        self.wait()?;
        match self.buffer.take() {
            Some(buffer) => Ok(buffer),
            None => unreachable!("a copy keeps its buffer until it is given back or lost"),
        }
    }

    fn wait(&mut self) -> Result<(), CudaError> {
        let waited = self.done.take().map_or(Ok(()), |done| done.synchronize());
        if waited.is_err() {
            self.lose();
        }
        waited
    }

    /// Nobody knows when the GPU is done: better to lose the memory than to reuse it.
    fn lose(&mut self) {
        std::mem::forget(self.buffer.take());
    }
}

impl Drop for PinnedCopy {
    fn drop(&mut self) {
        // An error here is one of a kernel before, which the next call reports.
        let _ = self.wait();
    }
}

/// Bytes that one of the two buffers of [`Staging`] moves at once.
const STAGE: usize = (4 << 20) - 64;

/// The way of ordinary host memory to the GPU and back: two pinned buffers, so that the host copies
/// into or out of one while the GPU does with the other. Small uploads lie side by side in one of
/// them, so that the host can give a GPU many of these, and the work between them, and not wait.
pub(crate) struct Staging {
    stages: [Stage; 2],
    /// Which of them the next upload begins in.
    current: usize,
}

struct Stage {
    buffer: Pinned,
    /// Bytes in front that the GPU may still copy.
    filled: usize,
    /// When the GPU is done with them: a moment for each stream.
    done: Vec<Event>,
}

impl Stage {
    /// Waits until all of it is free, and tells whether there was anything to wait for.
    fn wait(&mut self) -> Result<bool, CudaError> {
        let waits = !self.done.is_empty();
        for done in self.done.drain(..) {
            done.synchronize()?;
        }
        self.filled = 0;
        Ok(waits)
    }

    /// What was put into `stream` so far uses the first `filled` bytes.
    fn used(&mut self, stream: &Arc<RawStream>, filled: usize) -> Result<(), CudaError> {
        self.filled = filled;
        self.done.retain(|done| !done.is_of(stream)); // a later moment says as much
        self.done.push(stream.record()?);
        Ok(())
    }
}

impl Staging {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Staging, CudaError> {
        let stage = || {
            Ok::<Stage, CudaError>(Stage {
                buffer: Pinned::new(context, STAGE + 64)?,
                filled: 0,
                done: Vec::new(),
            })
        };
        Ok(Staging {
            stages: [stage()?, stage()?],
            current: 0,
        })
    }

    /// Puts a copy of `from` to the start of `to` into `stream`. Returns when `from` is no longer
    /// needed, and whether the host waited for the GPU until then.
    pub(crate) fn upload(
        &mut self,
        stream: &Arc<RawStream>,
        from: &[u8],
        to: &Block,
    ) -> Result<bool, CudaError> {
        assert!(from.len() <= to.bytes(), "an upload fits its block");
        let mut waited = false;
        for (at, from) in from.chunks(STAGE).enumerate() {
            if self.stages[self.current].filled + from.len() > STAGE {
                self.current = 1 - self.current;
                waited |= self.stages[self.current].wait()?;
            }
            let stage = &mut self.stages[self.current];
            let place = stage.filled..stage.filled + from.len();
            let staged = &mut stage.buffer.bytes_mut()[place.clone()];
            staged.copy_from_slice(from);

            let to = to.address() + (at * STAGE) as u64;
            let address = staged.as_ptr().cast();
            stream.context().bind()?;
            // SAFETY: the block is large enough, and its memory is given to others in the order of
            // streams only; the buffer is pinned, large enough, and these bytes are not touched
            // before `done`.
            unsafe {
                call!(
                    &**stream.context(),
                    cuMemcpyHtoDAsync_v2(to, address, from.len(), stream.raw())
                )
            }?;
            stage.used(stream, place.end)?;
        }
        Ok(waited)
    }

    /// Puts a copy of the device's word of faults, if it has one, into `stream`.
    pub(crate) fn start_word(
        &mut self,
        stream: &Arc<RawStream>,
        word: Option<u64>,
    ) -> Result<(), CudaError> {
        let Some(word) = word else { return Ok(()) };
        // Behind what other copies use of the buffer.
        let to = self.stages[0].buffer.bytes_mut()[STAGE..]
            .as_mut_ptr()
            .cast();
        stream.context().bind()?;
        // SAFETY: the word lives as long as its device; the buffer is pinned, and the caller waits
        // for `stream` before anyone reads these bytes.
        unsafe {
            call!(
                &**stream.context(),
                cuMemcpyDtoHAsync_v2(to, word, faults::WORD, stream.raw())
            )
        }
    }

    /// The word that [`Staging::start_word`] copied, once its stream was waited for; 0 without one.
    pub(crate) fn word(&self, word: Option<u64>) -> u64 {
        let bytes = self.stages[0].buffer.bytes()[STAGE..].first_chunk();
        match (word, bytes) {
            (Some(_), Some(bytes)) => u64::from_ne_bytes(*bytes),
            _ => 0,
        }
    }

    /// Copies the bytes of `from` behind `offset` over `to`, after all that is in `stream`.
    pub(crate) fn download(
        &mut self,
        stream: &Arc<RawStream>,
        from: &Block,
        offset: usize,
        to: &mut [u8],
    ) -> Result<(), CudaError> {
        assert!(
            offset + to.len() <= from.bytes(),
            "a download is inside its block"
        );
        let from = from.address() + offset as u64;
        let mut chunks = to.chunks_mut(STAGE).enumerate();
        let mut before: Option<(usize, &mut [u8])> = None;
        loop {
            let next = chunks.next();
            if let Some((at, to)) = &next {
                self.start_download(at % 2, stream, from + (at * STAGE) as u64, to.len())?;
            }
            if let Some((at, to)) = before {
                let stage = &mut self.stages[at % 2];
                stage.wait()?;
                to.copy_from_slice(&stage.buffer.bytes()[..to.len()]);
            }
            match next {
                Some(next) => before = Some(next),
                None => return Ok(()),
            }
        }
    }

    fn start_download(
        &mut self,
        stage: usize,
        stream: &Arc<RawStream>,
        from: u64,
        bytes: usize,
    ) -> Result<(), CudaError> {
        let stage = &mut self.stages[stage];
        stage.wait()?;
        let address = stage.buffer.address.cast();
        stream.context().bind()?;
        // SAFETY: `download` checked the block, whose memory is given to others in the order of
        // streams only; the buffer is pinned, large enough, and not touched before `done`.
        unsafe {
            call!(
                &**stream.context(),
                cuMemcpyDtoHAsync_v2(address, from, bytes, stream.raw())
            )
        }?;
        stage.used(stream, bytes)
    }
}

/// Puts into `stream` that the first `bytes` bytes of `block` become zero.
pub(crate) fn clear(stream: &RawStream, block: &Block, bytes: usize) -> Result<(), CudaError> {
    assert!(
        bytes <= block.bytes(),
        "what is cleared is inside its block"
    );
    if bytes == 0 {
        return Ok(());
    }
    stream.context().bind()?;
    let (address, raw) = (block.address(), stream.raw());
    // SAFETY: the block is large enough, and its memory is given to others in the order of streams
    // only.
    unsafe { call!(&**stream.context(), cuMemsetD8Async(address, 0, bytes, raw)) }
}

/// A stretch of a block.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    pub(crate) block: &'a Block,
    pub(crate) offset: usize,
}

impl Part<'_> {
    /// Its address, where `bytes` bytes of it and of `buffer` can be copied.
    fn checked(&self, buffer: &Pinned, bytes: usize) -> u64 {
        assert!(
            bytes <= buffer.bytes && self.offset + bytes <= self.block.bytes(),
            "a copy fits its buffer and its block"
        );
        self.block.address() + self.offset as u64
    }
}

/// Puts a copy of `bytes` bytes from one part of the GPU's memory to another into `stream`.
pub(crate) fn copy(
    stream: &RawStream,
    from: Part<'_>,
    to: Part<'_>,
    bytes: usize,
) -> Result<(), CudaError> {
    for Part { block, offset } in [from, to] {
        assert!(
            offset + bytes <= block.bytes(),
            "a copy is inside its blocks"
        );
    }
    if bytes == 0 {
        return Ok(());
    }
    stream.context().bind()?;
    let [from, to] = [from, to].map(|part| part.block.address() + part.offset as u64);
    let raw = stream.raw();
    // SAFETY: both blocks are large enough, and their memory is given to others in the order of
    // streams only.
    unsafe {
        call!(
            &**stream.context(),
            cuMemcpyDtoDAsync_v2(to, from, bytes, raw)
        )
    }
}
