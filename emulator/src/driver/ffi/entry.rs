//! Where programs begin: `cuInit`, versions, errors, functions by name, and what this library
//! exports besides the driver API.

use std::ffi::{c_char, c_int, c_void};

use super::arguments::{Out, Text, TextOut};
use super::{driver, exports, initialize, last_report};
use crate::driver::configuration::Configuration;
use crate::driver::error::{Code, Result};

/// A function by name.
pub(super) type Export = (&'static str, *const c_void);

/// `CUdriverProcAddressQueryResult`.
const FOUND: i32 = 0;
const UNKNOWN: i32 = 1;

exports! {
    fn cuInit(flags: u32) {
        match flags {
            0 => initialize(),
            _ => Err(Code::InvalidValue.because("cuInit knows no flags")),
        }
    }

    fn cuDriverGetVersion(version: Out<c_int>) {
        // It may be asked before `cuInit`.
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
        status.set_if_wanted(if found.is_some() { FOUND } else { UNKNOWN });
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
    words: impl Fn(Code) -> *const c_char,
) -> Result<()> {
    match Code::from_number(error) {
        Some(code) => to.set(words(code)),
        None => {
            to.set(std::ptr::null())?;
            Err(Code::InvalidValue.because(format!("{error} is no CUresult")))
        }
    }
}

/// The function of a name without its version's suffix, as programs of a CUDA `version` mean it.
fn find(symbol: &str, version: i32) -> Option<*const c_void> {
    let export = |name: &str| {
        let found = all().find(|(known, _)| *known == name);
        found.map(|(_, function)| function)
    };
    // Names whose meaning changed with CUDA 13.
    let newest = match symbol {
        "cuCtxCreate" if version < 13000 => 2,
        "cuMemAdvise" | "cuMemPrefetchAsync" if version < 13000 => return None,
        _ => 4,
    };
    let versions = (2..=newest)
        .rev()
        .map(|number| format!("{symbol}_v{number}"));
    versions
        .chain([symbol.to_owned()])
        .find_map(|name| export(&name))
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

/// Writes the latest words about something that went wrong into `buffer` of `bytes` bytes, cut and
/// with a final NUL. Returns how many bytes they take in all, without the NUL.
#[unsafe(no_mangle)]
unsafe extern "C" fn meshgrad_emulator_last_report(buffer: TextOut, bytes: usize) -> usize {
    let words = last_report();
    buffer.set(&words, bytes);
    words.len()
}

/// Counts what each launch from now on does, and forgets what was counted before.
#[unsafe(no_mangle)]
unsafe extern "C" fn meshgrad_emulator_counters_start() {
    if let Ok(driver) = driver() {
        driver.reports().start_counting();
    }
}

/// Writes a JSON array of the counters of each launch since counting began into `buffer`, and ends
/// counting, if `bytes` hold it with a final NUL. Returns how many bytes it takes without the NUL.
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
