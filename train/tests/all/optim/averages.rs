//! Averages of weights.

use meshgrad_runtime::{DType, Device, Tensor, ops};
use meshgrad_train::optim::Ema;

use crate::optim::cases::cases;
use crate::optim::training::{
    Choice, NAMES, SCALE, STEPS, Training, distance, f32s, fixture, whole,
};

const DECAY: f64 = 0.9;

/// The averages after `steps` steps of AdamW.
fn averages(decay: f64, scale: f32) -> Vec<(String, Vec<f32>)> {
    let make = &cases()[0].make;
    let device = Device::cpu();
    let mut training = Training::new(&device, whole(&NAMES), &**make);
    let one = Tensor::scalar(&device, 1.0f32).unwrap();
    let ema = Ema::new(&training.parts, decay).unwrap();
    for step in 1..=STEPS {
        training.step_with(step, scale);
        ema.update(&one).unwrap();
    }
    let tensors = ema.state().tensors.into_iter();
    tensors.map(|(name, tensor)| (name, f32s(&tensor))).collect()
}

#[test]
fn averages_equal_torch() {
    let further = |decay: f64, scale: f32| {
        let averages = averages(decay, scale).into_iter();
        let further = averages.filter(|(name, values)| {
            distance(values, &fixture(&format!("adamw/ema/{name}")).values) > 2e-6
        });
        further.count()
    };
    assert_eq!(further(DECAY, SCALE), 0);
    assert_eq!(further(DECAY + 0.001, SCALE), NAMES.len());
    assert_eq!(further(0.1, SCALE), NAMES.len());
}

/// An evaluation with the averages leaves the weights as they were, even if their dtype cannot hold
/// the averages.
#[test]
fn weights_are_restored() {
    let device = Device::cpu();
    for dtype in [DType::F32, DType::BF16] {
        let choices = NAMES.map(|name| Choice { dtype, ..Choice::whole(name) });
        let make = &cases()[0].make;
        let mut training = Training::new(&device, choices.to_vec(), &**make);
        let one = Tensor::scalar(&device, 1.0f32).unwrap();
        let ema = Ema::new(&training.parts, DECAY).unwrap();
        training.run(1..4);
        ema.update(&one).unwrap();

        let weights = |training: &Training| -> Vec<Vec<f32>> {
            training.parts.iter().map(|part| f32s(&part.value().unwrap())).collect()
        };
        let before = weights(&training);
        let rounded = |name_and_tensor: &(_, meshgrad_runtime::Tensor)| {
            f32s(&ops::cast(&name_and_tensor.1, dtype).unwrap())
        };
        let averages: Vec<Vec<f32>> = ema.state().tensors.iter().map(rounded).collect();

        let originals = ema.apply().unwrap();
        assert_eq!(weights(&training), averages);
        assert_ne!(averages, before);
        originals.restore().unwrap();
        assert_eq!(weights(&training), before);

        let kept = ema.state().tensors.iter().map(|(_, tensor)| f32s(tensor)).collect::<Vec<_>>();
        ema.update(&Tensor::scalar(&device, f32::NAN).unwrap()).unwrap();
        let now = ema.state().tensors.iter().map(|(_, tensor)| f32s(tensor)).collect::<Vec<_>>();
        assert_eq!(now, kept);
    }
}

#[test]
fn a_decay_is_a_share() {
    let make = &cases()[0].make;
    let training = Training::new(&Device::cpu(), whole(&NAMES), &**make);
    assert!(Ema::new(&training.parts, 1.5).is_err());
}
