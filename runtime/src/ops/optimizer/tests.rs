use super::*;
use crate::{DType, Device, Kind, ops};

const ADAMW: AdamWConstants =
    AdamWConstants { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 };

/// `count` numbers that differ for each element and `salt`.
fn numbers(count: usize, salt: usize) -> Vec<f64> {
    (0..count).map(|i| ((i * 3 + salt * 17) as f64 * 0.7).sin()).collect()
}

fn tensor(device: &Device, values: &[f64], dtype: DType) -> Tensor {
    ops::cast(&Tensor::from_slice(device, &[values.len()], values).unwrap(), dtype).unwrap()
}

fn changing(kind: Kind, values: &Tensor) -> Tensor {
    let own = Tensor::zeros(values.device(), values.shape(), values.dtype(), kind).unwrap();
    ops::copy_into(values, &own).unwrap();
    own
}

fn f64s(x: &Tensor) -> Vec<f64> {
    ops::cast(x, DType::F64).unwrap().to_vec().unwrap()
}

/// A parameter and its state.
struct Trained {
    param: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
}

impl Trained {
    fn new(device: &Device, count: usize, dtype: DType) -> Trained {
        let zeros = || {
            let (accumulator, kind) = (dtype.accumulator(), Kind::OptimizerState);
            Tensor::zeros(device, &[count], accumulator, kind).unwrap()
        };
        let param = changing(Kind::Parameter, &tensor(device, &numbers(count, 0), dtype));
        Trained { param, exp_avg: zeros(), exp_avg_sq: zeros() }
    }

    fn operands(&self, gradient: &Tensor) -> AdamWOperands<'static> {
        let Trained { param, exp_avg, exp_avg_sq } = self;
        let [param, gradient, exp_avg, exp_avg_sq] =
            [param, gradient, exp_avg, exp_avg_sq].map(Tensor::clone);
        AdamWOperands { param, gradient, exp_avg, exp_avg_sq, constants: ADAMW, rounding: None }
    }

    fn all(&self) -> [Vec<f64>; 3] {
        [&self.param, &self.exp_avg, &self.exp_avg_sq].map(f64s)
    }
}

/// Owns the tensors of [`StepScalars`].
struct Scalars([Tensor; 3]);

impl Scalars {
    fn new(device: &Device, learning_rate: f64, step: f64, scale: f64) -> Scalars {
        let scalar = |x: f64| Tensor::scalar(device, x as f32).unwrap();
        Scalars([scalar(learning_rate), scalar(step), scalar(scale)])
    }

    fn lend(&self) -> StepScalars<'_> {
        let [learning_rate, step, scale] = &self.0;
        StepScalars { learning_rate, step, scale }
    }
}

/// The formula of the paper and torch, element by element, in f64.
fn naive(state: &mut [f64; 3], gradient: f64, step: i32) {
    let [p, m, v] = state;
    let g = 0.5 * gradient;
    *p *= 1.0 - 0.01f32 as f64 * 0.1;
    *m = 0.9 * *m + 0.1 * g;
    *v = 0.95 * *v + 0.05 * g * g;
    let (m_hat, v_hat) = (*m / (1.0 - 0.9f64.powi(step)), *v / (1.0 - 0.95f64.powi(step)));
    *p -= 0.01f32 as f64 * m_hat / (v_hat.sqrt() + 1e-8);
}

/// Twenty steps of parameters of several sizes, with strided gradients.
#[test]
fn adamw_follows_its_formula() {
    let device = Device::cpu();
    for (dtype, tolerance) in [(DType::F64, 1e-14), (DType::F32, 2e-6)] {
        let counts = [0, 1, 3, 17, 300, 40_000];
        let trained = counts.map(|count| Trained::new(&device, count, dtype));
        let mut expected = counts.map(|count| {
            let start = |p: f64| [p, 0.0, 0.0];
            numbers(count, 0).into_iter().map(start).collect::<Vec<_>>()
        });

        for step in 1..=20 {
            // The gradient is every other element of a longer tensor, so it is not contiguous.
            let gradients = counts.map(|count| {
                let long = tensor(&device, &numbers(2 * count, step), dtype);
                let pairs = ops::reshape(&long, &[count, 2]).unwrap();
                let column = pairs.transpose(0, 1).unwrap().slice(0, 0..1).unwrap();
                column.view(&[count]).unwrap().unwrap()
            });
            let scalars = Scalars::new(&device, 0.01, step as f64, 0.5);
            let operands: Vec<_> =
                trained.iter().zip(&gradients).map(|(one, dp)| one.operands(dp)).collect();
            adamw_step_many(&operands, scalars.lend()).unwrap();

            for (expected, gradient) in expected.iter_mut().zip(&gradients) {
                for (state, gradient) in expected.iter_mut().zip(f64s(gradient)) {
                    naive(state, gradient, step as i32);
                }
            }
        }
        for (one, expected) in trained.iter().zip(&expected) {
            for (at, values) in one.all().iter().enumerate() {
                for (value, expected) in values.iter().zip(expected) {
                    let error = (value - expected[at]).abs();
                    assert!(error < tolerance, "{dtype}: {value} {}", expected[at]);
                }
            }
        }
    }
}

/// A bf16 parameter has f32 state and is rounded once per step.
#[test]
fn bf16_parameters_round_once() {
    let device = Device::cpu();
    let trained = Trained::new(&device, 1000, DType::BF16);
    let before = f64s(&trained.param);
    let gradient = tensor(&device, &numbers(1000, 1), DType::F32);
    let scalars = Scalars::new(&device, 0.01, 1.0, 0.5);
    adamw_step_many(&[trained.operands(&gradient)], scalars.lend()).unwrap();

    let (after, gradients) = (f64s(&trained.param), f64s(&gradient));
    for ((before, after), gradient) in before.into_iter().zip(after).zip(gradients) {
        let mut state = [before, 0.0, 0.0];
        naive(&mut state, gradient, 1);
        assert!((after - state[0]).abs() <= 2f64.powi(-8) * state[0].abs() + 1e-6);
    }
}

/// The parameters are views of flat storages. Holds for any number of threads.
#[test]
fn one_step_of_many_equals_separate_steps() {
    let counts = [5, 20_000, 1, 16_384, 300];
    let total: usize = counts.iter().sum();
    let train = |threads: usize, together: bool| {
        let device = Device::cpu_with_threads(threads).unwrap();
        let flat = Trained::new(&device, total, DType::F32);
        let part =
            |x: &Tensor, start: usize, count: usize| x.slice(0, start..start + count).unwrap();
        let mut parts = Vec::new();
        let mut start = 0;
        for count in counts {
            let Trained { param, exp_avg, exp_avg_sq } = &flat;
            let [param, exp_avg, exp_avg_sq] =
                [param, exp_avg, exp_avg_sq].map(|x| part(x, start, count));
            parts.push(Trained { param, exp_avg, exp_avg_sq });
            start += count;
        }

        device.run(|| {
            for step in 1..4 {
                let scalars = Scalars::new(&device, 0.01, step as f64, 1.0);
                let gradient = |count| tensor(&device, &numbers(count, step), DType::F32);
                let gradients = counts.map(gradient);
                let operands: Vec<_> =
                    parts.iter().zip(&gradients).map(|(one, dp)| one.operands(dp)).collect();
                match together {
                    true => adamw_step_many(&operands, scalars.lend()).unwrap(),
                    false => operands.iter().for_each(|one| {
                        adamw_step_many(std::slice::from_ref(one), scalars.lend()).unwrap();
                    }),
                }
            }
        });
        flat.all()
    };
    let alone = train(1, false);
    assert_eq!(train(1, true), alone);
    assert_eq!(train(3, true), alone);
}

/// A gradient with a NaN or infinity skips the step.
#[test]
fn a_step_without_a_finite_norm_changes_nothing() {
    let device = Device::cpu();
    let trained = Trained::new(&device, 4, DType::F32);
    let before = trained.all();
    let weight = Tensor::scalar(&device, 8.0f32).unwrap();
    for bad in [f64::NAN, f64::INFINITY] {
        let gradient = tensor(&device, &[1.0, bad, 0.0, 2.0], DType::F32);
        let norm = global_norm(&[&gradient]).unwrap();
        for max_norm in [0.0, 1.0] {
            let (scale, mean_norm) = clip_scale(&norm, &weight, max_norm).unwrap();
            assert!(!mean_norm.item::<f32>().unwrap().is_finite());

            let Scalars([learning_rate, step, _]) = Scalars::new(&device, 0.01, 1.0, 1.0);
            let scalars = StepScalars { learning_rate: &learning_rate, step: &step, scale: &scale };
            adamw_step_many(&[trained.operands(&gradient)], scalars).unwrap();
            assert_eq!(trained.all(), before);
        }
    }
}

#[test]
fn invalid_steps_are_rejected() {
    let device = Device::cpu();
    let trained = Trained::new(&device, 4, DType::F32);
    let gradient = tensor(&device, &[1.0; 4], DType::F32);
    let scalars = Scalars::new(&device, 0.01, 0.0, 1.0);
    let step = |operands: &[AdamWOperands<'_>], scalars: &Scalars| {
        adamw_step_many(operands, scalars.lend()).err().unwrap().to_string()
    };
    let one = trained.operands(&gradient);
    assert_eq!(
        step(std::slice::from_ref(&one), &scalars),
        "adamw_step: step is 0; steps count from 1"
    );

    let scalars = Scalars::new(&device, 0.01, 1.0, 1.0);
    let before = trained.all();
    assert_eq!(
        step(&[one.clone(), one.clone()], &scalars),
        "adamw_step: writes twice to the elements of f32[4] on cpu"
    );
    let wide = AdamWOperands { exp_avg: tensor(&device, &[0.0; 4], DType::F64), ..one.clone() };
    assert!(step(&[one, wide], &scalars).contains("`exp_avg` must be f32"));
    assert_eq!(trained.all(), before);
    assert!(adamw_step_many(&[], scalars.lend()).is_ok());
}

/// The tensors have different dtypes and layouts, and one is empty.
#[test]
fn global_norm_is_the_norm_of_all_elements() {
    let device = Device::cpu();
    let exp_avg_sq = ops::reshape(&tensor(&device, &numbers(40_000, 2), DType::F32), &[200, 200]);
    let tensors = [
        exp_avg_sq.unwrap().transpose(0, 1).unwrap(),
        tensor(&device, &numbers(17, 3), DType::F64),
        tensor(&device, &[], DType::F32),
        tensor(&device, &numbers(300, 4), DType::BF16),
    ];
    let sum: f64 = tensors.iter().flat_map(f64s).map(|x| x * x).sum();
    let tensors: Vec<&Tensor> = tensors.iter().collect();
    let norm: f64 = global_norm(&tensors).unwrap().item::<f32>().unwrap().into();
    assert!((norm / sum.sqrt() - 1.0).abs() < 1e-7);

    let nothing = global_norm(&[tensors[2]]).unwrap();
    assert_eq!(nothing.item::<f32>().unwrap(), 0.0);
    // The squares of these overflow f32.
    let large = global_norm(&[&tensor(&device, &[3e30, 4e30], DType::F32)]).unwrap();
    assert_eq!(large.item::<f32>().unwrap(), 5e30);
    assert!(global_norm(&[]).is_err());
}

#[test]
fn norms_do_not_depend_on_threads() {
    let norm = |threads: usize| {
        let device = Device::cpu_with_threads(threads).unwrap();
        device.run(|| {
            let long = tensor(&device, &numbers(100_000, 3), DType::F32);
            let short = tensor(&device, &numbers(100, 4), DType::F32);
            global_norm(&[&short, &long]).unwrap().item::<f32>().unwrap().to_bits()
        })
    };
    assert_eq!(norm(1), norm(3));
}

/// Scaled gradients have the mean norm, or the maximum norm if that is smaller.
#[test]
fn clipped_gradients_have_at_most_the_maximum_norm() {
    let device = Device::cpu();
    let norm = global_norm(&[&tensor(&device, &[30.0, 40.0], DType::F32)]).unwrap();
    let weight = Tensor::scalar(&device, 10.0f32).unwrap();
    let clipped = |max_norm: f64| {
        let (scale, mean_norm) = clip_scale(&norm, &weight, max_norm).unwrap();
        assert_eq!(mean_norm.item::<f32>().unwrap(), 5.0);
        scale.item::<f32>().unwrap()
    };
    for unlimited in [0.0, -1.0, f64::INFINITY, 6.0] {
        assert_eq!(clipped(unlimited), 0.1);
    }
    for max_norm in [0.5, 1.0, 4.999] {
        let scaled = f64::from(clipped(max_norm)) * 50.0;
        assert!(scaled < max_norm && scaled > max_norm * (1.0 - 1e-5));
    }
    assert!(clip_scale(&norm, &weight, f64::NAN).is_err());

    let none = Tensor::scalar(&device, 0.0f32).unwrap();
    let (scale, _) = clip_scale(&norm, &none, 1.0).unwrap();
    assert!(scale.item::<f32>().unwrap().is_nan());
}

#[test]
fn meta_devices_only_count() {
    let device = Device::meta(Device::cpu().properties());
    let trained = [3, 5].map(|count| Trained::new(&device, count, DType::F32));
    let gradients = [3, 5].map(|count| tensor(&device, &numbers(count, 0), DType::F32));
    let norm = global_norm(&[&gradients[0], &gradients[1]]).unwrap();
    let (scale, _) = clip_scale(&norm, &norm, 1.0).unwrap();
    let (before, live) = (device.work(), device.memory_stats().live);

    let scalars = StepScalars { learning_rate: &norm, step: &norm, scale: &scale };
    let operands = [trained[0].operands(&gradients[0]), trained[1].operands(&gradients[1])];
    adamw_step_many(&operands, scalars).unwrap();
    let after = device.work();
    assert_eq!((after.ops - before.ops, after.flops - before.flops), (2, 16 * 8));
    assert_eq!(device.memory_stats().live, live);
}
