//! What the norm of gradients reads and writes.

use meshgrad_kernel_catalogue as catalogue;
use meshgrad_kernels::global_norm::{
    ClipScale, ClipScaleArguments, GlobalNorm, GlobalNormArguments, SumSquares,
    SumSquaresArguments, partial_count,
};
use meshgrad_kernels::{Dtype, In, Out};

use crate::device::{Device, encoded, values};
use crate::traffic::{assert_once, assert_whole_sectors};

/// Computes the norm over all tensors. Asserts that each is read once.
fn norm(device: &Device, tensors: &[(Dtype, Vec<f32>)], aligned: bool) -> f32 {
    let of = |(_, x): &(Dtype, Vec<f32>)| partial_count(x.len() as u64);
    let count: u64 = tensors.iter().map(of).sum();
    let partials = device.room(8 * count as usize);
    let mut first = 0;
    for (dtype, x) in tensors {
        let elements = x.len() as u64;
        let padding = if aligned { 0 } else { dtype.size() };
        let bytes = [vec![0; padding as usize], encoded(*dtype, x)].concat();
        let arguments = SumSquaresArguments::new(
            In(device.put(&bytes) + u64::from(padding)),
            Out(partials + 8 * first),
            elements,
        );
        let variant = SumSquares::new(*dtype, elements, aligned);
        if let Some(launch) = variant.launch(elements) {
            let counters = device.run(&variant, launch, &arguments);
            let bytes = x.len() * dtype.size() as usize;
            assert_once(&counters, [bytes, 8 * partial_count(elements) as usize]);
            if aligned && bytes.is_multiple_of(32) {
                assert_whole_sectors(&counters);
            }
        }
        first += partial_count(elements);
    }

    let arguments =
        GlobalNormArguments { partials: In(partials), norm: Out(device.room(4)), count };
    let launch = GlobalNorm.launch().unwrap();
    let counters = device.run(&GlobalNorm, launch, &arguments);
    assert_once(&counters, [8 * count as usize, 4]);
    device.floats(Dtype::F32, arguments.norm.0, 1)[0]
}

fn tensors(extents: &[(Dtype, u64)]) -> Vec<(Dtype, Vec<f32>)> {
    let tensors = extents.iter().enumerate().map(|(seed, (dtype, elements))| {
        let x = values(*dtype, *elements as usize, seed as u64);
        (*dtype, x)
    });
    tensors.collect()
}

#[test]
fn tensors_are_read_once() {
    let extents = [
        (Dtype::F32, 9000),
        (Dtype::Bf16, 17),
        (Dtype::F32, 0),
        (Dtype::F32, 1),
        (Dtype::Bf16, 1100),
    ];
    let device = Device::plain();
    for aligned in [true, false] {
        norm(&device, &tensors(&extents), aligned);
    }
}

fn clip(device: &Device, norm: f32, weight: f32, max_norm: f64) -> [f32; 2] {
    let arguments = ClipScaleArguments {
        norm: In(device.put_floats(Dtype::F32, &[norm])),
        weight: In(device.put_floats(Dtype::F32, &[weight])),
        scale: Out(device.room(4)),
        mean_norm: Out(device.room(4)),
        max_norm,
    };
    let variant = ClipScale::new(max_norm > 0.0);
    device.run(&variant, variant.launch().unwrap(), &arguments);
    [arguments.scale, arguments.mean_norm].map(|at| device.floats(Dtype::F32, at.0, 1)[0])
}

/// Runs every kernel of the catalogue.
pub(crate) fn exercise(device: &Device) -> Vec<u8> {
    let norm = norm(device, &tensors(&catalogue::SQUARED), true);
    let clipped = [0.0, 1.0].map(|max_norm| clip(device, norm, 3.0, max_norm));
    encoded(Dtype::F32, &[vec![norm], clipped.concat()].concat())
}
