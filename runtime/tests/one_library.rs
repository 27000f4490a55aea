//! A process opens the driver or the emulator, never both. In a separate process, because it opens
//! one of them.

use meshgrad_runtime::{CudaError, Device, Error, Library};

#[test]
fn the_second_choice_is_an_error() {
    if !Device::emulator_is_built() {
        eprintln!("no emulator found: skipped");
        return;
    }
    let first = Device::emulator(0).unwrap();
    assert!(
        Device::emulator(0).unwrap() != first,
        "every device is its own"
    );
    let second = Device::cuda(0).err();
    let expected = Error::Cuda(CudaError::OneLibrary {
        open: Library::Emulator,
        asked: Library::Driver,
    });
    assert_eq!(second, Some(expected));
}
