//! Installs the emulator as the CUDA driver of a test process.

use std::env;
use std::ffi::c_char;
use std::path::PathBuf;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

static LIBRARY: OnceLock<Library> = OnceLock::new();

/// Opens the emulator, configured by `variables` that are not set, before cudarc looks for `libcuda.so`. cudarc
/// then finds the loaded library.
pub(crate) fn driver(variables: &[(&str, &str)]) -> &'static Library {
    LIBRARY.get_or_init(|| {
        for (name, value) in variables.iter().filter(|(name, _)| env::var_os(name).is_none()) {
            // SAFETY: every test starts here, and waits for the first one to set them.
            unsafe { env::set_var(name, value) };
        }
        // SAFETY: opening the library runs no code.
        unsafe { Library::open(Some(path()), RTLD_NOW | RTLD_GLOBAL) }
            .expect("the emulator can be opened")
    })
}

/// The emulator's last report, after [`driver`].
pub(crate) fn report() -> String {
    type Last = unsafe extern "C" fn(*mut c_char, usize) -> usize;
    let mut words = vec![0_u8; 4096];
    // SAFETY: this is the function's type, and the buffer has this size.
    let length = unsafe {
        let last = driver(&[]).get::<Last>(b"meshgrad_emulator_last_report").unwrap();
        last(words.as_mut_ptr().cast(), words.len())
    };
    String::from_utf8_lossy(&words[..length.min(4095)]).into_owned()
}

/// The emulator's library, which cargo builds next to the test executable or one folder above.
pub(crate) fn path() -> PathBuf {
    let test = env::current_exe().expect("the test executable has a path");
    let folders = test.ancestors().skip(1).take(2);
    let found = folders.map(|folder| folder.join("libmeshgrad_emulator.so"));
    found.into_iter().find(|path| path.exists()).expect("cargo builds the emulator for its tests")
}
