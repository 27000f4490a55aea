//! Random values and dropout on every device have the bits of the CPU.

use crate::devices::{devices, numbered, reference, values};
use meshgrad_mesh::{Division, Mesh, Placement, Sharding};
use meshgrad_runtime::{Bool, DType, Device, Key, Kind, Region, RegionKey, Tensor, ops};

/// Shapes, and keys with the region of a larger tensor. The regions are whole tensors, rows that
/// start at a Philox block or within one, columns, and a transposed box.
fn draws() -> Vec<(Vec<usize>, RegionKey)> {
    let key = Key::new(42).fold_name("layers.0.mlp").fold(7);
    let whole = |shape: &[usize]| (shape.to_vec(), RegionKey::from(key));
    let region = |region: Region| (region.shape().to_vec(), key.within(&region));

    let matrix = Region::whole(&[40, 60]).unwrap();
    let experts = Region::whole(&[4, 9, 11]).unwrap();
    let block = experts.slice(0, 1..3).unwrap().slice(2, 2..9).unwrap();
    vec![
        whole(&[70, 61]),
        whole(&[3]),
        whole(&[]),
        whole(&[4, 0, 2]),
        region(matrix.slice(0, 7..39).unwrap()),
        region(experts.slice(0, 1..3).unwrap()),
        region(matrix.slice(1, 3..33).unwrap()),
        region(block.permute(&[2, 0, 1]).unwrap()),
    ]
}

#[track_caller]
fn assert_same_bits(actual: &Tensor, expected: &Tensor) {
    assert_eq!(actual.dtype(), expected.dtype());
    assert_eq!(actual.shape(), expected.shape());
    let bits = |x: &Tensor| values(x).into_iter().map(f64::to_bits).collect::<Vec<_>>();
    assert!(bits(actual) == bits(expected), "{actual:?}");
}

#[test]
fn values_equal_those_of_the_cpu() {
    for device in devices() {
        for dtype in [DType::F32, DType::BF16] {
            for (shape, draw) in draws() {
                let draw = || draw.clone();
                let uniform = |device: &Device, low, high| {
                    ops::uniform(device, &shape, dtype, draw(), low, high).unwrap()
                };
                for (low, high) in [(0.0, 1.0), (-3.0, -2.0), (2.0, 2.0), (0.1, 0.100_1)] {
                    let expected = uniform(reference(), low, high);
                    assert_same_bits(&uniform(&device, low, high), &expected);
                }
                let normal = |device| ops::normal(device, &shape, dtype, draw(), 0.5, 2.0).unwrap();
                assert_same_bits(&normal(&device), &normal(reference()));
            }
        }
    }
}

/// A part of a parameter, aligned to 16 bytes or not, is filled in place as on the CPU.
#[test]
fn parameters_are_filled_in_place() {
    for device in devices() {
        for dtype in [DType::F32, DType::BF16] {
            for start in [8, 3] {
                let filled = |device: &Device| {
                    let flat = Tensor::zeros(device, &[300], dtype, Kind::Parameter).unwrap();
                    let part = flat.slice(0, start..290).unwrap();
                    ops::normal_into(&part, Key::new(1), 0.0, 1.0).unwrap();
                    let end = flat.slice(0, 290..300).unwrap();
                    ops::uniform_into(&end, Key::new(2), 1.0, 2.0).unwrap();
                    flat
                };
                assert_same_bits(&filled(&device), &filled(reference()));
            }
        }
    }
}

/// Ranks with several ranges of a dim, equally long or not.
#[test]
fn shards_of_several_ranges_have_the_bits_of_the_cpu() {
    let mesh = Mesh::new(&[2], &["cp"]).unwrap();
    for division in [
        Division::HeadAndTail,
        Division::in_blocks(3, Division::Even),
        Division::in_blocks(4, Division::HeadAndTail),
    ] {
        let placement = Placement::Shard(1, division);
        let own = Sharding::new(&mesh, [("cp", placement)], &[5, 12, 7]).unwrap();
        for (device, rank) in devices().iter().flat_map(|device| [(device, 0), (device, 1)]) {
            let drawn = |device: &Device| {
                let shape = own.local_shape(rank).unwrap();
                let x = numbered(device, &[7, shape[1], 5], DType::F32, 2.0);
                let x = x.transpose(0, 2).unwrap().with_sharding(&own, rank).unwrap();
                let dropped = ops::dropout(&x, Key::new(3), 0.5).unwrap();
                let filled = Tensor::zeros(device, &shape, DType::F32, Kind::Parameter).unwrap();
                let part = filled.with_sharding(&own, rank).unwrap();
                ops::normal_into(&part, Key::new(4), 0.0, 1.0).unwrap();
                [dropped.local(), filled]
            };
            for (actual, expected) in drawn(device).iter().zip(&drawn(reference())) {
                assert_same_bits(actual, expected);
            }
        }
    }
}

#[test]
fn dropout_and_its_gradient() {
    for device in devices() {
        for dtype in [DType::F32, DType::BF16] {
            for (shape, draw) in draws() {
                for probability in [0.0, 0.25, 0.999_999_999_9] {
                    let dropped = |device: &Device| {
                        let x = numbered(device, &shape, dtype, 2.0);
                        ops::dropout(&x, draw.clone(), probability).unwrap()
                    };
                    assert_same_bits(&dropped(&device), &dropped(reference()));
                }
                let mask = |device: &Device| {
                    let mask = ops::dropout_mask(device, &shape, draw.clone(), 0.25).unwrap();
                    mask.to_vec::<Bool>().unwrap()
                };
                assert!(mask(&device) == mask(reference()));
            }

            let transposed = |device: &Device| {
                let x = numbered(device, &[33, 50], dtype, 2.0);
                let x = x.transpose(0, 1).unwrap().slice(0, 3..40).unwrap();
                ops::dropout_grad(&x, Key::new(3), 0.5).unwrap()
            };
            assert_same_bits(&transposed(&device), &transposed(reference()));
            assert!(ops::dropout(&numbered(&device, &[3], dtype, 1.0), Key::new(0), 1.0).is_err());
        }
    }
}

/// Random f64 values are supported only on the CPU.
#[test]
fn gpus_reject_random_f64() {
    let Some(gpu) = crate::devices::gpu() else {
        return;
    };
    let drawn = ops::normal(&gpu, &[3], DType::F64, Key::new(0), 0.0, 1.0);
    let message = drawn.err().unwrap().to_string();
    assert!(message.contains("f64"), "{message}");
}
