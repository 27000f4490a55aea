//! The kernels around the radix sort of rows.

use meshgrad_kernels::argsort::{Argsort, ArgsortArguments};
use meshgrad_kernels::{Dtype, In, Out};

use crate::device::{Device, encoded};

/// Runs a kernel; returns the keys, and what it wrote besides.
fn run(device: &Device, variant: Argsort, from: u64, [count, features]: [usize; 2]) -> [u64; 2] {
    let (keys, to) = (device.room(4 * count), device.room(8 * count));
    let arguments = ArgsortArguments {
        from: In(from),
        keys: Some(Out(keys)),
        to: Out(to),
        count: count as u32,
        features: features as u32,
    };
    let launch = variant.launch(count as u32).unwrap();
    device.run(&variant, launch, &arguments);
    [keys, to]
}

/// Runs every kernel of the catalogue.
pub(crate) fn exercise(device: &Device) -> Vec<u8> {
    let mut bits = Vec::new();
    let x: Vec<f32> = (0..300).map(|i| ((i * 7) % 31) as f32 - 15.0).collect();
    for dtype in Dtype::ALL {
        let from = device.put(&encoded(dtype, &x));
        for descending in [false, true] {
            let [keys, to] = run(device, Argsort::Values { dtype, descending }, from, [300, 300]);
            bits.extend(device.bytes(keys, 4 * 300));
            let [rows, _] = run(device, Argsort::Rows, to, [300, 20]);
            let [_, columns] = run(device, Argsort::Columns, to, [300, 20]);
            bits.extend(device.bytes(rows, 4 * 300));
            bits.extend(device.bytes(columns, 8 * 300));
        }
    }
    bits
}
