//! A process opens the driver or the emulator, never both. A separate test program, because the
//! choice cannot be undone.

use meshgrad_runtime::{CudaError, Device, Error, Library};

#[test]
fn opening_the_other_library_is_an_error() {
    if !Device::emulator_is_built() {
        eprintln!("no emulator found: skipped");
        return;
    }
    let first = Device::emulator(0).unwrap();
    assert!(Device::emulator(0).unwrap() != first, "two devices of one GPU are not equal");
    let second = Device::cuda(0).err();
    let expected =
        Error::Cuda(CudaError::OneLibrary { open: Library::Emulator, asked: Library::Driver });
    assert_eq!(second, Some(expected));
}
