//! The law of sharding rules: if a rule accepts the placements of the operands, assembling the
//! ranks' results gives the result of the unsharded op.

mod call;
mod cases;
mod ranges;
mod shards;
mod tensors;

use meshgrad_mesh::{
    Division, Incompatible, Mesh, Placement, Problem, Reduction, Sharding, ShardingRule,
};
use meshgrad_runtime::op_cases::{CaseOperands, Written};
use meshgrad_runtime::{DType, Error, Tensor, ops};

use call::{local, tagged};
use cases::{Case, cases};
use shards::{Part, assemble, assert_equal};

/// All placements of an operand that are tested; if `ragged`, also more reductions and a ragged
/// shard; if `several`, also shards of several ranges of each dim.
fn placements(x: &Tensor, ranks: usize, ragged: bool, several: bool) -> Vec<Placement> {
    let mut all = vec![Placement::Replicate];
    all.extend((0..x.shape().len()).map(Placement::shard));
    if x.dtype() == DType::F64 {
        let reductions = [Reduction::Sum, Reduction::Avg, Reduction::Max];
        let reductions = &reductions[..if ragged { 3 } else { 1 }];
        all.extend(reductions.iter().copied().map(Placement::Partial));
    }
    if ragged && x.shape().first().is_some_and(|extent| *extent > 2) {
        let mut sizes = vec![0; ranks];
        (sizes[0], sizes[1]) = (1, x.shape()[0] - 1);
        all.push(Placement::ragged(0, sizes));
    }
    for (dim, extent) in x.shape().iter().enumerate().filter(|_| several) {
        all.push(Placement::head_and_tail(dim));
        if extent.is_multiple_of(2) && *extent > 2 {
            all.push(Placement::in_blocks(dim, extent / 2));
        }
    }
    all
}

/// Whether a rank can have several ranges of a dim.
fn has_several_ranges(placement: &Placement) -> bool {
    let several = |division: &Division| !matches!(division, Division::Even | Division::Ragged(_));
    matches!(placement, Placement::Shard(_, division) if several(division))
}

/// All combinations of placements of the operands. Ragged ones, and those with several ranges, are
/// included if there are few operands. Ops that look up indices need one range.
fn choices(case: &Case, ranks: usize) -> Vec<Vec<Placement>> {
    let ragged = case.of.operands.len() <= 3;
    let several = case.of.operands.len() <= 2 && !case.needs_shardings;
    let mut choices = vec![Vec::new()];
    for operand in &case.of.operands {
        let placements = placements(operand, ranks, ragged, several);
        let longer = |choice: Vec<Placement>| {
            let with = |next: &Placement| [&choice[..], std::slice::from_ref(next)].concat();
            placements.iter().map(with).collect::<Vec<_>>()
        };
        choices = choices.into_iter().flat_map(longer).collect();
    }
    choices
}

/// The placements of the results, or `None` if the rule rejects those of the operands.
fn inferred(case: &Case, ranks: usize, placements: &[Placement]) -> Option<Vec<Placement>> {
    let shapes = case.of.operands.iter().map(|x| &x.shape()[..]);
    let operands: Vec<_> = shapes.zip(placements.iter().cloned()).collect();
    case.rule.propagate_axis("tp", ranks, &operands).ok()
}

fn text(placements: &[Placement]) -> String {
    let texts: Vec<String> = placements.iter().map(Placement::to_string).collect();
    texts.join(", ")
}

/// Assembles the ranks' results and compares them with the unsharded ones.
fn check(parts: &[Vec<Tensor>], placements: &[Placement], whole: &[Tensor], what: &str) {
    for (at, (placement, whole)) in placements.iter().zip(whole).enumerate() {
        let parts: Vec<Tensor> = parts.iter().map(|results| results[at].clone()).collect();
        assert_equal(&assemble(&parts, placement, what), whole, what);
    }
}

/// Runs a rank's part of a case on operands without shardings if `tags` is `None`. Otherwise the
/// operands have shardings, and the results must have those that the rule gives.
fn run(case: &Case, local: CaseOperands, tags: Option<&Tags<'_>>) -> Vec<Tensor> {
    let Some(tags) = tags else {
        return case.of.run(&local).unwrap();
    };
    let results = tagged(local, tags.operands, tags.rank).and_then(|it| case.of.run(&it));
    let results = results.unwrap_or_else(|error| panic!("{}: {error}", tags.what));
    for (result, expected) in results.iter().zip(tags.results) {
        assert_eq!(result.sharding(), Some(expected), "{}", tags.what);
    }
    results.iter().map(Tensor::local).collect()
}

/// The shardings of a call.
struct Tags<'a> {
    operands: &'a [Sharding],
    results: &'a [Sharding],
    rank: usize,
    what: &'a str,
}

/// Checks all combinations of placements that a case's rule accepts along one axis, and returns
/// them as text. The ops themselves must accept the same, and reject the others.
fn check_case(case: &Case, ranks: usize) -> Vec<String> {
    let mesh = Mesh::new(&[ranks], &["tp"]).unwrap();
    let whole = case.of.run(&case.of.whole(Written::Copies)).unwrap();
    let shapes: Vec<&[usize]> = whole.iter().map(|y| &y.shape()[..]).collect();
    let mut accepted = Vec::new();
    for placements in choices(case, ranks) {
        let shardings = case.of.operands.iter().zip(&placements);
        let shardings =
            shardings.map(|(x, at)| Sharding::new(&mesh, [("tp", at.clone())], x.shape()));
        let shardings: Vec<Sharding> = shardings.collect::<Result<_, _>>().unwrap();
        let operands = case.of.operands.iter().zip(&placements);
        let parts = operands.map(|(x, at)| Part::whole(x).along(at, ranks));
        let parts: Vec<Vec<Part>> = parts.collect();
        let local = |rank: usize| local(parts.iter().map(|parts| parts[rank].clone()));
        let Some(results) = inferred(case, ranks, &placements) else {
            check_refused(case, &tagged(local(0), &shardings, 0).unwrap(), &placements);
            continue;
        };
        let does = format!("{} -> {}", text(&placements), text(&results));
        let what = format!("{}: {does}", case.of.op);
        let references: Vec<&Sharding> = shardings.iter().collect();
        let of_results = case.rule.propagate(&references, &shapes).unwrap();
        for is_tagged in [false, true] {
            let needs_tags = case.needs_shardings || placements.iter().any(has_several_ranges);
            if !is_tagged && needs_tags {
                continue;
            }
            let of_rank = |rank: usize| {
                let tags = Tags { operands: &shardings, results: &of_results, rank, what: &what };
                run(case, local(rank), is_tagged.then_some(&tags))
            };
            let computed: Vec<Vec<Tensor>> = (0..ranks).map(of_rank).collect();
            check(&computed, &results, &whole, &what);
        }
        if placements.iter().any(|at| *at != Placement::Replicate) {
            accepted.push(does);
        }
    }
    accepted
}

/// Whether an op does not accept the shardings of its operands.
fn is_refusal(error: &Error) -> bool {
    error.details::<Incompatible>().is_some()
}

/// An op must refuse operands that its rule refuses.
fn check_refused(case: &Case, local: &CaseOperands, placements: &[Placement]) {
    match case.of.run(local) {
        Err(error) if is_refusal(&error) => {}
        Err(error) => panic!("{}: {} gave {error}", case.of.op, text(placements)),
        Ok(_) => panic!("{}: accepts {}", case.of.op, text(placements)),
    }
}

/// The snapshot lists the placements that each op accepts on two ranks.
#[test]
fn shards_compute_the_unsharded_result() {
    let mut table = Vec::new();
    for case in cases() {
        let shapes = case.of.operands.iter().map(|x| x.shape().to_string());
        table.push(format!("{} {}", case.of.op, shapes.collect::<Vec<_>>().join(", ")));
        let accepted = check_case(&case, 2);
        table.extend(accepted.iter().map(|does| format!("  {does}")));
        check_case(&case, 3);
    }
    insta::assert_snapshot!(table.join("\n"));
}

/// The check fails for a wrong rule that allows the last dim of a softmax to be sharded.
#[test]
#[should_panic(expected = "softmax: shard(2) -> shard(2)")]
fn a_wrong_rule_is_detected() {
    let softmax = cases().into_iter().find(|case| case.of.op == "softmax");
    let rule = ShardingRule::new("softmax", "x[.. d] -> y[.. d]").unwrap();
    check_case(&Case { rule, ..softmax.unwrap() }, 2);
}

/// If a rule accepts some placements on one axis and some on another, it accepts both together,
/// with nested shards. Exceptions are reductions that do not commute and unequal nested shards.
#[test]
fn axes_are_independent() {
    let mesh = Mesh::new(&[2, 3], &["dp", "tp"]).unwrap();
    let mut tried = 0;
    for case in cases() {
        let whole = case.of.run(&case.of.whole(Written::Copies)).unwrap();
        let choices: Vec<Vec<Placement>> = choices(&case, 2)
            .into_iter()
            .filter(|choice| {
                choice.iter().all(|at| !matches!(at, Placement::Shard(_, Division::Ragged(_))))
            })
            .filter(|choice| inferred(&case, 2, choice).is_some())
            .collect();
        for (dp, tp) in choices.iter().flat_map(|dp| choices.iter().map(move |tp| (dp, tp))) {
            tried += usize::from(check_two(&case, &mesh, [dp, tp], &whole));
        }
    }
    assert!(tried > 1000, "{tried}");
}

/// Returns whether the rule accepts both placements. If so, checks the results.
fn check_two(case: &Case, mesh: &Mesh, placements: [&[Placement]; 2], whole: &[Tensor]) -> bool {
    let [dp, tp] = placements;
    let shardings = case.of.operands.iter().zip(dp.iter().zip(tp)).map(|(x, (dp, tp))| {
        Sharding::new(mesh, [("dp", dp.clone()), ("tp", tp.clone())], x.shape())
    });
    let Ok(shardings) = shardings.collect::<Result<Vec<Sharding>, _>>() else {
        return false;
    };
    let shapes: Vec<&[usize]> = whole.iter().map(|y| &y.shape()[..]).collect();
    let shardings: Vec<&Sharding> = shardings.iter().collect();
    let results = match case.rule.propagate(&shardings, &shapes) {
        Ok(results) => results,
        Err(error) => {
            let is_expected = match error.details::<Incompatible>().map(|wrong| &wrong.problem) {
                Some(Problem::UnequalShards { .. } | Problem::NoPlacement { .. }) => true,
                // The outer axis has left one key head.
                Some(Problem::NotWhole { .. }) => case.of.op.starts_with("attention"),
                Some(_) => false,
                // Of the placements of a result.
                None => ["do not commute", "which have different extents"]
                    .iter()
                    .any(|problem| error.to_string().contains(problem)),
            };
            assert!(is_expected, "{error}");
            return false;
        }
    };
    for (result, shape) in results.iter().zip(shapes) {
        assert_eq!(result.shape(), shape);
    }

    let what = format!("{}: dp {} tp {}", case.of.op, text(dp), text(tp));
    let operands = case.of.operands.iter().zip(dp.iter().zip(tp));
    let parts = operands.map(|(x, (dp, tp))| {
        let outer = Part::whole(x).along(dp, 2);
        outer.iter().map(|part| part.along(tp, 3)).collect()
    });
    let parts: Vec<Vec<Vec<Part>>> = parts.collect();
    let owned: Vec<Sharding> = shardings.into_iter().cloned().collect();
    let of_rank = |rank: usize| {
        let parts = parts.iter().map(|parts| parts[rank / 3][rank % 3].clone());
        let tags = Tags { operands: &owned, results: &results, rank, what: &what };
        run(case, local(parts), Some(&tags))
    };
    let computed: Vec<Vec<Tensor>> = (0..6).map(of_rank).collect();
    for (at, (result, whole)) in results.iter().zip(whole).enumerate() {
        let parts: Vec<Tensor> = computed.iter().map(|of| of[at].clone()).collect();
        assert_equal(&assemble_two(&parts, result, &what), whole, &what);
    }
    true
}

/// Assembles a tensor on 2 x 3 ranks: along the inner axis of a dim first.
fn assemble_two(parts: &[Tensor], sharding: &Sharding, what: &str) -> Tensor {
    let [dp, tp] = ["dp", "tp"].map(|axis| sharding.placement(axis).unwrap());
    let is_tp_outer = |dim| sharding.axes_of_dim(dim) == ["tp", "dp"];
    let along = |of: &[usize], placement: &Placement| {
        let parts: Vec<Tensor> = of.iter().map(|at| parts[*at].clone()).collect();
        assemble(&parts, placement, what)
    };
    match (0..sharding.shape().len()).any(is_tp_outer) {
        true => {
            let columns = [[0, 3], [1, 4], [2, 5]].map(|ranks| along(&ranks, &dp));
            assemble(&columns, &tp, what)
        }
        false => {
            let rows = [[0, 1, 2], [3, 4, 5]].map(|ranks| along(&ranks, &tp));
            assemble(&rows, &dp, what)
        }
    }
}

#[test]
fn every_signature_has_a_sharding_rule() {
    for signature in ops::signatures() {
        assert_eq!(signature.sharding_rule().op(), signature.name());
    }
}

#[test]
fn errors_name_the_remedies() {
    let s = Placement::shard;
    let (whole, part) = (Placement::Replicate, Placement::Partial(Reduction::Sum));
    let refused = |name: &str, operands: &[(&[usize], Placement)]| {
        let signature = ops::signatures().find(|signature| signature.name() == name);
        let rule = signature.unwrap().sharding_rule();
        rule.propagate_axis("tp", 4, operands).unwrap_err().to_string()
    };
    let (qkv, kv): ([usize; 4], [usize; 4]) = ([2, 128, 8, 64], [2, 128, 2, 64]);
    let messages = [
        refused("softmax", &[(&[16, 512], s(1))]),
        refused("silu", &[(&[16, 512], part.clone())]),
        refused("embedding", &[(&[5120, 64], s(0)), (&[4, 128], s(0))]),
        refused("attention", &[(&qkv, s(3)), (&kv, s(3)), (&kv, s(3))]),
        refused("attention", &[(&qkv, s(2)), (&kv, s(2)), (&kv, s(2))]),
        refused(
            "grouped_matmul_nt",
            &[(&[256, 64], whole.clone()), (&[8, 32, 64], s(0)), (&[9], whole.clone())],
        ),
        refused("mul", &[(&[16, 512], part.clone()), (&[16, 512], part.clone())]),
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
