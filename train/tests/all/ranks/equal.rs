//! Ranks with different settings, data or models do not train together.

use std::error::Error as _;
use std::fs;
use std::path::PathBuf;

use meshgrad_comm::{Local, Rank};
use meshgrad_train::config::Config;
use meshgrad_train::decoder;
use meshgrad_train::session::{Resume, Session, Summary};
use meshgrad_train::{Error, Kind};

use crate::ranks::world::{On, Place};

const TWO: On = On { ranks: 2, sets: &["train.steps=2", "checkpoint.every=0", "sample.every=0"] };

/// Trains with a configuration and a run folder per rank.
fn train(configs: [Config; 2], runs: [PathBuf; 2], stop: [u64; 2]) -> Result<(), String> {
    let trained: meshgrad_comm::Result<Vec<Summary>> = Local::new(2).threads(1).launch(|rank| {
        let own = rank.rank();
        let session = Session::new(&configs[own], rank.device()).on(rank).resume(Resume::Never);
        decoder::train(session.run_dir(&runs[own]).stop_after(stop[own]))
    });
    match trained {
        Ok(_) => Ok(()),
        Err(error) => {
            let cause = error.source().and_then(|source| source.downcast_ref::<Error>()).unwrap();
            assert_eq!(cause.kind(), Kind::Mismatch, "{cause}");
            assert!(cause.to_string().starts_with("the ranks of a run must be equal:"), "{cause}");
            Err(cause.to_string())
        }
    }
}

/// Whatever changes numbers or the order of collectives is an error with key, values and ranks,
/// before anything is written.
#[test]
fn ranks_with_different_settings_are_refused() {
    let place = Place::moe();
    let cases = [
        (
            "optimizer.learning_rate=0.02",
            "optimizer.learning_rate: 0.001 on rank 0, 0.02 on rank 1",
        ),
        ("optimizer.weight_decay=0.5", "optimizer.weight_decay: 0.1 on rank 0, 0.5 on rank 1"),
        ("optimizer.max_grad_norm=7", "optimizer.max_grad_norm: 1.0 on rank 0, 7.0 on rank 1"),
        ("optimizer.ema_decay=0.5", "optimizer.ema_decay: 0.0 on rank 0, 0.5 on rank 1"),
        ("schedule.warmup_steps=1", "schedule.warmup_steps: 2 on rank 0, 1 on rank 1"),
        ("train.seed=9", "train.seed: 1 on rank 0, 9 on rank 1"),
        ("train.batch_size=12", "train.batch_size: 8 on rank 0, 12 on rank 1"),
        ("train.micro_batch_size=2", "train.micro_batch_size: 4 on rank 0, 2 on rank 1"),
        ("train.activation_checkpointing=true", "train.activation_checkpointing: false on rank 0"),
        ("train.dtype=bf16", "train.dtype: \"f32\" on rank 0, \"bf16\" on rank 1"),
        ("model.rope_theta=77.0", "model.rope_theta: "),
        ("model.rms_norm_eps=0.5", "model.rms_norm_eps: "),
        ("model.initializer_range=0.5", "model.initializer_range: "),
        (
            "balancing.bias_update_rate=0.0",
            "balancing.bias_update_rate: 0.001 on rank 0, 0.0 on rank 1",
        ),
        ("parallel.tp=2", "parallel.tp: 1 on rank 0, 2 on rank 1"),
        ("sample.tokens=5", "sample.tokens: 4 on rank 0, 5 on rank 1"),
        ("log.val_batches=1", "log.val_batches: 3 on rank 0, 1 on rank 1"),
        ("data.val_fraction=0.2", "data.val_fraction: 0.1 on rank 0, 0.2 on rank 1"),
    ];
    let run = || place.path("refused");
    for (set, expected) in cases {
        let configs = [place.config(&TWO, &[]), place.config(&TWO, &[set])];
        let error = train(configs, [run(), run()], [2, 2]).unwrap_err();
        assert!(error.contains(expected), "{set}: {error}");
        assert_eq!(error.matches(" on rank 0").count(), 1, "{error}");
        assert!(!run().exists());
    }
    let config = || place.config(&TWO, &[]);
    let error = train([config(), config()], [run(), run()], [2, 1]).unwrap_err();
    assert!(error.contains("stop_after: \"2\" on rank 0, \"1\" on rank 1"), "{error}");
}

/// Paths, output and what only rank 0 does may differ.
#[test]
fn ranks_may_differ_in_paths_and_output() {
    let place = Place::moe();
    let sets = [
        "log.every=3",
        "log.tensorboard=true",
        "log.trace_step=1",
        "checkpoint.keep=1",
        "data.paths=['elsewhere.txt']",
    ];
    let configs = [place.config(&TWO, &[]), place.config(&TWO, &sets)];
    train(configs, [place.path("run"), place.path("run")], [2, 2]).unwrap();
}

/// Of the file of a schedule, the content counts.
#[test]
fn ranks_with_different_schedules_are_refused() {
    let place = Place::dense();
    let config = |name: &str, text: &str| {
        let file = place.path(name);
        fs::write(&file, text).unwrap();
        let schedule = format!("pipeline.schedule='{}'", file.display());
        place.config(&TWO, &["parallel.pp=2", &schedule])
    };
    let run = |name: &str| [place.path(name), place.path(name)];
    let (one, other) = ("0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n", "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n");
    let error =
        train([config("a.csv", one), config("b.csv", other)], run("refused"), [2, 2]).unwrap_err();
    assert!(error.contains("pipeline.schedule: \"a file with digest "), "{error}");
    assert!(!place.path("refused").exists());
    train([config("a.csv", one), config("b.csv", one)], run("run"), [2, 2]).unwrap();
}

/// A rank whose folder has other tokens, or another tokenizer, than that of rank 0.
#[test]
fn ranks_with_different_data_are_refused() {
    let place = Place::moe();
    let sets = ["train.steps=1"];
    for run in ["a", "b"] {
        place.train_alone(run, &sets);
    }
    let config = || place.config(&TWO, &sets);
    let both = || train([config(), config()], [place.path("a"), place.path("b")], [1, 1]);
    let tokens = place.path("b").join("tokens.bin");
    let original = fs::read(&tokens).unwrap();
    let mut damaged = original.clone();
    *damaged.last_mut().unwrap() ^= 1;
    fs::write(&tokens, damaged).unwrap();
    let error = both().unwrap_err();
    assert!(error.contains("digest of data.tokens: \""), "{error}");
    assert!(!error.contains("digest of data.text"), "{error}");
    fs::write(&tokens, original).unwrap();

    // The byte tokenizer with another name for its end of a document.
    let other = place.path("b").join("tokenizer.json");
    let text = fs::read_to_string(&other).unwrap();
    assert!(text.contains("<|endoftext|>"), "{text}");
    fs::write(&other, text.replace("<|endoftext|>", "<|end|>")).unwrap();
    let error = both().unwrap_err();
    assert!(error.contains("digest of data.tokenizer: \""), "{error}");
}
