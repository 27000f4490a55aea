//! The exact output of `meshgrad pipeline`: text, JSON, files, and errors.
//!
//! After an intended change run `INSTA_UPDATE=always cargo test -p meshgrad --test all pipeline_tool` and
//! read the diff.

use std::fs;

use approx::assert_abs_diff_eq;

use crate::test_dir::{Output, TestDir};

const UNEVEN: &str = "
forward = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0]
input = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0]
send = 0.1
";

/// A folder with durations and schedules.
fn dir() -> TestDir {
    TestDir::with(&[
        ("uneven.toml", UNEVEN),
        ("slow.json", r#"{"backward": 4}"#),
        ("short.toml", "forward = [1.0, 2.0]"),
        ("negative.toml", "weight = -1"),
        ("unknown.toml", "wait = 1"),
        ("text.toml", "forward = 'fast'"),
        ("own.csv", "0F0,0F1,,,0B0,0B1\n,1F0,1B0,1F1,1B1\n"),
        ("cell.csv", "0F0,0B0\n1F0,1Q0\n"),
        ("deadlock.csv", "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n"),
    ])
}

fn run(dir: &TestDir, line: &str) -> Output {
    Output::of(dir.command(&["pipeline"]).args(line.split_whitespace()))
}

fn transcript(line: &str) -> String {
    run(&dir(), line).shown()
}

#[test]
fn schedules_are_shown() {
    let all = [
        "--schedule zbv --ranks 4 --stages 8 --microbatches 16",
        "--schedule interleaved_zb --ranks 4 --stages 8 --microbatches 16 --durations uneven.toml",
        "--schedule auto --ranks 4 --stages 8 --microbatches 16 --durations uneven.toml",
        "--schedule auto --ranks 4 --stages 6 --microbatches 8 --memory-cap 3",
        "--schedule own.csv --durations slow.json",
        "--schedule gpipe --ranks 1 --stages 1 --microbatches 1",
        "--schedule inference --ranks 2 --stages 4 --microbatches 3",
    ];
    insta::assert_snapshot!(all.map(transcript).join("\n\n"));
}

#[test]
fn errors_name_the_way_out() {
    let all = [
        "",
        "--schedule zbv",
        "--schedule zvb --ranks 4 --stages 8 --microbatches 16",
        "--schedule zbv --ranks four --stages 8 --microbatches 16",
        "--schedule zbv --ranks 0 --stages 8 --microbatches 16",
        "--schedule zbv --ranks 4 --stages 4 --microbatches 16",
        "--schedule interleaved --ranks 4 --stages 8 --microbatches 9",
        "--schedule dual_pipe_v --ranks 4 --stages 8 --microbatches 7",
        "--schedule 1f1b --ranks 99999999999 --stages 99999999999 --microbatches 16",
        "--schedule zbv --ranks 4 --stages 8 --microbatches 16 --memory-cap 6",
        "--schedule auto --ranks 4 --stages 8 --microbatches 16 --memory-cap 1",
        "--schedule auto --ranks 4 --stages 8 --microbatches 16 --memory-cap nan",
        "--schedule zbv --ranks 4 --stages 8 --microbatches 16 --durations absent.toml",
        "--schedule zbv --ranks 4 --stages 8 --microbatches 16 --durations short.toml",
        "--schedule zbv --ranks 4 --stages 8 --microbatches 16 --durations negative.toml",
        "--schedule zbv --ranks 4 --stages 8 --microbatches 16 --durations unknown.toml",
        "--schedule zbv --ranks 4 --stages 8 --microbatches 16 --durations text.toml",
        "--schedule zbv --ranks 4 --stages 8 --microbatches 16 --svg absent/zbv.svg",
        "--schedule absent.csv",
        "--schedule cell.csv",
        "--schedule deadlock.csv",
        "--schedule own.csv --ranks 3",
    ];
    insta::assert_snapshot!(all.map(transcript).join("\n\n"));
}

#[test]
fn help_names_every_option() {
    insta::assert_snapshot!(transcript("--help"));
}

#[test]
fn json_has_the_idle_share_and_the_actions_and_peaks_of_every_rank() {
    let output = run(&dir(), "--schedule zbv --ranks 4 --stages 8 --microbatches 16 --json");
    assert_eq!((output.stderr.as_str(), output.code), ("", 0));
    let view = output.json();
    let idle = view["idle_share"].as_f64().unwrap();
    assert_abs_diff_eq!(idle, 3.0 / 99.0, epsilon = 1e-12);

    let ranks = view["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 4);
    for (number, rank) in ranks.iter().enumerate() {
        assert_eq!(rank["rank"], number);
        assert_eq!(rank["stages"], serde_json::json!([number, 7 - number]));
        assert_eq!(rank["peak"]["total"], 8.0);
        let actions = rank["actions"].as_array().unwrap();
        assert_eq!(actions.len(), rank["times"].as_array().unwrap().len());
        for action in [format!("{number}F0"), format!("{}W15", 7 - number)] {
            assert!(actions.contains(&action.clone().into()), "{action}");
        }
    }
    assert!(ranks[0]["actions"].as_array().unwrap().contains(&"0SEND_F3".into()));
    assert!(ranks[1]["actions"].as_array().unwrap().contains(&"1RECV_F3".into()));
}

/// What `--csv` writes gives the same run.
#[test]
fn files_are_written_and_read() {
    let dir = dir();
    let flags = "--ranks 4 --stages 8 --microbatches 16 --durations uneven.toml";
    let line = format!("--schedule auto {flags} --svg run.svg --csv run.csv");
    let shown = run(&dir, &line);
    assert_eq!((shown.stderr.as_str(), shown.code), ("", 0));
    let svg = fs::read_to_string(dir.path("run.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    assert!(svg.contains("auto (synthesized): 4 ranks, 8 stages, 16 microbatches"));

    let again = run(&dir, "--schedule run.csv --durations uneven.toml");
    let table =
        |output: &Output| output.stdout.lines().skip(1).map(String::from).collect::<Vec<_>>();
    assert_eq!(table(&again), table(&shown));
}
