//! The trainer: events in order, steps that a subscriber stops, and validation with averages.

use std::sync::{Arc, Mutex};

use approx::{assert_relative_eq, assert_relative_ne};
use meshgrad_autograd::{Init, Module, Param, Result, Spec, Tape, ops};
use meshgrad_comm::{Local, LocalRank, Rank, Redistributor};
use meshgrad_mesh::Mesh;
use meshgrad_models::{Compute, Loss, Model};
use meshgrad_runtime::{DType, Device, Error, Tensor};
use meshgrad_train::config::{Config, NoTables};
use meshgrad_train::events::{Event, Outcome};
use meshgrad_train::optimizer::Optimizer;
use meshgrad_train::trainer::Trainer;

/// Fits `weight * x` to 1.
#[derive(Module)]
#[module(crate = meshgrad_autograd)]
struct Slope {
    weight: Param,
}

impl Model for Slope {
    type Batch = Tensor;
    type Stream = ();

    fn loss(&self, x: &Tensor, _: Compute) -> Result<Loss> {
        let y = ops::mul(
            &self.weight.var_as(DType::F32)?,
            &meshgrad_autograd::Var::constant(x.clone()),
        )?;
        let error = ops::affine(&y, 1.0, -1.0)?;
        let weight = Tensor::scalar(x.device(), x.elements() as f32)?;
        Ok(Loss::new(ops::sum(&ops::mul(&error, &error)?, &[0])?, weight))
    }
}

fn trainer() -> Trainer<Slope> {
    trainer_with("optimizer.ema_decay=0")
}

fn trainer_with(set: &str) -> Trainer<Slope> {
    let device = Device::cpu();
    let model = Slope { weight: Param::new("weight", [3], Init::Normal { std: 1.0 }) };
    model.materialize(&device, 1).unwrap();
    // With this optimizer, adding a gradient twice changes the step.
    let plain = "optimizer = { name = 'sgd', learning_rate = 0.01, max_grad_norm = 0 }
                 schedule = { kind = 'constant', warmup_steps = 0 }";
    let config = Config::parse::<NoTables>(plain, "the test", &[set.parse().unwrap()]).unwrap();
    Trainer::new(model, &config, &device).unwrap()
}

/// Parameters that have values may not have one name either: a checkpoint would store one of them.
#[test]
fn parameters_with_one_name_are_not_trained() {
    let device = Device::cpu();
    let twice = ["weight"; 2].map(|name| Param::new(name, [3], Init::Ones));
    twice.iter().for_each(|param| param.materialize(&device, 1).unwrap());
    let optimizer = Optimizer::new(&twice, &device, &Config::default().optimizer, 1);
    let error = optimizer.err().unwrap().to_string();
    assert!(
        error.starts_with("`0` and `1` are two parameters or buffers named `weight`"),
        "{error}"
    );
}

/// Stochastic rounding follows from the seed of the run, and needs a parameter that it rounds.
#[test]
fn stochastic_rounding_follows_the_seed() {
    let device = Device::cpu();
    let trained = |dtype: DType, sets: &[&str]| -> Result<Vec<f32>> {
        let spec = Spec { dtype, ..Spec::new([3], Init::Ones) };
        let model = Slope { weight: Param::with_spec("weight", spec) };
        model.materialize(&device, 1)?;
        let sets: Vec<_> = sets.iter().map(|set| set.parse().unwrap()).collect();
        let config = Config::parse::<NoTables>("", "the test", &sets)?;
        let mut trainer = Trainer::new(model, &config, &device)?;
        for step in 1..=30 {
            let batch = Tensor::from_slice(&device, &[3], &[2.0f32, 3.0, 4.0])?;
            let _ = trainer.step(step, [Ok(batch)])?;
        }
        let value = trainer.model.weight.value()?;
        ops::cast(&value, DType::F32)?.to_vec()
    };
    let stochastic = "optimizer.rounding=stochastic";
    let once = trained(DType::BF16, &[stochastic]).unwrap();
    assert_eq!(trained(DType::BF16, &[stochastic]).unwrap(), once);
    let seeded = [stochastic, "train.seed=2"];
    assert_ne!(trained(DType::BF16, &seeded).unwrap(), once);
    let other_seed = trained(DType::BF16, &["train.seed=2"]).unwrap();
    assert_eq!(trained(DType::BF16, &[]).unwrap(), other_seed);

    let error = trained(DType::F32, &[stochastic]).unwrap_err().to_string();
    assert!(error.contains("no bf16 parameter: `weight` is f32; use rounding nearest"), "{error}");
}

/// Step `step`, of two microbatches.
fn step(trainer: &mut Trainer<Slope>, step: u64) -> Result<()> {
    let weight = trainer.model.weight.value().unwrap();
    let batch = |at: u64| {
        let values = [step as f32, at as f32, 2.0];
        Tensor::from_slice(weight.device(), &[3], &values)
    };
    trainer.step(step, [batch(1), batch(2)]).map(|_| ())
}

fn weights(trainer: &Trainer<Slope>) -> Vec<f32> {
    trainer.model.weight.value().unwrap().to_vec().unwrap()
}

type States = Vec<(String, Vec<f32>)>;

/// The weights, and the states except the number of skipped steps.
fn states(model: &Slope, optimizer: &Optimizer) -> States {
    let mut all = vec![("weights".to_owned(), model.weight.value().unwrap().to_vec().unwrap())];
    for state in optimizer.state().into_iter().filter(|state| state.name != "skipped") {
        let values = state.tensors.into_iter().map(|(_, tensor)| tensor.to_vec::<f32>().unwrap());
        all.push((state.name.to_owned(), values.flatten().collect()));
    }
    all
}

/// The bits after training with a scale of the batch for each step.
fn trained(rule: &str, skips: bool, scales: &[f32]) -> (States, f32) {
    let device = Device::cpu();
    let sets = [
        format!("optimizer.name={rule}"),
        "optimizer.ema_decay=0.9".to_owned(),
        format!("optimizer.skip_nonfinite={skips}"),
        "schedule.kind=constant".to_owned(),
        "schedule.warmup_steps=0".to_owned(),
    ];
    let sets: Vec<_> = sets.iter().map(|set| set.parse().unwrap()).collect();
    let config = Config::parse::<NoTables>("", "the test", &sets).unwrap();
    let model = Slope { weight: Param::new("weight", [3], Init::Normal { std: 1.0 }) };
    model.materialize(&device, 1).unwrap();
    let mut trainer = Trainer::new(model, &config, &device).unwrap();
    for (at, scale) in scales.iter().enumerate() {
        let x = [1.0, 2.0, 0.5].map(|x| x * scale);
        let batch = Tensor::from_slice(&device, &[3], &x).unwrap();
        trainer.step(at as u64 + 1, [Ok(batch)]).unwrap();
    }
    let skipped = trainer.optimizer.state().into_iter().find(|state| state.name == "skipped");
    let skipped = skipped.map_or(0.0, |state| state.tensors[0].1.item::<f32>().unwrap());
    (states(&trainer.model, &trainer.optimizer), skipped)
}

/// With `skip_nonfinite`, training goes on after gradients that are not finite as if their steps
/// had not been: weights, moments, averages and the step count are those of the other steps alone.
#[test]
fn a_skipped_step_leaves_no_trace() {
    for rule in ["adamw", "sgd", "lion"] {
        let (expected, none) = trained(rule, true, &[1.0, 3.0]);
        let (actual, skipped) = trained(rule, true, &[f32::NAN, 1.0, f32::INFINITY, 3.0, 1e30]);
        assert_eq!((none, skipped), (0.0, 3.0));
        assert_eq!(actual, expected, "{rule}");
    }
    // Otherwise the bias corrections of AdamW count the step.
    let counted = trained("adamw", false, &[f32::NAN, 1.0, 3.0]).0;
    assert_ne!(counted, trained("adamw", false, &[1.0, 3.0]).0);
    assert_eq!(trained("adamw", false, &[1.0, 3.0]), trained("adamw", true, &[1.0, 3.0]));
}

/// `apply_unless` reads its condition on the device: 0 applies the step, another value skips it.
#[test]
fn a_step_can_be_skipped_by_a_value_on_the_device() {
    let step = |device: &Device, skip: Option<f32>| {
        let model = Slope { weight: Param::new("weight", [3], Init::Normal { std: 1.0 }) };
        model.materialize(device, 1).unwrap();
        let config = Config::default().optimizer;
        let mut optimizer = Optimizer::new(&model, device, &config, 1).unwrap();
        let optimizer_before = states(&model, &optimizer);
        let compute = Compute::new(DType::F32);
        let x = Tensor::from_slice(device, &[3], &[1.0f32, 2.0, 0.5]).unwrap();
        let x = x.as_replicated().unwrap();
        let (loss, tape) = Tape::record(|| model.loss(&x, compute)).unwrap();
        tape.backward(&loss.total, optimizer.grads()).unwrap();
        optimizer.begin(1, 0.1).unwrap();
        let norm = match skip {
            None => optimizer.apply(&loss.weight).unwrap(),
            Some(skip) => {
                let skip = Tensor::scalar(device, skip).unwrap();
                optimizer.apply_unless(&skip, &loss.weight).unwrap()
            }
        };
        assert!(norm.item::<f32>().unwrap() > 0.0);
        (optimizer_before, states(&model, &optimizer))
    };
    let check = |device: &Device| {
        let (before, applied) = step(device, None);
        assert_ne!(before, applied);
        assert_eq!(step(device, Some(0.0)).1, applied);
        assert_eq!(step(device, Some(1.0)).1, before);
        assert_eq!(step(device, Some(-3.0)).1, before);
        Ok::<_, Error>(())
    };
    check(&Device::cpu()).unwrap();
    // On ranks, a value without a sharding is the same on all of them.
    let on_mesh = |rank: &LocalRank| {
        Redistributor::new(rank).run_on(&Mesh::new(&[2], &["dp"])?, || check(rank.device()))
    };
    Local::run(2, on_mesh).unwrap();
}

/// The first error ends the step, and later subscribers are not called.
#[test]
fn subscribers_are_called_in_order_until_one_fails() {
    let mut trainer = trainer();
    let calls = Arc::new(Mutex::new(Vec::new()));
    for name in ["first", "second", "third"] {
        let calls = calls.clone();
        trainer.events.subscribe(name, move |event| -> Outcome {
            calls.lock().unwrap().push(format!("{name}: {event}"));
            match event {
                Event::ForwardBackwardStarted { step: 1 } if name == "second" => {
                    Err("no such data".into())
                }
                _ => Ok(()),
            }
        });
    }
    let error = step(&mut trainer, 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "subscriber `second` failed at step 1, forward and backward started: no such data"
    );
    let expected = [
        "first: step 1 started",
        "second: step 1 started",
        "third: step 1 started",
        "first: step 1, forward and backward started",
        "second: step 1, forward and backward started",
    ];
    assert_eq!(*calls.lock().unwrap(), expected);
}

/// A step that is stopped before the optimizer changes nothing: the repeated step gives the bits of
/// an undisturbed one.
#[test]
fn a_stopped_step_can_be_repeated() {
    let mut undisturbed = trainer();
    step(&mut undisturbed, 1).unwrap();

    type Stops = fn(&Event<'_>) -> bool;
    let stops: [Stops; 4] = [
        |event| matches!(event, Event::StepStarted { .. }),
        |event| matches!(event, Event::ForwardBackwardStarted { .. }),
        |event| matches!(event, Event::ForwardBackwardFinished { .. }),
        |event| matches!(event, Event::OptimizerStarted { .. }),
    ];
    for stops in stops {
        let mut trainer = trainer();
        let before = weights(&trainer);
        let mut left = 2;
        trainer.events.subscribe("stop", move |event| {
            let stop = stops(&event) && left > 0;
            left -= u32::from(stop);
            if stop { Err("stop".into()) } else { Ok(()) }
        });
        for _ in 0..2 {
            step(&mut trainer, 1).unwrap_err();
            assert_eq!(weights(&trainer), before);
        }
        step(&mut trainer, 1).unwrap();
        assert_eq!(weights(&trainer), weights(&undisturbed));
    }
}

/// A subscriber sees the gradients that the optimizer gets, and may change them.
#[test]
fn subscribers_may_change_gradients() {
    let mut trainer = trainer();
    let before = weights(&trainer);
    trainer.events.subscribe("freeze", |event| {
        if let Event::ForwardBackwardFinished { gradients, weight, .. } = event {
            let [(param, gradient)] = gradients else {
                return Err("one parameter".into());
            };
            assert_eq!((param.name(), weight.item::<f32>()?), ("weight", 6.0));
            assert_ne!(gradient.to_vec::<f32>()?, [0.0; 3]);
            ops::fill_into(gradient, 0.0)?;
        }
        Ok(())
    });
    step(&mut trainer, 1).unwrap();
    assert_eq!(weights(&trainer), before);
}

/// Validation computes with the averages of the weights and leaves the weights as they are.
#[test]
fn validation_uses_the_averages() {
    let mut trainer = trainer_with("optimizer.ema_decay=0.75");
    let before = weights(&trainer);
    step(&mut trainer, 1).unwrap();
    let after = weights(&trainer);
    let average = before.iter().zip(&after).map(|(a, b)| 0.75 * a + 0.25 * b);
    let average: Vec<f32> = average.collect();

    let x = [3.0, -1.0, 2.0];
    let device = trainer.model.weight.value().unwrap().device().clone();
    let batch = Tensor::from_slice(&device, &[3], &x).unwrap();
    let validated = trainer.validate(1, [Ok(batch)]).unwrap();
    assert_eq!(weights(&trainer), after);

    let loss = |weights: &[f32]| {
        let errors = weights.iter().zip(x).map(|(w, x)| w * x - 1.0);
        f64::from(errors.map(|error| error * error).sum::<f32>()) / 3.0
    };
    assert_relative_eq!(validated, loss(&average), max_relative = 1e-5);
    assert_relative_ne!(validated, loss(&after), max_relative = 1e-3);
}
