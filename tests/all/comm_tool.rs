//! `meshgrad comm` and `meshgrad launch` as programs.

use crate::test_dir::{MESHGRAD, Output, TestDir};

/// Threads and processes run the same checks and print the same table, once.
#[test]
fn comm_checks_and_measures_threads_and_processes() {
    let arguments = ["comm", "--max-bytes", "2048"];
    let dir = TestDir::new();
    let threads = dir.succeeds(&[arguments.as_slice(), &["--ranks", "3"]].concat());
    let launched = ["launch", "-n", "3", "--", MESHGRAD];
    let processes = dir.succeeds(&[launched.as_slice(), &arguments].concat());
    for (out, transport) in [(threads, "local"), (processes, "tcp")] {
        assert!(out.contains(&format!("3 ranks over {transport}")), "{out}");
        assert_eq!(out.matches("bit for bit as expected").count(), 1, "{out}");
        // 7 collectives of 32, 1024 and 2048 bytes, rounded up to 3 ranks.
        let rows = out.lines().filter(|line| line.contains("      2052 "));
        assert_eq!(rows.count(), 7, "{out}");
    }
}

/// Over NCCL between emulated GPUs: of threads, and of processes.
#[test]
fn comm_checks_nccl_between_threads_and_processes() {
    let arguments = ["comm", "--max-bytes", "0", "--device", "emulator"];
    let dir = TestDir::new();
    let mut threads =
        dir.command(&[&arguments[..], &["--ranks", "2", "--transport", "nccl"]].concat());
    let variables = [("MESHGRAD_EMULATOR_DEVICES", "2"), ("NCCL_MAX_CTAS", "4")];
    let threads = Output::of(threads.envs(variables)).success();
    assert!(threads.contains("options of groups are overridden by NCCL_MAX_CTAS=4"), "{threads}");
    let counts: &[&str] = match std::env::var_os("MESHGRAD_EXHAUSTIVE") {
        Some(_) => &["2", "3", "4", "8"],
        None => &["3"],
    };
    let processes = counts.iter().map(|count| {
        let launched = ["launch", "-n", count, "--", MESHGRAD];
        (*count, dir.succeeds(&[&launched[..], &arguments].concat()))
    });
    for (ranks, output) in processes.chain([("2", threads)]) {
        assert!(output.contains(&format!("{ranks} ranks over NCCL 2.28.7 (")), "{output}");
        assert!(output.contains(", each with emulator:0"), "{output}");
        assert!(output.contains("bit for bit as expected"), "{output}");
    }

    for (arguments, expected) in [
        (
            ["--transport", "nccl", "--device", "cpu"],
            "NCCL moves tensors between GPUs; use --device cuda",
        ),
        (["--transport", "tcp", "--device", "emulator"], "use NCCL; use --transport auto"),
    ] {
        let output = dir.run(&[&["comm"], &arguments[..]].concat());
        assert!(output.stderr.contains(expected) && output.code == 1, "{}", output.stderr);
    }
}

/// Threads of this process need no launcher, so its variables may be anything.
#[test]
fn threads_do_not_depend_on_the_launcher() {
    for arguments in [["--transport", "local"], ["--ranks", "2"]] {
        let dir = TestDir::new();
        let mut command = dir.command(&["comm", "--max-bytes", "0"]);
        Output::of(command.args(arguments).env("RANK", "not a number")).success();
    }
}

#[test]
fn launch_returns_the_code_of_the_rank_that_failed() {
    let script = "if [ $RANK = 1 ]; then exit 5; fi; sleep 1000 & wait";
    let dir = TestDir::new();
    let output = dir.run(&["launch", "-n", "2", "--", "sh", "-c", script]);
    assert_eq!(output.code, 5);
    assert!(output.stderr.contains("rank 1 failed with exit code 5"), "{}", output.stderr);

    let launched = ["launch", "-n", "2", "--", MESHGRAD, "comm"];
    let output = dir.run(&[&launched[..], &["--ranks", "2", "--transport", "tcp"]].concat());
    let expected = "--ranks is for threads of one process";
    assert!(output.stderr.contains(expected), "{}", output.stderr);
}
