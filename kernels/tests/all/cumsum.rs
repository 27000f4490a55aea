//! Cumulative sums.

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
    let launch = variant.launch((x.len() / features) as u64).unwrap();
    device.run(&variant, launch, &arguments);
    device.floats(dtype, y, x.len())
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
