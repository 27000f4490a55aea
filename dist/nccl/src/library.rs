//! Finding and opening the library.

use std::env;
use std::ffi::{CStr, OsStr, c_char, c_int};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::Library as Dynamic;
use meshgrad_error::{Error, Result, ensure, error};

use crate::config::overrides;
use crate::functions::{Functions, UniqueId};
use crate::status::Status;
use crate::version::Version;

/// The environment variable with the path of the library. Without it, the dynamic linker looks for the library.
const VARIABLE: &str = "MESHGRAD_NCCL";
/// NVIDIA's packages and wheels have the first one, developer packages also the second.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// From this version on, a variable of the environment asks for the program's order of launches.
const LAUNCHES_IN_ORDER: Version = Version { major: 2, minor: 26, patch: 0 };
const LAUNCH_ORDER: &str = "NCCL_LAUNCH_ORDER_IMPLICIT";
/// From this version on, the configuration asks for it.
const CONFIGURED_ORDER: Version = Version { major: 2, minor: 31, patch: 0 };

/// An open library.
#[derive(Debug)]
pub struct Library {
    functions: Functions,
    version: Version,
    path: PathBuf,
}

impl Library {
    /// The library of this process, which is opened by the first call: the file that `MESHGRAD_NCCL` names, otherwise
    /// `libnccl.so.2` where the dynamic linker finds it. It is never closed.
    ///
    /// # Errors
    /// When there is none, or it is not NCCL 2.19 or newer.
    pub fn open() -> Result<&'static Library> {
        static OPEN: OnceLock<Result<Library>> = OnceLock::new();
        let opened = || Library::named(env::var_os(VARIABLE).as_deref());
        OPEN.get_or_init(opened).as_ref().map_err(Error::clone)
    }

    /// The emulator's library, at `path`, which is opened by the first call.
    ///
    /// # Errors
    /// As [`Library::named`].
    pub fn of_emulator(path: &Path) -> Result<&'static Library> {
        static OPEN: OnceLock<Result<Library>> = OnceLock::new();
        let opened = || Library::named(Some(path.as_os_str()));
        OPEN.get_or_init(opened).as_ref().map_err(Error::clone)
    }

    /// As [`Library::open`], with `path` in place of the value of the variable, and whatever the process has
    /// opened.
    ///
    /// # Errors
    /// As [`Library::open`].
    pub fn named(path: Option<&OsStr>) -> Result<Library> {
        let paths = match path.filter(|path| !path.is_empty()) {
            Some(path) => vec![PathBuf::from(path)],
            None => NAMES.map(PathBuf::from).to_vec(),
        };
        let mut problems = Vec::new();
        for path in paths {
            // SAFETY: opening a library runs its initializers. Those of NCCL are NVIDIA's, and the user vouches for a
            // path.
            match unsafe { Dynamic::new(&path) } {
                Ok(library) => return Library::of(library, path),
                Err(error) => problems.push(cause(&error)),
            }
        }
        Err(error!(
            Missing,
            "no NCCL: {}; install it (the Debian package libnccl2, or the Python wheel nvidia-nccl-cu13), or \
             set {VARIABLE} to the path of libnccl.so.2",
            problems.join("; ")
        ))
    }

    fn of(library: Dynamic, path: PathBuf) -> Result<Library> {
        let opened = || -> Result<(Functions, Version)> {
            // SAFETY: only NCCL exports functions of these names.
            let functions = unsafe { Functions::of(&library) }?;
            let mut code: c_int = 0;
            // SAFETY: the pointer is valid, and the function needs nothing before.
            let status = unsafe { (functions.get_version)(&raw mut code) };
            ensure!(status == Status::SUCCESS, System, "its ncclGetVersion returned {}", status.0);
            let version = Version::of_code(code);
            let oldest = Version::OLDEST;
            ensure!(
                version >= oldest,
                Unsupported,
                "it has version {version}; use {oldest} or newer"
            );
            Ok((functions.without_newer_than(version), version))
        };
        let opened = opened();
        let (functions, version) = opened
            .map_err(|error| error.context(format!("cannot use {} as NCCL", path.display())))?;
        std::mem::forget(library); // Its threads and its handlers of exit must stay.
        Ok(Library { functions, version, path })
    }

    /// Its functions.
    #[doc(hidden)]
    pub fn functions(&self) -> &Functions {
        &self.functions
    }

    /// Its version.
    #[doc(hidden)]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Whether each GPU starts its collectives in the order of the program, on whatever streams. Otherwise a GPU may
    /// start those of two communicators in another order than its peer, and both wait.
    pub fn orders_launches(&self) -> bool {
        match env::var(LAUNCH_ORDER).as_deref() {
            Ok("1") => self.version >= LAUNCHES_IN_ORDER,
            Ok(_) => false,
            Err(_) => self.version >= CONFIGURED_ORDER,
        }
    }

    /// A new id, for one communicator. A thread of this process serves it until all ranks have joined.
    ///
    /// # Errors
    /// When the library has no network interface to listen on.
    pub fn unique_id(&self) -> Result<[u8; 128]> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: the pointer is valid.
        let status = unsafe { (self.functions.get_unique_id)(&raw mut id) };
        self.check(status, "ncclGetUniqueId")?;
        Ok(id.0)
    }

    /// Whether a call of `function` succeeded.
    ///
    /// # Errors
    /// When not, with the library's last message, which can be that of another call.
    #[doc(hidden)]
    pub fn check(&self, status: Status, function: &str) -> Result<()> {
        if status == Status::SUCCESS {
            return Ok(());
        }
        // SAFETY: a null communicator asks for the last message of all.
        let message = text(unsafe { (self.functions.get_last_error)(std::ptr::null_mut()) });
        let message = match message.trim() {
            "" => String::new(),
            message => format!("; last message of NCCL: {message}"),
        };
        let (path, version) = (self.path.display(), self.version);
        let what = format!("{function} of {path} ({version}): {}{message}", self.text(status));
        Err(Error::new(status.kind(), what))
    }

    /// Such as `NCCL 2.30.7 (libnccl.so.2)`, and the variables that override the options of groups.
    pub fn describe(&self) -> String {
        let library = format!("NCCL {} ({})", self.version, self.path.display());
        match overrides() {
            set if set.is_empty() => library,
            set => format!("{library}; options of groups are overridden by {}", set.join(", ")),
        }
    }

    /// The library's own text for a result.
    #[doc(hidden)]
    pub fn text(&self, status: Status) -> String {
        // SAFETY: takes any number and returns a constant.
        text(unsafe { (self.functions.get_error_string)(status) })
    }
}

/// A text of the library, which it keeps.
fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the library returns texts that end with a zero and live until its next call on this thread.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The dynamic linker's message.
fn cause(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| cause.to_string())
}
