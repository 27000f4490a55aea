//! Processes that save and load one checkpoint together. This test program starts itself as each rank.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use meshgrad::ckpt::Snapshot;
use meshgrad::ckpt::ranks::ShardedSnapshot;
use meshgrad::comm::{Rank, Secret, Tcp, free_port};
use meshgrad::mesh::Mesh;
use meshgrad::models::families::qwen3::Qwen3Config;
use meshgrad::models::hf::{self, Experts, Loader};
use meshgrad::models::{Model, folder};
use meshgrad::prelude::*;
use meshgrad::{checkpoint_ranks, ckpt};

use crate::on_disk::files;

const RANKS: usize = 3;
const SEED: u64 = 7;

const CONFIG: &str = r#"{
    "model_type": "qwen3_moe", "vocab_size": 50, "hidden_size": 12, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 4,
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 7
}"#;

/// What a child does: `save`, `empty` or `exit`, its rank, the address, and the folder.
const ROLE: &str = "MESHGRAD_TEST_ROLE";

fn model() -> Decoder {
    Decoder::new(&Qwen3Config::from_json(CONFIG).unwrap()).unwrap()
}

fn sharded(rank: usize) -> Decoder {
    let mesh = Mesh::new(&[RANKS], &["tp"]).unwrap();
    let parallelism = ModelParallelism::new(&mesh).tensor(["tp"]).unwrap();
    let model = model();
    let plan = model.plan(&parallelism.shard_experts(true)).unwrap();
    plan.apply(&model, rank).unwrap();
    model
}

/// The main function of a child process; without a role it does nothing. Rank 1 has the fault.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let words: Vec<&str> = role.split(' ').collect();
    let [role, rank, address, run] = words[..] else {
        panic!("{role}");
    };
    let rank = rank.parse().unwrap();
    let host =
        Tcp::new(rank, RANKS, address, Secret::new("a secret for tests only").unwrap()).threads(1);
    let world = host.deadline(Duration::from_secs(60)).join().unwrap();
    let mut ranks = checkpoint_ranks(&world).unwrap();

    let model = sharded(rank);
    let is_faulty = rank == 1;
    if role == "exit" && is_faulty {
        std::process::exit(5);
    }
    if role != "empty" || !is_faulty {
        model.materialize(world.device(), SEED).unwrap();
    }
    let params = folder::params(&model);
    let mut snapshot = ShardedSnapshot::new(run, "sharded");
    let added = params
        .as_ref()
        .map_err(Clone::clone)
        .and_then(|params| hf::add_shards(&model, params, Experts::OneByOne, &mut snapshot, ""));
    match ShardedSnapshot::save(added.map(|()| snapshot), &mut ranks) {
        Ok(saved) => println!("\nwritten {}", saved.written_bytes),
        Err(error) => return println!("\nverdict {error}"),
    }

    let loaded = sharded(rank);
    let dir = Path::new(run).join("sharded");
    Loader::new(&dir).fill(&loaded, world.device()).unwrap();
    for named in params.unwrap() {
        let (name, value) = (named.name, named.tensor);
        let loaded = loaded.params().into_iter().find(|it| it.name() == name).unwrap();
        let values = |x: &Tensor| x.local().to_vec::<f32>().unwrap();
        assert_eq!(values(&loaded.value().unwrap()), values(&value), "{name}");
    }
}

/// Runs all ranks in a role; their outputs, in rank order.
fn run(role: &str, folder: &Path) -> Vec<Output> {
    let address = format!("127.0.0.1:{}", free_port().unwrap());
    let start = |rank| {
        let role = format!("{role} {rank} {address} {}", folder.display());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([
            "checkpoint_on_processes::child",
            "--exact",
            "--nocapture",
            "--test-threads=1",
        ]);
        command.env(ROLE, role).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let children: Vec<_> = (0..RANKS).map(start).collect();
    let outputs = children.into_iter().map(|child| child.wait_with_output());
    outputs.map(|output| output.unwrap()).collect()
}

/// The rest of the line that starts with `word`.
fn line(output: &Output, word: &str) -> String {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let mut found = text.lines().filter_map(|line| line.strip_prefix(word));
    found.next().unwrap_or_else(|| panic!("{text}{errors}")).trim().to_owned()
}

/// Three processes, each with its shards, write the folder that one process writes for the whole
/// model, each byte once, and load their shards from it.
#[test]
fn processes_write_the_folder_of_one() {
    let dir = tempfile::tempdir().unwrap();
    let whole = model();
    whole.materialize(&Device::cpu(), SEED).unwrap();
    let mut snapshot = Snapshot::new(dir.path(), "whole");
    hf::add_model(&whole, Experts::OneByOne, &mut snapshot, "").unwrap();
    snapshot.save().unwrap();

    let outputs = run("save", dir.path());
    let written = outputs.iter().map(|output| line(output, "written"));
    let written: Vec<usize> = written.map(|bytes| bytes.parse().unwrap()).collect();
    for output in &outputs {
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
    }
    let expected = files(&dir.path().join("whole"));
    assert!(files(&dir.path().join("sharded")) == expected);
    assert!(written.iter().all(|bytes| *bytes > 0), "{written:?}");
    assert_eq!(written.iter().sum::<usize>(), expected[Path::new("model.safetensors")].len());
    ckpt::Committed::open(dir.path().join("sharded")).unwrap().verify().unwrap();
}

/// A rank without values, and one that exits: all other ranks name it, and nothing is published.
#[test]
fn a_rank_that_fails_is_named_by_all() {
    for (role, expected) in
        [("empty", "rank 1 failed to plan the checkpoint: "), ("exit", "rank 1 died")]
    {
        let dir = tempfile::tempdir().unwrap();
        let outputs = run(role, dir.path());
        for (rank, output) in outputs.iter().enumerate() {
            if (role, rank) == ("exit", 1) {
                assert_eq!(output.status.code(), Some(5));
                continue;
            }
            let verdict = line(output, "verdict");
            assert!(verdict.contains(expected), "{role}, rank {rank}: {verdict}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{role}");
    }
}
