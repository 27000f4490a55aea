//! Compares cumulative sums with those of the host.

use meshgrad_kernels::cumsum::{Cumsum, CumsumArguments};
use meshgrad_kernels::{Dtype, In, Out};

use crate::device::{Device, encoded, values};

fn sums(device: &Device, dtype: Dtype, reverse: bool, x: &[f32], features: usize) -> Vec<f32> {
    let variant = Cumsum::new(dtype, reverse);
    let y = device.room(x.len() * dtype.size() as usize);
    let arguments = CumsumArguments {
        x: In(device.put_floats(dtype, x)),
        y: Out(y),
        features: features as u32,
    };
    if let Some(launch) = variant.launch((x.len() / features) as u64) {
        device.run(&variant, launch, &arguments);
    }
    device.floats(dtype, y, x.len())
}

#[test]
fn sums_of_each_element_and_those_before_it() {
    for device in Device::all() {
        for dtype in Dtype::ALL {
            for [rows, features] in [[1, 1], [3, 7], [2, 1024], [2, 2500], [0, 5]] {
                let x = values(dtype, rows * features, 1);
                for reverse in [false, true] {
                    let y = sums(&device, dtype, reverse, &x, features);
                    check(dtype, reverse, &x, &y, features);
                }
            }
        }
    }
}

fn check(dtype: Dtype, reverse: bool, x: &[f32], y: &[f32], features: usize) {
    let bound = match dtype {
        Dtype::F32 => 1e-5,
        Dtype::Bf16 => 5e-3,
    };
    for (x, y) in x.chunks(features).zip(y.chunks(features)) {
        let mut sum = 0.0;
        for at in 0..features {
            let at = if reverse { features - 1 - at } else { at };
            sum += f64::from(x[at]);
            let error = (f64::from(y[at]) - sum).abs();
            assert!(error <= bound * (1.0 + sum.abs()), "{}, not {sum}", y[at]);
        }
    }
}

/// An infinity does not reach the sums before it.
#[test]
fn infinities_only_count_from_their_element_on() {
    let mut x = vec![1.0; 1500];
    x[1200] = f32::INFINITY;
    let y = sums(&Device::plain(), Dtype::F32, false, &x, 1500);
    assert_eq!((y[1199], y[1200], y[1499]), (1200.0, f32::INFINITY, f32::INFINITY));
}

/// Runs every kernel of the catalogue.
pub(crate) fn exercise(device: &Device) -> Vec<u8> {
    let mut bits = Vec::new();
    for dtype in Dtype::ALL {
        let x = values(dtype, 2 * 1100, 1);
        for reverse in [false, true] {
            bits.extend(encoded(dtype, &sums(device, dtype, reverse, &x, 1100)));
        }
    }
    bits
}
