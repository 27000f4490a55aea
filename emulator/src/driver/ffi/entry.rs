//! Exported functions: `cuInit`, versions, errors, lookup by name, and the emulator's own
//! functions.

use std::ffi::{c_char, c_int, c_void};

use super::arguments::{Out, Text, TextOut};
use super::{Export, driver, exports, initialize, last_report};
use crate::driver::configuration::Configuration;
use crate::driver::error::{Code, Result};

/// `CUdriverProcAddressQueryResult`.
const FOUND: i32 = 0;
const UNKNOWN: i32 = 1;

exports! {
    fn cuInit(flags: u32) {
        match flags {
            0 => initialize(),
            _ => Err(Code::InvalidValue.because("the flags of cuInit must be 0")),
        }
    }

    fn cuDriverGetVersion(version: Out<c_int>) {
        // May be called before `cuInit`.
        version.set(match driver() {
            Ok(driver) => driver.version(),
            Err(_) => Configuration::default().version,
        })
    }

    fn cuGetErrorName(error: c_int, name: Out<*const c_char>) {
        describe(error, name, |code| code.name().as_ptr())
    }

    fn cuGetErrorString(error: c_int, text: Out<*const c_char>) {
        describe(error, text, |code| code.description().as_ptr())
    }

    fn cuGetProcAddress_v2(
        symbol: Text,
        function: Out<*const c_void>,
        version: c_int,
        _flags: u64,
        status: Out<c_int>,
    ) {
        let symbol = symbol.get()?;
        let found = find(&symbol, version);
        status.set_if_not_null(if found.is_some() { FOUND } else { UNKNOWN });
        function.set(found.unwrap_or(std::ptr::null()))?;
        match found {
            Some(_) => Ok(()),
            None => Err(Code::NotFound.because(format!("`{symbol}` is not exported"))),
        }
    }

    fn cuProfilerStart() {
        driver().map(drop)
    }

    fn cuProfilerStop() {
        driver().map(drop)
    }
}

fn describe(
    error: i32,
    to: Out<*const c_char>,
    message: impl Fn(Code) -> *const c_char,
) -> Result<()> {
    match Code::from_number(error) {
        Some(code) => to.set(message(code)),
        None => {
            to.set(std::ptr::null())?;
            Err(Code::InvalidValue.because(format!("{error} is not a CUresult")))
        }
    }
}

/// Finds a function by its name without version suffix. `version` is the CUDA version of the
/// caller.
fn find(symbol: &str, version: i32) -> Option<*const c_void> {
    let export = |name: &str| {
        let found = all().find(|(known, _)| *known == name);
        found.map(|(_, function)| function)
    };
    // Functions whose signature changed in CUDA 13.
    let newest = match symbol {
        "cuCtxCreate" if version < 13000 => 2,
        "cuMemAdvise" | "cuMemPrefetchAsync" if version < 13000 => return None,
        _ => 4,
    };
    let versions = (2..=newest).rev().map(|number| format!("{symbol}_v{number}"));
    versions.chain([symbol.to_owned()]).find_map(|name| export(&name))
}

fn all() -> impl Iterator<Item = Export> {
    [
        EXPORTS,
        super::context::EXPORTS,
        super::device::EXPORTS,
        super::event::EXPORTS,
        super::graph::EXPORTS,
        super::launch::EXPORTS,
        super::memory::EXPORTS,
        super::module::EXPORTS,
        super::pool::EXPORTS,
        super::stream::EXPORTS,
        super::transfer::EXPORTS,
    ]
    .into_iter()
    .flatten()
    .copied()
}

/// Writes the last error message to `buffer` of `bytes` bytes, truncated, with a final NUL. Returns
/// its full length without the NUL.
#[unsafe(no_mangle)]
unsafe extern "C" fn meshgrad_emulator_last_report(buffer: TextOut, bytes: usize) -> usize {
    let message = last_report();
    buffer.set(&message, bytes);
    message.len()
}

/// Starts counting every launch, and discards earlier counts.
#[unsafe(no_mangle)]
unsafe extern "C" fn meshgrad_emulator_counters_start() {
    if let Ok(driver) = driver() {
        driver.reports().start_counting();
    }
}

/// Writes the counters of each launch since counting started to `buffer` as a JSON array. If the
/// array and a final NUL fit into `bytes` bytes, counting stops. Returns the length without the
/// NUL.
#[unsafe(no_mangle)]
unsafe extern "C" fn meshgrad_emulator_counters_take(buffer: TextOut, bytes: usize) -> usize {
    let Ok(driver) = driver() else {
        return 0;
    };
    let mut needed = 0;
    driver.reports().take_counted(|counted| {
        needed = counted.len();
        let fits = needed < bytes;
        if fits {
            buffer.set(counted, bytes);
        }
        fits
    });
    needed
}
