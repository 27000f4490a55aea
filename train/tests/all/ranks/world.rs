//! Runs of a small model on one rank and on several.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use meshgrad_comm::conformance::{Fault, RewiredRank};
use meshgrad_comm::{Communicator, GroupConnector, Local, LocalRank, Rank, Result};
use meshgrad_mesh::Group;
use meshgrad_runtime::Device;
use meshgrad_train::config::Config;
use meshgrad_train::decoder::{self, Tables};
use meshgrad_train::metrics::{self, Record};
use meshgrad_train::session::{Session, Summary};

pub(crate) const STEPS: u64 = 20;

const MOE: &str = r#"
    [model]
    model_type = "qwen3_moe"
    hidden_size = 32
    num_hidden_layers = 2
    num_attention_heads = 4
    num_key_value_heads = 2
    num_experts = 4
    num_experts_per_tok = 2
    moe_intermediate_size = 24
    norm_topk_prob = true
    router_aux_loss_coef = 0.01

    [balancing]
    bias_update_rate = 0.001
"#;

const DENSE: &str = r#"
    [model]
    model_type = "qwen3"
    hidden_size = 28
    intermediate_size = 38
    num_hidden_layers = 3
    num_attention_heads = 4
    num_key_value_heads = 2
    head_dim = 8
    tie_word_embeddings = true
"#;

const RUN: &str = r#"
    [data]
    paths = ["TEXT"]
    tokenizer = "byte"
    val_fraction = 0.1

    [train]
    steps = 20
    batch_size = 8
    micro_batch_size = 4
    seq_len = 16

    [schedule]
    warmup_steps = 2

    [checkpoint]
    every = 10
    keep = 0

    [sample]
    every = 20
    tokens = 4

    [log]
    val_every = 10
    val_batches = 3
    tensorboard = false
"#;

/// A mesh, by the degrees of `[parallel]`.
pub(crate) struct On {
    pub(crate) ranks: usize,
    pub(crate) sets: &'static [&'static str],
}

pub(crate) const ONE: On = On { ranks: 1, sets: &[] };

/// Each home, uneven microbatches, tensor parallelism alone and inside, pipelines, and ranks with parts
/// of sequences.
pub(crate) const MESHES: [On; 14] = [
    On { ranks: 2, sets: &["parallel.dp_replicate=2"] },
    On { ranks: 3, sets: &[] },
    On { ranks: 4, sets: &["parallel.home=zero1"] },
    On { ranks: 4, sets: &["parallel.dp_replicate=2", "parallel.reshard_after_forward=false"] },
    On { ranks: 2, sets: &["parallel.tp=2", "parallel.shard_experts=true"] },
    On {
        ranks: 4,
        sets: &[
            "parallel.tp=2",
            "parallel.sequence_parallel=true",
            "parallel.prefetch=3",
            "parallel.overlap_chunks=2",
            "parallel.whole_matrices=true",
        ],
    },
    On {
        ranks: 8,
        sets: &[
            "train.micro_batch_size=8",
            "parallel.dp_replicate=2",
            "parallel.tp=2",
            "parallel.order='dp-tp'",
        ],
    },
    On {
        ranks: 2,
        sets: &["parallel.pp=2", "pipeline.schedule='auto'", "train.micro_batch_size=1"],
    },
    On { ranks: 6, sets: &["parallel.pp=2", "pipeline.schedule='zbv'", "parallel.prefetch=2"] },
    On {
        ranks: 8,
        sets: &[
            "parallel.pp=2",
            "parallel.dp_replicate=2",
            "parallel.tp=2",
            "parallel.sequence_parallel=true",
            "pipeline.schedule='interleaved_zb'",
            "pipeline.stages_per_rank=2",
        ],
    },
    On { ranks: 4, sets: &["parallel.cp_shard=4"] },
    On { ranks: 2, sets: &["parallel.sp=2"] },
    On {
        ranks: 8,
        sets: &["parallel.cp_shard=2", "parallel.cp_replicate=2", "parallel.attention='ring'"],
    },
    On {
        ranks: 8,
        sets: &[
            "parallel.pp=2",
            "parallel.cp_shard=2",
            "parallel.sp=2",
            "parallel.attention='ring'",
            "parallel.home=zero1",
            "train.activation_checkpointing=true",
        ],
    },
];

/// Experts on other ranks.
pub(crate) const EXPERT_MESHES: [On; 5] = [
    On { ranks: 4, sets: &["parallel.ep=4"] },
    On {
        ranks: 4,
        sets: &["parallel.ep=2", "parallel.dp_replicate=2", "parallel.dispatch='all_to_all'"],
    },
    On {
        ranks: 4,
        sets: &[
            "parallel.tp=2",
            "parallel.sequence_parallel=true",
            "parallel.ep=2",
            "parallel.etp=2",
            "train.activation_checkpointing=true",
        ],
    },
    On {
        ranks: 8,
        sets: &[
            "parallel.pp=2",
            "parallel.ep=2",
            "parallel.home=zero1",
            "parallel.dispatch='all_to_all'",
        ],
    },
    On { ranks: 4, sets: &["parallel.cp_shard=2", "parallel.sp=2", "parallel.ep=4"] },
];

/// The meshes that a model can be trained on.
pub(crate) fn meshes(has_experts: bool) -> impl Iterator<Item = &'static On> {
    let of_experts = EXPERT_MESHES.iter().filter(move |_| has_experts);
    MESHES.iter().chain(of_experts)
}

/// A text of one document or several, and a folder for runs.
pub(crate) struct Place {
    folder: tempfile::TempDir,
    model: &'static str,
}

impl Place {
    pub(crate) fn moe() -> Place {
        Place::new(MOE, 300)
    }

    pub(crate) fn dense() -> Place {
        Place::new(DENSE, 3)
    }

    /// With a text whose documents have this many lines.
    fn new(model: &'static str, lines: usize) -> Place {
        let folder = tempfile::tempdir().unwrap();
        let line = |at: usize| format!("line {at}: {} and {}\n", at * at % 97, at * 31 % 89);
        let all: Vec<String> = (0..300).map(line).collect();
        fs::create_dir(folder.path().join("text")).unwrap();
        for (number, document) in all.chunks(lines).enumerate() {
            let path = folder.path().join(format!("text/{number:03}.txt"));
            fs::write(path, document.concat()).unwrap();
        }
        Place { folder, model }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn config(&self, on: &On, more: &[&str]) -> Config {
        let text = self.path("text");
        let run = RUN.replace("TEXT", text.to_str().unwrap());
        let sets = on.sets.iter().chain(more);
        let sets: Vec<_> = sets.map(|set| set.parse().unwrap()).collect();
        Config::parse::<Tables>(&[self.model, &run].concat(), "the test", &sets).unwrap()
    }

    /// Trains in the run folder `name`. `change` adds to the session of a rank.
    pub(crate) fn train_with(
        &self,
        name: &str,
        (on, more): (&On, &[&str]),
        change: impl for<'a> Fn(&dyn Rank, Session<'a>) -> Session<'a> + Sync,
    ) -> Result<Vec<Summary>> {
        let (config, run) = (self.config(on, more), self.path(name));
        Local::new(on.ranks).threads(1).launch(|rank| {
            let session = Session::new(&config, rank.device()).on(rank).run_dir(&run);
            decoder::train(change(rank, session))
        })
    }

    pub(crate) fn train(&self, name: &str, on: &On, more: &[&str]) -> Summary {
        let trained = self.train_with(name, (on, more), |_, session| session);
        let summaries =
            trained.unwrap_or_else(|error| panic!("{} {:?}: {error}", on.ranks, on.sets));
        assert!(summaries.iter().all(|it| *it == summaries[0]));
        summaries.into_iter().next().unwrap()
    }

    /// Trains with a fault in the communication of parameters and gradients. Returns whether the run
    /// ended.
    pub(crate) fn train_faulty(&self, name: &str, on: &On, fault: Fault) -> bool {
        let (config, run) = (self.config(on, &[]), self.path(name));
        let trained = Local::new(on.ranks).threads(1).launch(|rank| {
            let rank = faulty_homes(rank, fault);
            let session = Session::new(&config, rank.device()).on(&rank).run_dir(&run);
            decoder::train(session)
        });
        trained.is_ok()
    }

    /// Trains on the only device, without ranks.
    pub(crate) fn train_alone(&self, name: &str, more: &[&str]) -> Summary {
        let (config, device) = (self.config(&ONE, more), Device::cpu());
        decoder::train(Session::new(&config, &device).run_dir(self.path(name))).unwrap()
    }

    pub(crate) fn records(&self, run: &str) -> Vec<Record> {
        metrics::read(&self.path(run).join("metrics.jsonl")).unwrap()
    }

    /// Whether the losses, norms and validation losses of two runs differ by at most `tolerance`,
    /// relative to the larger one.
    pub(crate) fn differ(&self, a: &str, b: &str) -> f64 {
        let (a, b) = (self.records(a), self.records(b));
        assert_eq!(a.len(), b.len());
        let pairs = a.iter().zip(&b).flat_map(|(a, b)| {
            assert_eq!((a.step, a.lr, a.val_loss.is_some()), (b.step, b.lr, b.val_loss.is_some()));
            let val = a.val_loss.zip(b.val_loss);
            [(a.loss, b.loss), (a.grad_norm, b.grad_norm)].into_iter().chain(val)
        });
        pairs.map(|(a, b)| (a - b).abs() / a.abs().max(b.abs())).fold(0.0, f64::max)
    }
}

/// `rank` with a fault in the communicators of homes.
fn faulty_homes(rank: &LocalRank, fault: Fault) -> RewiredRank<'_> {
    let faulty = RewiredRank::faulty(rank, fault).connector();
    let connector = FaultyHomes { faulty, intact: rank.connector() };
    RewiredRank::new(rank, Arc::new(connector))
}

struct FaultyHomes {
    faulty: Arc<dyn GroupConnector>,
    intact: Arc<dyn GroupConnector>,
}

impl GroupConnector for FaultyHomes {
    fn connect(
        &self,
        name: &str,
        group: &Group,
    ) -> meshgrad_runtime::Result<Arc<dyn Communicator>> {
        match name {
            "home" => self.faulty.connect(name, group),
            _ => self.intact.connect(name, group),
        }
    }
}
