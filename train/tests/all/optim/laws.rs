//! Laws of every optimizer.

use approx::assert_relative_eq;
use meshgrad_runtime::{DType, Device, Tensor, ops};
use meshgrad_train::optim::{
    AdamW, AdamWConfig, Granularity, Group, Groups, Lion, LionConfig, Muon, MuonConfig,
    OptimizerPart, Rounding, Sgd, SgdConfig, UpdateRule,
};

use crate::optim::cases::{adamw, muon, optimizers};
use crate::optim::training::{Choice, MATRICES, NAMES, SCALE, Training, f32s, whole};

/// State and parameters that are saved after any step and restored into a new optimizer
/// continue with the same bits.
#[test]
fn restored_state_continues_with_the_same_bits() {
    let device = Device::cpu();
    for (name, make) in optimizers() {
        let mut through = Training::new(&device, whole(&NAMES), &*make);
        let mut resumed: Vec<Training> = Vec::new();
        for step in 1..=6 {
            let restored = Training::new(&device, whole(&NAMES), &*make);
            let pairs = through.tensors().into_iter().zip(restored.tensors());
            for ((from, saved), (to, tensor)) in pairs {
                assert_eq!(from, to);
                ops::copy_into(&ops::copy(&saved).unwrap(), &tensor).unwrap();
            }
            resumed.push(restored);
            through.run(step..step + 1);
            resumed.iter_mut().for_each(|run| run.run(step..step + 1));
        }
        for run in resumed {
            assert_eq!(run.values(), through.values(), "{name}");
        }
    }
}

/// If the optimizer works element by element, updating rows alone gives the same bits as updating
/// the whole parameter, for any dtype and rounding.
#[test]
fn rows_alone_equal_rows_of_the_whole() {
    let device = Device::cpu();
    for (name, make) in optimizers() {
        for dtype in [DType::F32, DType::BF16] {
            for (param, rows) in [("experts", 3..8), ("experts", 5..5), ("tall", 0..4)] {
                let choice = |rows| Choice { name: param, rows, dtype };
                let mut whole = Training::new(&device, vec![choice(None)], &*make);
                if whole.rule.granularity() == Granularity::Matrix {
                    continue;
                }
                let mut alone = Training::new(&device, vec![choice(Some(rows.clone()))], &*make);
                whole.run(1..6);
                alone.run(1..6);

                let [.., columns] = whole.parts[0].global_shape()[..] else { unreachable!() };
                let elements = rows.start * columns..rows.end * columns;
                for ((of, all), (_, some)) in whole.values().into_iter().zip(alone.values()) {
                    assert_eq!(all[elements.clone()], some, "{name}: {of}");
                }
            }
        }
    }
}

/// Updating experts alone gives the same bits as updating the whole parameter.
#[test]
fn matrices_alone_equal_matrices_of_the_whole() {
    let device = Device::cpu();
    let make = muon(MuonConfig::default());
    let choice = |rows| Choice { name: "experts", rows, dtype: DType::F32 };
    let mut whole = Training::new(&device, vec![choice(None)], &*make);
    let mut alone = Training::new(&device, vec![choice(Some(4..12))], &*make);
    whole.run(1..6);
    alone.run(1..6);
    for ((_, all), (_, some)) in whole.values().into_iter().zip(alone.values()) {
        assert_eq!(all[4 * 6..], some);
    }
}

/// A step whose `scale` is not finite changes no bit, whatever the gradients are.
#[test]
fn a_step_with_a_bad_scale_changes_nothing() {
    let device = Device::cpu();
    for (name, make) in optimizers() {
        let mut training = Training::new(&device, whole(&NAMES), &*make);
        training.run(1..3);
        let before = training.values();
        for scale in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            training.step_with(3, scale);
            assert_eq!(training.values(), before, "{name}");
        }
        training.step_with(3, SCALE);
        assert_ne!(training.values(), before, "{name}");
    }
}

/// A step with bf16 state is a step of the widened state, rounded to nearest.
#[test]
fn bf16_state_is_rounded_once_per_step() {
    let device = Device::cpu();
    let config = AdamWConfig { state_dtype: DType::BF16, ..AdamWConfig::default() };
    let mut narrow = Training::new(&device, whole(&NAMES), &*adamw(config));
    let mut wide = Training::new(&device, whole(&NAMES), &*adamw(AdamWConfig::default()));
    for step in 1..6 {
        narrow.run(step..step + 1);
        wide.run(step..step + 1);
        for state in wide.rule.state() {
            for (_, tensor) in state.tensors {
                let rounded = ops::cast(&tensor, DType::BF16).unwrap();
                ops::copy_into(&ops::cast(&rounded, DType::F32).unwrap(), &tensor).unwrap();
            }
        }
        assert_eq!(narrow.values(), wide.values());
    }
    let state = narrow.rule.state();
    assert!(state[0].tensors.iter().all(|(_, tensor)| tensor.dtype() == DType::BF16));
}

/// Stochastic rounding depends on the seed, and moves weights that rounding to nearest
/// leaves unchanged.
#[test]
fn stochastic_rounding_moves_bf16_weights() {
    let device = Device::cpu();
    let train = |rounding: Rounding, seed: u64| {
        let config = AdamWConfig { rounding, seed, weight_decay: 0.0, ..AdamWConfig::default() };
        let choice = Choice { dtype: DType::BF16, ..Choice::whole("experts") };
        let mut training = Training::new(&device, vec![choice], &*adamw(config));
        let ones = ops::full(&device, &[3, 4, 6], DType::BF16, 1.0).unwrap();
        ops::copy_into(&ones, &training.parts[0].value().unwrap()).unwrap();
        let scalar = |x: f32| Tensor::scalar(&device, x).unwrap();
        for step in 1..=4 {
            let scalars = ops::StepScalars {
                learning_rate: &scalar(1e-3),
                step: &scalar(step as f32),
                scale: &scalar(SCALE),
            };
            let gradients = training.gradients(step);
            training.rule.step(&gradients, scalars).unwrap();
        }
        f32s(&training.parts[0].value().unwrap())
    };
    // Half a unit below 1 is 2^-9.
    assert!(train(Rounding::Nearest, 1).iter().all(|x| *x == 1.0));
    let moved = train(Rounding::Stochastic, 1);
    assert!(moved.iter().any(|x| *x != 1.0) && moved.contains(&1.0));
    assert_ne!(train(Rounding::Stochastic, 2), moved);
}

/// A learning-rate factor multiplies the learning rate, and a factor of 0 freezes.
#[test]
fn groups_change_learning_rates_and_decays() {
    let device = Device::cpu();
    let group = |factor: f64, weight_decay: Option<f64>| Group {
        pattern: "*all".into(),
        learning_rate_factor: factor,
        weight_decay,
    };
    type Make = fn(&[OptimizerPart], &Groups) -> Box<dyn UpdateRule>;
    let makes: [Make; 4] = [
        |parts, groups| Box::new(AdamW::new(parts, AdamWConfig::default(), groups).unwrap()),
        |parts, groups| {
            let config = SgdConfig { weight_decay: 0.01, ..SgdConfig::default() };
            Box::new(Sgd::new(parts, config, groups).unwrap())
        },
        |parts, groups| {
            let config = LionConfig { weight_decay: 0.01, ..LionConfig::default() };
            Box::new(Lion::new(parts, config, groups).unwrap())
        },
        |parts, groups| Box::new(Muon::new(parts, MuonConfig::default(), groups).unwrap()),
    ];
    for make in makes {
        let train = |group: Option<Group>| {
            let groups = group.map(|group| Groups::new(vec![group], &NAMES).unwrap());
            let groups = groups.unwrap_or_default();
            let make = move |parts: &[OptimizerPart]| make(parts, &groups);
            let mut training = Training::new(&device, whole(&NAMES), &make);
            let start = training.values();
            training.run(1..2);
            let distances = training.values().into_iter().zip(start).take(4);
            let distances = distances.map(|((_, now), (_, start))| {
                let squares = now.iter().zip(start).map(|(now, start)| (now - start).powi(2));
                squares.sum::<f32>().sqrt()
            });
            distances.collect::<Vec<f32>>()
        };
        let usual = train(None);
        let [_, tall, halved, _] = train(Some(group(0.5, None)))[..] else { unreachable!() };
        // Only `tall` ends in `all`.
        assert_relative_eq!(tall, 0.5 * usual[1], max_relative = 1e-5);
        assert_eq!(halved, usual[2]);
        assert_eq!(train(Some(group(0.0, None)))[1], 0.0);
        assert_ne!(train(Some(group(1.0, Some(0.5))))[1], usual[1]);
    }
}

/// Muon's AdamW updates parameters with fewer than two dims and those that `adamw_names` matches.
#[test]
fn muon_leaves_other_parameters_to_adamw() {
    let device = Device::cpu();
    let config = MuonConfig { adamw_names: vec!["wid*".into()], ..MuonConfig::default() };
    let mut all = Training::new(&device, whole(&NAMES), &*muon(config));
    let adamw = adamw(AdamWConfig::default());
    let mut others = Training::new(&device, whole(&["wide", "bias"]), &*adamw);
    let muon = muon(MuonConfig::default());
    let mut matrices = Training::new(&device, whole(&MATRICES[1..]), &*muon);
    for run in [&mut all, &mut others, &mut matrices] {
        run.run(1..4);
    }
    let names = |training: &Training| -> Vec<(String, usize)> {
        let state = training.rule.state().into_iter();
        state.map(|state| (state.name.to_owned(), state.tensors.len())).collect()
    };
    let expected = [("momentum_buffer", 2), ("exp_avg", 2), ("exp_avg_sq", 2)];
    assert_eq!(names(&all), expected.map(|(name, count)| (name.to_owned(), count)));

    let all = all.values();
    for expected in others.values().into_iter().chain(matrices.values()) {
        assert!(all.contains(&expected), "{}", expected.0);
    }
}

/// A gradient that is only rounding noise is not made an update.
#[test]
fn muon_skips_directions_of_rounding_noise() {
    let device = Device::cpu();
    let make = muon(MuonConfig { weight_decay: 0.0, ..MuonConfig::default() });
    for (scale, updates) in [(1e-3, true), (1e-12, false)] {
        let mut training = Training::new(&device, whole(&MATRICES), &*make);
        let before = training.values();
        training.step_with(1, scale);
        for (now, before) in training.values().iter().zip(&before).take(MATRICES.len()) {
            assert_eq!(now != before, updates, "{} with a scale of {scale}", now.0);
        }
    }
}
