//! Damaged checkpoints are detected, named and skipped.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use meshgrad_autograd::Param;
use meshgrad_ckpt::vfs::RealFs;
use meshgrad_ckpt::{Committed, Kind, TensorFile};
use meshgrad_ckpt_crash::{Fault, FaultFs, Op, Rule, SplitMix64};
use meshgrad_models::folder;
use meshgrad_runtime::Tensor;
use meshgrad_train::Result;
use meshgrad_train::checkpoint::{self, ReadOptions};
use meshgrad_train::events::Event;
use meshgrad_train::intact::Candidates;
use meshgrad_train::optimizer::Optimizer;
use meshgrad_train::session::{Resume, Session};

use crate::bigram::{Bigram, Fixture};
use crate::on_disk::files;

/// A run with checkpoints after steps 2 and 4, and the model and optimizer that read them.
struct Run {
    fixture: Fixture,
    model: Bigram,
    optimizer: Optimizer,
}

impl Run {
    fn new() -> Run {
        let fixture = Fixture::new();
        fixture.train(Resume::Auto, &[]).unwrap();
        let (model, config) = (Bigram::new(257, 4), fixture.config(&[]));
        for param in [&model.embedding, &model.head] {
            param.materialize(&fixture.device, 1).unwrap();
        }
        let optimizer = Optimizer::new(&model, &fixture.device, &config.optimizer, 1);
        Run { optimizer: optimizer.unwrap(), fixture, model }
    }

    fn last(&self) -> PathBuf {
        self.fixture.path("run/step-000004")
    }

    /// Reads the newest intact checkpoint. Returns its step, and why others were skipped.
    fn read(&self, verify: bool) -> Result<(u64, Vec<String>)> {
        let mut candidates = Candidates::of_run(&self.fixture.path("run"), verify)?;
        let options = ReadOptions { verify, ..ReadOptions::default() };
        let read = candidates.read(|chosen| {
            checkpoint::load_params(chosen, &self.model, &self.fixture.device, options)?;
            checkpoint::load_state(chosen, &self.model, &self.optimizer, options)
        })?;
        let (_, state) = read.unwrap();
        Ok((state.step, candidates.skipped().to_vec()))
    }

    /// Every file of the last checkpoint.
    fn files(&self) -> Vec<PathBuf> {
        let last = self.last();
        files(&last).into_keys().map(|path| last.join(path)).collect()
    }
}

/// Changes the bytes of a file.
type Damage = fn(&mut Vec<u8>);

/// Changes a file, calls `then`, and restores it.
fn with_damage<T>(file: &Path, damage: impl FnOnce(&mut Vec<u8>), then: impl FnOnce() -> T) -> T {
    let original = fs::read(file).unwrap();
    let mut bytes = original.clone();
    damage(&mut bytes);
    fs::write(file, bytes).unwrap();
    let result = then();
    fs::write(file, original).unwrap();
    result
}

/// When all files are read to find damage, a failure of the disk counts as damage; missing
/// permissions do not.
#[test]
fn only_failures_of_the_disk_are_damage() {
    const EIO: i32 = 5;
    const EACCES: i32 = 13;

    let run = Run::new();
    let found = |number| {
        let fault = Rule::new(Fault::FailWith(number));
        let rule = fault.op(Op::Read).path("exp_avg/model.safetensors");
        let disk = FaultFs::new(Arc::new(RealFs), vec![rule]);
        let checkpoint = Committed::open_in(Arc::new(disk), run.last()).unwrap();
        let cause = folder::unreadable(&run.last(), io::Error::other("a read failed"));
        folder::or_damage(&checkpoint, cause)
    };
    let (broken, forbidden) = (found(EIO), found(EACCES));
    assert!(broken.details::<folder::Damage>().is_some(), "{broken}");
    assert_eq!(forbidden.kind(), Kind::System, "{forbidden}");
    assert!(forbidden.details::<folder::Damage>().is_none(), "{forbidden}");
    for error in [broken, forbidden] {
        let message = error.to_string();
        assert!(message.contains("exp_avg/model.safetensors: "), "{message}");
    }
}

/// A flipped bit anywhere in a checkpoint is detected: file and tensor are named, and the previous
/// checkpoint is read. Without verification, flipped bits of tensors are not detected.
#[test]
fn a_flipped_bit_is_detected_anywhere() {
    let run = Run::new();
    assert_eq!(run.read(true).unwrap(), (4, vec![]));
    let files = run.files();
    let sizes: Vec<u64> = files.iter().map(|file| file.metadata().unwrap().len()).collect();
    let (mut rng, mut in_tensors, mut unseen) = (SplitMix64::new(22), 0, 0);
    for _ in 0..200 {
        // Any byte of the checkpoint.
        let mut offset = rng.below(sizes.iter().sum());
        let mut at = 0;
        while offset >= sizes[at] {
            offset -= sizes[at];
            at += 1;
        }
        let (file, bit) = (&files[at], rng.below(8));
        let name = file.strip_prefix(run.last()).unwrap().to_str().unwrap();
        let is_in_tensor = name.ends_with(".safetensors") && {
            let opened = TensorFile::open(file).unwrap();
            opened.get("table").unwrap().range.contains(&offset)
        };

        let flip = |bytes: &mut Vec<u8>| bytes[offset as usize] ^= 1 << bit;
        let (seen, unverified) = with_damage(file, flip, || (run.read(true), run.read(false)));
        let (step, skipped) = seen.unwrap();
        assert_eq!((step, skipped.len()), (2, 1), "{name} {offset}");
        assert!(skipped[0].contains("step-000004"), "{skipped:?}");
        assert!(skipped[0].contains(name), "{name}: {skipped:?}");
        if is_in_tensor {
            in_tensors += 1;
            assert!(skipped[0].contains("`table`"), "{skipped:?}");
            unseen += u32::from(unverified.unwrap() == (4, vec![]));
        }
    }
    assert!(in_tensors > 100, "{in_tensors}");
    assert_eq!(unseen, in_tensors);
}

/// A truncated or missing file is detected, even without comparing contents.
#[test]
fn truncated_and_missing_files_are_detected() {
    let run = Run::new();
    let mut seen = 0;
    for file in run.files() {
        let name = file.strip_prefix(run.last()).unwrap().to_str().unwrap();
        let check = |damage: &str| {
            for verify in [true, false] {
                let (step, skipped) = run.read(verify).unwrap();
                assert_eq!((step, skipped.len()), (2, 1), "{name} {damage}");
                assert!(skipped[0].contains(name), "{name}: {skipped:?}");
            }
        };
        let length = file.metadata().unwrap().len() as usize;
        for left in [0, length / 2, length - 1] {
            with_damage(&file, |bytes| bytes.truncate(left), || check("truncated"));
        }
        let elsewhere = run.fixture.path("elsewhere");
        fs::rename(&file, &elsewhere).unwrap();
        check("missing");
        fs::rename(&elsewhere, &file).unwrap();
        seen += 1;
    }
    assert!(seen >= 8, "{seen} files");
    assert_eq!(run.read(true).unwrap().0, 4);
}

/// A run whose last checkpoint is damaged continues from the one before, and ends with the bits of
/// an undamaged run.
#[test]
fn a_run_continues_from_the_newest_intact_checkpoint() {
    let run = Run::new();
    let uninterrupted = files(&run.last());
    let damages: [(&str, Damage); 4] = [
        ("model.safetensors", |bytes| {
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
        }),
        ("trainer/exp_avg_sq/model.safetensors", |bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        }),
        ("trainer/state.json", |bytes| bytes[3] ^= 1),
        ("tokenizer.json", |bytes| bytes.truncate(5)),
    ];
    for (name, damage) in damages {
        let file = run.last().join(name);
        let mut bytes = fs::read(&file).unwrap();
        damage(&mut bytes);
        fs::write(&file, bytes).unwrap();
        let trained = run.fixture.train(Resume::Auto, &[]);
        assert_eq!(trained.unwrap().step, 4);
        assert!(files(&run.last()) == uninterrupted, "{name}");
    }
    // Each damaged checkpoint is kept.
    for number in 1..=damages.len() {
        let aside = format!("run/set-aside-{number}/step-000004");
        assert!(run.fixture.path(&aside).exists());
    }
}

/// Without an intact checkpoint a run does not start from scratch, and no file changes.
#[test]
fn a_run_starts_from_scratch_only_if_asked() {
    let fixture = Fixture::new();
    let sets = ["checkpoint.keep=1"];
    fixture.train(Resume::Auto, &sets).unwrap();
    let last = fixture.path("run/step-000004");
    let model = last.join("model.safetensors");
    let mut bytes = fs::read(&model).unwrap();
    let end = bytes.len() - 1;
    bytes[end] ^= 1;
    fs::write(&model, &bytes).unwrap();

    let fails = |resume: Resume| {
        let before = files(&fixture.path("run"));
        let error = fixture.train(resume, &sets).unwrap_err();
        assert_eq!(error.kind(), Kind::Damaged, "{error}");
        assert!(files(&fixture.path("run")) == before);
        error.to_string()
    };
    for resume in [Resume::Auto, Resume::From(last.clone()), Resume::From(fixture.path("run"))] {
        let error = fails(resume);
        for expected in [
            "is intact:\n  ",
            "step-000004 is damaged: model.safetensors is damaged: bytes 0..",
            "it stores `table`",
            "--resume never",
            "checkpoint.verify = false",
        ] {
            assert!(error.contains(expected), "no `{expected}` in: {error}");
        }
    }

    // The damaged weights are used if asked for.
    let unverified = ["checkpoint.verify=false", "train.steps=5"];
    assert_eq!(fixture.train(Resume::Auto, &unverified).unwrap().step, 5);
    fs::remove_dir_all(fixture.path("run/step-000005")).unwrap();

    fs::create_dir_all(&last).unwrap();
    fs::write(&model, &bytes[..end / 2]).unwrap();
    let error = fails(Resume::Auto);
    assert!(error.contains("step-000004"), "{error}");
    assert_eq!(fixture.train(Resume::Never, &sets).unwrap().step, 4);
}

/// `--resume` takes a run, too.
#[test]
fn a_run_folder_can_be_resumed_from() {
    let fixture = Fixture::new();
    fixture.train(Resume::Auto, &[]).unwrap();
    let config = fixture.config(&["train.steps=6"]);
    let train = |run: &str, resume| {
        Session::new(&config, &fixture.device)
            .run_dir(fixture.path(run))
            .resume(resume)
            .train(|data, _| Ok(Bigram::new(data.tokenizer.vocab_size(), 4)))
    };
    train("second", Resume::From(fixture.path("run"))).unwrap();
    train("run", Resume::Auto).unwrap();
    let of = |run: &str| files(&fixture.path(run).join("step-000006")).into_values();
    assert!(of("second").eq(of("run")));

    let error = train("third", Resume::From(fixture.path("text"))).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("neither a checkpoint nor a run"), "{error}");
}

/// A weight that is NaN is named, although the digests are right and no loss depends on it.
#[test]
fn weights_that_are_not_finite_are_detected() {
    let fixture = Fixture::new();
    let config = fixture.config(&["checkpoint.keep=1"]);
    let model = Bigram::new(257, 4);
    let embedding: Param = model.embedding.clone();
    let session = Session::new(&config, &fixture.device).run_dir(fixture.path("run")).subscribe(
        "fault",
        move |event| {
            if let Event::StepFinished { step: 4, .. } = event {
                let value = embedding.value()?;
                let mut values = value.to_vec::<f32>()?;
                // The text does not have byte 250.
                values[250 * 4 + 1] = f32::NAN;
                embedding.set(&Tensor::from_slice(value.device(), &[257, 4], &values)?)?;
            }
            Ok(())
        },
    );
    session.train(|_, _| Ok(model)).unwrap();
    let last = fixture.path("run/step-000004");
    Committed::open(&last).unwrap().verify().unwrap();

    let more = ["train.steps=5"];
    let error = fixture.train(Resume::Auto, &more).unwrap_err().to_string();
    let expected = "step-000004/model.safetensors: element 1001 of `table` is NaN";
    assert!(error.contains(expected), "{error}");
    let unverified = ["train.steps=5", "checkpoint.verify=false"];
    assert_eq!(fixture.train(Resume::Auto, &unverified).unwrap().step, 5);
}
