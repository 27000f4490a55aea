//! Devices: where tensors live and ops run.
//!
//! A [`Device`] is a handle that owns an allocator, perhaps a thread pool, and counters. Every rank
//! makes its own.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::memory::{Block, Memory};
use crate::{Error, MemoryUse, Result};

/// What a device is able to do. A meta device takes another device's properties and so stands for
/// it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// What it is called in messages: `cpu`.
    pub name: String,
    /// How many threads its kernels use.
    pub threads: usize,
    /// The widest vector instructions that its kernels use: `avx512`, `avx2`, `neon` or `scalar`.
    pub simd: &'static str,
    /// Whether bf16 dot products are an instruction (AVX512-BF16).
    pub native_bf16: bool,
}

/// What ops did on a device since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// How many ops ran.
    pub ops: u64,
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
    computes: bool,
    properties: Properties,
    pool: Option<rayon::ThreadPool>,
    memory: Memory,
    work: Counters,
}

#[derive(Default)]
struct Counters {
    ops: AtomicU64,
    flops: AtomicU64,
    bytes: AtomicU64,
}

impl Device {
    /// A CPU device whose kernels use the thread pool of the caller, rayon's global one by default.
    pub fn cpu() -> Device {
        Device::new(true, cpu_properties(rayon::current_num_threads()), None)
    }

    /// A CPU device with a pool of `threads` threads of its own. A rank's main function belongs
    /// into [`Device::run`].
    ///
    /// # Errors
    /// [`Error::Threads`] when the pool cannot be started.
    pub fn cpu_with_threads(threads: usize) -> Result<Device> {
        let fail = |reason: String| Error::Threads { threads, reason };
        if threads == 0 {
            return Err(fail("at least one is needed".into()));
        }
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let pool = pool.map_err(|error| fail(error.to_string()))?;
        Ok(Device::new(true, cpu_properties(threads), Some(pool)))
    }

    /// A device that computes nothing but shapes, FLOPs, bytes and memory, as `like` would.
    pub fn meta(like: &Properties) -> Device {
        Device::new(false, like.clone(), None)
    }

    fn new(computes: bool, properties: Properties, pool: Option<rayon::ThreadPool>) -> Device {
        let memory = Memory::new(computes);
        Device(Arc::new(Inner {
            computes,
            properties,
            pool,
            memory,
            work: Counters::default(),
        }))
    }

    /// Runs `main` as a worker of this device's pool, so that kernels inside find the pool without
    /// crossing threads. Entering costs about 13 us: once a program, not once an op.
    pub fn run<T: Send>(&self, main: impl FnOnce() -> T + Send) -> T {
        match &self.0.pool {
            Some(pool) => pool.install(main),
            None => main(),
        }
    }

    /// Whether tensors have values here. False on a meta device.
    pub fn computes(&self) -> bool {
        self.0.computes
    }

    /// What the device is able to do.
    pub fn properties(&self) -> &Properties {
        &self.0.properties
    }

    /// How much memory is in use, in bytes.
    pub fn memory(&self) -> MemoryUse {
        self.0.memory.usage()
    }

    /// Starts measuring the peak anew from what is live now.
    pub fn reset_peak(&self) {
        self.0.memory.reset_peak();
    }

    /// Gives memory that is kept for reuse back to the operating system.
    pub fn release_kept_memory(&self) {
        self.0.memory.release_kept();
    }

    /// What ops did here since the device was made.
    pub fn work(&self) -> Work {
        let counters = &self.0.work;
        Work {
            ops: counters.ops.load(Ordering::Relaxed),
            flops: counters.flops.load(Ordering::Relaxed),
            bytes: counters.bytes.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn count(&self, flops: u64, bytes: u64) {
        let counters = &self.0.work;
        counters.ops.fetch_add(1, Ordering::Relaxed);
        counters.flops.fetch_add(flops, Ordering::Relaxed);
        counters.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn take_memory(&self, bytes: usize) -> Result<Option<Block>> {
        self.0.memory.take(bytes).ok_or_else(|| Error::OutOfMemory {
            device: self.to_string(),
            bytes,
            live: self.memory().live,
        })
    }

    pub(crate) fn give_back_memory(&self, bytes: usize, block: Option<Block>) {
        self.0.memory.give_back(bytes, block);
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
        match self.0.computes {
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

fn cpu_properties(threads: usize) -> Properties {
    Properties {
        name: "cpu".into(),
        threads,
        simd: simd_level(),
        native_bf16: native_bf16(),
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
    fn a_pool_of_its_own() {
        let device = Device::cpu_with_threads(3).unwrap();
        assert_eq!(device.properties().threads, 3);
        assert_eq!(device.run(rayon::current_num_threads), 3);
        assert!(matches!(
            Device::cpu_with_threads(0),
            Err(Error::Threads { threads: 0, .. })
        ));
    }
}
