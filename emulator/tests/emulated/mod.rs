//! Makes the emulator the CUDA driver of a test's process.

use std::env;
use std::path::PathBuf;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

static LIBRARY: OnceLock<Library> = OnceLock::new();

/// Opens the emulator, configured by `variables`, before cudarc looks for `libcuda.so`: it then
/// finds that this process has one already.
pub(crate) fn driver(variables: &[(&str, &str)]) -> &'static Library {
    LIBRARY.get_or_init(|| {
        for (name, value) in variables {
            // SAFETY: every test begins here, and waits while the first one does this.
            unsafe { env::set_var(name, value) };
        }
        // SAFETY: the library runs nothing when it is opened.
        unsafe { Library::open(Some(path()), RTLD_NOW | RTLD_GLOBAL) }.expect("the emulator opens")
    })
}

/// Cargo builds it beside the test's own executable, or a folder above.
fn path() -> PathBuf {
    let test = env::current_exe().expect("a test has a path");
    let folders = test.ancestors().skip(1).take(2);
    let found = folders.map(|folder| folder.join("libmeshgrad_emulator.so"));
    found
        .into_iter()
        .find(|path| path.exists())
        .expect("cargo builds the emulator for its tests")
}
