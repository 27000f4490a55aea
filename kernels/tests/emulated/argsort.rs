//! Compares the keys that sort rows with the host's order.

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

fn words(device: &Device, at: u64, count: usize) -> Vec<u32> {
    let bytes = device.bytes(at, 4 * count);
    let words = bytes.as_chunks::<4>().0;
    words.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// In ascending order; all are exact in bf16.
const ORDERED: [f32; 9] =
    [f32::NEG_INFINITY, -2.5, -1e-20, 0.0, 1e-20, 1.0, 2.5, f32::INFINITY, f32::NAN];

#[test]
fn keys_have_the_order_of_values() {
    let device = Device::plain();
    for dtype in Dtype::ALL {
        let rounded: Vec<f32> = match dtype {
            Dtype::F32 => ORDERED.to_vec(),
            Dtype::Bf16 => ORDERED.map(|x| f32::from_bits(x.to_bits() & 0xffff_0000)).to_vec(),
        };
        let with_pairs = [&rounded[..], &[-0.0, -f32::NAN]].concat();
        let x = device.put_floats(dtype, &with_pairs);
        for descending in [false, true] {
            let [keys, positions] =
                run(&device, Argsort::Values { dtype, descending }, x, [11, 11]);
            let keys = words(&device, keys, 11);
            let rises = |pair: &[u32]| (pair[0] < pair[1]) != descending;
            assert!(keys[..9].windows(2).all(rises), "{keys:?}");
            assert_eq!((keys[9], keys[10]), (keys[3], keys[8]), "-0 is 0, and all NaNs are equal");
            assert_eq!(words(&device, positions, 11), (0..11).collect::<Vec<_>>());
        }
    }
}

#[test]
fn rows_and_columns_of_positions() {
    let device = Device::plain();
    let positions: Vec<u32> = (0..300).rev().collect();
    let bytes: Vec<u8> = positions.iter().flat_map(|it| it.to_le_bytes()).collect();
    let from = device.put(&bytes);
    let [keys, to] = run(&device, Argsort::Rows, from, [300, 7]);
    let rows: Vec<u32> = positions.iter().map(|it| it / 7).collect();
    assert_eq!((words(&device, keys, 300), words(&device, to, 300)), (rows, positions.clone()));

    let [_, to] = run(&device, Argsort::Columns, from, [300, 7]);
    let columns = positions.iter().map(|it| u64::from(it % 7).to_le_bytes());
    assert_eq!(device.bytes(to, 8 * 300), columns.collect::<Vec<_>>().concat());
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
