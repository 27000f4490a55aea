//! A run that resumes with another model, data or optimizer is refused, and changes no file.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use meshgrad_ckpt::{Committed, TensorFile};
use meshgrad_train::config::{Config, ScheduleConfig};
use meshgrad_train::events::Event;
use meshgrad_train::session::{Resume, Session};
use meshgrad_train::{Error, Kind, checkpoint};

use crate::bigram::{Bigram, Fixture, Tables};
use crate::on_disk::files;

/// A run refuses to resume with another model, seed, text, tokenizer, optimizer, or order or split
/// of the data. It then changes no file.
#[test]
fn a_refused_resume_changes_nothing() {
    let fixture = Fixture::new();
    fixture.train(Resume::Auto, &[]).unwrap();
    let run = fixture.path("run");
    let (before, second) = (files(&run), || Resume::From(run.join("step-000002")));

    let other = format!("data.paths=['{}']", fixture.path("other").display());
    let mut refused = vec![
        ("model.width=5", "model.width 4, but it is now 5;"),
        ("train.seed=2", "train.seed 1, but it is now 2;"),
        ("train.batch_size=4", "train.batch_size 2, but it is now 4;"),
        ("train.seq_len=9", "train.seq_len 8, but it is now 9;"),
        ("data.val_fraction=0.3", "data.val_fraction 0.2, but it is now 0.3;"),
        (&other, "data.paths of a text with xxh3 "),
        ("optimizer.name=lion", "the optimizer adamw, but it is now lion;"),
        ("optimizer.ema_decay=0.5", "the optimizer state exp_avg, exp_avg_sq, but"),
    ];
    if cfg!(feature = "tokenizers") {
        refused.push(("data.tokenizer=bpe:260", "data.tokenizer of 257 tokens (xxh3 "));
    }
    for (set, expected) in refused {
        let error = fixture.train(second(), &[set]).unwrap_err().to_string();
        let expected = format!("step-000002 was saved with {expected}");
        assert!(error.contains(&expected), "{set}: {error}");
        assert!(error.ends_with("--resume never or another --run-dir"), "{error}");
        assert!(files(&run) == before, "{set} changed a file");
    }

    // What may change: how a batch is divided, the learning rate, the number of steps.
    let sets = ["train.micro_batch_size=2", "optimizer.learning_rate=0.1", "train.steps=3"];
    fixture.train(second(), &sets).unwrap();
    let fourth = Path::new("step-000004");
    let moved = files(&run.join("set-aside-1").join(fourth));
    assert!(moved.iter().all(|(path, content)| before[&fourth.join(path)] == *content));
    assert!(!moved.is_empty() && !run.join(fourth).exists());
    assert!(run.join("step-000003").exists());
}

/// A model whose parameters are stored as one tensor is loaded with its averages.
#[test]
fn averages_of_merged_parameters_are_loaded() {
    let fixture = Fixture::new();
    let sets = ["optimizer.ema_decay=0.5", "optimizer.learning_rate=0.1"];
    let summary = fixture.train(Resume::Auto, &sets).unwrap();
    let saved = Committed::open(summary.checkpoint).unwrap();
    let model = Bigram::new(257, 4);
    checkpoint::load_model(&saved, &model, &fixture.device).unwrap();

    let stored = |folder: &str| {
        let file = saved.path().join(folder).join("model.safetensors");
        TensorFile::open(file).unwrap().read("table").unwrap()
    };
    let values = [&model.embedding, &model.head].map(|it| it.value().unwrap());
    let values = values.iter().flat_map(|it| it.to_vec::<f32>().unwrap());
    let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
    assert!(bytes == stored("trainer/ema") && bytes != stored(""));
}

/// A run from scratch whose model cannot be built leaves the old checkpoints in place.
#[test]
fn a_failed_start_from_scratch_moves_nothing() {
    let fixture = Fixture::new();
    fixture.train(Resume::Auto, &[]).unwrap();
    let (run, before) = (fixture.path("run"), files(&fixture.path("run")));
    let config = fixture.config(&[]);
    let session = Session::new(&config, &fixture.device).run_dir(&run);
    let refused = || Err::<Bigram, _>(Error::new(Kind::Invalid, "no model"));
    let result = session.resume(Resume::Never).train(|_, _| refused());
    assert!(result.is_err() && files(&run) == before);
}

/// A start that fails after it has moved checkpoints aside moves them back.
#[test]
fn a_failed_start_moves_everything_back() {
    let fixture = Fixture::new();
    fixture.train(Resume::Auto, &[]).unwrap();
    let run = fixture.path("run");
    let before = files(&run);
    let starts = || [Resume::Never, Resume::From(run.join("step-000002"))];
    for file in ["config.toml", "events.out.tfevents.meshgrad"] {
        // The file cannot be replaced.
        let blocked = run.join(format!("{file}.partial"));
        fs::create_dir(&blocked).unwrap();
        for resume in starts() {
            let error = fixture.train(resume, &[]).unwrap_err().to_string();
            assert!(error.contains(&format!("{file}: ")), "{error}");
            assert!(files(&run) == before, "{file}");
        }
        fs::remove_dir(blocked).unwrap();
    }

    let config = fixture.config(&[]);
    for resume in starts() {
        let session = Session::new(&config, &fixture.device).run_dir(&run);
        let session = session.resume(resume).subscribe("refuses", |event| match event {
            Event::ConfigurationFinished { .. } => Err("not now".into()),
            _ => Ok(()),
        });
        let trained = session.train(|data, _| Ok(Bigram::new(data.tokenizer.vocab_size(), 4)));
        assert!(trained.is_err() && files(&run) == before);
    }
    assert!(!run.join("set-aside-1").exists());
}

/// A new run has no metrics of the one before, which are kept even if it has no checkpoint.
#[test]
fn a_new_run_keeps_the_metrics_of_the_old_one_apart() {
    let fixture = Fixture::new();
    let summary = fixture.train(Resume::Auto, &[]).unwrap();
    let run = fixture.path("run");
    let events = "events.out.tfevents.meshgrad";
    let content = |folder: &Path| ["metrics.jsonl", events].map(|name| fs::read(folder.join(name)));
    let first = content(&run).map(Result::unwrap);
    // Without events of its own, the new run must not show those of the old one.
    let sets = ["log.tensorboard=false", "train.steps=2", "checkpoint.every=0"];
    fixture.train(Resume::Never, &sets).unwrap();
    let [metrics, written] = content(&run);
    assert!(metrics.unwrap() != first[0] && written.is_err());
    assert!(content(&run.join("set-aside-1")).map(Result::unwrap) == first);
    assert!(!summary.checkpoint.exists());

    for (number, resume) in [(2, Resume::Never), (3, Resume::Auto)] {
        fs::remove_dir_all(run.join("step-000002")).unwrap();
        let before = fs::read(run.join("metrics.jsonl")).unwrap();
        fixture.train(resume, &sets).unwrap();
        let aside = run.join(format!("set-aside-{number}"));
        assert!(fs::read(aside.join("metrics.jsonl")).unwrap() == before);
    }
}

/// A checkpoint is reported before the next save starts, which may remove it.
#[test]
fn finished_checkpoints_exist_while_subscribers_run() {
    let fixture = Fixture::new();
    let sets = ["checkpoint.every=1", "checkpoint.keep=1", "train.steps=12"];
    let config = fixture.config(&sets);
    let finished = Arc::new(Mutex::new(0));
    let (count, mut is_running) = (finished.clone(), false);
    let session = Session::new(&config, &fixture.device).run_dir(fixture.path("run")).subscribe(
        "reader",
        move |event| {
            match event {
                Event::CheckpointStarted { .. } if is_running => {
                    return Err("the previous checkpoint was not reported".into());
                }
                Event::CheckpointStarted { .. } => is_running = true,
                Event::CheckpointFinished { path } => {
                    Committed::open(path)?.verify()?;
                    is_running = false;
                    *count.lock().unwrap() += 1;
                }
                _ => (),
            }
            Ok(())
        },
    );
    let trained = session.train(|data, _| Ok(Bigram::new(data.tokenizer.vocab_size(), 4)));
    trained.unwrap();
    assert_eq!(*finished.lock().unwrap(), 12);
}

/// If the program sets the schedule, the run's configuration reads back, even if `[schedule]` in
/// the program's configuration does not fit the run. A program without that schedule cannot
/// continue the run.
#[test]
fn a_run_with_its_own_schedule_reads_back() {
    let fixture = Fixture::new();
    let mut config = fixture.config(&[]);
    config.schedule = ScheduleConfig::named("wsd").unwrap();
    let train = |config: &Config, is_own: bool| {
        let mut session = Session::new(config, &fixture.device).run_dir(fixture.path("run"));
        if is_own {
            session = session.schedule(|step| 1.0 / step as f64);
        }
        session.train(|data, _| Ok(Bigram::new(data.tokenizer.vocab_size(), 4)))
    };
    let checkpoint = train(&config, true).unwrap().checkpoint;

    for file in [fixture.path("run/config.toml"), checkpoint.join("trainer/config.toml")] {
        let read = Config::read::<Tables>(Some(&file), &[]).unwrap();
        assert_eq!(read.schedule, ScheduleConfig::Own {});
        let error = train(&read, false).unwrap_err().to_string();
        assert!(
            error.starts_with("schedule.kind is \"own\", but this program has no schedule"),
            "{error}"
        );
        assert_eq!(train(&read, true).unwrap().step, 4);
    }
}
