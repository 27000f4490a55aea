//! Memory and pools: limits and frees.

use super::{LEGACY, Machine, code};
use crate::driver::configuration::Configuration;
use crate::driver::configuration::StreamOrder;
use crate::driver::error::Code;
use crate::driver::memory::AllocationKind;
use crate::driver::transfer::CopyOrder;

#[test]
fn memory_is_limited_and_can_be_reused() {
    let machine =
        Machine::with(Configuration { memory: Some(1 << 20), ..Configuration::default() });
    let driver = &machine.driver;
    assert_eq!(driver.memory_info(), Ok((1 << 20, 1 << 20)));
    let half = driver.allocate(1 << 19, AllocationKind::Device).unwrap();
    assert_eq!(driver.memory_info(), Ok((1 << 19, 1 << 20)));
    let error = driver.allocate((1 << 19) + 1, AllocationKind::Device).unwrap_err();
    assert_eq!(error.code, Code::OutOfMemory);
    assert!(error.message.contains("524289 bytes requested, 524288 of 1048576 free"), "{error}");
    // Page-locked memory uses no device memory.
    let pinned = driver.allocate(1 << 21, AllocationKind::Pinned).unwrap();
    assert_eq!(code(driver.free(pinned)), Some(Code::InvalidValue));
    driver.free_host(pinned).unwrap();
    driver.free(half).unwrap();
    assert_eq!(driver.memory_info(), Ok((1 << 20, 1 << 20)));

    let error = driver.free(half).unwrap_err();
    assert!(error.message.contains("allocation #1 (524288 bytes, device 0, freed)"), "{error}");
    assert_eq!(code(driver.allocate(0, AllocationKind::Device)), Some(Code::InvalidValue));
    assert_eq!(driver.free(0), Ok(()));
    let at = driver.allocate(64, AllocationKind::Device).unwrap();
    assert_eq!(code(driver.free(at + 8)), Some(Code::InvalidValue));
    assert_eq!(code(machine.fill(LEGACY, at + 56, 1)), Some(Code::InvalidValue));
    assert_eq!(code(driver.fill(CopyOrder::Now, at + 1, &[0; 4], 1)), Some(Code::InvalidValue));
}

#[test]
fn pools_keep_memory_up_to_their_release_threshold() {
    let machine =
        Machine::with(Configuration { memory: Some(1 << 20), ..Configuration::default() });
    let driver = &machine.driver;
    let pool = driver.default_pool(0).unwrap();
    let levels = || [5, 6, 7, 8].map(|attribute| driver.pool_attribute(pool, attribute).unwrap());
    let stream = machine.stream();

    let first = driver.allocate_async(1000, None, stream).unwrap();
    let second = driver.allocate_async(500, None, stream).unwrap();
    assert_eq!(levels(), [1500, 1500, 1500, 1500]);
    driver.free_async(first, stream).unwrap();
    assert_eq!(levels(), [1500, 1500, 500, 1500]);
    // The pool has already reserved these 900 bytes.
    let third = driver.allocate_async(900, None, stream).unwrap();
    assert_eq!(levels(), [1500, 1500, 1400, 1500]);
    driver.free_async(third, stream).unwrap();
    driver.synchronize_stream(stream).unwrap();
    assert_eq!(levels(), [500, 1500, 500, 1500]);

    driver.set_pool_attribute(pool, 4, 1200).unwrap();
    let third = driver.allocate_async(900, None, stream).unwrap();
    driver.free_async(third, stream).unwrap();
    driver.synchronize_stream(stream).unwrap();
    assert_eq!(levels()[0], 1200);
    // Unused pool memory is available to other allocations.
    let rest = driver.allocate((1 << 20) - 500, AllocationKind::Device).unwrap();
    assert_eq!(levels()[0], 500);
    driver.free(rest).unwrap();
    driver.trim_pool(pool, 0).unwrap();
    driver.set_pool_attribute(pool, 6, 0).unwrap();
    assert_eq!(levels()[..2], [500, 500]);
    driver.free(second).unwrap();
    assert_eq!(code(driver.free_async(second, stream)), Some(Code::InvalidValue));

    let own = driver.create_pool(0, 0).unwrap();
    driver.set_device_pool(0, own).unwrap();
    assert_eq!(driver.device_pool(0), Ok(own));
    driver.destroy_pool(own).unwrap();
    assert_eq!(driver.device_pool(0), Ok(pool));
    assert_eq!(code(driver.trim_pool(own, 0)), Some(Code::InvalidValue));
    assert_eq!(code(driver.destroy_pool(pool)), Some(Code::InvalidValue));
}

#[test]
fn memory_freed_in_a_stream_is_available_after_synchronization() {
    for seed in 0..20 {
        let machine = Machine::with(Configuration {
            memory: Some(1000),
            streams: StreamOrder::Random(seed),
            ..Configuration::default()
        });
        let stream = machine.stream();
        for _ in 0..10 {
            let at = machine.driver.allocate_async(900, None, stream).unwrap();
            machine.fill(stream, at, 1).unwrap();
            machine.driver.free_async(at, stream).unwrap();
            // Any later use is an error, whether or not the free has run.
            assert_eq!(code(machine.fill(stream, at, 2)), Some(Code::InvalidValue));
            assert_eq!(code(machine.driver.free_async(at, stream)), Some(Code::InvalidValue));
        }
    }
}

#[test]
fn a_free_before_a_use_is_a_sticky_error() {
    let failed = (0..64).filter(|seed| {
        let machine = Machine::new(StreamOrder::Random(*seed));
        let driver = &machine.driver;
        let (using, freeing) = (machine.stream(), machine.stream());
        let at = driver.allocate_async(16, None, freeing).unwrap();
        machine.fill(using, at, 1).unwrap();
        // Any call after the failure reports it.
        let freed = driver.free_async(at, freeing);
        let Err(error) = freed.and_then(|()| driver.synchronize_context()) else {
            return false;
        };
        assert_eq!(error.code, Code::IllegalAddress);
        assert!(error.message.contains("freed"), "{error}");
        assert_eq!(code(driver.allocate(16, AllocationKind::Device)), Some(Code::IllegalAddress));
        assert_eq!(code(driver.synchronize_stream(using)), Some(Code::IllegalAddress));
        assert!(driver.reports().last().contains("freed before it ran"));
        true
    });
    let failed = failed.count();
    assert!((1..64).contains(&failed), "{failed} of 64 seeds");
}
