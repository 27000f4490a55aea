//! Steps that overflow, such as those whose dispatches need more slots than there are, change nothing and
//! are repeated.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;

use meshgrad_autograd::Module;
use meshgrad_collectives::redistribute;
use meshgrad_comm::{Local, Rank, Redistributor};
use meshgrad_data_parallel::{DataParallel, Strategy};
use meshgrad_mesh::{Mesh, Placement};
use meshgrad_models::moe::Dispatch;
use meshgrad_models::{Decoder, Model, ModelParallelism, TokenBatch};
use meshgrad_runtime::{Device, Tensor};
use meshgrad_train::Result;
use meshgrad_train::config::{Config, NoTables};
use meshgrad_train::metrics::{self, Record};
use meshgrad_train::session::Session;
use meshgrad_train::trainer::Trainer;

use crate::bigram::{Bigram, Fixture};
use crate::on_disk::files;
use crate::small;

const RANKS: usize = 3;
const STEPS: u64 = 20;

/// Six experts, two per token; the last layer is dense.
const SIX_EXPERTS: &str = r#"
    model_type = "qwen3_moe"
    vocab_size = 53
    hidden_size = 16
    intermediate_size = 20
    num_hidden_layers = 3
    num_attention_heads = 4
    num_key_value_heads = 4
    num_experts = 6
    num_experts_per_tok = 2
    moe_intermediate_size = 9
    mlp_only_layers = [2]
    initializer_range = 0.2
"#;

fn batch(device: &Device, step: u64, microbatch: u64) -> Result<TokenBatch> {
    let rows = |shift: u64| -> Result<Tensor> {
        let id = |at: u64| ((at * at * 7 + at * 3 + 5 * step + 11 * microbatch) % 53) as i64;
        let ids: Vec<i64> = (0..5 * 7).map(|at| id(at + shift)).collect();
        let whole = Tensor::from_slice(device, &[5, 7], &ids)?.as_replicated()?;
        redistribute(&whole, [("dp", Placement::shard(0))])
    };
    Ok(TokenBatch::new(&rows(0)?, &rows(1)?))
}

fn trainer(rank: &dyn Rank, mesh: &Mesh) -> Result<Trainer<Decoder>> {
    let experts = Mesh::new(&[RANKS], &["ep"])?;
    let none: [&str; 0] = [];
    let mut model = Decoder::new(&small::config(SIX_EXPERTS))?.balanced(small::BALANCING);
    model.add_router_biases();
    model.dispatch_experts_by(Dispatch::AllToAll);
    let parallelism = ModelParallelism::new(mesh).experts(&experts, ["ep"], none)?;
    model.plan(&parallelism)?.apply(&model, rank.rank())?;
    let homes = DataParallel::new(rank, mesh, Strategy::fsdp(["dp"]));
    homes.mesh(&experts, none, none).apply(&model)?;
    model.materialize(rank.device(), 3)?;
    let text = "optimizer.learning_rate = 0.01\noptimizer.ema_decay = 0.5\n\
                optimizer.skip_nonfinite = true";
    Trainer::new(model, &Config::parse::<NoTables>(text, "the test", &[]).unwrap(), rank.device())
}

/// How a run ends: its losses, and everything that it keeps.
type Outcome = (Vec<f64>, BTreeMap<String, Vec<f32>>);

/// Trains. Before each step, `slots` are set; `ahead` steps are enqueued before one is waited for.
fn train(slots: Option<usize>, ahead: u64) -> Vec<(Outcome, usize)> {
    let mesh = Mesh::new(&[RANKS], &["dp"]).unwrap();
    let trained = Local::new(RANKS).threads(1).launch(|rank| {
        Redistributor::new(rank).run_on(&mesh, || {
            let mut trainer = trainer(rank, &mesh)?;
            trainer.model.adapt_expert_slots(slots.is_some());
            let (mut losses, mut repeats, mut done) = (Vec::new(), 0, 0);
            while done < STEPS {
                if let Some(slots) = slots.filter(|_| repeats <= done as usize) {
                    trainer.model.sparse_blocks().for_each(|moe| moe.set_slots(slots));
                }
                let device = rank.device();
                let steps = done + 1..=STEPS.min(done + 1 + ahead);
                let pending = steps.map(|step| {
                    trainer.step(step, [0, 1].map(|microbatch| batch(device, step, microbatch)))
                });
                for pending in pending.collect::<Result<Vec<_>>>()? {
                    let record = pending.wait(&trainer.model)?;
                    if record.overflowed {
                        repeats += 1;
                        trainer.clear_overflow()?;
                        break;
                    }
                    done += 1;
                    assert_eq!(record.step, done);
                    losses.push(record.loss);
                }
            }
            let mut kept = BTreeMap::new();
            for param in trainer.model.params() {
                kept.insert(param.name().to_owned(), param.kept_value()?.local().to_vec()?);
            }
            for buffer in trainer.model.buffers() {
                kept.insert(buffer.name().to_owned(), buffer.value()?.local().to_vec()?);
            }
            for state in trainer.optimizer.state() {
                for (name, tensor) in &state.tensors {
                    kept.insert(format!("{} {name}", state.name), tensor.local().to_vec()?);
                }
            }
            Ok::<_, meshgrad_train::Error>(((losses, kept), repeats))
        })
    });
    trained.unwrap()
}

/// Overflowing steps are repeated, and give the weights, moments, averages, biases and losses of slots
/// that were large at once, bit for bit; so do the steps that were enqueued after them.
#[test]
fn repeated_steps_have_the_bits_of_large_slots() {
    let large = train(None, 0);
    assert!(large.iter().all(|(_, repeats)| *repeats == 0));
    for ahead in [0, 1, 3] {
        for (large, small) in large.iter().zip(train(Some(1), ahead)) {
            assert!(small.1 >= 10, "{} repeats", small.1);
            assert!(large.0 == small.0, "{ahead} steps ahead");
        }
    }
}

/// A run repeats steps that overflow, also before a checkpoint and at the end. It writes the files of a
/// run without them, and its metrics have each step once.
#[test]
fn a_run_repeats_steps_that_overflow() {
    let fixture = Fixture::new();
    let config = fixture.config(&["train.steps=9", "log.val_every=3", "optimizer.ema_decay=0.5"]);
    let train = |run: &str, overflows: bool| {
        let session = Session::new(&config, &fixture.device).run_dir(fixture.path(run));
        let trained = session.train(|data, _| {
            let mut model = Bigram::new(data.tokenizer.vocab_size(), 4);
            model.overflowing = overflows.then(AtomicUsize::default);
            Ok(model)
        });
        let records = metrics::read(&fixture.path(run).join("metrics.jsonl")).unwrap();
        (files(&trained.unwrap().checkpoint), records)
    };
    let ((plain, steps), (repeated, of_repeated)) = (train("plain", false), train("run", true));
    assert!(plain == repeated);
    let numbers = |records: &[Record]| -> Vec<_> {
        records.iter().map(|it| (it.step, it.loss, it.grad_norm, it.val_loss)).collect()
    };
    assert_eq!(numbers(&steps), numbers(&of_repeated));
    let repeats = of_repeated.iter().filter(|record| record.extra.contains_key("repeats"));
    assert!(repeats.count() >= 3);
}
