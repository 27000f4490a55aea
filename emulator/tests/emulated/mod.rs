//! Installs the emulator as the CUDA driver of a test process.

use std::env;
use std::path::PathBuf;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

static LIBRARY: OnceLock<Library> = OnceLock::new();

/// Opens the emulator, configured by `variables`, before cudarc looks for `libcuda.so`. cudarc then
/// finds the loaded library.
pub(crate) fn driver(variables: &[(&str, &str)]) -> &'static Library {
    LIBRARY.get_or_init(|| {
        for (name, value) in variables {
            // SAFETY: every test starts here, and waits for the first one to set them.
            unsafe { env::set_var(name, value) };
        }
        // SAFETY: opening the library runs no code.
        unsafe { Library::open(Some(path()), RTLD_NOW | RTLD_GLOBAL) }
            .expect("the emulator can be opened")
    })
}

/// The emulator's library, which cargo builds next to the test executable or one folder above.
pub(crate) fn path() -> PathBuf {
    let test = env::current_exe().expect("the test executable has a path");
    let folders = test.ancestors().skip(1).take(2);
    let found = folders.map(|folder| folder.join("libmeshgrad_emulator.so"));
    found.into_iter().find(|path| path.exists()).expect("cargo builds the emulator for its tests")
}
