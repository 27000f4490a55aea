//! `meshgrad comm` and `meshgrad launch` as programs.

use std::process::{Command, Output};

const MESHGRAD: &str = env!("CARGO_BIN_EXE_meshgrad");

fn meshgrad(arguments: &[&str]) -> Output {
    Command::new(MESHGRAD).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Threads and processes run the same checks and print the same table, once.
#[test]
fn comm_checks_and_measures_threads_and_processes() {
    let arguments = ["comm", "--max-bytes", "2048"];
    let threads = meshgrad(&[arguments.as_slice(), &["--ranks", "3"]].concat());
    let launched = ["launch", "-n", "3", "--", MESHGRAD];
    let processes = meshgrad(&[launched.as_slice(), &arguments].concat());
    for (output, transport) in [(threads, "local"), (processes, "host")] {
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{err}");
        assert!(out.contains(&format!("3 ranks over {transport}")), "{out}");
        assert_eq!(out.matches("bit for bit as expected").count(), 1, "{out}");
        // 7 collectives of 32, 1024 and 2048 bytes, rounded up to 3 ranks.
        let rows = out.lines().filter(|line| line.contains("      2052 "));
        assert_eq!(rows.count(), 7, "{out}");
    }
}

/// Threads of this process need no launcher, so its variables may be anything.
#[test]
fn threads_do_not_depend_on_the_launcher() {
    for arguments in [["--transport", "local"], ["--ranks", "2"]] {
        let output = Command::new(MESHGRAD)
            .args(["comm", "--max-bytes", "0"])
            .args(arguments)
            .env("RANK", "not a number")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
}

#[test]
fn launch_returns_the_code_of_the_rank_that_failed() {
    let script = "if [ $RANK = 1 ]; then exit 5; fi; sleep 1000 & wait";
    let output = meshgrad(&["launch", "-n", "2", "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(5));
    let err = text(&output.stderr);
    assert!(err.contains("rank 1 failed with exit code 5"), "{err}");

    let output = meshgrad(&[
        "launch",
        "-n",
        "2",
        "--",
        MESHGRAD,
        "comm",
        "--ranks",
        "2",
        "--transport",
        "host",
    ]);
    let err = text(&output.stderr);
    assert!(err.contains("--ranks is for threads of one process"), "{err}");
}
