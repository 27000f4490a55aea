//! The exported functions, by their names in `cuda.h`, and the types of their arguments.
//!
//! A function here turns its arguments into values and calls a method of [`Driver`]. No panic
//! crosses into the caller: it becomes `CUDA_ERROR_UNKNOWN`, and its message the report.

mod arguments;
mod context;
mod device;
mod entry;
mod event;
mod graph;
pub(super) mod host;
mod launch;
mod memory;
mod module;
mod pool;
mod stream;
mod transfer;

use std::sync::OnceLock;

use super::Driver;
use super::configuration::Configuration;
use super::error::{Code, Result, unless_panicking};
use crate::options::Options;

/// The driver of this process, or why there is none.
static DRIVER: OnceLock<std::result::Result<Driver, String>> = OnceLock::new();

/// The driver, once `cuInit` has made it.
fn driver() -> Result<&'static Driver> {
    match DRIVER.get() {
        Some(Ok(_)) if host::is_calling() => {
            let words = "a function that a stream calls must not use the driver";
            Err(Code::NotPermitted.because(words))
        }
        Some(Ok(driver)) => Ok(driver),
        Some(Err(words)) => Err(Code::InvalidValue.because(words.clone())),
        None => Err(Code::NotInitialized.because("cuInit was not called")),
    }
}

/// The latest words about something that went wrong: why there is no driver, if there is none.
fn last_report() -> String {
    match DRIVER.get() {
        Some(Ok(driver)) => driver.reports().last(),
        Some(Err(words)) => words.clone(),
        None => String::new(),
    }
}

/// Makes the driver as the environment describes it.
fn initialize() -> Result<()> {
    DRIVER.get_or_init(|| {
        let configuration = Configuration::read(|name| std::env::var(name).ok());
        let options = Options::from_env();
        let made = match (configuration, options) {
            (Ok(configuration), Ok(options)) => Ok(Driver::new(configuration, options)),
            (Err(error), _) => Err(error.to_string()),
            (_, Err(error)) => Err(error.to_string()),
        };
        made.inspect_err(|words| eprintln!("meshgrad emulator: {words}"))
    });
    match driver()?.device_count()? {
        0 => Err(Code::NoDevice.because("MESHGRAD_EMULATOR_DEVICES asks for none")),
        _ => Ok(()),
    }
}

/// Runs the body of an exported function.
fn call(name: &str, body: impl FnOnce() -> Result<()>) -> Code {
    match unless_panicking(body) {
        Ok(()) => Code::Success,
        Err(error) => {
            if let Some(Ok(driver)) = DRIVER.get() {
                driver.reports().keep(&error, name);
            }
            error.code
        }
    }
}

/// Exports functions whose bodies give a `Result`, and lists them by name.
macro_rules! exports {
    ($($(#[$meta:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            $(#[$meta])*
            #[unsafe(no_mangle)]
            #[allow(non_snake_case)]
            unsafe extern "C" fn $name($($argument: $type),*) -> $crate::driver::error::Code {
                $crate::driver::ffi::call(stringify!($name), || $body)
            }
        )*

        /// The functions of this file.
        pub(super) const EXPORTS: &[$crate::driver::ffi::entry::Export] =
            &[$((stringify!($name), $name as *const std::ffi::c_void)),*];
    };
}

use exports;
