//! The exported functions, named as in `cuda.h`, and their argument types.
//!
//! Each function converts its arguments to values and calls a method of [`Driver`]. A panic does
//! not unwind into the caller: the function returns `CUDA_ERROR_UNKNOWN`, and the panic message
//! becomes the report.

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
mod nccl;
mod pool;
mod stream;
mod transfer;

use std::ffi::c_void;
use std::sync::OnceLock;

use super::Driver;
use super::configuration::Configuration;
use super::error::{Code, Result, catch_panic};
use crate::options::Options;

/// An exported function and its name.
type Export = (&'static str, *const c_void);

/// The driver of this process, or the error of its initialization.
static DRIVER: OnceLock<std::result::Result<Driver, String>> = OnceLock::new();

/// The driver, after `cuInit`.
fn driver() -> Result<&'static Driver> {
    match DRIVER.get() {
        Some(Ok(_)) if host::is_calling() => {
            let message = "a host function in a stream must not call the driver";
            Err(Code::NotPermitted.because(message))
        }
        Some(Ok(driver)) => Ok(driver),
        Some(Err(message)) => Err(Code::InvalidValue.because(message.clone())),
        None => Err(Code::NotInitialized.because("cuInit was not called")),
    }
}

/// The last error message, or the error of the driver's initialization.
fn last_report() -> String {
    match DRIVER.get() {
        Some(Ok(driver)) => driver.reports().last(),
        Some(Err(message)) => message.clone(),
        None => String::new(),
    }
}

/// The configuration of the driver, or of the environment before `cuInit`.
fn configuration() -> Result<Configuration> {
    match DRIVER.get() {
        Some(Ok(driver)) => Ok(driver.configuration().clone()),
        _ => Configuration::read(|name| std::env::var(name).ok())
            .map_err(|error| Code::InvalidValue.because(error.to_string())),
    }
}

/// Creates the driver from the environment's configuration.
fn initialize() -> Result<()> {
    DRIVER.get_or_init(|| {
        let configuration = Configuration::read(|name| std::env::var(name).ok());
        let options = Options::from_env();
        let made = match (configuration, options) {
            (Ok(configuration), Ok(options)) => Ok(Driver::new(configuration, options)),
            (Err(error), _) => Err(error.to_string()),
            (_, Err(error)) => Err(error.to_string()),
        };
        made.inspect_err(|message| eprintln!("meshgrad emulator: {message}"))
    });
    match driver()?.device_count()? {
        0 => Err(Code::NoDevice.because("MESHGRAD_EMULATOR_DEVICES=0: there is no device")),
        _ => Ok(()),
    }
}

/// Runs the body of an exported function.
fn call(name: &str, body: impl FnOnce() -> Result<()>) -> Code {
    match catch_panic(body) {
        Ok(()) => Code::Success,
        Err(error) => {
            if let Some(Ok(driver)) = DRIVER.get() {
                driver.reports().keep(&error, name);
            }
            error.code
        }
    }
}

/// Defines exported functions from bodies that return a `Result`, and lists them by name.
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

        /// The exported functions of this file.
        pub(super) const EXPORTS: &[$crate::driver::ffi::Export] =
            &[$((stringify!($name), $name as *const std::ffi::c_void)),*];
    };
}

use exports;
