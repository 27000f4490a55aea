//! The crate trains, is killed, resumes and samples; its kernels agree with the CPU.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use meshgrad::autograd::{Tolerance, gradcheck};
use meshgrad::ckpt::Committed;
use meshgrad::opcheck::{Case, Closeness, compare};
use meshgrad::prelude::*;
use meshgrad::train::events::Event;
use outside::activation::squared_relu;

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_outside"))
}

/// Every file of a checkpoint, with its content.
fn files(checkpoint: &Path) -> BTreeMap<String, Vec<u8>> {
    let committed = Committed::open(checkpoint).unwrap();
    committed.verify().unwrap();
    let names = committed.files().map(|(name, _)| name.to_owned());
    names
        .map(|name| {
            let content = std::fs::read(checkpoint.join(&name)).unwrap();
            (name, content)
        })
        .collect()
}

/// A run that is killed in the middle of a step, after its optimizer, and resumed has the bits and
/// the sample of an undisturbed one.
#[test]
fn a_killed_run_resumes_exactly() {
    let temp = tempfile::tempdir().unwrap();
    let run = |name: &str| {
        let output = program().arg(temp.path().join(name)).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        String::from_utf8(output.stdout).unwrap()
    };
    let whole = run("whole");

    for step in [6, 11] {
        let mut killed = program()
            .arg(temp.path().join("killed"))
            .arg(step.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(killed.stdout.take().unwrap()).lines();
        let halted = lines.map_while(Result::ok).any(|line| line == "halted");
        killed.kill().unwrap();
        killed.wait().unwrap();
        assert!(halted, "the run ended before step {step}");
    }
    let resumed = run("killed");
    assert!(resumed.contains("resuming after step"), "{resumed}");

    let [whole_end, resumed_end] =
        ["whole", "killed"].map(|name| files(&temp.path().join(name).join("step-000012")));
    assert!(whole_end.contains_key("trainer/sum/model.safetensors"));
    assert!(whole_end == resumed_end);
    let sample = |output: &str| {
        let at = output.find("sample after step 12").unwrap();
        output[at..].to_owned()
    };
    assert_eq!(sample(&whole), sample(&resumed));
}

/// The model's tables are in the run folder. A run resumes with other values of `[loss]`, but not
/// of `[model]`.
#[test]
fn the_tables_of_the_model_belong_to_the_run() {
    let temp = tempfile::tempdir().unwrap();
    let train = |sets: &[&str]| outside::train(&Device::cpu(), temp.path(), sets, |_| ());
    let steps = "train.steps=2";
    train(&[steps, "model.width=8"]).unwrap();
    let written = std::fs::read_to_string(temp.path().join("config.toml")).unwrap();
    for line in ["[model]\nwidth = 8\n", "[loss]\nsmoothing = 0.1\n"] {
        assert!(written.contains(line), "{written}");
    }

    let error = train(&[steps]).unwrap_err().to_string();
    assert!(
        error
            .contains("step-000002 was saved with model.width 8, but it is now 32; change it back"),
        "{error}"
    );
    let error = train(&[steps, "model.widht=8"]).unwrap_err().to_string();
    assert_eq!(error, "unknown key `model.widht` (--set); did you mean `model.width`?");
    train(&["train.steps=3", "model.width=8", "loss.smoothing=0.2"]).unwrap();
}

/// A checkpoint, loaded on its own, generates the text that the run generated, even if the run
/// averages its weights.
#[test]
fn a_checkpoint_samples_as_its_run() {
    for decay in ["0", "0.8"] {
        let temp = tempfile::tempdir().unwrap();
        let text = Arc::new(Mutex::new(String::new()));
        let seen = text.clone();
        let on_event = move |event: Event<'_>| {
            if let Event::Sampled { text, .. } = event {
                *seen.lock().unwrap() = text.to_owned();
            }
        };
        let device = Device::cpu();
        let sets = ["model.width=16", &format!("optimizer.ema_decay={decay}")];
        let summary = outside::train(&device, temp.path(), &sets, on_event).unwrap();
        // The seed is the run's seed plus the step.
        let sampled = |seed| outside::sampled(&device, &summary.checkpoint, seed).unwrap();
        assert_eq!(sampled(13), *text.lock().unwrap());
        assert_ne!(sampled(14), sampled(13));
    }
}

/// The loss falls.
#[test]
fn the_model_learns() {
    let temp = tempfile::tempdir().unwrap();
    let losses = Arc::new(Mutex::new(Vec::new()));
    let seen = losses.clone();
    let on_event = move |event: Event<'_>| {
        if let Event::Measured { record } = event {
            seen.lock().unwrap().push(record.loss);
        }
    };
    outside::train(&Device::cpu(), temp.path(), &["train.steps=40"], on_event).unwrap();
    let losses = losses.lock().unwrap();
    assert_eq!(losses.len(), 40);
    assert!(losses[39] < 0.75 * losses[0], "{losses:?}");
}

/// The op's gradient agrees with finite differences; its kernels, on the emulator, with the CPU.
#[test]
fn the_kernels_agree_with_the_cpu() {
    let cpu = Device::cpu();
    let numbers: Vec<f64> = (0..9 * 64).map(|i| (f64::from(i) * 0.7 + 0.3).sin()).collect();
    let exact = Tensor::from_slice(&cpu, &[9, 64], &numbers).unwrap();
    let op = |x: &[Var]| Ok(vec![squared_relu(&x[0])?]);
    let few = ops::copy(&exact.slice(0, 0..2).unwrap()).unwrap();
    gradcheck(op, &[few], Tolerance::default()).unwrap();

    let gpu = Device::emulator(0).unwrap();
    for (dtype, closeness) in
        [(DType::F32, Closeness::Elements(1e-6)), (DType::BF16, Closeness::Elements(1e-2))]
    {
        let x = ops::to_device(&ops::cast(&exact, dtype).unwrap(), &gpu).unwrap();
        let case = |x: Tensor| Case::new("squared_relu", vec![x], op);
        compare(&case(x), &case(exact.clone()), closeness).unwrap();
    }
}

/// The same program trains on the emulated GPU, with the kernels.
#[test]
fn the_model_trains_on_the_emulator() {
    let losses = |device: &Device| {
        let temp = tempfile::tempdir().unwrap();
        let summary = outside::train(device, temp.path(), &["train.steps=1"], |_| ()).unwrap();
        summary.val_loss.unwrap()
    };
    let (cpu, gpu) = (losses(&Device::cpu()), losses(&Device::emulator(0).unwrap()));
    assert!((gpu / cpu - 1.0).abs() < 1e-4, "{gpu} and {cpu}");
}
