//! All tests of the crate that link the emulator. `tests/cudarc` and `tests/cudarc_random.rs` open
//! its library in place of the driver, configured by environment variables.

mod broken;
mod conformance;
mod driver;
mod instructions;
mod machine;
