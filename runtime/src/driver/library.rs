//! Opening the driver, or the emulator in its place, and calling it.
//!
//! Both are a library with the functions of the CUDA driver API. cudarc opens the library called
//! `libcuda.so` at its first call and keeps it. The emulator's library bears that name too (its
//! SONAME): opened before, it *is* the driver of this process. So a process has one or the other.

use std::ffi::{CStr, c_char};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use cudarc::driver::sys::{self, CUresult};
use libloading::Library as Dynamic;

use super::CudaError;

/// What runs the kernels of a CUDA device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Library {
    /// NVIDIA's driver, and so a GPU.
    Driver,
    /// Our emulator, on the CPU.
    Emulator,
}

impl Library {
    /// What its devices are called: `cuda` or `emulator`.
    pub(crate) fn device_name(self) -> &'static str {
        match self {
            Library::Driver => "cuda",
            Library::Emulator => "emulator",
        }
    }
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Library::Driver => "CUDA driver",
            Library::Emulator => "CUDA emulator",
        })
    }
}

/// CUDA 12 has every function that we call, and compiles PTX ISA 8.0.
const OLDEST: (u32, u32) = (12, 0);

/// The file of the emulator, as cargo calls it.
const EMULATOR_FILE: &str = "libmeshgrad_emulator.so";

/// What is open in this process, and whether it may be used.
static OPEN: Mutex<Option<(Library, Result<(), CudaError>)>> = Mutex::new(None);

/// The emulator's account of the launch that failed last: writes at most `len` bytes to `buffer`,
/// returns how long it is.
const LAST_REPORT: &[u8] = b"meshgrad_emulator_last_report";
type LastReport = unsafe extern "C" fn(buffer: *mut c_char, len: usize) -> usize;

/// Makes `asked` the library that [`call!`] calls, once a process.
pub(crate) fn open(asked: Library) -> Result<(), CudaError> {
    let mut open = OPEN
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    match &*open {
        Some((open, usable)) if *open == asked => return usable.clone(),
        Some((open, _)) => return Err(CudaError::OneLibrary { open: *open, asked }),
        None => {}
    }

    if asked == Library::Emulator {
        // Never closed: from here on it is the driver.
        std::mem::forget(open_emulator()?);
    }
    // SAFETY: loads libraries by the driver's names, whose initialisers are the driver's or ours.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::DriverMissing);
    }
    let usable = check_functions(asked).and_then(|()| initialise(asked));
    *open = Some((asked, usable.clone()));
    usable
}

fn open_emulator() -> Result<Dynamic, CudaError> {
    let candidates = emulator_candidates();
    let Some(path) = candidates.iter().find(|path| path.is_file()) else {
        let looked_for = candidates.iter().map(|path| path.display().to_string());
        return Err(CudaError::EmulatorMissing {
            looked_for: looked_for.collect(),
        });
    };
    let broken = |reason: String| CudaError::EmulatorBroken {
        path: path.display().to_string(),
        reason,
    };
    // SAFETY: our own library, whose initialisers do nothing but what Rust's standard library does.
    let library = unsafe { Dynamic::new(path) }.map_err(|error| broken(cause(&error)))?;
    // SAFETY: the symbol has this type wherever it exists, which is in the emulator only.
    match unsafe { library.get::<LastReport>(LAST_REPORT) } {
        Ok(_) => Ok(library),
        Err(_) => Err(broken("it is another library".into())),
    }
}

/// What the dynamic loader said, which is the cause of what `error` says.
fn cause(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => cause.to_string(),
        None => error.to_string(),
    }
}

/// `MESHGRAD_EMULATOR`; or beside the running program, among the dependencies that cargo built for
/// an example, or a folder above.
fn emulator_candidates() -> Vec<PathBuf> {
    let named = std::env::var_os("MESHGRAD_EMULATOR");
    if let Some(path) = named.filter(|path| !path.is_empty()) {
        return vec![path.into()];
    }
    let program = std::env::current_exe().unwrap_or_default();
    let beside = program.parent().unwrap_or(Path::new(""));
    let above = beside.parent().unwrap_or(Path::new(""));
    // Cargo renews what is in `deps` whatever it builds, and the file beside a program or above an
    // example only when the library itself is asked for.
    [&beside.join("deps"), beside, &above.join("deps"), above]
        .map(|folder| folder.join(EMULATOR_FILE))
        .into()
}

/// Whether the emulator's library is where [`open`] looks for it.
pub(crate) fn emulator_is_built() -> bool {
    emulator_candidates().iter().any(|path| path.is_file())
}

/// cudarc panics at the first call of a function that the library lacks: we ask before.
fn check_functions(library: Library) -> Result<(), CudaError> {
    // SAFETY: the library was found a moment ago, so that it can be opened again.
    let opened = unsafe { sys::culib() };
    let lacks = |name: &&&str| {
        // SAFETY: the symbol is looked for, not used.
        unsafe { opened.get::<*const ()>(name.as_bytes()) }.is_err()
    };
    let functions: Vec<&'static str> = FUNCTIONS.iter().filter(lacks).copied().collect();
    match functions.is_empty() {
        true => Ok(()),
        false => Err(CudaError::FunctionsMissing { library, functions }),
    }
}

fn initialise(library: Library) -> Result<(), CudaError> {
    // SAFETY: the first call of all, as the driver wants it.
    let code = unsafe { sys::cuInit(0) };
    if code == CUresult::CUDA_ERROR_NO_DEVICE {
        return Ok(()); // counted, and so refused with a better message
    }
    if code != CUresult::CUDA_SUCCESS {
        return Err(CudaError::NotStarted {
            library,
            reason: reason(code),
            way_out: way_out(library, code),
        });
    }

    let mut version = 0;
    // SAFETY: writes one integer.
    let code = unsafe { sys::cuDriverGetVersion(&mut version) };
    check(&library, "cuDriverGetVersion", code)?;
    let version = (version as u32 / 1000, version as u32 % 1000 / 10);
    match version >= OLDEST {
        true => Ok(()),
        false => Err(CudaError::DriverTooOld {
            library,
            version,
            needed: OLDEST,
        }),
    }
}

/// What to do when `cuInit` returns `code` (CUDA driver API, "CUresult").
fn way_out(library: Library, code: CUresult) -> &'static str {
    if library == Library::Emulator {
        return "correct or unset that variable";
    }
    WAYS_OUT.iter().find(|(known, _)| *known == code).map_or(
        "see whether `nvidia-smi` works on this machine",
        |(_, way)| way,
    )
}

const WAYS_OUT: &[(CUresult, &str)] = &[
    (
        CUresult::CUDA_ERROR_STUB_LIBRARY,
        "the libcuda.so that was found is the toolkit's, for linking only: take the folder `stubs` \
         out of LD_LIBRARY_PATH, and install NVIDIA's driver",
    ),
    (
        CUresult::CUDA_ERROR_OPERATING_SYSTEM,
        "the driver's kernel module does not answer: load it (`modprobe nvidia nvidia-uvm`), or \
         restart the machine after an update of the driver",
    ),
    (
        CUresult::CUDA_ERROR_SYSTEM_NOT_READY,
        "GPUs that are joined by NVSwitch wait for the fabric manager: start it (`systemctl start \
         nvidia-fabricmanager`), in the version of the driver",
    ),
    (
        CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
        "libcuda.so and the driver's kernel module are of different versions: restart the machine \
         after an update of the driver; in a container take the libcuda.so of the host",
    ),
    (
        CUresult::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE,
        "this GPU cannot use CUDA's compatibility package: take its folder `compat` out of \
         LD_LIBRARY_PATH, and install a newer driver",
    ),
    (
        CUresult::CUDA_ERROR_UNKNOWN,
        "mostly /dev/nvidia* and /dev/nvidia-uvm are missing or not readable: run `nvidia-smi` once \
         as root, load the module nvidia-uvm, or give the container its GPUs (`docker run --gpus \
         all`)",
    ),
];

/// Calls a function of the driver for `device`, which messages name; an error code is a
/// [`CudaError::Call`]. For use in `unsafe` blocks that say why the call is sound.
macro_rules! call {
    ($device:expr, $function:ident($($argument:expr),* $(,)?)) => {
        $crate::driver::library::check(
            $device,
            stringify!($function),
            ::cudarc::driver::sys::$function($($argument),*),
        )
    };
}

pub(crate) use call;

/// The error of `code`, which `function` returned.
pub(crate) fn check(
    device: &dyn fmt::Display,
    function: &'static str,
    code: CUresult,
) -> Result<(), CudaError> {
    match code {
        CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(CudaError::Call {
            device: device.to_string(),
            function,
            reason: reason(code),
        }),
    }
}

/// What a code means, in the driver's words, and the emulator's report of the launch that failed.
pub(crate) fn reason(code: CUresult) -> String {
    let meaning = format!(
        "{} ({})",
        text(code, sys::cuGetErrorName),
        text(code, sys::cuGetErrorString)
    );
    match last_report() {
        Some(report) => format!("{meaning}\n{report}"),
        None => meaning,
    }
}

/// Asks the driver about a code.
fn text(code: CUresult, ask: unsafe fn(CUresult, *mut *const c_char) -> CUresult) -> String {
    let mut text = std::ptr::null();
    // SAFETY: writes a pointer to a constant string of the driver's, or null.
    let answer = unsafe { ask(code, &mut text) };
    if answer != CUresult::CUDA_SUCCESS || text.is_null() {
        return format!("error {}", code as u32);
    }
    // SAFETY: not null, and the driver's strings end with a zero and are never freed.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

/// The emulator's report, if this is the emulator and there is one.
fn last_report() -> Option<String> {
    // SAFETY: only called after `open`, so that the library exists.
    let library = unsafe { sys::culib() };
    // SAFETY: the symbol has this type wherever it exists, which is in the emulator only.
    let ask = unsafe { library.get::<LastReport>(LAST_REPORT) }.ok()?;
    // SAFETY: a length of zero writes nothing.
    let len = unsafe { ask(std::ptr::null_mut(), 0) };
    let mut report = vec![0u8; len + 1];
    // SAFETY: the buffer has as many bytes as we say.
    let len = unsafe { ask(report.as_mut_ptr().cast(), report.len()) }.min(len);
    report.truncate(len);
    let report = String::from_utf8_lossy(&report)
        .trim_end_matches('\0')
        .trim()
        .to_string();
    (!report.is_empty()).then_some(report)
}

/// The functions that we call.
const FUNCTIONS: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDeviceTotalMem_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxSetCurrent",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuThreadExchangeStreamCaptureMode",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuEventDestroy_v2",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemsetD8Async",
    "cuModuleLoadDataEx",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuFuncSetAttribute",
    "cuLaunchKernel",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Who cannot start the driver reads what to do: for each code something else.
    #[test]
    fn failures_to_start_have_a_way_out() {
        for (code, way) in WAYS_OUT {
            assert_eq!(way_out(Library::Driver, *code), *way);
            assert!(way_out(Library::Emulator, *code).contains("that variable"));
            let same = WAYS_OUT.iter().filter(|(_, other)| other == way);
            assert_eq!(same.count(), 1, "{code:?}");
        }
        let fabric = CudaError::NotStarted {
            library: Library::Driver,
            reason: "CUDA_ERROR_SYSTEM_NOT_READY (system not yet initialized)".into(),
            way_out: way_out(Library::Driver, CUresult::CUDA_ERROR_SYSTEM_NOT_READY),
        };
        assert_eq!(
            fabric.to_string(),
            "the CUDA driver does not start: CUDA_ERROR_SYSTEM_NOT_READY (system not yet \
             initialized); GPUs that are joined by NVSwitch wait for the fabric manager: start it \
             (`systemctl start nvidia-fabricmanager`), in the version of the driver"
        );
        let other = way_out(Library::Driver, CUresult::CUDA_ERROR_ECC_UNCORRECTABLE);
        assert!(other.contains("nvidia-smi"), "{other}");
    }
}
