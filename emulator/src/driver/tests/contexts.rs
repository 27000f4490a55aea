//! Contexts: the current context, and leaks at destruction.

use std::thread;

use super::{Machine, code, kernels::STORE};
use crate::driver::configuration::Configuration;
use crate::driver::configuration::Leaks;
use crate::driver::device::Model;
use crate::driver::error::Code;
use crate::driver::memory::AllocationKind;

#[test]
fn destroyed_contexts_cannot_be_used() {
    let machine = Machine::with(Configuration {
        devices: vec![Model::H200, Model::A100],
        ..Configuration::default()
    });
    let driver = &machine.driver;
    let created = driver.create_context(1, 0).unwrap();
    assert_eq!(driver.current_context(), Ok(Some(created)));
    assert_eq!(driver.current_device(), Ok(1));
    assert_eq!(driver.pop_context(), Ok(created));
    assert_eq!(driver.current_device(), Ok(0));

    driver.set_current_context(Some(created)).unwrap();
    driver.destroy_context(created).unwrap();
    assert_eq!(code(driver.current_device()), Some(Code::InvalidContext));
    assert_eq!(code(driver.push_context(created)), Some(Code::ContextIsDestroyed));

    driver.push_context(machine.context).unwrap();
    assert_eq!(driver.retain_primary(0), Ok(machine.context));
    driver.release_primary(0).unwrap();
    assert_eq!(driver.current_device(), Ok(0));
    driver.release_primary(0).unwrap();
    assert_eq!(code(driver.current_device()), Some(Code::ContextIsDestroyed));
    assert_eq!(code(driver.release_primary(0)), Some(Code::InvalidContext));
    // A primary context has the same handle after a reset.
    assert_eq!(driver.retain_primary(0), Ok(machine.context));
    assert_eq!(driver.current_device(), Ok(0));
    assert_eq!(code(driver.retain_primary(2)), Some(Code::InvalidDevice));

    let elsewhere = thread::scope(|scope| scope.spawn(|| driver.current_device()).join());
    assert_eq!(code(elsewhere.unwrap()), Some(Code::InvalidContext));
}

#[test]
fn limits_are_those_of_the_device() {
    let machine = Machine::with(Configuration {
        devices: vec![Model::H200, Model::A100],
        ..Configuration::default()
    });
    let driver = &machine.driver;
    let stack = driver.limit(0).unwrap();
    driver.set_limit(0, stack * 2).unwrap();
    assert_eq!(driver.limit(0), Ok(stack * 2));
    // Compute capability 9.0 removed the synchronization depth of dynamic parallelism.
    assert_eq!(code(driver.limit(3)), Some(Code::UnsupportedLimit));
    assert_eq!(code(driver.limit(99)), Some(Code::UnsupportedLimit));
    driver.create_context(1, 0).unwrap();
    assert_eq!(driver.limit(3), Ok(2));
}

#[test]
fn leaks_of_a_destroyed_context_are_reported() {
    let machine = Machine::with(Configuration { leaks: Leaks::Error, ..Configuration::default() });
    let driver = &machine.driver;
    let kept = driver.allocate(100, AllocationKind::Device).unwrap();
    driver.allocate(50, AllocationKind::Pinned).unwrap();
    machine.stream();
    driver.create_event(0).unwrap();
    driver.load(STORE).unwrap();
    let (stream, memory) = (machine.stream(), machine.memory());
    machine.capture(stream, || machine.fill(stream, memory, 1).unwrap());
    driver.create_pool(0, 0).unwrap();
    let error = driver.release_primary(0).unwrap_err();
    assert_eq!(error.code, Code::IllegalState);
    for words in [
        "9 resources with 166 bytes",
        "allocation #1 (100 bytes, device 0)",
        "(50 bytes, pinned host memory)",
        "stream",
        "event",
        "module",
        "executable graph",
        "memory pool",
    ] {
        assert!(error.message.contains(words), "{words}: {error}");
    }
    assert!(driver.reports().last().contains("9 resources"));
    assert!(driver.space.live().is_empty());
    assert_eq!(driver.space.find(kept), None);

    driver.retain_primary(0).unwrap();
    driver.release_primary(0).unwrap();
}
