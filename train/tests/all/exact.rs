//! Exact resume through whole sessions whose data have more than one stream or a mask.

use std::fs;
use std::path::Path;

use meshgrad_ckpt::Committed;
use meshgrad_train::Error;
use meshgrad_train::metrics::{self, Record};
use meshgrad_train::session::{Resume, Session, Summary};

use crate::bigram::{Bigram, Fixture, Tables};
use crate::on_disk::files;

const STEPS: &str = "train.steps=9";

/// Settings of data: several weighted sources, of which one is repeated; and conversations, in
/// which only answers are trained, with a count of skipped steps.
fn data(fixture: &Fixture) -> [(&'static str, Vec<String>); 2] {
    let path = |name: &str| fixture.path(name).display().to_string();
    fs::write(fixture.path("short"), "a short text\n".repeat(4)).unwrap();
    let sources = format!(
        "data.sources=[{{paths=['{}'],weight=1.0}},{{paths=['{}'],weight=2.5}}]",
        path("text"),
        path("short")
    );
    let message =
        |role: &str, content: String| serde_json::json!({ "role": role, "content": content });
    let line = |number: usize| {
        let messages = [
            message("user", format!("What is {number}?")),
            message("assistant", format!("It is {}.", number * number)),
        ];
        serde_json::json!({ "messages": messages }).to_string() + "\n"
    };
    fs::write(fixture.path("chat.jsonl"), (0..30).map(line).collect::<String>()).unwrap();
    let chat = format!("data.paths=['{}']", path("chat.jsonl"));
    let skips = "optimizer.skip_nonfinite=true".to_owned();
    // Rows of two conversations, and epochs of seven steps.
    let seq_len = "train.seq_len=100".to_owned();
    [("sources", vec!["data.paths=[]".to_owned(), sources]), ("chat", vec![chat, skips, seq_len])]
}

/// Trains in the folder `run` until `stop_after`.
fn train(
    fixture: &Fixture,
    run: &str,
    sets: &[&str],
    resume: Resume,
    stop_after: Option<u64>,
) -> Result<Summary, Error> {
    let config = fixture.config(sets);
    let Tables { model } = config.model_tables()?;
    Session::new(&config, &fixture.device)
        .run_dir(fixture.path(run))
        .resume(resume)
        .stop_after(stop_after)
        .train(|data, _| Ok(Bigram::new(data.tokenizer.vocab_size(), model.width)))
}

/// Every file of a checkpoint but the configuration, which may differ.
fn content(checkpoint: &Path) -> Vec<(String, Vec<u8>)> {
    let committed = Committed::open(checkpoint).unwrap();
    committed.verify().unwrap();
    let names = committed.files().map(|(name, _)| name.to_owned());
    names
        .filter(|name| name != "trainer/config.toml")
        .map(|name| (name.clone(), fs::read(checkpoint.join(&name)).unwrap()))
        .collect()
}

/// The metrics of a run that do not depend on time.
fn recorded(run: &Path) -> Vec<Record> {
    let mut records = metrics::read(&run.join("metrics.jsonl")).unwrap();
    for record in &mut records {
        (record.tokens_per_s, record.save_stall_s) = (0.0, None);
    }
    records
}

fn steps(run: &Path) -> Vec<u64> {
    recorded(run).iter().map(|record| record.step).collect()
}

/// Replaces text in a file of a checkpoint by text of the same length.
fn replace(file: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(file).unwrap();
    assert_eq!((text.matches(from).count(), from.len()), (1, to.len()), "{text}");
    fs::write(file, text.replace(from, to)).unwrap();
}

/// A run that is stopped after any step and resumed has the weights, the optimizer's state and the
/// metrics of an uninterrupted one, bit for bit. A wrong position in the data, or a wrong order,
/// changes them.
#[test]
fn a_resumed_session_is_exact() {
    let fixture = Fixture::new();
    for (name, sets) in data(&fixture) {
        let rate = "optimizer.learning_rate=0.05";
        let sets = sets.iter().map(String::as_str);
        let sets: Vec<&str> = sets.chain([STEPS, rate, "log.val_every=2"]).collect();
        let last = |run: &str| fixture.path(run).join("step-000009");
        let whole = format!("{name}-whole");
        train(&fixture, &whole, &sets, Resume::Auto, None).unwrap();
        let (expected, records) = (content(&last(&whole)), recorded(&fixture.path(&whole)));
        assert_eq!(records.len(), 9);
        assert!(records[8].loss < records[0].loss && records[8].val_loss.is_some());

        for stop in 1..9 {
            let run = format!("{name}-{stop}");
            train(&fixture, &run, &sets, Resume::Auto, Some(stop)).unwrap();
            train(&fixture, &run, &sets, Resume::Auto, None).unwrap();
            assert!(content(&last(&run)) == expected, "{run}");
            assert_eq!(recorded(&fixture.path(&run)), records, "{run}");
        }

        let faults = [
            ("trainer/state.json", "\"step\": 4", "\"step\": 3", None),
            ("trainer/config.toml", "seed = 1", "seed = 2", Some("train.seed=2")),
        ];
        for (at, (file, from, to, set)) in faults.into_iter().enumerate() {
            let run = format!("{name}-fault-{at}");
            train(&fixture, &run, &sets, Resume::Auto, Some(4)).unwrap();
            let saved = fixture.path(&run).join("step-000004");
            replace(&saved.join(file), from, to);
            let unverified = sets.iter().copied().chain(["checkpoint.verify=false"]);
            let sets: Vec<&str> = unverified.chain(set).collect();
            let resumed = train(&fixture, &run, &sets, Resume::From(saved), None);
            if name == "chat" && set.is_some() {
                // Another seed packs other rows.
                let error = resumed.unwrap_err().to_string();
                assert!(error.contains("was saved with documents packed with xxh3 "), "{error}");
                continue;
            }
            resumed.unwrap();
            assert!(content(&last(&run)) != expected, "{run}: {to}");
            assert!(recorded(&fixture.path(&run)) != records, "{run}: {to}");
        }
    }
}

/// An error about changed sources names their key.
#[test]
fn changed_sources_are_named() {
    let fixture = Fixture::new();
    let [(_, sources), (_, chat)] = data(&fixture);
    let resumed = |name: &str, set: &[String], changed: &[String]| {
        let [set, changed] = [set, changed].map(|it| it.iter().map(String::as_str).collect());
        let (set, changed): (Vec<&str>, Vec<&str>) = (set, changed);
        train(&fixture, name, &set, Resume::Auto, Some(1)).unwrap();
        let error = train(&fixture, name, &changed, Resume::Auto, None).unwrap_err();
        error.to_string()
    };
    let swapped = sources.iter().map(|set| set.replace("2.5", "1.5"));
    let error = resumed("sources", &sources, &swapped.collect::<Vec<_>>());
    let expected = "was saved with data.sources of a text with xxh3 ";
    assert!(error.contains(expected), "{error}");

    let held_out = format!("data.validation=['{}']", fixture.path("other").display());
    let with_validation = [&chat[..], &[held_out]].concat();
    let error = resumed("chat", &with_validation, &chat);
    let expected = "was saved with data.paths or data.validation of a text with xxh3 ";
    assert!(error.contains(expected), "{error}");
}

/// A conversation that is longer than a sequence is refused before anything is written, by its name
/// and with both lengths. If it may be cut, the run starts.
#[test]
fn a_long_conversation_is_refused_at_the_start() {
    let fixture = Fixture::new();
    let [(_, sources), (_, chat)] = data(&fixture);
    let long = format!(
        "{{\"messages\": [{{\"role\": \"user\", \"content\": \"{}\"}}, {{\"role\": \"assistant\", \
         \"content\": \"b\"}}]}}\n",
        "a".repeat(400)
    );
    fs::write(fixture.path("long.jsonl"), long).unwrap();
    let long = fixture.path("long.jsonl").display().to_string();
    let before = files(&fixture.path(""));

    let validation = format!("data.validation=['{long}']");
    let text_source = fixture.path("short").display().to_string();
    let second = sources[1].replace(&text_source, &long);
    let length = "user:\n".len() + 400 + "\n\nassistant:\n".len() + 2;
    let cases = [("held-out", vec![&chat[0], &validation]), ("source", vec![&sources[0], &second])];
    for (run, sets) in cases {
        let sets = sets.into_iter().map(String::as_str);
        let sets: Vec<&str> = sets.chain(["train.seq_len=350", "data.val_fraction=0.0"]).collect();
        let error = train(&fixture, run, &sets, Resume::Auto, None).unwrap_err().to_string();
        let expected = format!("{long}:1 has {length} tokens but train.seq_len = 350, and ");
        assert!(error.starts_with(&expected), "{error}");
        assert!(files(&fixture.path("")) == before, "{run}");
        assert!(!fixture.path(run).exists(), "{run}");
    }
    for sets in [vec![&chat[0], &validation], vec![&sources[0], &second]] {
        let sets = sets.into_iter().map(String::as_str);
        let cut = ["train.seq_len=350", "data.val_fraction=0.0", "data.too_long='cut'"];
        let sets: Vec<&str> = sets.chain(cut).collect();
        train(&fixture, "cut", &sets, Resume::Never, None).unwrap();
    }
}

/// A run resumes only with the rows that it started with. One of a version that did not pack
/// conversations is refused, and the folder stays as it was.
#[test]
fn another_packing_is_refused() {
    let fixture = Fixture::new();
    let [_, (_, chat)] = data(&fixture);
    let sets: Vec<&str> = chat.iter().map(String::as_str).chain([STEPS]).collect();
    train(&fixture, "run", &sets, Resume::Auto, Some(4)).unwrap();
    let state = fixture.path("run/step-000004/trainer/state.json");
    let saved = fs::read_to_string(&state).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&saved).unwrap();
    let digest = json["packing_digest"].as_str().unwrap().to_owned();
    let unverified: Vec<&str> = sets.iter().copied().chain(["checkpoint.verify=false"]).collect();
    let mut refused = |packing: Option<&str>, shown: &str| {
        let size = saved.len();
        json["packing_digest"] = packing.into();
        // Sizes are always compared.
        let text = json.to_string();
        fs::write(&state, format!("{text:size$}")).unwrap();
        let before = files(&fixture.path("run"));
        let from = Resume::From(fixture.path("run/step-000004"));
        let error = train(&fixture, "run", &unverified, from, None).unwrap_err().to_string();
        let expected = format!(
            "step-000004 was saved with documents {shown}, but it is now packed with xxh3 {digest}; "
        );
        assert!(error.contains(&expected), "{error}");
        assert!(files(&fixture.path("run")) == before);
    };
    refused(None, "in windows of the text");
    let other = digest.chars().rev().collect::<String>();
    refused(Some(&other), &format!("packed with xxh3 {other}"));

    fs::write(&state, &saved).unwrap();
    let allowed: Vec<&str> = sets.iter().copied().chain(["data.too_long='cut'"]).collect();
    train(&fixture, "run", &allowed, Resume::Auto, None).unwrap();
}

/// A run of a text whose token cache an older version wrote resumes with the same batches.
#[test]
fn an_older_token_cache_is_replaced() {
    let fixture = Fixture::new();
    let last = |run: &str| content(&fixture.path(run).join("step-000009"));
    train(&fixture, "whole", &[STEPS], Resume::Auto, None).unwrap();
    train(&fixture, "run", &[STEPS], Resume::Auto, Some(4)).unwrap();
    let tokens = fixture.path("run/tokens.bin");
    let mut bytes = fs::read(&tokens).unwrap();
    assert_eq!(bytes[8], 3);
    bytes[8] = 2;
    bytes.truncate(bytes.len() - 8);
    fs::write(&tokens, bytes).unwrap();
    train(&fixture, "run", &[STEPS], Resume::Auto, None).unwrap();
    assert!(last("run") == last("whole"));
    assert!(fs::read(tokens).unwrap() == fs::read(fixture.path("whole/tokens.bin")).unwrap());
}

/// A run that resumes from a checkpoint of another run starts new metrics. What the folder had is
/// set aside.
#[test]
fn two_runs_have_separate_metrics() {
    let fixture = Fixture::new();
    let events = "events.out.tfevents.meshgrad";
    let run = |name: &str, sets: &[&str], resume: Resume| {
        train(&fixture, name, sets, resume, None).unwrap();
        fixture.path(name)
    };
    let other = run("other-run", &[], Resume::Auto);
    let used = run("used", &["train.steps=3"], Resume::Auto);
    let (before, events_before) = (recorded(&used), fs::read(used.join(events)).unwrap());
    let checkpoint = other.join("step-000002");
    run("used", &[], Resume::From(checkpoint.clone()));
    assert_eq!(steps(&used), [3, 4]);
    assert_eq!(recorded(&used), recorded(&other)[2..]);
    let aside = used.join("set-aside-1");
    assert_eq!(recorded(&aside), before);
    assert!(fs::read(aside.join(events)).unwrap() == events_before);
    for step in ["step-000002", "step-000003"] {
        assert!(aside.join(step).join("manifest.json").exists(), "{step}");
        assert!(!used.join(step).exists(), "{step}");
    }

    // If the checkpoint is in the run's own folder, the earlier metrics are kept, even if the path
    // is a link.
    let link = fixture.path("link");
    std::os::unix::fs::symlink(&other, &link).unwrap();
    run("other-run", &[], Resume::From(link.join("step-000002")));
    assert_eq!(steps(&other), [1, 2, 3, 4]);
    // So are they if the checkpoint is a link to another disk.
    let disk = fixture.path("disk");
    fs::rename(other.join("step-000004"), &disk).unwrap();
    std::os::unix::fs::symlink(&disk, other.join("step-000004")).unwrap();
    run("other-run", &["train.steps=5"], Resume::Auto);
    assert_eq!(steps(&other), [1, 2, 3, 4, 5]);
    assert!(!other.join("set-aside-2").exists());
    // A new folder has nothing to set aside.
    let new = run("new", &[], Resume::From(checkpoint));
    assert_eq!(steps(&new), [3, 4]);
    assert!(!new.join("set-aside-1").exists());
}
