//! Opening the CUDA driver, or the emulator in its place, and calling it.
//!
//! Both libraries export the CUDA driver API. cudarc opens `libcuda.so` at its first call and keeps
//! it. The emulator's library has the same SONAME: if it is opened first, it *is* the driver of
//! this process. So a process uses one or the other.

use std::ffi::{CStr, c_char};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use cudarc::driver::sys::{self, CUresult};
use libloading::Library as Dynamic;
use meshgrad_error::{Error, Result, bail, ensure, error};

/// The library that runs the kernels of a CUDA device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Library {
    /// NVIDIA's driver, on a GPU.
    Driver,
    /// Our emulator, on the CPU.
    Emulator,
}

impl Library {
    /// The name of its devices: `cuda` or `emulator`.
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

/// CUDA 12.0 exports every function that we call, and compiles PTX ISA 8.0.
const MIN_VERSION: (u32, u32) = (12, 0);

/// The start of the file name of the emulator's library. Cargo adds a hash to the name unless the
/// emulator is a path dependency.
const EMULATOR_FILE: &str = "libmeshgrad_emulator";

/// The open library of this process, and whether it is usable.
static OPEN: Mutex<Option<(Library, Result<()>)>> = Mutex::new(None);

/// Symbol of the emulator: writes at most `len` bytes of its report on the last failed launch to
/// `buffer`, and returns the length of the report.
const LAST_REPORT: &[u8] = b"meshgrad_emulator_last_report";
type LastReport = unsafe extern "C" fn(buffer: *mut c_char, len: usize) -> usize;

/// Makes `asked` the library that [`call!`] calls. A process can open only one.
pub(crate) fn open(asked: Library) -> Result<()> {
    let mut open = OPEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    match &*open {
        Some((open, usable)) if *open == asked => return usable.clone(),
        Some((open, _)) => bail!(
            Invalid,
            "this process uses the {open}, so it cannot also use the {asked}: both export the same \
             functions; start another process for the {asked}"
        ),
        None => {}
    }

    if asked == Library::Emulator {
        // Never closed: it is the driver of this process now.
        std::mem::forget(open_emulator()?);
    }
    // SAFETY: loads libraries by the driver's names, whose initializers are the driver's or ours.
    let is_present = unsafe { sys::is_culib_present() };
    ensure!(
        is_present,
        Missing,
        "no CUDA driver: libcuda.so could not be loaded; install NVIDIA's driver, or use a CPU \
         device or the emulator (Device::emulator)"
    );
    let usable = check_functions(asked).and_then(|()| initialize(asked));
    *open = Some((asked, usable.clone()));
    usable
}

fn open_emulator() -> Result<Dynamic> {
    let candidates = emulator_candidates();
    let Some(path) = candidates.iter().find(|path| path.is_file()) else {
        let looked_for = candidates.iter().map(|path| path.display().to_string());
        let looked_for: Vec<String> = looked_for.collect();
        bail!(
            Missing,
            "no emulator: looked for {}; run `cargo build --release -p meshgrad-emulator` in \
             meshgrad's source, then copy target/release/libmeshgrad_emulator.so next to this \
             program, or set MESHGRAD_EMULATOR to it",
            looked_for.join(", ")
        );
    };
    let broken = |reason: String| {
        error!(
            System,
            "the emulator {} could not be opened: {reason}; rebuild it with `cargo build --release \
             -p meshgrad-emulator` in meshgrad's source",
            path.display()
        )
    };
    // SAFETY: our own library, whose initializers are those of Rust's standard library.
    let library = unsafe { Dynamic::new(path) }.map_err(|error| broken(cause(&error)))?;
    // SAFETY: only the emulator exports the symbol, with this type.
    match unsafe { library.get::<LastReport>(LAST_REPORT) } {
        Ok(_) => Ok(library),
        Err(_) => Err(broken("it is not the emulator's library".into())),
    }
}

/// The dynamic loader's message: the cause of `error`.
fn cause(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => cause.to_string(),
        None => error.to_string(),
    }
}

/// The paths to try: `MESHGRAD_EMULATOR` if it is set, otherwise the folder of the running program,
/// its parent folder, and `deps` in both.
fn emulator_candidates() -> Vec<PathBuf> {
    let named = std::env::var_os("MESHGRAD_EMULATOR");
    if let Some(path) = named.filter(|path| !path.is_empty()) {
        return vec![path.into()];
    }
    let program = std::env::current_exe().unwrap_or_default();
    let folder = program.parent().unwrap_or(Path::new(""));
    let above = folder.parent().unwrap_or(Path::new(""));
    // `deps` first: cargo updates the file there whenever it builds the library as a dependency,
    // but the copy next to the program only if the library itself was requested.
    let folders = [&folder.join("deps"), folder, &above.join("deps"), above];
    folders.into_iter().flat_map(emulators_in).collect()
}

/// The emulator's libraries in `folder`, the newest first; the usual name if there is none.
fn emulators_in(folder: &Path) -> Vec<PathBuf> {
    let is_emulator = |path: &PathBuf| {
        let name = path.file_stem().and_then(|name| name.to_str());
        let rest = name.and_then(|name| name.strip_prefix(EMULATOR_FILE));
        let is_library = path.extension().is_some_and(|extension| extension == "so");
        is_library && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_emulator).collect();
    let modified = |path: &PathBuf| path.metadata().and_then(|it| it.modified()).ok();
    found.sort_by_key(|path| std::cmp::Reverse(modified(path)));
    match found.is_empty() {
        true => vec![folder.join(EMULATOR_FILE).with_extension("so")],
        false => found,
    }
}

/// The emulator's library, if the process uses it.
pub(crate) fn emulator() -> Option<PathBuf> {
    let open = OPEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let is_emulator = matches!(*open, Some((Library::Emulator, Ok(()))));
    is_emulator.then(emulator_candidates)?.into_iter().find(|path| path.is_file())
}

/// Whether the emulator's library is where [`open`] looks for it.
pub(crate) fn emulator_is_built() -> bool {
    emulator_candidates().iter().any(|path| path.is_file())
}

/// Checks all functions, because cudarc panics at the first call of a missing one.
fn check_functions(library: Library) -> Result<()> {
    // SAFETY: the library was just found, so it can be opened again.
    let opened = unsafe { sys::culib() };
    let lacks = |name: &&&str| {
        // SAFETY: the symbol is looked up, not used.
        unsafe { opened.get::<*const ()>(name.as_bytes()) }.is_err()
    };
    let functions: Vec<&'static str> = FUNCTIONS.iter().filter(lacks).copied().collect();
    ensure!(
        functions.is_empty(),
        Unsupported,
        "the {library} lacks {}; {}",
        some_of(&functions),
        newer(library)
    );
    Ok(())
}

/// The first names of a list, and the number of others.
fn some_of(names: &[&str]) -> String {
    let shown = names.len().min(3);
    match names.len() - shown {
        0 => names.join(", "),
        more => format!("{} and {more} more", names[..shown].join(", ")),
    }
}

/// How to update a library.
fn newer(library: Library) -> &'static str {
    match library {
        Library::Driver => "install a newer driver",
        Library::Emulator => {
            "rebuild it with `cargo build --release -p meshgrad-emulator` in meshgrad's source"
        }
    }
}

fn not_started(library: Library, code: CUresult, reason: &str) -> Error {
    error!(Device, "cannot initialize the {library}: {reason}; {}", advice(library, code))
}

fn initialize(library: Library) -> Result<()> {
    // SAFETY: the first driver call, as the driver requires.
    let code = unsafe { sys::cuInit(0) };
    if code == CUresult::CUDA_ERROR_NO_DEVICE {
        return Ok(()); // the device count gives a better error
    }
    if code != CUresult::CUDA_SUCCESS {
        return Err(not_started(library, code, &reason(code)));
    }

    let mut version = 0;
    // SAFETY: writes one integer.
    let code = unsafe { sys::cuDriverGetVersion(&mut version) };
    check(&library, "cuDriverGetVersion", code)?;
    let version = (version as u32 / 1000, version as u32 % 1000 / 10);
    ensure!(
        version >= MIN_VERSION,
        Unsupported,
        "the {library} supports CUDA {}.{}, but {}.{} is needed; {}",
        version.0,
        version.1,
        MIN_VERSION.0,
        MIN_VERSION.1,
        newer(library)
    );
    Ok(())
}

/// What to do when `cuInit` returns `code` (CUDA driver API, "CUresult").
fn advice(library: Library, code: CUresult) -> &'static str {
    if library == Library::Emulator {
        return "correct or unset that variable";
    }
    ADVICE
        .iter()
        .find(|(known, _)| *known == code)
        .map_or("check that `nvidia-smi` works on this machine", |(_, advice)| advice)
}

const ADVICE: &[(CUresult, &str)] = &[
    (
        CUresult::CUDA_ERROR_STUB_LIBRARY,
        "the libcuda.so found is the toolkit's stub for linking; remove the folder `stubs` from \
         LD_LIBRARY_PATH, and install NVIDIA's driver",
    ),
    (
        CUresult::CUDA_ERROR_OPERATING_SYSTEM,
        "the driver's kernel module does not respond; load it (`modprobe nvidia nvidia-uvm`), or \
         reboot after a driver update",
    ),
    (
        CUresult::CUDA_ERROR_SYSTEM_NOT_READY,
        "GPUs connected by NVSwitch need NVIDIA's fabric manager, in the same version as the driver; \
         start it with `systemctl start nvidia-fabricmanager`",
    ),
    (
        CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
        "libcuda.so and the driver's kernel module have different versions; reboot after a driver \
         update, or use the host's libcuda.so in a container",
    ),
    (
        CUresult::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE,
        "this GPU does not support CUDA's compatibility package; remove its folder `compat` from \
         LD_LIBRARY_PATH, and install a newer driver",
    ),
    (
        CUresult::CUDA_ERROR_UNKNOWN,
        "/dev/nvidia* or /dev/nvidia-uvm may be missing or not readable; run `nvidia-smi` once as \
         root, load the module nvidia-uvm, or pass the GPUs to the container (`docker run --gpus \
         all`)",
    ),
];

/// Calls a driver function. An error code becomes an error that names `device` and the function.
/// Used in `unsafe` blocks that state why the call is sound.
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

/// The result of `function`, which returned `code`.
pub(crate) fn check(
    device: &dyn fmt::Display,
    function: &'static str,
    code: CUresult,
) -> Result<()> {
    match code {
        CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(error!(Device, "{device}: {function} failed: {}", reason(code))),
    }
}

/// The driver's name and description of an error code, followed by the emulator's report if there
/// is one.
pub(crate) fn reason(code: CUresult) -> String {
    let meaning =
        format!("{} ({})", text(code, sys::cuGetErrorName), text(code, sys::cuGetErrorString));
    match last_report() {
        Some(report) => format!("{meaning}\n{report}"),
        None => meaning,
    }
}

/// The driver's name or description of a code.
fn text(code: CUresult, ask: unsafe fn(CUresult, *mut *const c_char) -> CUresult) -> String {
    let mut text = std::ptr::null();
    // SAFETY: writes a pointer to a constant string of the driver, or null.
    let answer = unsafe { ask(code, &mut text) };
    if answer != CUresult::CUDA_SUCCESS || text.is_null() {
        return format!("error {}", code as u32);
    }
    // SAFETY: not null; the driver's strings are zero-terminated and never freed.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The emulator's report, if the library is the emulator and has one.
fn last_report() -> Option<String> {
    // SAFETY: called after `open` only, so the library exists.
    let library = unsafe { sys::culib() };
    // SAFETY: only the emulator exports the symbol, with this type.
    let ask = unsafe { library.get::<LastReport>(LAST_REPORT) }.ok()?;
    // SAFETY: a length of zero writes nothing.
    let len = unsafe { ask(std::ptr::null_mut(), 0) };
    let mut report = vec![0u8; len + 1];
    // SAFETY: the buffer has the given size.
    let len = unsafe { ask(report.as_mut_ptr().cast(), report.len()) }.min(len);
    report.truncate(len);
    let report = String::from_utf8_lossy(&report).trim_end_matches('\0').trim().to_string();
    (!report.is_empty()).then_some(report)
}

/// The driver functions that we call.
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
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyPeerAsync",
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

    /// Cargo's file names with and without a hash are found, the newest file first.
    #[test]
    fn emulator_libraries_are_found_with_and_without_a_hash() {
        let place = tempfile::tempdir().unwrap();
        let missing = vec![place.path().join("libmeshgrad_emulator.so")];
        assert_eq!(emulators_in(place.path()), missing);
        assert_eq!(emulators_in(&place.path().join("none")).len(), 1);

        let names = [
            "libmeshgrad_emulator.so",
            "libmeshgrad_emulator-1f2e.so",
            "libmeshgrad_emulator.rlib",
            "libmeshgrad_emulator_other.so",
        ];
        for (age, name) in names.iter().enumerate() {
            let file = std::fs::File::create(place.path().join(name)).unwrap();
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(age as u64);
            file.set_modified(time).unwrap();
        }
        let found = emulators_in(place.path());
        let expected = [names[1], names[0]].map(|name| place.path().join(name));
        assert_eq!(found, expected);
    }

    /// Each error code of `cuInit` in the table has different advice, and other codes suggest
    /// `nvidia-smi`.
    #[test]
    fn each_driver_error_has_its_own_advice() {
        for (code, text) in ADVICE {
            assert_eq!(advice(Library::Driver, *code), *text);
            assert!(advice(Library::Emulator, *code).contains("that variable"));
            let same = ADVICE.iter().filter(|(_, other)| other == text);
            assert_eq!(same.count(), 1, "{code:?}");
        }
        let code = CUresult::CUDA_ERROR_SYSTEM_NOT_READY;
        let reason = "CUDA_ERROR_SYSTEM_NOT_READY (system not yet initialized)";
        let fabric = not_started(Library::Driver, code, reason);
        assert_eq!(
            fabric.to_string(),
            "cannot initialize the CUDA driver: CUDA_ERROR_SYSTEM_NOT_READY (system not yet \
             initialized); GPUs connected by NVSwitch need NVIDIA's fabric manager, in the same \
             version as the driver; start it with `systemctl start nvidia-fabricmanager`"
        );
        let functions = ["cuInit", "cuMemAlloc_v2", "cuLaunchKernel", "cuGraphLaunch"];
        assert_eq!(some_of(&functions), "cuInit, cuMemAlloc_v2, cuLaunchKernel and 1 more");
        assert_eq!(some_of(&functions[..2]), "cuInit, cuMemAlloc_v2");
        let other = advice(Library::Driver, CUresult::CUDA_ERROR_ECC_UNCORRECTABLE);
        assert!(other.contains("nvidia-smi"), "{other}");
    }
}
