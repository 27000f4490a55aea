//! GPU memory, pinned host memory, and copies between them.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult};
use meshgrad_error::{Error, Result, ensure};

use super::allocator::{Block, Segments};
use super::context::relaxed;
use super::library::{call, check, reason};
use super::stream::{Event, RawStream};
use super::streams::Streams;
use super::{Context, faults};

/// Segments of GPU memory, for the streams of one device.
pub(crate) struct DeviceMemory(Arc<Streams>);

impl DeviceMemory {
    pub(crate) fn new(streams: &Arc<Streams>) -> DeviceMemory {
        DeviceMemory(streams.clone())
    }
}

impl Segments for DeviceMemory {
    fn allocate(&mut self, bytes: usize) -> Result<Option<u64>> {
        let context = self.0.context();
        context.bind()?;
        let mut address = 0;
        // Allocating is safe during a capture, because it does not order work.
        let code = relaxed(|| {
            // SAFETY: the context is current; writes one address.
            unsafe { sys::cuMemAlloc_v2(&mut address, bytes) }
        });
        match code {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Ok(None),
            code => check(&**context, "cuMemAlloc_v2", code).map(|()| Some(address)),
        }
    }

    fn free(&mut self, address: u64, _bytes: usize) {
        if self.0.context().bind().is_err() {
            return;
        }
        // The error is ignored: an earlier kernel caused it, and the next call reports it.
        let _ = relaxed(|| {
            // SAFETY: allocated above, freed once, and unused since `synchronize`.
            unsafe { sys::cuMemFree_v2(address) }
        });
    }

    fn synchronize(&mut self) -> bool {
        self.0.synchronize().is_ok()
    }
}

/// Pinned host memory, which the GPU can copy asynchronously.
pub(crate) struct Pinned {
    context: Arc<Context>,
    address: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Pinned {}
// SAFETY: through a shared reference the memory is only read.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Allocates `bytes` zeroed bytes.
    pub(crate) fn new(context: &Arc<Context>, bytes: usize) -> Result<Pinned> {
        context.bind()?;
        let mut address = std::ptr::null_mut();
        let code = relaxed(|| {
            // SAFETY: the context is current; writes one address.
            unsafe { sys::cuMemHostAlloc(&mut address, bytes, 0) }
        });
        ensure!(
            code != CUresult::CUDA_ERROR_OUT_OF_MEMORY,
            OutOfMemory,
            "{context} could not pin {bytes} bytes of host memory for copies: {}; free host \
             memory, or allow more locked memory (ulimit -l)",
            reason(code)
        );
        check(&**context, "cuMemHostAlloc", code)?;
        let address = address.cast::<u8>();
        // SAFETY: just allocated with this size; zeroed so that it is never uninitialized.
        unsafe { address.write_bytes(0, bytes) };
        context.count_pinned(bytes);
        Ok(Pinned { context: context.clone(), address, bytes })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: allocated with this size, initialized, and the GPU writes only while `Staging`
        // waits for it.
        unsafe { std::slice::from_raw_parts(self.address, self.bytes) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` proves that it is not shared. The GPU reads only bytes
        // that `Staging` does not write or that a `PinnedCopy` owns.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.bytes) }
    }
}

impl Pinned {
    /// The fault word after the first `bytes` bytes, which [`PinnedCopy::download`] copied there.
    pub(crate) fn word(&self, bytes: usize) -> u64 {
        let word = self.bytes()[bytes..].first_chunk();
        word.map_or(0, |word| u64::from_ne_bytes(*word))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            let _ = relaxed(|| {
                // SAFETY: allocated in `new`, and the only handle.
                unsafe { sys::cuMemFreeHost(self.address.cast()) }
            });
        }
        self.context.count_unpinned(self.bytes);
    }
}

/// A copy from or to pinned memory. It owns the buffer until the GPU is done.
pub(crate) struct PinnedCopy {
    buffer: Option<Pinned>,
    /// Recorded after the copy; `None` if nothing was enqueued.
    done: Option<Event>,
}

impl PinnedCopy {
    /// Enqueues a copy of the first `bytes` bytes of `buffer` to `to` on `stream`.
    pub(crate) fn upload(
        stream: &Arc<RawStream>,
        buffer: Pinned,
        bytes: usize,
        to: Part<'_>,
    ) -> Result<PinnedCopy> {
        let (from, to) = (buffer.address.cast(), to.checked(&buffer, bytes));
        let copy = PinnedCopy::unstarted(buffer);
        if bytes == 0 {
            return Ok(copy);
        }
        stream.context().bind()?;
        // SAFETY: the block is large enough, and its memory is reused in stream order only; the
        // buffer is pinned, large enough, and owned by the copy until `done`.
        unsafe { call!(&**stream.context(), cuMemcpyHtoDAsync_v2(to, from, bytes, stream.raw())) }?;
        copy.started(stream)
    }

    /// Enqueues a copy of `bytes` bytes of `from` to the start of `buffer` on `stream`, followed by
    /// the device's fault word, if it has one ([`Pinned::word`]).
    pub(crate) fn download(
        stream: &Arc<RawStream>,
        mut buffer: Pinned,
        bytes: usize,
        from: Part<'_>,
        word: Option<u64>,
    ) -> Result<PinnedCopy> {
        let from = from.checked(&buffer, bytes);
        let behind = buffer.bytes_mut()[bytes..].first_chunk_mut::<{ faults::WORD }>();
        let Some(behind) = behind else {
            unreachable!("a download buffer has space for the fault word");
        };
        *behind = [0; faults::WORD];
        let word = word.map(|from| (behind.as_mut_ptr().cast(), from, faults::WORD));
        let values = (bytes > 0).then_some((buffer.address.cast(), from, bytes));
        let mut copy = PinnedCopy::unstarted(buffer);
        stream.context().bind()?;
        for (to, from, bytes) in values.into_iter().chain(word) {
            // SAFETY: block and word are large enough, and their memory is reused in stream order
            // only; the buffer is pinned, large enough, and owned by the copy until `done`.
            let result = unsafe {
                call!(&**stream.context(), cuMemcpyDtoHAsync_v2(to, from, bytes, stream.raw()))
            };
            if let Err(error) = result {
                copy.leak(); // an earlier copy may be running
                return Err(error);
            }
        }
        copy.started(stream)
    }

    fn unstarted(buffer: Pinned) -> PinnedCopy {
        PinnedCopy { buffer: Some(buffer), done: None }
    }

    /// Records the event after the copy, which is the last work of `stream`.
    fn started(mut self, stream: &Arc<RawStream>) -> Result<PinnedCopy> {
        match stream.record() {
            Ok(done) => self.done = Some(done),
            Err(error) => {
                self.leak();
                return Err(error);
            }
        }
        Ok(self)
    }

    /// Waits on the host until the copy is done, and returns the buffer.
    pub(crate) fn synchronize(mut self) -> Result<Pinned> {
        self.wait()?;
        match self.buffer.take() {
            Some(buffer) => Ok(buffer),
            None => unreachable!("a copy owns its buffer until it is returned or leaked"),
        }
    }

    fn wait(&mut self) -> Result<()> {
        let waited = self.done.take().map_or(Ok(()), |done| done.synchronize());
        if waited.is_err() {
            self.leak();
        }
        waited
    }

    /// Leaks the buffer: the GPU may still use it, and the host cannot wait for that any more.
    fn leak(&mut self) {
        std::mem::forget(self.buffer.take());
    }
}

impl Drop for PinnedCopy {
    fn drop(&mut self) {
        // The error is ignored: an earlier kernel caused it, and the next call reports it.
        let _ = self.wait();
    }
}

/// Bytes of a staging buffer that copies of values use. The fault word follows them.
const STAGE: usize = (4 << 20) - 64;

/// Staging buffers for copies between pageable host memory and the GPU: two, so that the host
/// copies to or from one while the GPU copies the other. Small uploads share a buffer, so that the
/// host can enqueue many of them without waiting.
pub(crate) struct Staging {
    stages: [Stage; 2],
    /// The buffer of the next upload.
    current: usize,
}

struct Stage {
    buffer: Pinned,
    /// The GPU may still copy the first `filled` bytes.
    filled: usize,
    /// Events after which these bytes are free, one per stream.
    done: Vec<Event>,
}

impl Stage {
    /// Waits until the whole buffer is free. Returns whether there were pending copies.
    fn wait(&mut self) -> Result<bool> {
        let waits = !self.done.is_empty();
        for done in self.done.drain(..) {
            done.synchronize()?;
        }
        self.filled = 0;
        Ok(waits)
    }

    /// Records that the work of `stream` so far uses the first `filled` bytes.
    fn used(&mut self, stream: &Arc<RawStream>, filled: usize) -> Result<()> {
        self.filled = filled;
        self.done.retain(|done| !done.is_of(stream)); // the later event implies it
        self.done.push(stream.record()?);
        Ok(())
    }
}

impl Staging {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Staging> {
        let stage = || {
            Ok::<Stage, Error>(Stage {
                buffer: Pinned::new(context, STAGE + 64)?,
                filled: 0,
                done: Vec::new(),
            })
        };
        Ok(Staging { stages: [stage()?, stage()?], current: 0 })
    }

    /// Enqueues a copy of `from` to the start of `to` on `stream`. `from` is no longer needed on
    /// return. Returns whether the host waited for the GPU.
    pub(crate) fn upload(
        &mut self,
        stream: &Arc<RawStream>,
        from: &[u8],
        to: &Block,
    ) -> Result<bool> {
        assert!(from.len() <= to.bytes(), "the upload is larger than its block");
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
            // SAFETY: the block is large enough, and its memory is reused in stream order only; the
            // buffer is pinned, large enough, and these bytes are not written before `done`.
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

    /// Enqueues a copy of the device's fault word, if it has one, on `stream`.
    pub(crate) fn start_word(&mut self, stream: &Arc<RawStream>, word: Option<u64>) -> Result<()> {
        let Some(word) = word else { return Ok(()) };
        // After the bytes that other copies use.
        let to = self.stages[0].buffer.bytes_mut()[STAGE..].as_mut_ptr().cast();
        stream.context().bind()?;
        // SAFETY: the word lives as long as its device; the buffer is pinned, and the caller waits
        // for `stream` before these bytes are read.
        unsafe {
            call!(&**stream.context(), cuMemcpyDtoHAsync_v2(to, word, faults::WORD, stream.raw()))
        }
    }

    /// The word that [`Staging::start_word`] copied; 0 if it copied none. The caller must have
    /// waited for the stream.
    pub(crate) fn word(&self, word: Option<u64>) -> u64 {
        let bytes = self.stages[0].buffer.bytes()[STAGE..].first_chunk();
        match (word, bytes) {
            (Some(_), Some(bytes)) => u64::from_ne_bytes(*bytes),
            _ => 0,
        }
    }

    /// Fills `to` with the bytes of `from` that start at `offset`, after all work of `stream`.
    /// Waits for the copy.
    pub(crate) fn download(
        &mut self,
        stream: &Arc<RawStream>,
        from: &Block,
        offset: usize,
        to: &mut [u8],
    ) -> Result<()> {
        assert!(offset + to.len() <= from.bytes(), "the download is outside of its block");
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
    ) -> Result<()> {
        let stage = &mut self.stages[stage];
        stage.wait()?;
        let address = stage.buffer.address.cast();
        stream.context().bind()?;
        // SAFETY: `download` checked the block, whose memory is reused in stream order only; the
        // buffer is pinned, large enough, and not read before `done`.
        unsafe {
            call!(&**stream.context(), cuMemcpyDtoHAsync_v2(address, from, bytes, stream.raw()))
        }?;
        stage.used(stream, bytes)
    }
}

/// Enqueues a fill of the first `bytes` bytes of `block` with zeros on `stream`.
pub(crate) fn fill_zero(stream: &RawStream, block: &Block, bytes: usize) -> Result<()> {
    assert!(bytes <= block.bytes(), "the cleared bytes are outside of their block");
    if bytes == 0 {
        return Ok(());
    }
    stream.context().bind()?;
    let (address, raw) = (block.address(), stream.raw());
    // SAFETY: the block is large enough, and its memory is reused in stream order only.
    unsafe { call!(&**stream.context(), cuMemsetD8Async(address, 0, bytes, raw)) }
}

/// The part of a block that starts at an offset.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    block: &'a Block,
    offset: usize,
}

impl<'a> Part<'a> {
    pub(crate) fn new(block: &'a Block, offset: usize) -> Part<'a> {
        Part { block, offset }
    }

    /// Its address, checked for a copy of `bytes` bytes between it and `buffer`.
    fn checked(&self, buffer: &Pinned, bytes: usize) -> u64 {
        assert!(
            bytes <= buffer.bytes && self.offset + bytes <= self.block.bytes(),
            "the copy is larger than its buffer or its block"
        );
        self.block.address() + self.offset as u64
    }
}

/// The addresses of two parts of GPU memory, checked for a copy of `bytes` bytes between them.
fn checked_addresses(parts: [Part<'_>; 2], bytes: usize) -> [u64; 2] {
    parts.map(|Part { block, offset }| {
        assert!(offset + bytes <= block.bytes(), "the copy is outside of its blocks");
        block.address() + offset as u64
    })
}

/// Enqueues a copy of `bytes` bytes between two parts of GPU memory on `stream`.
pub(crate) fn copy(stream: &RawStream, from: Part<'_>, to: Part<'_>, bytes: usize) -> Result<()> {
    let [from, to] = checked_addresses([from, to], bytes);
    if bytes == 0 {
        return Ok(());
    }
    stream.context().bind()?;
    let raw = stream.raw();
    // SAFETY: both blocks are large enough, and their memory is reused in stream order only.
    unsafe { call!(&**stream.context(), cuMemcpyDtoDAsync_v2(to, from, bytes, raw)) }
}

/// Enqueues a copy of `bytes` bytes from the memory of another GPU on `stream`.
pub(crate) fn copy_from_peer(
    stream: &RawStream,
    (peer, from): (&Context, Part<'_>),
    to: Part<'_>,
    bytes: usize,
) -> Result<()> {
    let [from, to] = checked_addresses([from, to], bytes);
    if bytes == 0 {
        return Ok(());
    }
    let context = &**stream.context();
    context.bind()?;
    let (own, raw) = (context.raw(), stream.raw());
    // SAFETY: both blocks are large enough and belong to these contexts. Their memory is reused
    // after the work of the stream was waited for.
    unsafe { call!(context, cuMemcpyPeerAsync(to, own, from, peer.raw(), bytes, raw)) }
}
