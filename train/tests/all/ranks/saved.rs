//! A checkpoint that ranks of any mesh read and write again has the bytes of the one that one rank wrote.
//! So a run that was saved on any of these meshes continues on any other with exactly its weights, moments,
//! averages, router biases and place in the data.

use std::fs;
use std::path::Path;

use meshgrad_autograd::Module;
use meshgrad_ckpt::Committed;
use meshgrad_ckpt::ranks::ShardedSnapshot;
use meshgrad_comm::{Local, LocalRank, Rank};
use meshgrad_runtime::ops;
use meshgrad_train::Result;
use meshgrad_train::checkpoint::{self, ReadOptions, SavedRun};
use meshgrad_train::config::Config;
use meshgrad_train::decoder::{self, Tables};
use meshgrad_train::ranks::{RunRanks, checkpoint_ranks};
use meshgrad_train::tokenizer::Tokenizer;
use meshgrad_train::trainer::Trainer;

use crate::on_disk::files;
use crate::ranks::world::Place;

/// Enough layers and heads for four ranks along each axis.
const MOE: [&str; 4] = [
    "model.num_hidden_layers=4",
    "model.num_attention_heads=8",
    "model.num_key_value_heads=4",
    "train.batch_size=32",
];
const DENSE: [&str; 2] = ["model.num_hidden_layers=4", "train.batch_size=32"];
const SAVED: [&str; 3] = ["train.micro_batch_size=8", "optimizer.ema_decay=0.9", "train.steps=3"];

const AXES: [&str; 6] = ["pp", "dp_replicate", "dp_shard", "cp_shard", "sp", "tp"];

/// Keys of `[parallel]` and their values, and how many ranks they are for.
type Degrees = (usize, Vec<String>);

fn degrees(of: &[(&str, usize)], more: &[&str]) -> Degrees {
    let sets = of.iter().map(|(axis, ranks)| format!("parallel.{axis}={ranks}"));
    let ranks = of.iter().filter(|(axis, _)| AXES.contains(axis)).map(|(_, ranks)| ranks);
    (ranks.product(), sets.chain(more.iter().map(|set| (*set).to_owned())).collect())
}

/// Two and four ranks along each axis, and two along each and four along each other: of these meshes,
/// each has others in which an axis is doubled, halved, or exchanged for another.
fn meshes() -> Vec<Degrees> {
    let mut all = Vec::new();
    for axis in AXES {
        all.extend([2, 4].map(|ranks| degrees(&[(axis, ranks)], &[])));
        let others = AXES.iter().filter(|other| **other != axis);
        all.extend(others.map(|other| degrees(&[(axis, 2), (other, 4)], &[])));
    }
    all
}

/// Where homes and experts are, on few axes.
fn homes(has_experts: bool) -> Vec<Degrees> {
    let mut all = vec![
        degrees(&[("dp_shard", 3)], &[]),
        degrees(&[("dp_replicate", 3)], &[]),
        degrees(&[("dp_shard", 3)], &["parallel.home=zero1"]),
        degrees(&[("dp_shard", 3)], &["parallel.whole_matrices=true"]),
        degrees(&[("pp", 2), ("tp", 2), ("dp_shard", 2)], &["pipeline.schedule='zbv'"]),
    ];
    if has_experts {
        all.push(degrees(&[("dp_shard", 4), ("ep", 2)], &[]));
        all.push(degrees(&[("dp_shard", 4), ("ep", 4)], &["parallel.home=zero1"]));
        all.push(degrees(&[("pp", 2), ("tp", 2), ("cp_shard", 2), ("ep", 2), ("etp", 2)], &[]));
    }
    all
}

#[test]
fn ranks_save_the_files_of_one_rank() {
    let cases = [
        (Place::moe(), &MOE[..], [meshes(), homes(true)].concat()),
        (Place::dense(), &DENSE, homes(false)),
    ];
    for (place, model, meshes) in cases {
        let saved = place.train_alone("alone", &[model, &SAVED].concat()).checkpoint;
        let expected = files(&saved);
        for (number, mesh) in meshes.iter().enumerate() {
            let run = place.path(&format!("{number}"));
            save_again(&saved, &run, mesh, 1.0);
            let found = files(&run.join("step-000003"));
            assert!(found.keys().eq(expected.keys()), "{mesh:?}");
            for ((file, found), (_, expected)) in found.iter().zip(&expected) {
                let is = String::from_utf8_lossy(found);
                assert!(found == expected, "{mesh:?}: {} is\n{is}", file.display());
            }
        }
        save_again(&saved, &place.path("other"), &degrees(&[("pp", 2)], &[]), 2.0);
        assert!(files(&place.path("other/step-000003")) != expected);
    }
}

/// On ranks, reads a checkpoint and writes what they have to the folder `run`. The last rank multiplies
/// one of its values by `factor` before.
fn save_again(saved: &Path, run: &Path, (ranks, sets): &Degrees, factor: f64) {
    fs::create_dir(run).unwrap();
    let again = |rank: &LocalRank| -> Result<()> {
        let factor = if rank.rank() + 1 == *ranks { factor } else { 1.0 };
        let saved = Committed::open(saved)?;
        let file = saved.path().join("trainer/config.toml");
        let sets: Vec<_> = sets.iter().map(|set| set.parse().unwrap()).collect();
        let [config, divided] =
            [&[], &sets[..]].map(|sets| Config::read::<Tables>(Some(&file), sets));
        let (config, divided) = (config?, divided?);
        let tokenizer = Tokenizer::from_file(&saved.path().join("tokenizer.json"))?;
        let model = decoder::model(&config, tokenizer.vocab_size(), Some(&saved))?;
        let has_buffers = !model.buffers().is_empty();
        let ranks = RunRanks::new(rank, &divided)?;
        ranks.on_mesh(|| {
            let (model, pipeline) = match ranks.divide(&model)? {
                Some((part, pipeline)) => (part, Some(pipeline)),
                None => (model, None),
            };
            let options = ReadOptions { part: pipeline.is_some(), ..ReadOptions::default() };
            checkpoint::load_params(&saved, &model, rank.device(), options)?;
            model.materialize_missing(rank.device(), 0)?;
            let trainer = Trainer::of(model).pipeline(pipeline).build(&divided, rank.device())?;
            let (model, optimizer) = (&trainer.model, &trainer.optimizer);
            let state = checkpoint::load_state(&saved, model, optimizer, options)?;
            let value = model.params()[0].kept_value()?.local();
            ops::copy_into(&ops::affine(&value, factor, 0.0)?, &value)?;
            let saved = SavedRun {
                config: &config,
                model,
                optimizer,
                tokenizer: &tokenizer,
                state: &state,
                has_buffers,
            };
            let snapshot = checkpoint::snapshot(run, &saved);
            ShardedSnapshot::save(snapshot, &mut checkpoint_ranks(rank)?)?;
            Ok(())
        })
    };
    let saved = Local::new(*ranks).threads(1).launch(again);
    saved.unwrap_or_else(|error: meshgrad_train::Error| panic!("{sets:?}: {error}"));
}
