//! AdamW steps on every device have the bits of the CPU, and are one launch on a GPU.

use crate::devices::{assert_error, devices, numbered, reference, values};
use meshgrad_runtime::ops::{self, AdamWConstants, AdamWOperands, AdamWTable, StepScalars};
use meshgrad_runtime::{DType, Device, Key, Kind, Region, RegionKey, Result, Tensor};

const ADAMW: AdamWConstants =
    AdamWConstants { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 };

/// A parameter with its gradient and its state.
struct Trained {
    param: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    rounding: Option<RegionKey>,
    constants: AdamWConstants,
}

impl Trained {
    /// Creates tensors that start at element `skip` of their storages.
    fn new(device: &Device, shape: &[usize], dtype: DType, skip: usize) -> Trained {
        let count: usize = shape.iter().product();
        let of = |dtype, kind| {
            let flat = Tensor::zeros(device, &[skip + count], dtype, kind).unwrap();
            let part = flat.slice(0, skip..skip + count).unwrap();
            part.view(shape).unwrap().unwrap()
        };
        let param = of(dtype, Kind::Parameter);
        ops::copy_into(&numbered(device, shape, dtype, 1.0), &param).unwrap();
        let state = || of(DType::F32, Kind::OptimizerState);
        Trained {
            param,
            gradient: numbered(device, shape, DType::F32, 0.3),
            exp_avg: state(),
            exp_avg_sq: state(),
            rounding: None,
            constants: ADAMW,
        }
    }

    fn rounded(self, draw: RegionKey) -> Trained {
        let rounding = Some(draw);
        Trained { rounding, ..self }
    }

    fn operands(&self) -> AdamWOperands<'_> {
        AdamWOperands {
            param: self.param.clone(),
            gradient: self.gradient.clone(),
            exp_avg: self.exp_avg.clone(),
            exp_avg_sq: self.exp_avg_sq.clone(),
            constants: self.constants,
            rounding: self.rounding.as_ref(),
        }
    }

    fn bits(&self) -> [Vec<u64>; 3] {
        let bits = |x: &Tensor| values(x).into_iter().map(f64::to_bits).collect();
        [&self.param, &self.exp_avg, &self.exp_avg_sq].map(bits)
    }
}

/// Owns the tensors of [`StepScalars`].
struct Scalars([Tensor; 3]);

impl Scalars {
    fn new(device: &Device, learning_rate: f32, step: f32, scale: f32) -> Scalars {
        let scalar = |x: f32| Tensor::scalar(device, x).unwrap();
        Scalars([learning_rate, step, scale].map(scalar))
    }

    fn lend(&self) -> StepScalars<'_> {
        let [learning_rate, step, scale] = &self.0;
        StepScalars { learning_rate, step, scale }
    }
}

/// Several shapes, dtypes, storage offsets and rounding modes, and a non-contiguous gradient.
fn everything(device: &Device) -> Vec<Trained> {
    let new = |shape: &[usize], dtype, skip| Trained::new(device, shape, dtype, skip);
    let key = Key::new(5).fold_name("weights");
    let matrix = Region::whole(&[20, 40]).unwrap();
    let rows = matrix.slice(0, 3..9).unwrap();
    let columns = matrix.slice(1, 8..20).unwrap();
    let odd = matrix.slice(1, 3..10).unwrap().permute(&[1, 0]).unwrap();
    // Global indices beyond 32 bits.
    let huge = Region::whole(&[1 << 30, 2000]).unwrap();
    let far = huge.slice(0, 1 << 29..(1 << 29) + 6).unwrap().slice(1, 8..20).unwrap();
    // Boxes of three dims, whose rows are whole blocks of four or not.
    let planes = Region::whole(&[4, 6, 20]).unwrap();
    let planes = planes.slice(0, 1..3).unwrap().slice(1, 2..5).unwrap();
    let (blocks, ragged) = (planes.slice(2, 8..16).unwrap(), planes.slice(2, 3..10).unwrap());
    let within = |region: &Region| new(region.shape(), DType::BF16, 0).rounded(key.within(region));

    let mut all = vec![
        new(&[70, 300], DType::F32, 0),
        new(&[3], DType::F32, 5),
        new(&[0, 4], DType::F32, 0),
        new(&[], DType::F32, 0),
        new(&[2049], DType::BF16, 0),
        new(&[9], DType::BF16, 3),
        new(&[70, 30], DType::BF16, 0).rounded(key.into()),
        new(&[], DType::BF16, 0).rounded(key.fold(1).into()),
        within(&rows),
        within(&columns),
        within(&odd),
        within(&far),
        within(&blocks),
        within(&ragged),
    ];
    all[1].constants.weight_decay = 0.0;
    let transposed = numbered(device, &[300, 70], DType::F32, 0.2);
    all[0].gradient = transposed.transpose(0, 1).unwrap();
    all
}

#[test]
fn steps_have_the_bits_of_the_cpu() {
    let trained = |device: &Device| {
        let all = everything(device);
        let mut table = AdamWTable::default();
        for step in [1, 2, 1001] {
            let scalars = Scalars::new(device, 0.01, step as f32, 0.7);
            let operands: Vec<_> = all.iter().map(Trained::operands).collect();
            table.step(&operands, scalars.lend()).unwrap();
        }
        all.iter().map(Trained::bits).collect::<Vec<_>>()
    };
    let expected = trained(reference());
    for device in devices() {
        for (at, (found, expected)) in trained(&device).iter().zip(&expected).enumerate() {
            assert!(found == expected, "parameter {at} on {device}");
        }
    }
}

/// A step of all parameters is one launch, and counts one op per parameter. With a scale that is
/// not finite, it changes nothing.
#[test]
fn a_step_of_all_parameters_is_one_launch() {
    for device in devices() {
        let all = [3, 5000, 64].map(|count| Trained::new(&device, &[count], DType::F32, 0));
        let operands = all.each_ref().map(Trained::operands);
        let mut table = AdamWTable::default();
        let before = device.work();
        let scalars = Scalars::new(&device, 0.01, 1.0, 1.0);
        table.step(&operands, scalars.lend()).unwrap();
        let work = device.work();
        let launches = if device.is_gpu() { 1 } else { 0 };
        assert_eq!(work.kernel_launches - before.kernel_launches, launches);
        assert_eq!((work.ops - before.ops, all[0].param.version()), (3, 2));

        let bits = all.each_ref().map(Trained::bits);
        for scale in [f32::NAN, f32::INFINITY] {
            let scalars = Scalars::new(&device, 0.01, 2.0, scale);
            table.step(&operands, scalars.lend()).unwrap();
            assert!(bits == all.each_ref().map(Trained::bits));
        }
        assert!(table.step(&[], scalars.lend()).is_ok());
    }
}

/// A step whose table was uploaded before can be captured; a step with a new table cannot.
#[test]
fn steps_can_be_captured() {
    let Some(device) = crate::devices::gpu() else {
        return;
    };
    let one = Trained::new(&device, &[100], DType::F32, 0);
    let scalars = Scalars::new(&device, 0.01, 1.0, 1.0);
    let mut table = AdamWTable::default();
    table.step(&[one.operands()], scalars.lend()).unwrap();
    let mut graph = device.capture(|| table.step(&[one.operands()], scalars.lend())).unwrap();
    graph.launch().unwrap();

    let twice = Trained::new(reference(), &[100], DType::F32, 0);
    let same = Scalars::new(reference(), 0.01, 1.0, 1.0);
    for _ in 0..2 {
        ops::adamw_step_many(&[twice.operands()], same.lend()).unwrap();
    }
    assert!(one.bits() == twice.bits());

    let mut other = AdamWTable::default();
    let captured = device.capture(|| other.step(&[one.operands()], scalars.lend()));
    assert_error(captured, " during Device::capture: ");
}

/// Changes smaller than the last bit of bf16 are lost with rounding to nearest. With stochastic
/// rounding they are preserved on average.
#[test]
fn small_changes_add_up() {
    for device in devices() {
        let mean_after = |rounding: Option<RegionKey>| {
            let ones = Tensor::zeros(&device, &[4000], DType::BF16, Kind::Parameter).unwrap();
            ops::fill_into(&ones, 1.0).unwrap();
            let mut one = Trained::new(&device, &[4000], DType::BF16, 0);
            (one.param, one.rounding, one.constants.weight_decay) = (ones, rounding, 0.0);
            one.gradient = ops::full(&device, &[4000], DType::F32, 1.0).unwrap();
            for step in 1..=20 {
                let scalars = Scalars::new(&device, 2e-4, step as f32, 1.0);
                ops::adamw_step_many(&[one.operands()], scalars.lend()).unwrap();
            }
            values(&one.param).iter().sum::<f64>() / 4000.0
        };
        assert_eq!(mean_after(None), 1.0);
        let mean = mean_after(Some(Key::new(3).into()));
        assert!((mean - (1.0 - 20.0 * 2e-4)).abs() < 2e-4, "{mean}");
    }
}

/// Stochastic rounding keeps infinities and NaN, and rounds any other value to one of its two
/// neighbors. The mean over many keys is the value.
#[test]
fn stochastic_rounding_is_unbiased() {
    const KEYS: u64 = 300;
    let largest = f64::from(f32::from_bits(0x7f7f_0000));
    let finite = [1.0, -1.0, 3.5, -0.007_812_5, largest, -largest, 1e-30];
    let special = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    for device in devices() {
        let mut sums = [0.0; 7];
        let before: Vec<f32> = finite.iter().chain(&special).map(|x| *x as f32).collect();
        let before = Tensor::from_slice(&device, &[10], &before).unwrap();
        let before = ops::cast(&before, DType::BF16).unwrap();
        for key in 0..KEYS {
            let mut one = Trained::new(&device, &[10], DType::BF16, 0);
            ops::copy_into(&before, &one.param).unwrap();
            one.gradient = ops::full(&device, &[10], DType::F32, 0.0).unwrap();
            let one = one.rounded(Key::new(key).into());
            let scalars = Scalars::new(&device, 0.01, 1.0, 1.0);
            ops::adamw_step_many(&[one.operands()], scalars.lend()).unwrap();

            let after = values(&one.param);
            assert_eq!(after[7..9], special[..2]);
            assert!(after[9].is_nan());
            for ((sum, before), after) in sums.iter_mut().zip(values(&before)).zip(after) {
                let decayed = before as f32 * 0.999;
                let towards_zero = f32::from_bits(decayed.to_bits() & 0xffff_0000);
                let away = f32::from_bits(towards_zero.to_bits() + 0x1_0000);
                let neighbors = [towards_zero, away].map(f64::from);
                assert!(neighbors.contains(&after), "{before}: {after}");
                *sum += after / before;
            }
        }
        // A neighbor is at most 2^-7 away, so the standard deviation is at most 0.004. The
        // tolerance is five standard deviations of the mean.
        for sum in sums {
            let mean = sum / KEYS as f64;
            assert!((mean - 0.999).abs() < 5.0 * 0.004 / (KEYS as f64).sqrt(), "{mean}");
        }
    }
}

/// A shard rounds like the same part of the whole parameter.
#[test]
fn shards_round_as_the_whole() {
    for device in devices() {
        let key = Key::new(9);
        let stepped = |one: &Trained| {
            let scalars = Scalars::new(&device, 0.01, 7.0, 1.0);
            ops::adamw_step_many(&[one.operands()], scalars.lend()).unwrap();
            one.bits()
        };
        let whole = Trained::new(&device, &[8, 24], DType::BF16, 0);
        let region = Region::whole(&[8, 24]).unwrap().slice(1, 4..12).unwrap();
        let mut shard = Trained::new(&device, &[8, 8], DType::BF16, 0);
        let cut = |x: &Tensor| ops::copy(&x.slice(1, 4..12).unwrap()).unwrap();
        ops::copy_into(&cut(&whole.param), &shard.param).unwrap();
        shard.gradient = cut(&whole.gradient);
        let shard = shard.rounded(key.within(&region));
        let whole = whole.rounded(key.into());

        stepped(&whole);
        let of_shard = stepped(&shard);
        let cut = values(&cut(&whole.param)).into_iter().map(f64::to_bits);
        assert!(of_shard[0] == cut.collect::<Vec<_>>());
    }
}

#[test]
fn invalid_operands_are_errors_and_change_nothing() {
    for device in devices() {
        let one = Trained::new(&device, &[6], DType::F32, 0);
        let before = one.bits();
        let scalars = Scalars::new(&device, 0.01, 1.0, 1.0);
        let step = |operands: &[AdamWOperands<'_>]| -> Result<()> {
            ops::adamw_step_many(operands, scalars.lend())
        };
        let operands = || one.operands();
        let message = step(&[operands(), operands()]).err().unwrap().to_string();
        let expected = "adamw_step: writes twice to the elements of f32[6] on";
        assert!(message.starts_with(expected), "{message}");

        let of_parameter = AdamWOperands { gradient: one.param.clone(), ..operands() };
        assert_error(step(&[of_parameter]), "the storage is in use");
        let of_a_value = AdamWOperands { exp_avg: one.gradient.clone(), ..operands() };
        assert_error(step(&[of_a_value]), "the tensor is a value, which is immutable");
        let elsewhere = Key::new(0).within(&Region::whole(&[7]).unwrap());
        let of_another_shape = AdamWOperands { rounding: Some(&elsewhere), ..operands() };
        assert_error(
            step(&[of_another_shape]),
            "adamw_step: the tensor has shape [6], but the region of its key has shape [7]",
        );
        assert!(one.bits() == before);
    }
}
