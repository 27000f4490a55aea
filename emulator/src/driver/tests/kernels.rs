//! Modules, functions and launches.

use super::{LEGACY, Machine, code};
use crate::driver::configuration::StreamOrder;
use crate::driver::error::Code;
use crate::driver::launch::Shape;
use crate::driver::transfer::CopyOrder;

/// Stores its parameter at element `offset` of its pointer.
pub(super) const STORE: &str = "
    .version 8.0
    .target sm_80
    .address_size 64
    .global .align 4 .u32 base = 40;
    .visible .entry store(.param .u64 to, .param .u32 value, .param .u32 offset)
    {
        .reg .u64 %to, %at;
        .reg .u32 %value, %offset, %base;
        ld.param.u64 %to, [to];
        ld.param.u32 %value, [value];
        ld.param.u32 %offset, [offset];
        ld.global.u32 %base, [base];
        add.u32 %value, %value, %base;
        mul.wide.u32 %at, %offset, 4;
        add.u64 %at, %to, %at;
        st.global.u32 [%at], %value;
        ret;
    }
    .visible .entry shared(.param .u64 to)
    .maxntid 64, 1, 1
    {
        .shared .align 4 .b8 room[4096];
        ret;
    }";

fn parameters(to: u64, value: u32, offset: u32) -> Box<[u8]> {
    let scalars = [value.to_le_bytes(), offset.to_le_bytes()].concat();
    [&to.to_le_bytes()[..], &scalars].concat().into()
}

const ONE_THREAD: Shape =
    Shape { grid: [1; 3], block: [1; 3], dynamic_shared: 0, is_cooperative: false };

#[test]
fn kernels_run_in_the_order_of_their_stream() {
    for order in [StreamOrder::Ordered, StreamOrder::Random(2)] {
        let machine = Machine::new(order);
        let driver = &machine.driver;
        let module = driver.load(STORE).unwrap();
        let store = driver.function(module, "store").unwrap();
        assert_eq!(driver.function(module, "store"), Ok(store));
        let (stream, at) = (machine.stream(), machine.memory());
        driver.launch(store, ONE_THREAD, stream, parameters(at, 2, 1)).unwrap();
        driver.synchronize_stream(stream).unwrap();
        assert_eq!(machine.byte(at + 4), 42);

        let (base, bytes) = driver.global(module, "base").unwrap();
        assert_eq!(bytes, 4);
        driver.fill(CopyOrder::InStream(stream), base, &7_u32.to_le_bytes(), 1).unwrap();
        driver.launch(store, ONE_THREAD, stream, parameters(at, 2, 1)).unwrap();
        driver.synchronize_stream(stream).unwrap();
        assert_eq!(machine.byte(at + 4), 9);
        driver.unload(module).unwrap();
        assert_eq!(
            code(driver.launch(store, ONE_THREAD, stream, parameters(at, 2, 1))),
            Some(Code::InvalidHandle)
        );
    }
}

#[test]
fn a_failed_kernel_makes_its_context_unusable() {
    for order in [StreamOrder::Ordered, StreamOrder::Random(2)] {
        let machine = Machine::new(order);
        let driver = &machine.driver;
        let module = driver.load(STORE).unwrap();
        let store = driver.function(module, "store").unwrap();
        let at = machine.memory();
        let launched = driver.launch(store, ONE_THREAD, LEGACY, parameters(at, 1, 4));
        if order == StreamOrder::Ordered {
            assert_eq!(code(launched), Some(Code::IllegalAddress));
        }
        let error = driver.synchronize_context().unwrap_err();
        assert_eq!(error.code, Code::IllegalAddress);
        for words in ["store", "st.global.u32", "past the end of allocation #"] {
            assert!(error.message.contains(words), "{error}");
        }
        assert_eq!(code(driver.create_event(0)), Some(Code::IllegalAddress));
        // Only destroying the context helps.
        driver.release_primary(0).unwrap();
        driver.retain_primary(0).unwrap();
        driver.create_event(0).unwrap();
    }
}

#[test]
fn invalid_launches_are_rejected() {
    let machine = Machine::new(StreamOrder::Ordered);
    let driver = &machine.driver;
    let module = driver.load(STORE).unwrap();
    let kernel = driver.function(module, "shared").unwrap();
    let launch = |block: u32, dynamic_shared: u32| {
        let shape = Shape { block: [block, 1, 1], dynamic_shared, ..ONE_THREAD };
        code(driver.launch(kernel, shape, LEGACY, Box::from([0; 8])))
    };
    assert_eq!(launch(64, 0), None);
    assert_eq!(launch(65, 0), Some(Code::InvalidValue));
    assert_eq!(launch(1, 44 * 1024), None);
    assert_eq!(launch(1, 44 * 1024 + 1), Some(Code::InvalidValue));
    let allow = |bytes| code(driver.set_function_attribute(kernel, 8, bytes));
    assert_eq!(allow(232_448 - 4096 + 1), Some(Code::InvalidValue));
    assert_eq!(allow(232_448 - 4096), None);
    assert_eq!(launch(1, 232_448 - 4096), None);

    let attribute = |number| driver.function_attribute(kernel, number);
    assert_eq!((attribute(0), attribute(1), attribute(6)), (Ok(64), Ok(4096), Ok(90)));
    assert_eq!(code(attribute(99)), Some(Code::InvalidValue));
    let cooperative = Shape { grid: [132 * 32 + 1, 1, 1], is_cooperative: true, ..ONE_THREAD };
    assert_eq!(
        code(driver.launch(kernel, cooperative, LEGACY, Box::from([0; 8]))),
        Some(Code::CooperativeLaunchTooLarge)
    );
    assert_eq!(code(driver.function(module, "missing")), Some(Code::NotFound));
    assert_eq!(code(driver.global(module, "missing")), Some(Code::NotFound));

    let other = driver.create_context(0, 0).unwrap();
    let launched = driver.launch(kernel, ONE_THREAD, LEGACY, Box::from([0; 8]));
    assert_eq!(code(launched), Some(Code::InvalidHandle));
    driver.destroy_context(other).unwrap();
}

#[test]
fn invalid_ptx_is_reported_with_its_line() {
    let machine = Machine::new(StreamOrder::Ordered);
    let wrong = STORE.replace("add.u64 %at,", "add.u64 %at;;");
    let error = machine.driver.load(&wrong).unwrap_err();
    assert_eq!(error.code, Code::InvalidPtx);
    assert!(error.message.contains("add.u64 %at;;"), "{error}");
    assert!(machine.driver.space.live().is_empty());
}

#[test]
fn a_kernel_that_cannot_run_is_refused_when_it_is_looked_up() {
    let machine = Machine::new(StreamOrder::Ordered);
    let module = STORE.replace("add.u64 %at,", "add.x64 %at,");
    let module = machine.driver.load(&module).unwrap();
    machine.driver.function(module, "shared").unwrap();
    let error = machine.driver.function(module, "store").unwrap_err();
    assert_eq!(error.code, Code::NotSupported);
    for part in ["kernel `store` cannot run", "add.x64 %at,"] {
        assert!(error.message.contains(part), "{error}");
    }
}
