//! Rows of whole documents on several ranks.

use std::fs;

use meshgrad_comm::{Local, Rank};
use meshgrad_models::TokenBatch;
use meshgrad_runtime::{Device, Tensor};
use meshgrad_train::batches::TokenBatches;
use meshgrad_train::config::Config;
use meshgrad_train::data::Data;
use meshgrad_train::decoder::{self, Tables};
use meshgrad_train::metrics;
use meshgrad_train::ranks::RunRanks;
use meshgrad_train::run_folder::RunFolder;
use meshgrad_train::session::Session;

const RUN: &str = r#"
    data = { paths = ["CHAT"], tokenizer = "byte", val_fraction = 0.1 }
    train = { steps = 6, batch_size = 12, micro_batch_size = 12, seq_len = 96 }
    optimizer.learning_rate = 1e-2
    schedule.warmup_steps = 1
    sample.every = 0
    log = { val_every = 3, val_batches = 0 }

    [model]
    model_type = "qwen3"
    hidden_size = 16
    intermediate_size = 24
    num_hidden_layers = 1
    num_attention_heads = 2
    head_dim = 8
"#;

/// Conversations of different lengths, and plain documents among them.
fn lines() -> String {
    let line = |at: usize| {
        let turn =
            |role: &str, content: String| serde_json::json!({ "role": role, "content": content });
        let question = turn("user", "q".repeat(1 + at * 7 % 40));
        let answer = turn("assistant", format!("It is {at}."));
        match at % 6 {
            0 => serde_json::json!({ "text": "some words of a text" }),
            _ => serde_json::json!({ "messages": [question, answer] }),
        }
    };
    (0..90).map(|at| line(at).to_string() + "\n").collect()
}

fn config(place: &tempfile::TempDir, sets: &[&str]) -> Config {
    let chat = place.path().join("chat.jsonl");
    fs::write(&chat, lines()).unwrap();
    let sets: Vec<_> = sets.iter().map(|set| set.parse().unwrap()).collect();
    let text = RUN.replace("CHAT", chat.to_str().unwrap());
    Config::parse::<Tables>(&text, "the test", &sets).unwrap()
}

/// Ids, labels, positions and documents of the part that this rank has.
fn values(batch: &TokenBatch) -> [Vec<i64>; 4] {
    let documents = batch.documents.as_ref().unwrap();
    let all = [&batch.ids, &batch.labels, batch.positions.as_ref().unwrap(), documents];
    all.map(|tensor: &Tensor| tensor.local().to_vec().unwrap())
}

/// The parts of all ranks are the rows of a single rank, in order, with any number of ranks. The last
/// batch of a validation may have too few rows for all of them.
#[test]
fn ranks_divide_the_rows_of_one() {
    let place = tempfile::tempdir().unwrap();
    let config = config(&place, &[]);
    let folder = RunFolder::open(&place.path().join("run")).unwrap();
    let data = Data::prepare(&config.data, &folder).unwrap();
    let order = data.order(96, 12, 1).unwrap();
    let held_out = data.validation_rows(96).unwrap().unwrap();
    let all = |batches: TokenBatches<'_>, validation: TokenBatches<'_>| -> Vec<[Vec<i64>; 4]> {
        let steps = (1..8).flat_map(|step| batches.of_step(&order, step, 12, 12));
        let validation = validation.in_order(&held_out, 12, 0);
        steps.chain(validation).map(|batch| values(&batch.unwrap())).collect()
    };
    let (training, validation) = (data.tokens.training(), data.tokens.validation());
    let device = Device::cpu();
    let [whole, held_out] = [training, validation].map(|it| TokenBatches::new(it, &device));
    let whole = all(whole, held_out);
    for ranks in [1, 2, 3, 5] {
        let parts = Local::run(ranks, |rank| {
            let ranks = RunRanks::new(rank, &config)?;
            ranks.on_mesh(|| {
                let on = |tokens| TokenBatches::new(tokens, rank.device()).on(&ranks);
                Ok(all(on(training), on(validation)))
            })
        });
        let parts = parts.unwrap();
        for (batch, expected) in whole.iter().enumerate() {
            for (what, expected) in expected.iter().enumerate() {
                let mut joined: Vec<i64> =
                    parts.iter().flat_map(|part| part[batch][what].clone()).collect();
                // The rows added for the last ranks.
                joined.truncate(expected.len());
                assert_eq!(&joined, expected, "{ranks} ranks, batch {batch}");
            }
        }
    }
}

/// A run on ranks trains on the rows of a single rank: the metrics of packing are the same, and losses
/// differ by rounding.
#[test]
fn a_run_on_ranks_packs_as_a_single_rank() {
    let place = tempfile::tempdir().unwrap();
    let run = |name: &str, ranks: usize, sets: &[&str]| {
        let config = config(&place, sets);
        let folder = place.path().join(name);
        Local::run(ranks, |rank| {
            decoder::train(Session::new(&config, rank.device()).on(rank).run_dir(&folder))
        })
        .unwrap();
        metrics::read(&folder.join("metrics.jsonl")).unwrap()
    };
    let one = run("one", 1, &[]);
    let close = |a: f64, b: f64| (a - b).abs() < 1e-4 * b.abs();
    let ring = ["parallel.cp_shard=2", "parallel.sp=2", "parallel.attention='ring'"];
    let others =
        [run("three", 3, &[]), run("gather", 3, &["parallel.cp_shard=3"]), run("ring", 4, &ring)];
    let pairs = others.iter().flat_map(|other| one.iter().zip(other));
    for (record, other) in pairs {
        assert!(close(record.loss, other.loss), "{} {}", record.loss, other.loss);
        let [padding, trained] = ["padding", "trained_tokens"].map(|key| &record.extra[key]);
        assert_eq!([padding, trained], ["padding", "trained_tokens"].map(|key| &other.extra[key]));
        assert!((0.0..0.3).contains(&padding.as_f64().unwrap()), "{padding}");
        assert!(trained.as_u64().unwrap() > 12 * 8, "{trained}");
    }
    let last = |records: &[metrics::Record]| records.last().unwrap().val_loss.unwrap();
    assert!(one.len() == 6 && last(&one) < one[0].loss);
}
