//! What `Device::trace_ops` records.

use std::sync::Mutex;
use std::time::Duration;

use meshgrad_runtime::{DType, Device, OpSpan, ops};

/// A device records what runs between the start and the end of a trace, and no other device
/// does.
#[test]
fn a_trace_has_the_ops_of_its_device() {
    let (device, other) = (Device::cpu(), Device::cpu());
    let of = |device: &Device| ops::full(device, &[2, 3], DType::F32, 1.0).unwrap();
    let (x, y) = (of(&device), of(&other));
    let ticks = Mutex::new(Duration::ZERO);
    let now = move || {
        let mut ticks = ticks.lock().unwrap();
        *ticks += Duration::from_secs(1);
        *ticks
    };

    ops::add(&x, &x).unwrap();
    let trace = device.trace_ops(now).unwrap();
    let error = device.trace_ops(|| Duration::ZERO).unwrap_err();
    assert!(error.to_string().contains("already recorded"), "{error}");
    ops::exp(&x).unwrap();
    ops::add(&y, &y).unwrap();
    ops::concat(&[&x, &x], 0).unwrap();
    let seconds = Duration::from_secs;
    let span = |name, start| OpSpan { name, start: seconds(start), end: seconds(start + 1) };
    assert_eq!(trace.finish(), [span("exp", 1), span("concat", 3)]);

    ops::exp(&x).unwrap();
    let dropped = device.trace_ops(|| Duration::ZERO).unwrap();
    drop(dropped);
    let empty = device.trace_ops(|| Duration::ZERO).unwrap();
    assert_eq!(empty.finish(), []);
}
