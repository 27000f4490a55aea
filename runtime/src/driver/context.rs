//! A GPU's primary context: the driver's per-process state of one GPU.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdevice_attribute as Attribute, CUresult, CUstreamCaptureMode,
};
use meshgrad_error::{Error, Result, bail, ensure};

use super::Library;
use super::MemoryStats;
use super::library::{self, call, check};

/// The minimum compute capability of our kernels.
const MIN_COMPUTE_CAPABILITY: (u32, u32) = (8, 0);

/// Properties of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuProperties {
    /// Model name.
    pub model: String,
    /// Compute capability, (major, minor): (8, 0) is A100, (9, 0) is H100 and H200.
    pub compute_capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Memory in bytes.
    pub memory: usize,
    /// L2 cache in bytes.
    pub l2_cache: usize,
    /// Maximum shared memory per block, in bytes.
    pub shared_memory: u32,
}

impl GpuProperties {
    /// Dense bf16 floating-point operations per second by NVIDIA's data sheets; `None` for a model whose
    /// data sheet is not known here. Versions of one chip differ, so that only whole names count.
    pub fn peak_bf16_flops(&self) -> Option<f64> {
        let tera = match self.model.as_str() {
            "NVIDIA H200" | "NVIDIA H100 80GB HBM3" | "NVIDIA GH200 480GB" => 989.5,
            "NVIDIA H200 NVL" | "NVIDIA H100 NVL" => 835.5,
            "NVIDIA H100 PCIe" => 756.5,
            "NVIDIA A100-SXM4-40GB" | "NVIDIA A100-SXM4-80GB" => 312.0,
            "NVIDIA A100-PCIE-40GB" | "NVIDIA A100 80GB PCIe" => 312.0,
            _ => return None,
        };
        Some(1e12 * tera)
    }

    /// Whether it runs kernels for `sm_90a`, whose warpgroups multiply matrices.
    pub(crate) fn has_warpgroup_products(&self) -> bool {
        self.compute_capability == (9, 0)
    }
}

/// The primary context of a GPU, retained until this is dropped.
pub(crate) struct Context {
    /// Unique in this process, unlike the address, which a later context can reuse.
    id: u64,
    name: Name,
    device: CUdevice,
    raw: CUcontext,
    pinned: PinnedBytes,
}

/// Bytes of host memory that are pinned for a context.
#[derive(Default)]
struct PinnedBytes {
    live: AtomicUsize,
    peak: AtomicUsize,
    largest: AtomicUsize,
}

// SAFETY: a context is a handle that the driver allows any thread to use.
unsafe impl Send for Context {}
// SAFETY: as above; the driver synchronizes.
unsafe impl Sync for Context {}

thread_local! {
    /// The id of this thread's current context; 0 for none.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

impl Context {
    /// The context and the properties of GPU `ordinal`.
    pub(crate) fn new(library: Library, ordinal: usize) -> Result<(Context, GpuProperties)> {
        library::open(library)?;
        let device = find(library, ordinal)?;
        let name = Name { library, ordinal };
        let properties = properties(&name, device)?;
        if properties.compute_capability < MIN_COMPUTE_CAPABILITY {
            bail!(
                Unsupported,
                "{name} ({}) has compute capability {}.{}, but the kernels need 8.0 (A100) or \
                 newer; use another GPU or a CPU device",
                properties.model,
                properties.compute_capability.0,
                properties.compute_capability.1
            );
        }

        let mut raw = std::ptr::null_mut();
        // SAFETY: `device` exists; writes one handle.
        unsafe { call!(&name, cuDevicePrimaryCtxRetain(&mut raw, device)) }?;
        static IDS: AtomicU64 = AtomicU64::new(1);
        let context = Context {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            name,
            device,
            raw,
            pinned: PinnedBytes::default(),
        };
        Ok((context, properties))
    }

    /// Makes this the current context of the calling thread. Required before any driver call that
    /// uses the current context.
    pub(crate) fn bind(&self) -> Result<()> {
        if CURRENT.get() == self.id {
            return Ok(());
        }
        // SAFETY: the context is retained.
        unsafe { call!(self, cuCtxSetCurrent(self.raw)) }?;
        CURRENT.set(self.id);
        Ok(())
    }

    /// Bytes that no process has allocated.
    pub(crate) fn free_memory(&self) -> Result<usize> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the context is current; writes two integers.
        unsafe { call!(self, cuMemGetInfo_v2(&mut free, &mut total)) }?;
        Ok(free)
    }

    /// The handle.
    pub(super) fn raw(&self) -> CUcontext {
        self.raw
    }

    /// Counts host memory that was pinned.
    pub(crate) fn count_pinned(&self, bytes: usize) {
        let live = self.pinned.live.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.pinned.peak.fetch_max(live, Ordering::Relaxed);
        self.pinned.largest.fetch_max(bytes, Ordering::Relaxed);
    }

    /// Counts host memory that was unpinned.
    pub(crate) fn count_unpinned(&self, bytes: usize) {
        self.pinned.live.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Statistics of pinned host memory.
    pub(crate) fn pinned_stats(&self) -> MemoryStats {
        let live = self.pinned.live.load(Ordering::Relaxed);
        MemoryStats {
            live,
            peak: self.pinned.peak.load(Ordering::Relaxed),
            largest: self.pinned.largest.load(Ordering::Relaxed),
            reserved: live,
        }
    }

    /// Resets the peak of pinned memory to the bytes pinned now.
    pub(crate) fn reset_pinned_peak(&self) {
        let live = self.pinned.live.load(Ordering::Relaxed);
        self.pinned.peak.store(live, Ordering::Relaxed);
        self.pinned.largest.store(0, Ordering::Relaxed);
    }
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once, in `new`, and all objects of the context keep it alive. Errors in
        // `drop` are ignored.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// Runs `f` in relaxed capture mode: calls that a capture forbids are allowed, and are not
/// captured.
pub(super) fn relaxed<T>(f: impl FnOnce() -> T) -> T {
    let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: exchanges one value of this thread.
    let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
    let result = f();
    // SAFETY: as above; restores the previous mode.
    let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
    result
}

/// The name of a GPU: `cuda:0`, `emulator:1`.
struct Name {
    library: Library,
    ordinal: usize,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.library.device_name(), self.ordinal)
    }
}

/// The number of GPUs.
pub(crate) fn gpus(library: Library) -> Result<usize> {
    let mut count = 0;
    // SAFETY: writes one integer.
    let code = unsafe { sys::cuDeviceGetCount(&mut count) };
    if !matches!(code, CUresult::CUDA_ERROR_NO_DEVICE | CUresult::CUDA_ERROR_NOT_INITIALIZED) {
        check(&library, "cuDeviceGetCount", code)?;
    }

    Ok(usize::try_from(count).unwrap_or(0))
}

fn find(library: Library, ordinal: usize) -> Result<CUdevice> {
    let count = gpus(library)?;
    ensure!(
        ordinal < count,
        Missing,
        "{}:{ordinal} does not exist: {}",
        library.device_name(),
        available(library, count)
    );
    let mut device = 0;
    // SAFETY: the ordinal exists; writes one handle.
    unsafe { call!(&library, cuDeviceGet(&mut device, ordinal as i32)) }?;
    Ok(device)
}

fn available(library: Library, count: usize) -> String {
    match (count, library) {
        (0, Library::Driver) => "no GPU is visible (is CUDA_VISIBLE_DEVICES set?)".into(),
        (0, Library::Emulator) => "MESHGRAD_EMULATOR_DEVICES is 0".into(),
        (1, _) => "there is one GPU, 0".into(),
        (count, _) => format!("there are {count} GPUs, 0..{count}"),
    }
}

fn properties(name: &Name, device: CUdevice) -> Result<GpuProperties> {
    let mut model = [0u8; 256];
    // SAFETY: writes at most the given number of bytes, terminated by a zero.
    unsafe { call!(name, cuDeviceGetName(model.as_mut_ptr().cast(), model.len() as i32, device)) }?;
    let model = model.split(|byte| *byte == 0).next().unwrap_or_default();

    let mut memory = 0;
    // SAFETY: writes one integer.
    unsafe { call!(name, cuDeviceTotalMem_v2(&mut memory, device)) }?;

    let attribute = |attribute: Attribute| {
        let mut value = 0;
        // SAFETY: writes one integer.
        unsafe { call!(name, cuDeviceGetAttribute(&mut value, attribute, device)) }?;
        Ok::<u32, Error>(value.max(0) as u32)
    };
    Ok(GpuProperties {
        model: String::from_utf8_lossy(model).into_owned(),
        compute_capability: (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        memory,
        l2_cache: attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)? as usize,
        shared_memory: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
    })
}
