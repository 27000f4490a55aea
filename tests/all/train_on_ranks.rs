//! `meshgrad train` on ranks: threads and processes train the same run, and killed ranks lose nothing
//! that was saved.

use std::fs;
use std::io::Read;
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

/// Tensors are on emulated GPUs, and travel over NCCL.
const OVER_NCCL: [&str; 4] = ["--device", "emulator", "--transport", "nccl"];

/// Trains on ranks: as threads in `threads`, and as processes in `processes`. `mesh` is what the header says of them.
fn train_both(ranks: usize, mesh: &str, on: &[&str]) -> TestDir {
    let dir = TestDir::with_run(CONFIG);
    let count = ranks.to_string();
    let threads = ["train", "small.toml", "--ranks", &count, "--run-dir", "threads"];
    let mut threads = dir.command(&[&threads, on].concat());
    let of_threads = Output::of(threads.env("MESHGRAD_EMULATOR_DEVICES", &count)).success();
    let to = [&["--run-dir", "processes"], on].concat();
    let of_processes = Output::of(&mut launch(&dir, &count, &to)).success();
    for output in [&of_threads, &of_processes] {
        assert_eq!(output.matches("meshgrad 0.1.0").count(), 1, "{output}");
        assert_eq!(output.matches("step 6/6").count(), 1, "{output}");
        assert!(output.contains(&format!("ranks    {ranks}: {mesh}")), "{output}");
        assert!(output.contains(&format!("{ranks} ranks, ")), "{output}");
    }

    let [threads, processes] = ["threads", "processes"].map(|run| dir.path(run));
    let records = losses(&threads);
    assert_eq!(records.len(), 6);
    assert!(records.iter().all(|it| it.ranks == Some(ranks) && it.comm_bytes > Some(1000)));
    assert_eq!(records, losses(&processes));
    let saved = |run: &Path| files(&run.join("step-000006"));
    assert!(saved(&threads).len() > 8 && saved(&threads) == saved(&processes));
    dir
}

#[test]
fn threads_and_processes_train_the_same_run_over_nccl() {
    train_both(3, "3 dp_shard (fsdp)", &OVER_NCCL);
}

/// As above, along the other axes.
#[test]
fn threads_and_processes_train_along_each_axis_over_nccl() {
    if std::env::var_os("MESHGRAD_EXHAUSTIVE").is_none() {
        return;
    }
    let experts = [
        "model.model_type=qwen3_moe",
        "model.num_key_value_heads=2",
        "model.num_experts=4",
        "model.num_experts_per_tok=2",
        "model.moe_intermediate_size=8",
        "parallel.ep=2",
    ];
    let all: [(usize, &str, &[&str]); 3] = [
        (4, "2 pp (1f1b) x 2 tp", &["parallel.pp=2", "parallel.tp=2"]),
        (4, "2 dp_shard", &["parallel.cp_shard=2", "parallel.attention=ring"]),
        (2, "2 dp_shard", &experts),
    ];
    for (ranks, mesh, sets) in all {
        let sets = sets.iter().flat_map(|set| ["--set", *set]);
        train_both(ranks, mesh, &OVER_NCCL.into_iter().chain(sets).collect::<Vec<_>>());
    }
}

/// Threads and processes print one header and one line per step, and write the same bits.
#[test]
fn threads_and_processes_train_the_same_run() {
    let dir = train_both(3, "3 dp_shard (fsdp)", &[]);
    let [threads, processes] = ["threads", "processes"].map(|run| dir.path(run));
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
    let large = ["model.hidden_size=8192", "model.intermediate_size=28672", "parallel.tp=8"];
    let large = large.iter().flat_map(|set| ["--set", *set]);
    let more = ["--set", "model.num_hidden_layers=80", "--set", "model.num_attention_heads=64"];
    let large: Vec<&str> = ["--ranks", "8"].into_iter().chain(large).chain(more).collect();
    let cases: [(&[&str], &str); 8] = [
        (&large, "are free on cpu for 8 ranks; not even train.micro_batch_size=1"),
        (
            &["--set", "parallel.tp=2"],
            "the world 1 (the number of ranks) is not a multiple of 2, the product of",
        ),
        (
            &["--ranks", "2", "--set", "parallel.cp_shard=2", "--set", "train.seq_len=33"],
            "train.seq_len: 33 tokens cannot be divided into 4 equal parts (2 x cp 2 x sp 1 x tp 1); use \
             32 or 36",
        ),
        (
            &["--ranks", "2", "--set", "parallel.ep=2"],
            "the model has no experts to divide over ranks: expert parallelism must be 1",
        ),
        (
            &["--ranks", "2", "--set", "parallel.pp=2", "--set", "pipeline.schedule=zb2p"],
            "pipeline.schedule: `zb2p` is no schedule of training; use gpipe, looped_bfs, 1f1b,",
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

/// SIGHUP, as of a terminal that closes, saves and stops. A second signal ends at once, and says so.
#[test]
fn a_second_signal_ends_at_once() {
    let dir = TestDir::with_run(CONFIG);
    let long = ["--set", "train.steps=100000", "--set", "log.val_every=0"];
    let train = |run: &str, more: &[&str]| {
        let own = ["train", "small.toml", "--device", "cpu", "--run-dir", run];
        start(&mut dir.command(&[&own[..], &long, more].concat()))
    };
    let run = train("hangup", &[]);
    wait_for_steps(&dir.path("hangup"), 3);
    assert!(signal(run.id(), "HUP"));
    let stopped = run.wait_with_output().unwrap();
    let output = String::from_utf8_lossy(&stopped.stdout);
    assert!(stopped.status.success() && output.contains("stopped after step"), "{output}");

    // A step that does not end.
    let endless = ["--set", "train.batch_size=1000000", "--set", "train.micro_batch_size=1"];
    let mut run = train("endless", &endless);
    // The header is printed when the configuration is finished.
    read_to(run.stdout.as_mut().unwrap(), "  run ");
    assert!(signal(run.id(), "INT"));
    let mut errors = run.stderr.take().unwrap();
    read_to(&mut errors, "stopping after this step");
    assert!(signal(run.id(), "INT"));
    read_to(&mut errors, "ended at once");
    assert_eq!(run.wait().unwrap().code(), Some(130));
}

/// Reads until a line has `text`.
fn read_to(from: &mut impl Read, text: &str) {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while !String::from_utf8_lossy(&line).contains(text) {
        from.read_exact(&mut byte).unwrap_or_else(|_| panic!("no line with {text}"));
        match byte {
            [b'\n'] => line.clear(),
            [byte] => line.push(byte),
        }
    }
}

/// A rank that waits for others says so, and ends at the first signal.
#[test]
fn a_rank_that_waits_to_join_can_be_stopped() {
    let dir = TestDir::with_run(CONFIG);
    let mut command = dir.command(&["train", "small.toml"]);
    let place = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")];
    command.envs(place).env("MASTER_PORT", "9"); // nobody listens there
    command.env("MESHGRAD_SECRET", "a secret of 16 bytes");
    let mut rank = start(&mut command);
    read_to(rank.stderr.as_mut().unwrap(), "rank 1 of 2 waits for rank 0: 127.0.0.1:");
    assert!(signal(rank.id(), "TERM"));
    assert_eq!(rank.wait().unwrap().code(), Some(143));
}

/// A rank that cannot join prints why, and ends all.
#[test]
fn a_rank_that_cannot_join_says_why() {
    let dir = TestDir::with_run(CONFIG);
    let other = "if [ $RANK = 1 ]; then export $OTHER; fi; exec \"$0\" \"$@\"";
    let cases = [
        ("MESHGRAD_SECRET=another-secret-of-one", "did not prove that it knows the secret"),
        ("WORLD_SIZE=3", "its world has 3 ranks, but that of rank 0 has 2"),
    ];
    for (variable, expected) in cases {
        let own = ["launch", "-n", "2", "--", "sh", "-c", other, MESHGRAD, "train", "small.toml"];
        let failed = Output::of(dir.command(&own).env("OTHER", variable));
        let line = failed.stderr.lines().find(|line| line.starts_with("[1] error: rank 1"));
        assert!(line.is_some_and(|line| line.contains(expected)), "{}", failed.shown());
        assert!(
            failed.stderr.contains("error: rank 1 failed with exit code 1"),
            "{}",
            failed.shown()
        );
    }
}

/// If the launcher is killed, its ranks are stopped.
#[test]
fn ranks_do_not_outlive_their_launcher() {
    let dir = TestDir::new();
    let script = "echo $$ >$RANK.new; mv $RANK.new $RANK; exec sleep 60";
    let mut launcher = start(&mut dir.command(&["launch", "-n", "2", "--", "sh", "-c", script]));
    let ranks = ["0", "1"].map(|rank| {
        while !dir.path(rank).exists() {
            thread::sleep(Duration::from_millis(10));
        }
        fs::read_to_string(dir.path(rank)).unwrap().trim().to_owned()
    });
    // It copies the outputs of its ranks only after it has told the guard about all of them.
    let copies = |thread: &str| {
        let threads = fs::read_dir(format!("/proc/{}/task", launcher.id())).unwrap();
        let name = |entry: std::io::Result<fs::DirEntry>| {
            fs::read_to_string(entry.unwrap().path().join("comm")).unwrap_or_default()
        };
        threads.map(name).any(|name| name.trim() == thread)
    };
    while !copies("launched rank 1") {
        thread::sleep(Duration::from_millis(10));
    }
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    let runs = |rank: &String| {
        let status = fs::read_to_string(format!("/proc/{rank}/status")).unwrap_or_default();
        status.contains("Name:\tsleep") && !status.contains("State:\tZ")
    };
    for _ in 0..3000 {
        if !ranks.iter().any(runs) {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("{ranks:?} still run");
}

/// Damages the bytes of a file.
type Damage = fn(&mut Vec<u8>);

/// Damage that a single rank sees, here because its copy of the checkpoint is damaged, makes all
/// ranks fall back to the checkpoint before.
#[test]
fn damage_that_one_rank_sees_is_skipped_by_all() {
    let dir = TestDir::with_run(CONFIG);
    let text = format!("data.paths=[{:?}]", dir.path("text.txt"));
    let first = ["--run-dir", "first", "--set", &text, "--stop-after", "4"];
    dir.succeeds(&[&["train", "small.toml", "--ranks", "2"], &first[..]].concat());
    let damages: [(&str, Damage); 2] = [
        ("flipped", |bytes| *bytes.last_mut().unwrap() ^= 1),
        ("cut", |bytes| bytes.truncate(bytes.len() - 1)),
    ];
    for (name, damage) in damages {
        for rank in 0..2 {
            for (file, mut bytes) in files(&dir.path("first")) {
                if rank == 1 && file.ends_with("step-000004/model.safetensors") {
                    damage(&mut bytes);
                }
                let path = dir.path(format!("{name}-{rank}/saved")).join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, bytes).unwrap();
            }
        }
        let script = format!("cd {name}-$RANK; exec \"$0\" \"$@\"");
        let run = format!("../{name}");
        let arguments = ["../small.toml", "--run-dir", &run, "--resume", "saved", "--set", &text];
        let own = ["launch", "-n", "2", "--", "sh", "-c", &script, MESHGRAD, "train"];
        let output = dir.succeeds(&[&own[..], &arguments].concat());
        assert!(output.contains("resuming after step 2"), "{output}");
        assert!(output.contains("skipped: rank 1: "), "{output}");
        assert_eq!(losses(&dir.path(name)).len(), 4);
    }
}

/// If a rank is killed at any moment, the newest checkpoint is whole, and the restarted run continues from it with the
/// bits of a run that nothing interrupted.
#[test]
fn killed_ranks_lose_nothing_that_was_saved() {
    for (mesh, on) in [("dp_shard=3", &[][..]), ("pp=3", &[]), ("dp_shard=3", &OVER_NCCL)] {
        kill_ranks(&format!("parallel.{mesh}"), on);
    }
}

fn kill_ranks(mesh: &str, on: &[&str]) {
    let kills: usize = std::env::var(KILLS).map_or(2, |count| count.parse().unwrap());
    let dir = TestDir::with_run(CONFIG);
    let steps = format!("train.steps={}", 20 + 8 * kills);
    let sets = [&steps, "log.tensorboard=false", "sample.every=0", mesh];
    let sets = sets.map(|set| ["--set", set]).concat();
    let restarts = kills.to_string();
    let train = |run: &str| {
        let own =
            ["launch", "-n", "3", "--restarts", &restarts, "--", MESHGRAD, "train", "small.toml"];
        dir.command(&[&own, &["--run-dir", run][..], &sets, on].concat())
    };
    Output::of(&mut train("whole")).success();

    let run = dir.path("run");
    let launcher = train("run").stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    for kill in 0..kills {
        let from = losses_or_none(&run).len();
        wait_for_steps(&run, from + 1 + kill % 7);
        thread::sleep(Duration::from_micros(kill as u64 * 7919 % 20_000));
        // The first one is the guard of the others.
        if let Some(victim) = children(launcher.id()).get(1 + kill % 3) {
            signal(*victim, "KILL");
        }
        if let Some(newest) = newest(&run) {
            newest.verify().unwrap();
        }
    }
    let ended = launcher.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.success(), "{said}");
    assert!(said.contains("failed with exit code 137; restart 1 of "), "{said}");
    compare_and_remove(&dir);
    println!(
        "{mesh} {on:?}: {kills} ranks killed, {} restarts",
        said.matches("; restart ").count()
    );
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
