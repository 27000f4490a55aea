//! `meshgrad train` on ranks: threads and processes train the same run, and killed ranks lose nothing
//! that was saved.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use approx::assert_relative_eq;
use meshgrad::ckpt::Committed;
use meshgrad::train::metrics::{self, Record};

use crate::on_disk::files;
use crate::test_dir::{MESHGRAD, Output, TestDir, signal};

const CONFIG: &str = r#"
[data]
paths = ["text.txt"]
tokenizer = "byte"
val_fraction = 0.1

[train]
steps = 6
batch_size = 6
seq_len = 16

[checkpoint]
every = 2
keep = 0

[sample]
every = 6
tokens = 4

[log]
every = 1
trace_step = 2
"#;

/// The variable with the number of repetitions of [`killed_ranks_lose_nothing_that_was_saved`].
const KILLS: &str = "MESHGRAD_TEST_KILLS";

fn launch(dir: &TestDir, ranks: &str, arguments: &[&str]) -> Command {
    let own = ["launch", "-n", ranks, "--", MESHGRAD, "train", "small.toml"];
    dir.command(&[&own, arguments].concat())
}

/// The metrics without times.
fn losses(run: &Path) -> Vec<Record> {
    let records = metrics::read(&run.join("metrics.jsonl")).unwrap().into_iter();
    let untimed = records.map(|record| Record {
        tokens_per_s: 0.0,
        comm_exposed_s: None,
        save_stall_s: None,
        ..record
    });
    untimed.collect()
}

/// Threads and processes print one header and one line per step, and write the same bits.
#[test]
fn threads_and_processes_train_the_same_run() {
    let dir = TestDir::with_run(CONFIG);
    let threads = ["train", "small.toml", "--ranks", "3", "--run-dir", "threads"];
    let of_threads = dir.succeeds(&threads);
    let to = ["--run-dir", "processes"];
    let of_processes = Output::of(&mut launch(&dir, "3", &to)).success();
    for output in [&of_threads, &of_processes] {
        assert_eq!(output.matches("meshgrad 0.1.0").count(), 1, "{output}");
        assert_eq!(output.matches("step 6/6").count(), 1, "{output}");
        assert!(output.contains("ranks    3: 3 dp_shard (fsdp)"), "{output}");
        assert!(output.contains("3 ranks, "), "{output}");
    }

    let [threads, processes] = ["threads", "processes"].map(|run| dir.path(run));
    let records = losses(&threads);
    assert_eq!(records.len(), 6);
    assert!(records.iter().all(|it| it.ranks == Some(3) && it.comm_bytes > Some(1000)));
    assert_eq!(records, losses(&processes));
    let saved = |run: &Path| files(&run.join("step-000006"));
    assert!(saved(&threads).len() > 8 && saved(&threads) == saved(&processes));

    for rank in 0..3 {
        let trace = fs::read_to_string(processes.join(format!("trace-rank-{rank}.json"))).unwrap();
        let trace: serde_json::Value = serde_json::from_str(&trace).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let names = |name: &str| {
            let named = events.iter().filter(|it| it["name"].as_str().unwrap().contains(name));
            named.count()
        };
        assert!(
            names("reduce_scatter") > 0
                && names("all_gather") > 0
                && names("linear_grad_weight") > 0
        );
    }

    // One rank continues what three have saved.
    let alone = [
        "train",
        "small.toml",
        "--run-dir",
        "threads",
        "--set",
        "train.steps=8",
        "--set",
        "log.trace_step=8",
    ];
    assert!(dir.succeeds(&alone).contains("resuming after step 6"));
    let trace = fs::read_to_string(threads.join("trace-rank-0.json")).unwrap();
    assert!(trace.contains("linear_grad_weight") && !trace.contains("all_gather"));
}

/// Emulated GPUs train the run of CPUs, up to rounding, and CPUs continue it.
#[test]
fn gpus_are_ranks() {
    let dir = TestDir::with_run(CONFIG);
    let train = |device: &str, run: &str, sets: &[&str]| {
        let own = ["train", "small.toml", "--ranks", "2", "--run-dir", run];
        let sets = sets.iter().flat_map(|set| ["--set", *set]);
        dir.succeeds(&[&own[..], &["--device", device], &sets.collect::<Vec<_>>()].concat())
    };
    let tensor_parallel = ["parallel.tp=2", "train.steps=4"];
    for (name, sets) in [("fsdp", &tensor_parallel[1..]), ("tp", &tensor_parallel)] {
        let runs = [("cpu", "cpu"), ("emulator", "gpu")];
        let [cpu, gpu] = runs.map(|(device, run)| {
            let run = format!("{name}-{run}");
            train(device, &run, sets);
            losses(&dir.path(&run))
        });
        assert_eq!((cpu.len(), gpu.len()), (4, 4));
        for (cpu, gpu) in cpu.iter().zip(&gpu) {
            assert_relative_eq!(gpu.loss, cpu.loss, max_relative = 1e-3);
            assert_relative_eq!(gpu.grad_norm, cpu.grad_norm, max_relative = 1e-3);
        }
    }
    let resumed = train("cpu", "fsdp-gpu", &["train.steps=6"]);
    assert!(resumed.contains("resuming after step 4"), "{resumed}");
}

/// A configuration that cannot be trained gives one error and leaves no folder.
#[test]
fn bad_input_is_one_error() {
    let dir = TestDir::with_run(CONFIG);
    let cases: [(&[&str], &str); 5] = [
        (
            &["--set", "parallel.tp=2"],
            "the world 1 (the number of ranks) is not a multiple of 2, the product of",
        ),
        (
            &["--ranks", "2", "--set", "parallel.pp=2"],
            "parallel.pp: 2; training does not support it yet, so it must be 1",
        ),
        (
            &["--ranks", "2", "--set", "parallel.dp_shard=many"],
            "error: `parallel.dp_shard`: `many` is not a degree; use 1 or more ranks, or \"auto\" (--set)",
        ),
        (
            &["--ranks", "7"],
            "train.micro_batch_size: 6 sequences cannot be divided among 7 data-parallel ranks \
             (dp_shard); use 7",
        ),
        (
            &["--ranks", "3", "--set", "parallel.tp=3"],
            "has 2 key-value heads, which cannot be sharded over `tp` (3 ranks)",
        ),
    ];
    for (arguments, expected) in cases {
        let all = [&["train", "small.toml", "--run-dir", "bad"], arguments].concat();
        let failed = dir.fails(&all);
        assert!(failed.contains(expected), "{failed}");
        assert_eq!(failed.matches("error").count(), 1, "{failed}");
        assert!(!dir.path("bad").exists());
    }
    assert_eq!(dir.run(&["train", "--ranks", "0"]).code, 2);
}

/// An error of all processes is printed once, by rank 0; the launcher adds which rank failed.
#[test]
fn processes_report_an_error_once() {
    let dir = TestDir::with_run(CONFIG);
    fs::write(dir.path("run"), "not a folder").unwrap();
    let failed = Output::of(&mut launch(&dir, "3", &["--run-dir", "run"]));
    let count = failed.stderr.matches("cannot write to the run folder").count();
    assert_eq!((count, failed.code), (1, 1), "{}", failed.shown());

    let nested = ["--ranks", "2", "--run-dir", "other"];
    let refused = Output::of(&mut launch(&dir, "2", &nested));
    let count = refused.stderr.matches("--ranks is for threads of one process").count();
    assert_eq!(count, 1, "{}", refused.shown());
}

/// A rank that cannot write its part of a checkpoint, as on a full disk, ends all with its error. The
/// checkpoint before stays, and the run resumes from it.
#[test]
fn a_rank_that_cannot_write_ends_all() {
    let dir = TestDir::with_run(CONFIG);
    Output::of(&mut launch(&dir, "3", &["--run-dir", "whole"])).success();
    let first = ["--run-dir", "run", "--stop-after", "2"];
    Output::of(&mut launch(&dir, "3", &first)).success();

    // No file of rank 1 may be longer than 20 blocks of 512 bytes.
    let limited = "trap '' XFSZ; if [ $RANK = 1 ]; then ulimit -f 20; fi; exec \"$0\" \"$@\"";
    let own = ["launch", "-n", "3", "--", "sh", "-c", limited, MESHGRAD];
    let train = ["train", "small.toml", "--run-dir", "run"];
    let failed = dir.run(&[&own[..], &train].concat());
    let errors = &failed.stderr;
    assert_eq!(failed.code, 1, "{errors}");
    let reason = errors.lines().filter(|it| it.contains("File too large"));
    let reason: Vec<&str> = reason.collect();
    assert!(
        reason.len() == 1 && reason[0].contains("error: rank 1: cannot write run/"),
        "{errors}"
    );

    let run = dir.path("run");
    assert!(newest(&run).unwrap().path().ends_with("step-000002"));
    Output::of(&mut launch(&dir, "3", &["--run-dir", "run"])).success();
    compare_and_remove(&dir);
}

/// SIGTERM, as Ctrl-C, stops all processes after the same step, with a checkpoint.
#[test]
fn a_signal_stops_all_processes_together() {
    let dir = TestDir::with_run(CONFIG);
    let long = ["--run-dir", "run", "--set", "train.steps=100000", "--set", "log.val_every=0"];
    let launcher = start(&mut launch(&dir, "3", &long));
    wait_for_steps(&dir.path("run"), 3);
    assert!(signal(launcher.id(), "TERM"));
    let stopped = launcher.wait_with_output().unwrap();
    let output = String::from_utf8_lossy(&stopped.stdout).into_owned();
    assert!(output.contains("the same command resumes from there"), "{output}");
    let run = dir.path("run");
    let done = losses(&run).len();
    assert!(run.join(format!("step-{done:06}")).exists());
}

/// If a rank is killed at any moment, the newest checkpoint is whole, and the run continues from it
/// with the bits of a run that nothing interrupted.
#[test]
fn killed_ranks_lose_nothing_that_was_saved() {
    let repetitions: u64 = std::env::var(KILLS).map_or(2, |count| count.parse().unwrap());
    let dir = TestDir::with_run(CONFIG);
    let sets =
        ["--set", "train.steps=60", "--set", "log.tensorboard=false", "--set", "sample.every=0"];
    let in_run = |run: &'static str| [&["--run-dir", run], &sets[..]].concat();
    Output::of(&mut launch(&dir, "3", &in_run("whole"))).success();

    let (mut killed, mut resumed) = (0, 0);
    let run = dir.path("run");
    for repetition in 0..repetitions {
        let launcher = start(&mut launch(&dir, "3", &in_run("run")));
        let from = losses_or_none(&run).len();
        wait_for_steps(&run, (from + 1 + repetition as usize % 7).min(59));
        thread::sleep(Duration::from_micros(repetition * 7919 % 20_000));
        let victims = children(launcher.id());
        if let Some(victim) = victims.get(repetition as usize % 3) {
            signal(*victim, "KILL");
            killed += 1;
        }
        let ended = launcher.wait_with_output().unwrap();
        if let Some(newest) = newest(&run) {
            newest.verify().unwrap();
        }
        if ended.status.success() {
            compare_and_remove(&dir);
        } else {
            resumed += 1;
        }
    }
    Output::of(&mut launch(&dir, "3", &in_run("run"))).success();
    compare_and_remove(&dir);
    assert!(killed > 0 && resumed > 0, "{killed} killed, {resumed} resumed");
    println!("{killed} ranks were killed, and {resumed} runs resumed from a whole checkpoint");
}

/// Compares the finished run with the uninterrupted one, and removes it.
fn compare_and_remove(dir: &TestDir) {
    let [run, whole] = ["run", "whole"].map(|run| dir.path(run));
    let without_bytes = |run: &Path| -> Vec<(u64, f64, f64)> {
        let records = losses(run).into_iter();
        records.map(|it| (it.step, it.loss, it.grad_norm)).collect()
    };
    assert_eq!(without_bytes(&run), without_bytes(&whole));
    fs::remove_dir_all(&run).unwrap();
}

fn newest(run: &Path) -> Option<Committed> {
    meshgrad::ckpt::newest(run).ok()?.committed
}

fn losses_or_none(run: &Path) -> Vec<Record> {
    match run.join("metrics.jsonl").exists() {
        true => metrics::read(&run.join("metrics.jsonl")).unwrap(),
        false => Vec::new(),
    }
}

fn start(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits until the run has recorded `steps` steps, or a minute.
fn wait_for_steps(run: &Path, steps: usize) {
    for _ in 0..6000 {
        if losses_or_none(run).len() >= steps {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// The processes that `parent` has started.
fn children(parent: u32) -> Vec<u32> {
    let listed = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
    let listed = listed.unwrap_or_default();
    listed.split_whitespace().map(|id| id.parse().unwrap()).collect()
}
