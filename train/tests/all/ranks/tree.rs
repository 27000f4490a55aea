//! `train.reduction = "tree"`: the same bits on any mesh of data-parallel ranks.

use meshgrad_comm::conformance::Fault;

use crate::on_disk::{Files, files};
use crate::ranks::world::{On, Place};

const TREE: &str = "train.reduction=tree";

/// Stages that share a table cannot be summed in a tree.
const UNTIED: &str = "model.tie_word_embeddings=false";

const TWO: On = On { ranks: 2, sets: &[TREE, UNTIED] };

/// DataParallel and microbatches of four ranks.
const FOUR: [On; 3] = [
    On { ranks: 4, sets: &[TREE, "parallel.dp_replicate=4"] },
    On { ranks: 4, sets: &[TREE, "parallel.dp_replicate=2", "train.micro_batch_size=8"] },
    On { ranks: 4, sets: &[TREE, "parallel.home=zero1"] },
];

/// Pipelines, also with both ends on one rank, and passes of microbatches in another order.
const STAGES: [On; 4] = [
    On { ranks: 2, sets: &[TREE, "parallel.pp=2", "train.micro_batch_size=1"] },
    On { ranks: 3, sets: &[TREE, "parallel.pp=3", "train.micro_batch_size=1"] },
    On { ranks: 4, sets: &[TREE, "parallel.pp=2", "pipeline.schedule=zbv"] },
    On {
        ranks: 4,
        sets: &[
            TREE,
            "parallel.pp=2",
            "parallel.dp_replicate=2",
            "pipeline.schedule=looped_bfs",
            "pipeline.stages_per_rank=2",
        ],
    },
];

/// The tensors of the last checkpoint, and all metrics.
fn outcome(place: &Place, run: &str) -> (Files, Vec<[Option<f64>; 3]>) {
    let mut saved = files(&place.path(run).join("step-000020"));
    saved.retain(|name, _| name.extension().is_some_and(|it| it == "safetensors"));
    assert!(saved.len() >= 3);
    let records = place.records(run).into_iter();
    let metrics = records.map(|it| [Some(it.loss), Some(it.grad_norm), it.val_loss]);
    (saved, metrics.collect())
}

#[test]
fn any_mesh_has_the_same_bits() {
    let place = Place::dense();
    place.train_alone("alone", &[TREE, "train.micro_batch_size=2", UNTIED]);
    let expected = outcome(&place, "alone");
    for (number, on) in FOUR.iter().chain([&TWO]).chain(&STAGES).enumerate() {
        let run = number.to_string();
        place.train(&run, on, &[UNTIED]);
        let found = outcome(&place, &run);
        assert_eq!(found.1, expected.1, "{} ranks, {:?}", on.ranks, on.sets);
        assert!(found.0 == expected.0, "{} ranks, {:?}", on.ranks, on.sets);
    }

    place.train_alone("sum", &[UNTIED]);
    assert!(place.differ("alone", "sum") < crate::ranks::TOLERANCE);
    assert!(place.train_faulty("faulty", &TWO, Fault::Scaled));
    assert!(outcome(&place, "faulty").1 != expected.1);
}

/// With auxiliary losses, runs on equally many data-parallel ranks have the same bits.
#[test]
fn equal_global_microbatches_have_the_same_bits() {
    let place = Place::moe();
    let outcomes = FOUR.iter().enumerate().map(|(number, on)| {
        let run = number.to_string();
        place.train(&run, on, &[]);
        outcome(&place, &run)
    });
    let outcomes: Vec<_> = outcomes.collect();
    assert!(outcomes.iter().all(|it| *it == outcomes[0]));
}

#[test]
fn ranks_that_no_tree_fits_are_refused() {
    let place = Place::dense();
    let cases: [(usize, &[&str], &str); 4] = [
        (3, &[], "needs a power of two of data-parallel ranks, not 3"),
        (2, &["parallel.tp=2"], "does not support parallel.tp"),
        (2, &["parallel.pp=2"], "does not support `model.embed_tokens`, which several stages"),
        (
            4,
            &["train.batch_size=6", "train.micro_batch_size=6"],
            "needs a train.batch_size that is a multiple of the 4",
        ),
    ];
    for (ranks, sets, expected) in cases {
        let on = On { ranks, sets: &[TREE] };
        let refused = place.train_with("refused", (&on, sets), |_, session| session);
        let error = refused.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
