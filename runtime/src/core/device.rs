//! Devices: where tensors live and ops run.
//!
//! A [`Device`] is a handle that owns an allocator, threads or a GPU's streams, and counters. Every
//! rank creates its own.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meshgrad_error::{ensure, error};

use crate::core::available;
use crate::core::memory::{AllocationError, Block, HostMemory, Memory};
use crate::core::op_trace::{OpRecorder, OpTrace};
use crate::driver::{self, Allocator, Gpu, Library, MetaSegments, NoBlock, Pool};
use crate::threads::with_threads;
use crate::{AllocatorStats, DType, Error, ErrorKind, GpuProperties, MemoryStats, Result};

/// The capabilities of a device. A meta device has the properties of the device that it models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Its name in messages: `cpu`, `cuda:0`, `emulator:0`.
    pub name: String,
    /// Host threads that its kernels use; 0 on a GPU.
    pub threads: usize,
    /// The widest vector instructions that its kernels use: `avx512`, `avx2`, `neon` or `scalar`;
    /// `ptx` on a GPU.
    pub simd: &'static str,
    /// Whether it has instructions for bf16 dot products (AVX512-BF16, or a GPU's tensor cores).
    pub native_bf16: bool,
    /// Properties of the GPU; `None` on a CPU.
    pub gpu: Option<GpuProperties>,
}

/// Work that ops did on a device since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Ops that ran.
    pub ops: u64,
    /// GPU kernels that ops launched.
    pub kernel_launches: u64,
    /// Floating-point operations. A fused multiply-add counts as two.
    pub flops: u64,
    /// Bytes of the operands and results of ops, each counted once per op.
    pub bytes: u64,
}

/// A handle to a device that stores tensors and runs ops. Cheap to clone; two handles are equal
/// when one is a clone of the other.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    properties: Properties,
    /// Dropped before the back end, because a GPU's memory is freed through its context.
    memory: Memory,
    backend: Backend,
    work: Counters,
    op_recorder: Arc<OpRecorder>,
    streams: AtomicU32,
    graphs: AtomicU32,
}

/// What runs the kernels.
enum Backend {
    /// The number of threads; `None` uses the caller's.
    Cpu(Option<usize>),
    Gpu(Box<Gpu>),
    /// No kernels run: shapes and counts only.
    Meta,
}

#[derive(Default)]
struct Counters {
    ops: AtomicU64,
    kernel_launches: AtomicU64,
    flops: AtomicU64,
    bytes: AtomicU64,
    waits: AtomicU64,
}

impl Device {
    /// A CPU device without a number of threads of its own. Its kernels use as many threads as the
    /// device whose [`Device::run`] is running, or else one per hardware thread.
    pub fn cpu() -> Device {
        let properties = cpu_properties(crate::threads::threads());
        Device::new(properties, host_memory(true), Backend::Cpu(None))
    }

    /// A CPU device whose kernels use `threads` threads.
    ///
    /// # Errors
    /// When `threads` is 0.
    pub fn cpu_with_threads(threads: usize) -> Result<Device> {
        ensure!(threads > 0, Invalid, "a CPU device needs at least 1 thread, not 0");
        let backend = Backend::Cpu(Some(threads));
        Ok(Device::new(cpu_properties(threads), host_memory(true), backend))
    }

    /// GPU `ordinal` of this machine, through NVIDIA's driver.
    ///
    /// # Errors
    /// [Missing](ErrorKind::Missing) without a driver or such a GPU. When the GPU or the driver is too
    /// old; when the driver fails; in a process that uses the emulator.
    pub fn cuda(ordinal: usize) -> Result<Device> {
        Device::gpu_of(Library::Driver, ordinal)
    }

    /// The number of GPUs of this machine.
    ///
    /// # Errors
    /// If there is no driver, or it fails.
    pub fn cuda_count() -> Result<usize> {
        driver::open(Library::Driver)?;
        driver::gpus(Library::Driver)
    }

    /// GPU `ordinal` of the emulator, which runs the same kernels on the CPU and checks them.
    ///
    /// # Errors
    /// As [`Device::cuda`]; [missing](ErrorKind::Missing) when the emulator is not built.
    pub fn emulator(ordinal: usize) -> Result<Device> {
        Device::gpu_of(Library::Emulator, ordinal)
    }

    /// Whether [`Device::emulator`] can find the emulator's library.
    pub fn emulator_is_built() -> bool {
        driver::emulator_is_built()
    }

    /// The emulator's library, if this device is one of its GPUs. It has NCCL's functions, too.
    pub fn emulator_library(&self) -> Option<PathBuf> {
        self.gpu().and_then(|_| driver::emulator())
    }

    /// Makes the context of a GPU current on this thread, for libraries that use the driver's
    /// current context. Does nothing on other devices.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn bind(&self) -> Result<()> {
        self.gpu().map_or(Ok(()), |gpu| gpu.context().bind())
    }

    /// Makes all later reads of values on a GPU fail with `reason`, because work ended without
    /// results: what was enqueued after it went on with other values. Does nothing on other devices.
    pub fn fail(&self, reason: Error) {
        if let Some(gpu) = self.gpu() {
            gpu.fail(reason);
        }
    }

    fn gpu_of(library: Library, ordinal: usize) -> Result<Device> {
        let (gpu, gpu_properties) = Gpu::new(library, ordinal)?;
        let capacity = gpu_properties.memory;
        let properties = Properties {
            name: format!("{}:{ordinal}", library.device_name()),
            threads: 0,
            simd: "ptx",
            native_bf16: true,
            gpu: Some(gpu_properties),
        };
        let memory = Memory::Gpu(Mutex::new(gpu.allocator(capacity)));
        Ok(Device::new(properties, memory, Backend::Gpu(Box::new(gpu))))
    }

    /// A device that computes no values, only shapes and the FLOPs, bytes and memory that a device
    /// with the properties `like` would need.
    pub fn meta(like: &Properties) -> Device {
        let memory = match &like.gpu {
            None => host_memory(false),
            Some(gpu) => {
                let segments = MetaSegments::new(gpu.memory);
                Memory::Gpu(Mutex::new(Allocator::new(Box::new(segments), gpu.memory)))
            }
        };
        Device::new(like.clone(), memory, Backend::Meta)
    }

    fn new(properties: Properties, memory: Memory, backend: Backend) -> Device {
        Device(Arc::new(Inner {
            properties,
            memory,
            backend,
            work: Counters::default(),
            op_recorder: Arc::default(),
            streams: AtomicU32::new(1),
            graphs: AtomicU32::new(1),
        }))
    }

    /// Runs `main`. If this CPU device has a number of threads, kernels of [`Device::cpu`] inside
    /// it use that number.
    pub fn run<T>(&self, main: impl FnOnce() -> T) -> T {
        match self.0.backend {
            Backend::Cpu(Some(threads)) => with_threads(threads, main),
            _ => main(),
        }
    }

    /// Whether tensors have values on this device. False on a meta device.
    pub fn computes(&self) -> bool {
        !matches!(self.0.backend, Backend::Meta)
    }

    /// Whether this is a GPU, an emulated GPU, or a meta device that models a GPU.
    pub fn is_gpu(&self) -> bool {
        self.0.properties.gpu.is_some()
    }

    /// The device's capabilities.
    pub fn properties(&self) -> &Properties {
        &self.0.properties
    }

    /// Statistics of this device's memory, in bytes.
    pub fn memory_stats(&self) -> MemoryStats {
        self.0.memory.stats()
    }

    /// Bytes that can still be allocated: on a GPU its free memory and the cache of this device; on
    /// a CPU what the system has available, within the limits of control groups. `None` where that
    /// is unknown, and on a meta device.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn available_memory(&self) -> Result<Option<usize>> {
        if let Some(gpu) = self.gpu() {
            let cached = self.allocator_stats().map_or(0, |stats| stats.cached());
            return Ok(Some(gpu.context().free_memory()? + cached));
        }
        match self.0.backend {
            Backend::Meta => Ok(None),
            _ => Ok(available::host_memory()),
        }
    }

    /// Statistics of a GPU's caching allocator; `None` on a CPU device.
    pub fn allocator_stats(&self) -> Option<AllocatorStats> {
        self.0.memory.allocator_stats()
    }

    /// Host memory that is pinned for this GPU, in bytes: [`PinnedBuffer`](crate::PinnedBuffer)s,
    /// the staging buffers for pageable memory, and the buffers of asynchronous reads. Zero on
    /// other devices.
    pub fn pinned_memory_stats(&self) -> MemoryStats {
        self.gpu().map_or_else(MemoryStats::default, Gpu::pinned_stats)
    }

    /// Resets the peaks to the bytes in use now.
    pub fn reset_peak(&self) {
        self.0.memory.reset_peak();
        if let Some(gpu) = self.gpu() {
            gpu.reset_pinned_peak();
        }
    }

    /// Returns cached memory to the operating system or the GPU's driver.
    pub fn empty_cache(&self) {
        self.0.memory.empty_cache();
    }

    /// The work that ops did on this device since it was created.
    pub fn work(&self) -> Work {
        let counters = &self.0.work;
        Work {
            ops: counters.ops.load(Ordering::Relaxed),
            kernel_launches: counters.kernel_launches.load(Ordering::Relaxed),
            flops: counters.flops.load(Ordering::Relaxed),
            bytes: counters.bytes.load(Ordering::Relaxed),
        }
    }

    /// How often the host waited for the GPU since the device was created: to read values
    /// ([`Tensor::to_vec`](crate::Tensor::to_vec), [`AsyncRead::wait`](crate::AsyncRead::wait)), to
    /// synchronize, or because both 4 MiB staging buffers for uploads were full. Not part of
    /// [`Work`], because a meta device counts the same work and never waits.
    pub fn waits(&self) -> u64 {
        self.0.work.waits.load(Ordering::Relaxed)
    }

    /// Records when the CPU kernel of each op runs on this device, on any thread. `now` is the
    /// clock. Fills and copies that are not counted in [`Device::work`] are not recorded. GPUs and
    /// meta devices run no CPU kernels, so their traces are empty.
    ///
    /// ```
    /// use std::time::Instant;
    ///
    /// use meshgrad_runtime::{DType, Device, Result, ops};
    ///
    /// # fn main() -> Result<()> {
    /// let (device, start) = (Device::cpu(), Instant::now());
    /// let x = ops::full(&device, &[4], DType::F32, 1.0)?;
    /// let trace = device.trace_ops(move || start.elapsed())?;
    /// ops::add(&x, &x)?;
    /// let spans = trace.finish();
    /// assert_eq!((spans.len(), spans[0].name), (1, "add"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// While another trace records this device.
    pub fn trace_ops(&self, now: impl Fn() -> Duration + Send + Sync + 'static) -> Result<OpTrace> {
        let trace = self.0.op_recorder.start(Arc::new(now));
        trace.ok_or_else(|| {
            error!(Invalid, "trace_ops: {self} is already recorded; finish the first trace")
        })
    }

    /// Runs the CPU kernel of an op, and records it if there is a trace.
    pub(crate) fn recorded<T>(&self, op: &'static str, kernel: impl FnOnce() -> T) -> T {
        self.0.op_recorder.run(op, kernel)
    }

    /// The error for an `op` that has no kernel on this GPU.
    pub(crate) fn no_kernel(&self, op: &'static str) -> Error {
        self.lacks_kernel(op, "")
    }

    /// The error for an `op` that has no kernel on this GPU for operands of `dtype`.
    pub(crate) fn no_kernel_for(&self, op: &'static str, dtype: DType) -> Error {
        self.lacks_kernel(op, &format!(" for {dtype}"))
    }

    fn lacks_kernel(&self, op: &str, operands: &str) -> Error {
        error!(
            Unsupported,
            "{op}: there is no kernel{operands} on {self}; copy the operands to a CPU device \
             (ops::to_device) and run it there"
        )
    }

    pub(crate) fn count_wait(&self) {
        self.0.work.waits.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count(&self, flops: u64, bytes: u64) {
        let counters = &self.0.work;
        counters.ops.fetch_add(1, Ordering::Relaxed);
        counters.flops.fetch_add(flops, Ordering::Relaxed);
        counters.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_launch(&self) {
        self.0.work.kernel_launches.fetch_add(1, Ordering::Relaxed);
    }

    /// The GPU; `None` on CPU and meta devices.
    pub(crate) fn gpu(&self) -> Option<&Gpu> {
        match &self.0.backend {
            Backend::Gpu(gpu) => Some(gpu),
            _ => None,
        }
    }

    /// The allocator of GPU memory, on a GPU or a meta device that models one.
    pub(crate) fn gpu_memory(&self) -> Option<std::sync::MutexGuard<'_, Allocator>> {
        self.0.memory.gpu()
    }

    /// A new stream id, unique on this device. The stream outside of any scope has id 0.
    pub(crate) fn next_stream(&self) -> u32 {
        self.0.streams.fetch_add(1, Ordering::Relaxed)
    }

    /// A new graph id, unique on this device. 0 means no graph.
    pub(crate) fn next_graph(&self) -> u32 {
        self.0.graphs.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn allocate(&self, pool: Pool, bytes: usize) -> Result<Block> {
        self.0.memory.allocate(pool, bytes).map_err(|none| match none {
            AllocationError::Host => error!(
                OutOfMemory,
                "out of memory: {self} could not allocate {bytes} bytes; {} bytes are in use",
                self.memory_stats().live
            ),
            AllocationError::Gpu(NoBlock::Failed(error)) => error,
            AllocationError::Gpu(NoBlock::OutOfMemory(report)) => {
                let error = Error::with_details(ErrorKind::OutOfMemory, *report);
                error.context(format_args!("out of memory on {self}"))
            }
        })
    }

    pub(crate) fn free(&self, bytes: usize, block: Block, used_elsewhere: bool) {
        self.0.memory.free(bytes, block, used_elsewhere);
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Device {}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.0.properties.name;
        match self.computes() {
            true => f.write_str(name),
            false => write!(f, "meta({name})"),
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({self})")
    }
}

fn host_memory(backed: bool) -> Memory {
    Memory::Host(HostMemory::new(backed))
}

fn cpu_properties(threads: usize) -> Properties {
    Properties {
        name: "cpu".into(),
        threads,
        simd: simd_level(),
        native_bf16: native_bf16(),
        gpu: None,
    }
}

#[cfg(target_arch = "x86_64")]
fn simd_level() -> &'static str {
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    match (avx512, is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")) {
        (true, _) => "avx512",
        (false, true) => "avx2",
        _ => "scalar",
    }
}

#[cfg(target_arch = "x86_64")]
fn native_bf16() -> bool {
    is_x86_feature_detected!("avx512bf16")
}

#[cfg(target_arch = "aarch64")]
fn simd_level() -> &'static str {
    "neon"
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn simd_level() -> &'static str {
    "scalar"
}

#[cfg(not(target_arch = "x86_64"))]
fn native_bf16() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_its_own_thread_count() {
        let device = Device::cpu_with_threads(3).unwrap();
        assert_eq!(device.properties().threads, 3);
        assert_eq!(device.run(crate::threads::threads), 3);
        let none = Device::cpu_with_threads(0).unwrap_err().to_string();
        assert_eq!(none, "a CPU device needs at least 1 thread, not 0");
    }
}
