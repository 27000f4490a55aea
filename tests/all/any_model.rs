//! A model that meshgrad does not know trains, resumes, samples and is saved like Qwen3.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use meshgrad::autograd::Spec;
use meshgrad::models::folder;
use meshgrad::models::model::Metrics;
use meshgrad::prelude::*;
use meshgrad::runtime::Kind;
use meshgrad::runtime::ops::StepScalars;
use meshgrad::train;
use meshgrad::train::config::{NoTables, ScheduleConfig};
use meshgrad::train::events::Event;
use meshgrad::train::metrics;
use meshgrad::train::optim::{Granularity, OptimizerPart, OptimizerState, UpdateRule};
use meshgrad::train::session::{Session, Summary};

use crate::on_disk::{Files, checkpoint_files};

/// Predicts a token from the one before it, and counts the tokens it was trained on.
#[derive(Module)]
struct Bigram {
    embedding: Param,
    inside: Linear,
    head: Linear,
    seen: Buffer,
}

impl Bigram {
    fn new(vocabulary: usize) -> Bigram {
        Bigram {
            embedding: Param::new("embedding", [vocabulary, 24], Init::Normal { std: 0.1 }),
            inside: Linear::new("inside", 24, 24).bias(true),
            head: Linear::new("head", 24, vocabulary),
            seen: Buffer::new("seen", [1], Init::Zeros),
        }
    }

    fn hidden(&self, ids_bt: &Tensor, dtype: DType) -> Result<Var> {
        let x_btd = ops::embedding(&self.embedding.var_as(dtype)?, ids_bt)?.as_activation()?;
        &x_btd + &ops::silu(&self.inside.forward(&x_btd)?)?
    }
}

impl Model for Bigram {
    type Batch = TokenBatch;
    type Stream = ();

    fn loss(&self, batch: &TokenBatch, compute: Compute) -> Result<Loss> {
        let x_btd = self.hidden(&batch.ids, compute.dtype)?;
        let head = self.head.weight.var_as(compute.dtype)?;
        let (sum, weight) = ops::linear_cross_entropy(&x_btd, &head, &batch.labels, IGNORE_INDEX)?;
        Ok(Loss { statistics: vec![weight.clone()], ..Loss::new(sum, weight) })
    }

    fn after_step(&self, statistics: &[Tensor], _: &Tensor) -> Result<()> {
        let seen = self.seen.value()?;
        ops::copy_into(&ops::add(&seen, &statistics[0])?, &seen)
    }

    fn metrics(&self, statistics: &[Vec<f32>]) -> Metrics {
        Metrics { extra: vec![("counted".into(), statistics[0][0].into())], ..Metrics::default() }
    }
}

impl Generate for Bigram {
    type Cache = ();

    fn vocab_size(&self) -> usize {
        self.embedding.shape()[0]
    }

    fn cache(&self, _: &Device, _: DType, _: usize) -> Result<()> {
        Ok(())
    }

    fn next_logits(&self, ids_bt: &Tensor, _: &mut (), dtype: DType) -> Result<Tensor> {
        let last = ids_bt.extent(-1)? - 1;
        let x_b1d = self.hidden(&ids_bt.slice(1, last..last + 1)?, dtype)?;
        let logits_b1v = self.head.forward(&x_b1d)?;
        ops::reshape(logits_b1v.value(), &[ids_bt.extent(0)?, self.vocab_size()])
    }
}

const CONFIG: &str = r#"
    train = { steps = 6, batch_size = 6, micro_batch_size = 2, seq_len = 33 }
    data = { paths = ["TEXT"], tokenizer = "byte" }
    checkpoint = { every = 2, keep = 0 }
    sample = { every = 3, tokens = 4 }
    log = { val_every = 4, val_batches = 2 }
    optimizer = { learning_rate = 0.01 }
"#;

fn config(sets: &[&str]) -> Config {
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/any_model.rs");
    let text = CONFIG.replace("TEXT", text.to_str().unwrap());
    let sets: Vec<_> = sets.iter().map(|set| set.parse().unwrap()).collect();
    Config::parse::<NoTables>(&text, "the test", &sets).unwrap()
}

fn trained(run: &Path, stop_after: Option<u64>) -> Summary {
    let (config, device) = (config(&["schedule.warmup_steps=1"]), Device::cpu());
    let session = Session::new(&config, &device).run_dir(run);
    let session = session.stop_after(stop_after);
    session.train(|data, _| Ok(Bigram::new(data.tokenizer.vocab_size()))).unwrap()
}

#[test]
fn a_run_that_was_stopped_and_resumed_gives_the_same_bits() {
    let temp = tempfile::tempdir().unwrap();
    let [whole, parts] = ["whole", "parts"].map(|name| temp.path().join(name));
    let summary = trained(&whole, None);
    for stop_after in [Some(1), Some(3), None] {
        trained(&parts, stop_after);
    }

    let last = "step-000006";
    assert!(checkpoint_files(&whole.join(last)) == checkpoint_files(&parts.join(last)));
    assert!(
        checkpoint_files(&whole.join("step-000002"))
            != checkpoint_files(&whole.join("step-000004"))
    );
    assert!(summary.val_loss.unwrap() < 5.6, "{summary:?}");

    // The buffer counted every token once, and the model's own metric is recorded.
    let stored = meshgrad::ckpt::TensorFile::open(
        whole.join(last).join("trainer/buffers/model.safetensors"),
    );
    let seen = stored.unwrap().read("seen").unwrap();
    assert_eq!(f32::from_le_bytes(seen[..4].try_into().unwrap()), 6.0 * 6.0 * 33.0);
    let records = metrics::read(&parts.join("metrics.jsonl")).unwrap();
    assert_eq!(records.len(), 6);
    assert!(records.iter().all(|record| record.extra["counted"] == 198.0));
    assert!(records[5].loss < records[0].loss);
}

/// A session keeps the existing values of a model, initializes the others, and trains only
/// parameters that are not frozen. Stopped and resumed, it gives the same bits.
#[test]
fn a_low_rank_update_of_a_loaded_model_is_trained_alone() {
    let temp = tempfile::tempdir().unwrap();
    let [whole, parts] = ["whole", "parts"].map(|name| temp.path().join(name));
    let device = Device::cpu();
    let loaded = |vocabulary: usize| {
        let mut model = Bigram::new(vocabulary);
        model.materialize(&device, 99).unwrap();
        model.freeze();
        model.inside.add_lora(2, 4.0);
        model
    };
    let train = |run: &Path, stop_after: Option<u64>| {
        let config = config(&["optimizer.ema_decay=0.5", "optimizer.name=lion"]);
        let session = Session::new(&config, &device).run_dir(run);
        let session = session.stop_after(stop_after);
        let trained = session.train(|data, _| Ok(loaded(data.tokenizer.vocab_size())));
        trained.unwrap()
    };
    train(&whole, None);
    train(&parts, Some(3));
    train(&parts, None);
    let last = whole.join("step-000006");
    assert!(checkpoint_files(&last) == checkpoint_files(&parts.join("step-000006")));

    let stored = meshgrad::ckpt::TensorFile::open(last.join("model.safetensors")).unwrap();
    let mut changed = Vec::new();
    for param in loaded(257).params() {
        let bytes = stored.read(param.name()).unwrap();
        match param.value() {
            Ok(value) => {
                let values = value.to_vec::<f32>().unwrap().into_iter();
                let values: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
                assert!(values == bytes, "{} changed", param.name());
            }
            Err(_) => changed.push((param.name().to_owned(), bytes.iter().any(|byte| *byte != 0))),
        }
    }
    let expected = ["inside.lora_A.weight", "inside.lora_B.weight"];
    assert_eq!(changed, expected.map(|name| (name.to_owned(), true)));
}

#[test]
fn a_module_is_saved_and_loaded_under_its_own_names() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("model");
    let device = Device::cpu();
    let saved = Bigram::new(11);
    saved.materialize(&device, 7).unwrap();
    ops::fill_into(&saved.seen.value().unwrap(), 42.0).unwrap();
    folder::save(&saved, &dir).unwrap();
    assert!(folder::save(&saved, &dir).is_err(), "the folder exists");

    let loaded = Bigram::new(11);
    folder::load(&loaded, &dir, &device).unwrap();
    let bits = |model: &Bigram| {
        let params = model.params().into_iter().map(|it| it.value().unwrap());
        let buffers = model.buffers().into_iter().map(|it| it.value().unwrap());
        let all = params.chain(buffers);
        all.map(|it| it.to_vec::<f32>().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(bits(&saved), bits(&loaded));

    let error = folder::load(&Bigram::new(12), &dir, &device).unwrap_err().to_string();
    assert!(error.contains("embedding"), "{error}");
}

/// Every event of a run, in order. The metrics of a step are read one step late, unless a pause
/// follows it.
#[test]
fn a_run_reports_its_events() {
    let temp = tempfile::tempdir().unwrap();
    let sets = ["train.steps=2", "checkpoint.every=0", "log.val_every=0"];
    let (config, device) = (config(&sets), Device::cpu());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    let session =
        Session::new(&config, &device).run_dir(temp.path()).subscribe("log", move |event| {
            log.lock().unwrap().push(event.to_string());
            Ok(())
        });
    let build = |data: &meshgrad::train::data::Data| Bigram::new(data.tokenizer.vocab_size());
    session.train(|data, _| Ok(build(data))).unwrap();

    let step = |step: u64| {
        let actions = (0..3).flat_map(|at| [format!("0F{at}"), format!("0B{at}")]);
        let mut names = vec!["started".to_owned(), "forward and backward started".to_owned()];
        names.extend(actions.map(|action| format!("action {action} finished")));
        let last = ["forward and backward finished", "optimizer started", "optimizer finished"];
        names.extend(last.map(str::to_owned));
        let comma = |name: &String| format!("step {step}, {name}");
        let mut all: Vec<String> = names.iter().map(comma).collect();
        all[0] = format!("step {step} started");
        all.push(format!("step {step} finished"));
        all
    };
    let checkpoint = temp.path().join("step-000002");
    let expected = [
        vec!["configuration started".into(), "configuration finished".into()],
        step(1),
        step(2),
        vec![
            "step 1, measured".into(),
            "step 2, evaluation started".into(),
            "step 2, evaluation finished".into(),
            "step 2, measured".into(),
            "step 2, checkpoint started".into(),
            format!("checkpoint {} finished", checkpoint.display()),
            "step 2, sampled".into(),
        ],
    ];
    assert_eq!(*seen.lock().unwrap(), expected.concat());
}

/// A subscriber can stop a run early, or end it with an error.
#[test]
fn subscribers_stop_a_run() {
    let temp = tempfile::tempdir().unwrap();
    let (config, device) = (config(&[]), Device::cpu());
    let build = |data: &meshgrad::train::data::Data| Bigram::new(data.tokenizer.vocab_size());

    let stop = Arc::new(AtomicBool::new(false));
    let early = stop.clone();
    let session = Session::new(&config, &device).run_dir(temp.path()).stop_when(&stop).subscribe(
        "early stop",
        move |event| {
            if let Event::StepFinished { step: 3, .. } = event {
                early.store(true, Ordering::Relaxed);
            }
            Ok(())
        },
    );
    let summary = session.train(|data, _| Ok(build(data))).unwrap();
    assert_eq!(summary.step, 3);
    assert!(summary.checkpoint.ends_with("step-000003"));

    let session =
        Session::new(&config, &device).run_dir(temp.path()).subscribe(
            "watch",
            |event| match event {
                Event::Measured { record } if record.step == 5 => Err("step 5 is unlucky".into()),
                _ => Ok(()),
            },
        );
    let error = session.train(|data, _| Ok(build(data))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "subscriber `watch` failed at step 5, measured: step 5 is unlucky"
    );
}

/// Optimizers and schedules, each with keys of its own.
const OPTIMIZERS: [(&str, &[&str]); 5] = [
    ("adamw", &["optimizer.state_dtype=bf16", "optimizer.eps=1e-6"]),
    ("adamw", &["optimizer.ema_decay=0.9"]),
    ("sgd", &["optimizer.nesterov=true"]),
    ("lion", &["optimizer.beta1=0.8"]),
    ("muon", &["optimizer.iterations=3", "optimizer.adamw.beta2=0.99"]),
];
const SCHEDULES: [(&str, &[&str]); 5] = [
    ("constant", &["schedule.warmup_steps=2"]),
    ("linear", &["schedule.min_lr_ratio=0.5"]),
    ("cosine", &["schedule.warmup_steps=3"]),
    ("wsd", &["schedule.warmup_steps=1", "schedule.decay_steps=2", "schedule.curve=poly:0.5"]),
    (
        "phases",
        &[
            "schedule.phases=[{ length = 2, target = 0.5 }, { length = 'rest', target = 1.0, curve = 'cosine' }]",
        ],
    ),
];

/// With every optimizer and schedule, a resumed run gives the bits of an uninterrupted one.
#[test]
fn every_configured_optimizer_and_schedule_resumes_exactly() {
    let groups = "optimizer.groups=[{ pattern = 'embedding', learning_rate_factor = 0.5 }]";
    let mut ends: Vec<Files> = Vec::new();
    for ((name, keys), (kind, steps)) in OPTIMIZERS.into_iter().zip(SCHEDULES) {
        let (name, kind) = (format!("optimizer.name={name}"), format!("schedule.kind={kind}"));
        let sets = [&[&name, &kind, groups], keys, steps].concat();
        let temp = tempfile::tempdir().unwrap();
        let run = |folder: &str, stop_after: Option<u64>| {
            let (config, device) = (config(&sets), Device::cpu());
            let session = Session::new(&config, &device).run_dir(temp.path().join(folder));
            let build = |vocabulary| Ok(Bigram::new(vocabulary));
            let session = session.stop_after(stop_after);
            session.train(|data, _| build(data.tokenizer.vocab_size())).unwrap().checkpoint
        };
        let whole = checkpoint_files(&run("whole", None));
        run("parts", Some(1));
        run("parts", Some(4));
        let parts = checkpoint_files(&run("parts", None));
        assert!(whole == parts, "{sets:?}");
        assert!(ends.iter().all(|other| *other != whole), "{sets:?}");
        ends.push(whole);
    }
    assert!(ends[1].contains_key(Path::new("trainer/ema/model.safetensors")));
    assert!(ends[4].contains_key(Path::new("trainer/momentum_buffer/model.safetensors")));
}

/// bf16 parameters that are rounded at random resume exactly, too.
#[test]
fn stochastic_rounding_resumes_exactly() {
    let rounded = |vocabulary: usize| Bigram {
        embedding: Param::with_spec(
            "embedding",
            Spec { dtype: DType::BF16, ..Spec::new([vocabulary, 24], Init::Normal { std: 0.1 }) },
        ),
        ..Bigram::new(vocabulary)
    };
    let temp = tempfile::tempdir().unwrap();
    let run = |folder: &str, rounding: &str, stop_after: Option<u64>| {
        let set = format!("optimizer.rounding={rounding}");
        let (config, device) = (config(&[&set]), Device::cpu());
        let session = Session::new(&config, &device).run_dir(temp.path().join(folder));
        let session = session.stop_after(stop_after);
        session.train(|data, _| Ok(rounded(data.tokenizer.vocab_size()))).unwrap().checkpoint
    };
    let whole = checkpoint_files(&run("whole", "stochastic", None));
    run("parts", "stochastic", Some(3));
    assert!(whole == checkpoint_files(&run("parts", "stochastic", None)));
    assert!(whole != checkpoint_files(&run("nearest", "nearest", None)));
}

/// If the caller sets a schedule, the configuration's schedule is not read.
#[test]
fn a_schedule_of_the_caller_replaces_an_impossible_one() {
    let temp = tempfile::tempdir().unwrap();
    let mut config = config(&["train.steps=2"]);
    config.schedule = ScheduleConfig::named("wsd").unwrap();
    let device = Device::cpu();
    let train = |own: bool| {
        let mut session = Session::new(&config, &device).run_dir(temp.path());
        if own {
            session = session.schedule(|_| 1.0);
        }
        session.train(|data, _| Ok(Bigram::new(data.tokenizer.vocab_size())))
    };
    let error = train(false).unwrap_err().to_string();
    assert!(error.contains("100 steps, but the run has 2"), "{error}");
    assert_eq!(train(true).unwrap().step, 2);
}

#[test]
fn resuming_with_another_optimizer_is_an_error() {
    let temp = tempfile::tempdir().unwrap();
    trained(temp.path(), Some(2));
    let fails = |sets: &[&str]| {
        let (config, device) = (config(sets), Device::cpu());
        let session = Session::new(&config, &device).run_dir(temp.path());
        let build = |vocabulary| Ok(Bigram::new(vocabulary));
        let result = session.train(|data, _| build(data.tokenizer.vocab_size()));
        result.unwrap_err().to_string()
    };
    let message = fails(&["optimizer.name=lion"]);
    assert!(
        message.contains("was saved with the optimizer adamw, but it is now lion"),
        "{message}"
    );
    let message = fails(&["optimizer.ema_decay=0.5"]);
    assert!(
        message.contains("exp_avg, exp_avg_sq, but it is now exp_avg, exp_avg_sq, ema;"),
        "{message}"
    );
}

/// Subtracts the sign of the gradient, and counts its steps on the device.
struct SignDescent {
    parts: Vec<OptimizerPart>,
    steps: Tensor,
}

impl UpdateRule for SignDescent {
    fn name(&self) -> &str {
        "sign descent"
    }

    fn granularity(&self) -> Granularity {
        Granularity::Element
    }

    fn state(&self) -> Vec<OptimizerState> {
        vec![OptimizerState {
            name: "steps",
            tensors: vec![("steps".to_owned(), self.steps.clone())],
        }]
    }

    fn step(&mut self, gradients: &[Tensor], scalars: StepScalars<'_>) -> train::Result<()> {
        for (part, gradient) in self.parts.iter().zip(gradients) {
            let size = ops::affine(&ops::sqrt(&ops::square(gradient)?)?, 1.0, 1e-12)?;
            let change = ops::mul(&ops::div(gradient, &size)?, scalars.learning_rate)?;
            let param = part.value()?;
            ops::copy_into(&ops::sub(&param, &change)?, &param)?;
        }
        ops::copy_into(&ops::affine(&self.steps, 1.0, 1.0)?, &self.steps)?;
        Ok(())
    }
}

/// The session trains with an optimizer and a schedule of its caller, and resumes them exactly.
#[test]
fn a_session_takes_any_optimizer_and_schedule() {
    let temp = tempfile::tempdir().unwrap();
    let (config, device) = (config(&[]), Device::cpu());
    let run = |folder: &str, stop_after: Option<u64>| {
        let make = |parts: &[OptimizerPart]| {
            let steps = Tensor::zeros(&device, &[1], DType::F32, Kind::OptimizerState)?;
            Ok(SignDescent { parts: parts.to_vec(), steps })
        };
        let session = Session::new(&config, &device)
            .run_dir(temp.path().join(folder))
            .stop_after(stop_after)
            .optimizer(make)
            .schedule(|step: u64| 1.0 / step as f64);
        let build = |vocabulary| Ok(Bigram::new(vocabulary));
        session.train(|data, _| build(data.tokenizer.vocab_size())).unwrap().checkpoint
    };
    let whole = run("whole", None);
    run("parts", Some(3));
    assert!(checkpoint_files(&whole) == checkpoint_files(&run("parts", None)));

    let stored = meshgrad::ckpt::TensorFile::open(whole.join("trainer/steps/model.safetensors"));
    let steps = stored.unwrap().read("steps").unwrap();
    assert_eq!(f32::from_le_bytes(steps[..4].try_into().unwrap()), 6.0);
    let records = metrics::read(&temp.path().join("parts/metrics.jsonl")).unwrap();
    let rates = records.iter().map(|record| record.lr);
    let expected = (1..=6).map(|step| 0.01 * (1.0 / f64::from(step)));
    assert!(rates.eq(expected), "{records:?}");
}
