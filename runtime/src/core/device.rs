//! Devices: where tensors live and ops run.
//!
//! A [`Device`] is a handle that owns an allocator, a number of threads or a GPU's streams, and
//! counters. Every rank makes its own.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::core::memory::{Block, HostMemory, Memory, NoMemory};
use crate::driver::{self, Allocator, Gpu, Imagined, NoBlock, Pool};
use crate::threads::with_threads;
use crate::{AllocatorStats, CudaError, DType, Error, GpuProperties, Library, MemoryStats, Result};

/// What a device is able to do. A meta device takes another device's properties and so stands for
/// it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// What it is called in messages: `cpu`, `cuda:0`, `emulator:0`.
    pub name: String,
    /// How many threads of the host its kernels use; 0 on a GPU.
    pub threads: usize,
    /// The widest vector instructions that its kernels use: `avx512`, `avx2`, `neon` or `scalar`;
    /// `ptx` on a GPU.
    pub simd: &'static str,
    /// Whether bf16 dot products are an instruction (AVX512-BF16, or a GPU's tensor cores).
    pub native_bf16: bool,
    /// What the GPU is, on one.
    pub gpu: Option<GpuProperties>,
}

/// What ops did on a device since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// How many ops ran.
    pub ops: u64,
    /// How many kernels ops launched on a GPU.
    pub kernel_launches: u64,
    /// Floating-point operations, a fused multiply-add being two.
    pub flops: u64,
    /// Bytes of the operands and results of ops, each counted once an op.
    pub bytes: u64,
}

/// A handle to a place where tensors live. Cheap to clone; two handles are equal when they are
/// clones of one.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    properties: Properties,
    /// Before the back end: a GPU's memory goes back through its context.
    memory: Memory,
    backend: Backend,
    work: Counters,
    streams: AtomicU32,
    graphs: AtomicU32,
}

/// What computes.
enum Backend {
    /// With so many threads, if that was said.
    Cpu(Option<usize>),
    Gpu(Box<Gpu>),
    /// Nothing does: shapes and counts only.
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
    /// A CPU device whose kernels use as many threads as the caller has: inside [`Device::run`]
    /// those of that device, otherwise as many as the machine runs at a time.
    pub fn cpu() -> Device {
        let properties = cpu_properties(crate::threads::threads());
        Device::new(properties, host_memory(true), Backend::Cpu(None))
    }

    /// A CPU device whose kernels use `threads` threads.
    ///
    /// # Errors
    /// [`Error::NoThreads`] for none.
    pub fn cpu_with_threads(threads: usize) -> Result<Device> {
        if threads == 0 {
            return Err(Error::NoThreads);
        }
        let backend = Backend::Cpu(Some(threads));
        Ok(Device::new(
            cpu_properties(threads),
            host_memory(true),
            backend,
        ))
    }

    /// GPU `ordinal` of this machine, by NVIDIA's driver.
    ///
    /// # Errors
    /// [`Error::Cuda`]: [`CudaError::DriverMissing`], [`CudaError::NoDevice`],
    /// [`CudaError::UnsupportedGpu`], and others that say what is wrong with the driver;
    /// [`CudaError::OneLibrary`] in a process that uses the emulator.
    pub fn cuda(ordinal: usize) -> Result<Device> {
        Device::gpu_of(Library::Driver, ordinal)
    }

    /// GPU `ordinal` of the emulator, which runs the same kernels on the CPU and checks them while
    /// it does.
    ///
    /// # Errors
    /// As [`Device::cuda`]; [`CudaError::EmulatorMissing`] when it was not built.
    pub fn emulator(ordinal: usize) -> Result<Device> {
        Device::gpu_of(Library::Emulator, ordinal)
    }

    /// Whether [`Device::emulator`] would find the emulator's library.
    pub fn emulator_is_built() -> bool {
        driver::emulator_is_built()
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

    /// A device that computes nothing but shapes, FLOPs, bytes and memory, as `like` would.
    pub fn meta(like: &Properties) -> Device {
        let memory = match &like.gpu {
            None => host_memory(false),
            Some(gpu) => {
                let segments = Imagined::new(gpu.memory);
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
            streams: AtomicU32::new(1),
            graphs: AtomicU32::new(1),
        }))
    }

    /// Runs `main` with this device's number of threads for kernels of [`Device::cpu`] too.
    pub fn run<T>(&self, main: impl FnOnce() -> T) -> T {
        match self.0.backend {
            Backend::Cpu(Some(threads)) => with_threads(threads, main),
            _ => main(),
        }
    }

    /// Whether tensors have values here. False on a meta device.
    pub fn computes(&self) -> bool {
        !matches!(self.0.backend, Backend::Meta)
    }

    /// Whether this is a GPU, emulated or only counted ones included.
    pub fn is_gpu(&self) -> bool {
        self.0.properties.gpu.is_some()
    }

    /// Waits until all work that the device was given is done. A CPU device has always done it.
    ///
    /// # Errors
    /// [`Error::Cuda`] with the failure of any work before; [`CudaError::Capture`] inside
    /// [`Device::capture`].
    pub fn synchronize(&self) -> Result<()> {
        match &self.0.backend {
            Backend::Gpu(gpu) => {
                crate::core::stream::forbid_in_capture("synchronize")?;
                self.count_wait();
                Ok(gpu.synchronize()?)
            }
            _ => Ok(()),
        }
    }

    /// What the device is able to do.
    pub fn properties(&self) -> &Properties {
        &self.0.properties
    }

    /// How much memory is in use, in bytes.
    pub fn memory_stats(&self) -> MemoryStats {
        self.0.memory.usage()
    }

    /// How the cache of a GPU's memory is doing; `None` on a CPU device.
    pub fn allocator_stats(&self) -> Option<AllocatorStats> {
        self.0.memory.cache()
    }

    /// How much memory of the host is pinned for copies to and from this GPU, in bytes: in
    /// [`PinnedBuffer`](crate::PinnedBuffer)s, and in those that copies of ordinary memory go
    /// through. None on another device.
    pub fn pinned_memory_stats(&self) -> MemoryStats {
        self.gpu().map_or_else(MemoryStats::default, Gpu::pinned)
    }

    /// Starts measuring the peaks anew from what is live now.
    pub fn reset_peak(&self) {
        self.0.memory.reset_peak();
        if let Some(gpu) = self.gpu() {
            gpu.reset_pinned_peak();
        }
    }

    /// Gives memory that is kept for reuse back to the operating system or the GPU's driver.
    pub fn empty_cache(&self) {
        self.0.memory.release_kept();
    }

    /// What ops did here since the device was made.
    pub fn work(&self) -> Work {
        let counters = &self.0.work;
        Work {
            ops: counters.ops.load(Ordering::Relaxed),
            kernel_launches: counters.kernel_launches.load(Ordering::Relaxed),
            flops: counters.flops.load(Ordering::Relaxed),
            bytes: counters.bytes.load(Ordering::Relaxed),
        }
    }

    /// How often the host was made to wait for the work of a GPU since the device was made: to read
    /// values ([`Tensor::to_vec`](crate::Tensor::to_vec), [`AsyncRead::wait`](crate::AsyncRead::wait)),
    /// to synchronise, or because uploads of some 4 MiB were on their way already. Not part
    /// of [`Work`], which a device that computes nothing counts alike.
    pub fn waits(&self) -> u64 {
        self.0.work.waits.load(Ordering::Relaxed)
    }

    /// No kernel for `op` on this GPU, for any operands.
    pub(crate) fn no_kernel(&self, op: &'static str) -> Error {
        Error::NoKernel {
            op,
            device: self.to_string(),
            operands: String::new(),
        }
    }

    /// No kernel for `op` on this GPU with operands of `dtype`.
    pub(crate) fn no_kernel_for(&self, op: &'static str, dtype: DType) -> Error {
        Error::NoKernel {
            op,
            device: self.to_string(),
            operands: format!(" for {dtype}"),
        }
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

    /// The GPU, where there is one that computes.
    pub(crate) fn gpu(&self) -> Option<&Gpu> {
        match &self.0.backend {
            Backend::Gpu(gpu) => Some(gpu),
            _ => None,
        }
    }

    /// The allocator of a GPU's memory, real or counted.
    pub(crate) fn gpu_memory(&self) -> Option<std::sync::MutexGuard<'_, Allocator>> {
        self.0.memory.gpu()
    }

    /// A number for a stream that no other stream of this device has; 0 is the one outside of any
    /// scope.
    pub(crate) fn next_stream(&self) -> u32 {
        self.0.streams.fetch_add(1, Ordering::Relaxed)
    }

    /// A number for a graph that no other graph of this device has; 0 means none.
    pub(crate) fn next_graph(&self) -> u32 {
        self.0.graphs.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn take_memory(&self, pool: Pool, bytes: usize) -> Result<Block> {
        self.0.memory.take(pool, bytes).map_err(|none| match none {
            NoMemory::Host => Error::OutOfMemory {
                device: self.to_string(),
                bytes,
                live: self.memory_stats().live,
            },
            NoMemory::Gpu(NoBlock::Failed(error)) => Error::Cuda(error),
            NoMemory::Gpu(NoBlock::OutOfMemory(held)) => Error::Cuda(CudaError::OutOfMemory {
                device: self.to_string(),
                held,
            }),
        })
    }

    pub(crate) fn give_back_memory(&self, bytes: usize, block: Block, used_elsewhere: bool) {
        self.0.memory.give_back(bytes, block, used_elsewhere);
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
    match (
        avx512,
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
    ) {
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
    fn threads_of_its_own() {
        let device = Device::cpu_with_threads(3).unwrap();
        assert_eq!(device.properties().threads, 3);
        assert_eq!(device.run(crate::threads::threads), 3);
        assert!(matches!(Device::cpu_with_threads(0), Err(Error::NoThreads)));
    }
}
