use half::bf16;
use proptest::prelude::*;

use super::*;
use crate::{Bool, Key, Kind, Region, assert_error};

const COUNT: usize = 200_000;

fn f64s(x: &Tensor) -> Vec<f64> {
    super::super::cast(x, DType::F64).unwrap().to_vec().unwrap()
}

fn box_of(shape: &[usize], cuts: &[(usize, usize)]) -> Vec<std::ops::Range<usize>> {
    let cut = |(extent, (a, b)): (&usize, &(usize, usize))| {
        let (a, b) = (a % (extent + 1), b % (extent + 1));
        a.min(b)..a.max(b)
    };
    shape.iter().zip(cuts).map(cut).collect()
}

proptest! {
    /// Filling a shard equals slicing the filled tensor, for any shard, dtype and op.
    #[test]
    fn shards_equal_slices(
        shape in prop::collection::vec(1usize..40, 1..4),
        cuts in prop::collection::vec((any::<usize>(), any::<usize>()), 4),
        seed in any::<u64>(),
        dtype in prop::sample::select(vec![DType::F64, DType::F32, DType::BF16]),
    ) {
        let device = Device::cpu();
        let key = Key::new(seed);
        let mut region = Region::whole(&shape).unwrap();
        let ranges = box_of(&shape, &cuts);
        for (dim, range) in ranges.iter().enumerate() {
            region = region.slice(dim, range.clone()).unwrap();
        }
        let cut = |whole: Tensor| {
            let dims = ranges.iter().enumerate();
            dims.fold(whole, |x, (dim, range)| x.slice(dim as isize, range.clone()).unwrap())
        };

        let whole = normal(&device, &shape, dtype, key, 1.0, 2.0).unwrap();
        let shard = cut(whole.clone());
        let own = Tensor::zeros(&device, region.shape(), dtype, Kind::Parameter).unwrap();
        normal_into(&own, key.within(&region), 1.0, 2.0).unwrap();
        prop_assert_eq!(f64s(&own), f64s(&shard));

        let dropped = cut(dropout(&whole, key, 0.4).unwrap());
        let own = dropout(&shard, key.within(&region), 0.4).unwrap();
        prop_assert_eq!(f64s(&own), f64s(&dropped));

        let whole = uniform(&device, &shape, dtype, key, -1.0, 3.0).unwrap();
        let own = uniform(&device, region.shape(), dtype, key.within(&region), -1.0, 3.0);
        prop_assert_eq!(f64s(&own.unwrap()), f64s(&cut(whole)));
    }
}

/// A transposed region yields the transposed values.
#[test]
fn a_permuted_region_gives_permuted_values() {
    let device = Device::cpu();
    let key = Key::new(5);
    let whole = normal(&device, &[5, 70], DType::F32, key, 0.0, 1.0).unwrap();
    let region = Region::whole(&[5, 70]).unwrap().permute(&[1, 0]).unwrap();
    let transposed = normal(&device, &[70, 5], DType::F32, key.within(&region), 0.0, 1.0).unwrap();
    assert_eq!(f64s(&transposed), f64s(&whole.transpose(0, 1).unwrap()));
}

#[test]
fn bits_do_not_depend_on_threads() {
    let drawn = |threads: usize| {
        let device = Device::cpu_with_threads(threads).unwrap();
        device.run(|| f64s(&normal(&device, &[COUNT], DType::F32, Key::new(1), 0.0, 1.0).unwrap()))
    };
    assert_eq!(drawn(1), drawn(3));
}

/// A narrower dtype rounds the same random value.
#[test]
fn dtypes_differ_by_rounding_only() {
    let device = Device::cpu();
    let key = Key::new(9).fold(4);
    let of = |dtype| uniform(&device, &[10_000], dtype, key, 0.0, 1.0).unwrap();
    let (wide, single, half) = (of(DType::F64), of(DType::F32), of(DType::BF16));
    for (wide, single) in f64s(&wide).iter().zip(f64s(&single)) {
        assert!((0.0..2f64.powi(-24)).contains(&(wide - single)));
    }
    for (single, half) in f64s(&single).iter().zip(half.to_vec::<bf16>().unwrap()) {
        let rounded = bf16::from_f32(*single as f32).to_f64();
        assert_eq!(half.to_f64(), rounded.min(0.996_093_75));
    }

    let of = |dtype| normal(&device, &[10_000], dtype, key, 0.0, 1.0).unwrap();
    for (wide, single) in f64s(&of(DType::F64)).iter().zip(f64s(&of(DType::F32))) {
        assert!((wide - single).abs() < 1e-6 * wide.abs().max(1e-2), "{wide} {single}");
    }
}

/// The Kolmogorov-Smirnov distance between the empirical distribution of `values` and `cdf`, times
/// the square root of the number of values.
fn kolmogorov_smirnov(values: &[f64], cdf: impl Fn(f64) -> f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let count = values.len() as f64;
    let gap = |(at, value): (usize, &f64)| {
        let expected = cdf(*value);
        ((at + 1) as f64 / count - expected).max(expected - at as f64 / count)
    };
    let widest = values.iter().enumerate().map(gap).fold(0.0, f64::max);
    widest * count.sqrt()
}

/// The normal CDF by the series of erf (Abramowitz and Stegun 26.2.11), for |x| < 7.
fn normal_cdf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for i in 1..150 {
        term *= x * x / (2 * i + 1) as f64;
        sum += term;
    }
    0.5 + sum * (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt()
}

/// The Kolmogorov-Smirnov statistic exceeds 1.95 with probability 0.001. The keys are fixed, so the
/// result is deterministic.
#[test]
fn values_have_their_distribution() {
    let device = Device::cpu();
    for dtype in [DType::F64, DType::F32] {
        for seed in 0..3 {
            let key = Key::new(seed).fold_name("distribution");
            let values = f64s(&normal(&device, &[COUNT], dtype, key, 0.0, 1.0).unwrap());
            assert!(kolmogorov_smirnov(&values, normal_cdf) < 1.95);

            let values = f64s(&uniform(&device, &[COUNT], dtype, key, 0.0, 1.0).unwrap());
            assert!(kolmogorov_smirnov(&values, |x| x) < 1.95);
        }
    }
}

/// Each moment is within four standard errors of its expectation.
#[test]
fn moments_match_the_distribution() {
    let device = Device::cpu();
    let key = Key::new(2).fold_name("moments");
    let values = f64s(&normal(&device, &[COUNT], DType::F32, key, 3.0, 0.5).unwrap());
    let moment = |power: i32| {
        let sum: f64 = values.iter().map(|x| ((x - 3.0) / 0.5).powi(power)).sum();
        sum / COUNT as f64
    };
    for (power, expected, variance) in
        [(1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)]
    {
        let allowed = 4.0 * f64::sqrt(variance / COUNT as f64);
        assert!((moment(power) - expected).abs() < allowed, "moment {power}");
    }

    // Adjacent elements are uncorrelated, and so are the same elements of two keys.
    let other = f64s(&normal(&device, &[COUNT], DType::F32, key.fold(1), 3.0, 0.5).unwrap());
    let product = |others: &[f64]| {
        let pairs = values.iter().zip(others);
        pairs.map(|(x, y)| (x - 3.0) * (y - 3.0) * 4.0).sum::<f64>() / COUNT as f64
    };
    assert!(product(&values[1..]).abs() < 4.0 / f64::sqrt(COUNT as f64));
    assert!(product(&other).abs() < 4.0 / f64::sqrt(COUNT as f64));
}

#[test]
fn uniform_values_stay_below_the_end() {
    let device = Device::cpu();
    let intervals =
        [(0.0, 1.0), (-1.0, 0.0), (-3.0, -2.0), (0.1, 0.100_1), (0.0, 1e-30), (2.0, 2.0)];
    for (low, high) in intervals {
        for dtype in [DType::F64, DType::F32, DType::BF16] {
            let values = f64s(&uniform(&device, &[5000], dtype, Key::new(0), low, high).unwrap());
            let rounded = super::super::full(&device, &[1], dtype, low).unwrap();
            let least = f64s(&rounded)[0];
            assert!(values.iter().all(|x| *x >= least && (*x < high || *x == least)));
        }
    }
    assert_eq!(below::<f32>(1.0), 1.0 - 2f64.powi(-24));
    assert_eq!(below::<f64>(1.0), 1.0 - 2f64.powi(-53));
    assert_eq!(below::<bf16>(-1.0), -1.0 - 2f64.powi(-7));
    assert_eq!(below::<f32>(3.0), 3.0 - 2f64.powi(-22));
}

/// Forward, gradient and mask agree, and the fraction of kept elements is right.
#[test]
fn dropout_grad_has_the_same_mask() {
    let device = Device::cpu();
    let key = Key::new(8);
    for dtype in [DType::F64, DType::F32, DType::BF16] {
        let x = normal(&device, &[300, 70], dtype, Key::new(1), 0.0, 1.0).unwrap();
        let x = x.transpose(0, 1).unwrap();
        let (y, dx) = (dropout(&x, key, 0.25).unwrap(), dropout_grad(&x, key, 0.25).unwrap());
        let mask = dropout_mask(&device, &[70, 300], key, 0.25).unwrap();
        let mask = mask.to_vec::<Bool>().unwrap();
        assert_eq!(f64s(&y), f64s(&dx));

        let rounding = if dtype == DType::BF16 { 2f64.powi(-8) } else { 1e-6 };
        for ((x, y), kept) in f64s(&x).iter().zip(f64s(&y)).zip(&mask) {
            let expected = if kept.get() { x / 0.75 } else { 0.0 };
            assert!((y - expected).abs() <= rounding * expected.abs());
        }
        let kept = mask.iter().filter(|kept| kept.get()).count() as f64 / 21_000.0;
        assert!((kept - 0.75).abs() < 4.0 * f64::sqrt(0.25 * 0.75 / 21_000.0));
    }
}

#[test]
fn dropout_with_probability_zero_returns_its_operand() {
    let device = Device::cpu();
    let x = normal(&device, &[3], DType::F32, Key::new(1), 0.0, 1.0).unwrap();
    let y = dropout(&x, Key::new(0), 0.0).unwrap();
    assert_eq!(y.storage_id(), x.storage_id());
    assert!(dropout(&x, Key::new(0), 1.0).is_err());
    assert!(dropout(&x, Key::new(0), f64::NAN).is_err());
}

#[test]
fn invalid_arguments_are_rejected() {
    let device = Device::cpu();
    let key = Key::new(0);
    let region = Region::whole(&[2, 2]).unwrap();
    let message = |result: Result<Tensor>| result.err().unwrap().to_string();
    assert_eq!(
        message(normal(&device, &[4], DType::F32, key.within(&region), 0.0, 1.0)),
        "normal: the tensor has shape [4], but the region of its key has shape [2, 2]"
    );
    assert!(normal(&device, &[4], DType::I64, key, 0.0, 1.0).is_err());
    assert!(normal(&device, &[4], DType::Bool, key, 0.0, 1.0).is_err());
    assert!(normal(&device, &[4], DType::F32, key, 0.0, -1.0).is_err());
    assert!(uniform(&device, &[4], DType::F32, key, 1.0, 0.0).is_err());
    assert!(uniform(&device, &[4], DType::F32, key, f64::NAN, 0.0).is_err());

    let value = normal(&device, &[4, 0], DType::F32, key, 0.0, 1.0).unwrap();
    assert_error(normal_into(&value, key, 0.0, 1.0), "the tensor is a value, which is immutable");
}

#[test]
fn meta_devices_only_count() {
    let device = Device::meta(Device::cpu().properties());
    let x = uniform(&device, &[4, 4], DType::F32, Key::new(0), 0.0, 1.0).unwrap();
    let y = dropout(&x, Key::new(0), 0.5).unwrap();
    assert_eq!((y.shape(), device.work().ops), (x.shape(), 1));
}
