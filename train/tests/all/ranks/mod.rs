//! Training on ranks: the losses of one rank on any mesh, the checkpoints of one rank, and stops and
//! failures of all ranks together.

mod equal;
mod failures;
mod saved;
mod tree;
mod world;

use std::fs;
use std::path::Path;

use meshgrad_comm::Local;
use meshgrad_comm::conformance::Fault;
use meshgrad_train::decoder;
use meshgrad_train::ranks::RunRanks;

use crate::on_disk::files;
use crate::ranks::world::{MESHES, ONE, On, Place, STEPS, meshes};

/// The largest relative difference of a loss or norm from that of one rank, in f32.
const TOLERANCE: f64 = 1e-3;

#[test]
fn any_mesh_has_the_losses_of_one_rank() {
    for (name, place) in [("moe", Place::moe()), ("dense", Place::dense())] {
        place.train_alone("alone", &[]);
        for (number, on) in meshes(name == "moe").enumerate() {
            let run = format!("{number}");
            let summary = place.train(&run, on, &[]);
            assert_eq!(summary.step, STEPS);
            let difference = place.differ("alone", &run);
            assert!(
                difference < TOLERANCE,
                "{name} on {} ranks, {:?}: {difference}",
                on.ranks,
                on.sets
            );
        }
    }
}

/// Other optimizers, averages, bf16 and checkpointing, and a run that starts with the weights of another.
#[test]
fn options_of_a_run_have_the_losses_of_one_rank() {
    let place = Place::moe();
    place.train_alone("first", &["train.steps=3"]);
    let from = format!("model.from={:?}", place.path("first"));
    let cases: [(&[&str], f64); 4] = [
        (&["optimizer.name=muon", "optimizer.product_dtype=f32"], TOLERANCE),
        (&["optimizer.ema_decay=0.9", "train.activation_checkpointing=true"], TOLERANCE),
        (&["train.dtype=bf16"], 3e-2),
        (&[&from], TOLERANCE),
    ];
    for (number, (sets, tolerance)) in cases.iter().enumerate() {
        let [alone, ranks] = ["alone", "ranks"].map(|name| format!("{name}-{number}"));
        place.train_alone(&alone, sets);
        place.train(&ranks, &MESHES[1], sets);
        let difference = place.differ(&alone, &ranks);
        assert!(difference < *tolerance, "{sets:?}: {difference}");
    }
}

/// A fault in the communication of parameters or gradients changes the losses.
#[test]
fn planted_faults_are_found() {
    let place = Place::moe();
    place.train_alone("alone", &[]);
    for fault in [Fault::Dropped, Fault::Scaled, Fault::Swapped] {
        let run = format!("{fault:?}");
        // Ranks of which each has other rows than the others expect may also fail.
        if place.train_faulty(&run, &MESHES[1], fault) {
            let difference = place.differ("alone", &run);
            assert!(difference > TOLERANCE, "{fault:?}: {difference}");
        } else {
            assert_eq!(fault, Fault::Swapped);
        }
    }
}

/// A run that stops and resumes on the same mesh has the bits of one that does not.
#[test]
fn a_resumed_run_has_the_same_bits() {
    let place = Place::moe();
    for on in MESHES[1..4].iter().chain(&MESHES[8..9]) {
        let names = [on.ranks, on.sets.len()].map(|it| it.to_string());
        let [whole, halves] = ["whole", "halves"].map(|name| format!("{name}-{}", names.join("-")));
        place.train(&whole, on, &[]);
        let first = place.train_with(&halves, (on, &[]), |_, session| session.stop_after(7));
        assert_eq!(first.unwrap()[0].step, 7);
        place.train(&halves, on, &[]);

        let losses = |run: &str| -> Vec<_> {
            let records = place.records(run).into_iter();
            records.map(|it| (it.step, it.loss, it.grad_norm, it.val_loss)).collect()
        };
        assert_eq!(losses(&whole), losses(&halves));
        let last = |run: &str| files(&place.path(run).join("step-000020"));
        assert!(last(&whole) == last(&halves), "{:?}", on.sets);
    }
}

/// A run that was saved on one mesh continues on any other, with the losses of one rank.
#[test]
fn a_run_resumes_on_any_mesh() {
    let place = Place::moe();
    place.train_alone("alone", &[]);
    let sources = [
        (&MESHES[1], "fsdp"),
        (&MESHES[3], "hsdp"),
        (&MESHES[5], "tp"),
        (&MESHES[6], "all"),
        (&MESHES[8], "pp"),
        (&ONE, "one"),
    ];
    for (from, name) in sources {
        let stopped = place.train_with(name, (from, &[]), |_, session| session.stop_after(10));
        assert_eq!(stopped.unwrap()[0].step, 10);
        for (number, on) in meshes(true).chain([&ONE]).enumerate() {
            let run = format!("{name}-{number}");
            copy(&place.path(name), &place.path(&run));
            assert_eq!(place.train(&run, on, &[]).step, STEPS);
            let difference = place.differ("alone", &run);
            assert!(difference < TOLERANCE, "{name} to {:?}: {difference}", on.sets);
        }
    }
}

fn copy(from: &Path, to: &Path) {
    for (name, bytes) in files(from) {
        let path = to.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

/// Degrees that do not fit are refused with all problems, before anything is written.
#[test]
fn degrees_that_do_not_fit_are_refused() {
    let place = Place::moe();
    let cases: [(On, &str); 14] = [
        (
            On { ranks: 2, sets: &["parallel.pp=2", "pipeline.split=[2]"] },
            "pipeline.split: 1 stages do not fill 2 ranks: every rank needs at least one stage",
        ),
        (
            On { ranks: 2, sets: &["parallel.pp=2", "pipeline.stages_per_rank=2"] },
            "pipeline.schedule: 1f1b needs one stage per rank, but got 4 stages on 2 ranks; use 2 \
             stages or interleaved",
        ),
        (
            On { ranks: 2, sets: &["parallel.pp=2", "pipeline.schedule='dual_pipe_v'"] },
            "pipeline.schedule: dual_pipe_v cannot run 2 microbatches on 2 ranks: it needs two per rank \
             or more; use 4",
        ),
        (
            On { ranks: 2, sets: &["parallel.pp=2", "pipeline.split=[2, 1]"] },
            "pipeline.split: [2, 1] are not the 2 layers of the model; give each of the stages its \
             layers, or leave it empty",
        ),
        (
            On { ranks: 3, sets: &["parallel.ep=3", "train.micro_batch_size=8"] },
            "4 experts cannot be divided over 3 ranks of expert parallelism; use a divisor of 4",
        ),
        (
            On { ranks: 2, sets: &["parallel.etp=2", "optimizer.name='muon'"] },
            "optimizer.name: muon updates whole matrices, which parallel.etp divides",
        ),
        (
            On { ranks: 3, sets: &["parallel.cp_shard=3", "train.seq_len=20"] },
            "train.seq_len: 20 tokens cannot be divided into 6 equal parts (2 x cp 3 x sp 1 x tp 1); use \
             18 or 24",
        ),
        (
            On { ranks: 2, sets: &["parallel.sp=2", "train.seq_len=1"] },
            "train.seq_len: 1 tokens cannot be divided into 2 equal parts (1 x cp 1 x sp 2 x tp 1); use 2",
        ),
        (
            On { ranks: 8, sets: &["parallel.sp=8"] },
            "4 query and 2 key-value heads cannot be divided over 8 ranks of sp times 1 of tp; sp x tp \
             must be a divisor of 4, and tp of 2",
        ),
        (
            On { ranks: 2, sets: &["parallel.cp_shard=2", "train.reduction='tree'"] },
            "train.reduction: \"tree\" does not support parallel.cp_shard, cp_replicate and sp",
        ),
        (On { ranks: 3, sets: &["parallel.tp=2"] }, "[parallel]: "),
        (On { ranks: 2, sets: &["parallel.dp_shard=4"] }, "[parallel]: "),
        (
            On { ranks: 8, sets: &[] },
            "train.micro_batch_size: 4 sequences cannot be divided among 8 data-parallel ranks \
             (dp_shard); use 8",
        ),
        (
            On { ranks: 4, sets: &["parallel.dp_replicate=2", "train.micro_batch_size=2"] },
            "train.micro_batch_size: 2 sequences cannot be divided among 4 data-parallel ranks \
             (dp_replicate x dp_shard); use 4",
        ),
    ];
    for (on, expected) in cases {
        let error = place.train_with("refused", (&on, &[]), |_, session| session);
        let error = error.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(!place.path("refused").exists());
    }
}

/// Text that is sampled during training is that of one rank.
#[test]
fn any_mesh_samples_the_text_of_one_rank() {
    for (has_experts, place) in [(true, Place::moe()), (false, Place::dense())] {
        let sets = ["train.steps=4", "sample.every=2", "sample.tokens=12", "log.val_every=0"];
        let text = |on: &On, name: &str| {
            let text = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
            let summaries = place.train_with(name, (on, &sets), |_, session| {
                let text = text.clone();
                session.subscribe("text", move |event| {
                    if let meshgrad_train::events::Event::Sampled { step, text: of_step } = event {
                        text.lock().unwrap().push((step, of_step.to_owned()));
                    }
                    Ok(())
                })
            });
            summaries.unwrap();
            let text = text.lock().unwrap().clone();
            text.into_iter().collect::<std::collections::BTreeSet<_>>()
        };
        let one = text(&ONE, "one");
        assert_eq!(one.len(), 2);
        for (number, on) in meshes(has_experts).enumerate() {
            assert_eq!(text(on, &format!("text-{number}")), one, "{:?}", on.sets);
        }
    }
}

/// The head of a small model has more FLOPs than a layer.
#[test]
fn stages_have_equally_many_flops_or_layers() {
    let place = Place::dense();
    let cases = [("flops", [1, 2, 0]), ("layers", [1, 1, 1])];
    for (balance, expected) in cases {
        let set = format!("pipeline.balance={balance}");
        let config = place.config(&On { ranks: 3, sets: &["parallel.pp=3"] }, &[&set]);
        let layers = Local::run(3, |rank| {
            let ranks = RunRanks::new(rank, &config)?;
            let model = decoder::model(&config, 257, None)?;
            let (part, _) = ranks.on_mesh(|| ranks.divide(&model))?.unwrap();
            Ok::<_, meshgrad_train::Error>(part.layers.len())
        });
        assert_eq!(layers.unwrap(), expected, "{balance}");
    }
}

/// A schedule in torch's format.
#[test]
fn a_schedule_of_a_file_is_run() {
    let place = Place::dense();
    place.train_alone("alone", &["train.steps=3"]);
    let file = place.path("schedule.csv");
    let set = format!("pipeline.schedule='{}'", file.display());
    let sets = [&set, "train.steps=3"];
    let on = On { ranks: 2, sets: &["parallel.pp=2"] };
    let error = || {
        let failed = place.train_with("refused", (&on, &sets), |_, session| session);
        failed.unwrap_err().to_string()
    };
    assert!(error().contains("cannot read the schedule"), "{}", error());
    fs::write(&file, "0F0,0B0\n1F0,1B0\n").unwrap();
    let expected = "pipeline.schedule: the schedule has 2 ranks, 2 stages and 1 microbatches, but the \
                    step has 2, 2 and 2";
    assert!(error().contains(expected), "{}", error());
    fs::write(&file, "0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n").unwrap();
    place.train("ranks", &on, &sets);
    assert!(place.differ("alone", "ranks") < TOLERANCE);
}
