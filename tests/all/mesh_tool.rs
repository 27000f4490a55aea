//! The exact output of `meshgrad mesh`: text, JSON, files of other libraries, and errors.
//!
//! After an intended change run `INSTA_UPDATE=always cargo test -p meshgrad --test all mesh_tool` and
//! read the diff.

use serde_json::Value;

use crate::test_dir::{Output, TestDir};

const OURS: &str = "
[parallel]
world = 64
ranks_per_host = 8
pp = 2
tp = 4
ep = 8

[[parallel.views]]
name = 'tokens'
domain = 'regular'
axes = 'dp_replicate,dp_shard'

[parallel.options.tp]
max_ctas = 16
";

const TORCHTITAN: &str = "
[parallelism]
data_parallel_replicate_degree = 2
tensor_parallel_degree = 4
pipeline_parallel_degree = 2
";

/// Runs the program in a folder with configurations.
fn run(line: &str) -> Output {
    let dir = TestDir::with(&[
        ("ours.toml", OURS),
        ("titan.toml", TORCHTITAN),
        (
            "ds.json",
            r#"{"tensor_parallel": {"autotp_size": 4}, "zero_optimization": {"stage": 3}}"#,
        ),
        ("nccl.yaml", "tp: {max_ctas: 8}\n"),
        ("wrong.toml", "[parallel]\nttp = 2\npp = 3\nep = 'many'\n"),
        ("notes.txt", ""),
    ]);
    Output::of(dir.command(&["mesh"]).args(line.split_whitespace()))
}

fn transcript(line: &str) -> String {
    run(line).shown()
}

fn json(line: &str) -> Value {
    run(&format!("{line} --json")).json()
}

#[test]
fn the_view_of_a_rank_is_shown() {
    let all = [
        "--world 1024 --tp 2 --pp 8 --ep 64",
        "--world 1024 --tp 2 --pp 8 --ep 64 --ranks-per-host 8 --rank 777",
        "--world 16 --tp 2 --cp-shard 2 --order tp-cp-ep-pp-dp --pp 2",
        "--tp 2 --dp-replicate 2",
        "--world 1",
        "--config ours.toml --rank 5",
        "--world 32 --config titan.toml",
        "--world 8 --config ds.json --config nccl.yaml",
        "--world 16 -- --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --swiglu",
    ];
    insta::assert_snapshot!(all.map(transcript).join("\n\n"));
}

#[test]
fn invalid_configurations_are_reported() {
    let all = [
        "--world 10 --tp 4",
        "--world 8 --tp 4 --pp 4 --ep 3 --order tp-pp-xp",
        "--world 16 --dp-shard auto --cp-shard auto",
        "--world 8 --config ds.json --tp 2",
        "--world 8 --config wrong.toml",
        "--config notes.txt",
        "--config absent.toml",
        "--world 8 --tp 0",
        "--world 8 --tp -1",
        "--world 8 --rank 8",
        "--world 99999999999",
        "",
    ];
    insta::assert_snapshot!(all.map(transcript).join("\n\n"));
}

#[test]
fn json_has_the_same_content_as_the_text() {
    let view = json("--world 1024 --tp 2 --pp 8 --ep 64 --ranks-per-host 8 --rank 777");
    assert_eq!(view["world"], 1024);
    assert_eq!((&view["axes"]["pp"], &view["axes"]["tp"]), (&8.into(), &2.into()));
    assert_eq!(view["domains"]["expert"]["ep_shard"], 64);
    assert_eq!(view["groups"]["tp"], serde_json::json!([776, 777]));
    let groups = view["groups"].as_object().unwrap();
    for (name, ranks) in groups {
        let ranks = ranks.as_array().unwrap();
        assert!(ranks.contains(&777.into()), "{name}");
    }

    // Equal lists of more than one rank share a communicator.
    let mut lists: Vec<String> = groups
        .values()
        .filter(|ranks| ranks.as_array().unwrap().len() > 1)
        .map(Value::to_string)
        .collect();
    lists.sort();
    lists.dedup();
    assert_eq!(view["distinct_communicators"], lists.len());

    let refused = json("--world 10 --tp 4");
    assert_eq!(refused["violations"].as_array().unwrap().len(), 1);
}

#[test]
fn help_names_every_option() {
    insta::assert_snapshot!(transcript("--help"));
}
