//! The GPU of the tests.

use meshgrad_runtime::Device;

/// The GPU of the machine with `MESHGRAD_TEST_GPU=cuda`, otherwise the emulator, which cargo builds
/// with the tests.
pub(crate) fn gpu() -> Device {
    match std::env::var("MESHGRAD_TEST_GPU").as_deref() {
        Ok("cuda") => Device::cuda(0).unwrap(),
        _ => Device::emulator(0).unwrap(),
    }
}
