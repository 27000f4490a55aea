//! The law of sharding rules: where a rule lets ranks compute on what they have, each for itself,
//! their results put together are those of the whole op.

mod cases;
mod shards;

use meshgrad_mesh::{Placement, Reduction};
use meshgrad_runtime::{DType, Tensor, ops};

use cases::{Case, Local, cases};
use shards::{assert_equal, parts, together};

/// Every way in which an operand of so many dims could lie.
fn placements(x: &Tensor, ranks: usize, ragged: bool) -> Vec<Placement> {
    let mut all = vec![Placement::Replicate];
    all.extend((0..x.shape().len()).map(Placement::shard));
    if x.dtype() == DType::F64 {
        let reductions = [Reduction::Sum, Reduction::Avg, Reduction::Max];
        let reductions = &reductions[..if ragged { 3 } else { 1 }];
        all.extend(reductions.iter().copied().map(Placement::Partial));
    }
    if ragged && x.shape().first().is_some_and(|extent| *extent > 1) {
        let mut sizes = vec![0; ranks];
        (sizes[0], sizes[1]) = (1, x.shape()[0] - 1);
        all.push(Placement::ragged(0, sizes));
    }
    all
}

/// Every choice of placements of all operands, those of few operands with more variety.
fn choices(case: &Case, ranks: usize) -> Vec<Vec<Placement>> {
    let ragged = case.operands.len() <= 3;
    let mut choices = vec![Vec::new()];
    for operand in &case.operands {
        let placements = placements(operand, ranks, ragged);
        let longer = |choice: Vec<Placement>| {
            let with = move |next: &Placement| [&choice[..], &[next.clone()]].concat();
            placements.iter().map(with).collect::<Vec<_>>()
        };
        choices = choices.into_iter().flat_map(longer).collect();
    }
    choices
}

/// What the rule says of the results, if it accepts.
fn inferred(case: &Case, ranks: usize, placements: &[Placement]) -> Option<Vec<Placement>> {
    let shapes = case.operands.iter().map(|x| &x.shape()[..]);
    let operands: Vec<_> = shapes.zip(placements.iter().cloned()).collect();
    case.rule.infer("tp", ranks, &operands).ok()
}

/// Runs a case on each of the ranks.
fn run(case: &Case, ranks: usize, placements: &[Placement]) -> Vec<Vec<Tensor>> {
    let operands = case.operands.iter().zip(placements);
    let cut: Vec<Vec<Tensor>> = operands.map(|(x, at)| parts(x, at, ranks)).collect();
    let of_rank = |rank: usize| {
        (case.run)(&Local {
            operands: cut.iter().map(|parts| parts[rank].clone()).collect(),
            before: cut.iter().map(|parts| parts[..rank].to_vec()).collect(),
        })
    };
    (0..ranks).map(of_rank).collect()
}

fn described(case: &Case, placements: &[Placement], results: &[Placement]) -> String {
    let text = |placements: &[Placement]| {
        let texts: Vec<String> = placements.iter().map(Placement::to_string).collect();
        texts.join(", ")
    };
    format!("{}: {} -> {}", case.name, text(placements), text(results))
}

/// The snapshot is what each op can do, on two ranks.
#[test]
fn shards_compute_what_the_whole_does() {
    let mut table = Vec::new();
    for case in cases() {
        let whole = (case.run)(&Local::whole(&case.operands));
        for ranks in [2, 3] {
            for placements in choices(&case, ranks) {
                let Some(results) = inferred(&case, ranks, &placements) else {
                    continue;
                };
                let what = described(&case, &placements, &results);
                let ranks_have = run(&case, ranks, &placements);
                for (at, (placement, whole)) in results.iter().zip(&whole).enumerate() {
                    let parts: Vec<Tensor> = ranks_have.iter().map(|r| r[at].clone()).collect();
                    assert_equal(&together(&parts, placement, &what), whole, &what);
                }
                if ranks == 2 && placements.iter().any(|at| *at != Placement::Replicate) {
                    table.push(what);
                }
            }
        }
    }
    insta::assert_snapshot!(table.join("\n"));
}

/// Every op of the runtime has a rule, which lets all ranks compute everything.
#[test]
fn every_signature_is_a_rule() {
    for signature in ops::signatures() {
        assert_eq!(signature.rule().op(), signature.name());
    }
}

#[test]
fn refusals_say_what_is_missing() {
    let s = Placement::shard;
    let (whole, part) = (Placement::Replicate, Placement::Partial(Reduction::Sum));
    let refused = |name: &str, operands: &[(&[usize], Placement)]| {
        let signature = ops::signatures().find(|signature| signature.name() == name);
        let rule = signature.unwrap().rule();
        rule.infer("tp", 4, operands).unwrap_err().to_string()
    };
    let (qkv, kv): ([usize; 4], [usize; 4]) = ([2, 128, 8, 64], [2, 128, 2, 64]);
    let messages = [
        refused("softmax", &[(&[16, 512], s(1))]),
        refused("silu", &[(&[16, 512], part.clone())]),
        refused(
            "embedding",
            &[(&[5120, 64], s(0)), (&[4, 128], whole.clone())],
        ),
        refused("attention", &[(&qkv, s(3)), (&kv, s(3)), (&kv, s(3))]),
        refused("attention", &[(&qkv, s(2)), (&kv, s(2)), (&kv, s(2))]),
        refused(
            "grouped_matmul_nt",
            &[
                (&[256, 64], whole.clone()),
                (&[8, 32, 64], s(0)),
                (&[9], whole.clone()),
            ],
        ),
        refused(
            "mul",
            &[(&[16, 512], part.clone()), (&[16, 512], part.clone())],
        ),
        refused("swiglu", &[(&[16, 2, 512], s(1))]),
        refused("sum", &[(&[16, 512], s(0))]),
        refused(
            "adamw_step",
            &[
                (&[64, 64], s(0)),
                (&[64, 64], part),
                (&[64, 64], s(0)),
                (&[64, 64], s(0)),
                (&[], whole.clone()),
                (&[], whole.clone()),
                (&[], whole),
            ],
        ),
    ];
    insta::assert_snapshot!(messages.join("\n"));
}
