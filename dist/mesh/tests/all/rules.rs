//! Sharding rules and their errors. runtime/tests/all/sharding tests the results of real ops.

use meshgrad_mesh::{
    Division, Error, Incompatible, Mesh, Placement, Reduction, Sharding, ShardingRule,
};
use proptest::prelude::*;

const R: Placement = Placement::Replicate;
const P: Placement = Placement::Partial(Reduction::Sum);

fn s(dim: usize) -> Placement {
    Placement::shard(dim)
}

fn linear() -> ShardingRule {
    let rule = ShardingRule::new("linear", "x: F[.. i], w: F[o i] -> y: F[.. o]").unwrap();
    rule.linear_in(&["x", "w"]).unwrap()
}

fn softmax() -> ShardingRule {
    ShardingRule::new("softmax", "x: F[.. d!] -> y: F[.. d]").unwrap()
}

fn add() -> ShardingRule {
    let rule = ShardingRule::new("add", "a: F[~], b: F[~] -> y: F[~]").unwrap();
    rule.linear_in(&["a + b"]).unwrap()
}

fn rms_norm() -> ShardingRule {
    let text = "x: F[.. d!], w: F[d!] -> y: F[.. d], inv_rms: A[..]";
    ShardingRule::new("rms_norm", text).unwrap()
}

fn attention() -> ShardingRule {
    let text =
        "q: F[b t! h d!], k: F[b s! g d!], v: F[b s! g d!] -> out: F[b t h d], lse: A[b h t]";
    ShardingRule::new("attention", text).unwrap().grouped("h", "g").unwrap()
}

fn infer<const N: usize>(
    rule: &ShardingRule,
    operands: [(&[usize], Placement); N],
) -> Result<Vec<Placement>, Error> {
    rule.propagate_axis("tp", 2, &operands)
}

/// Of all combinations of placements, the rule accepts only data, column and row parallelism, and
/// partial sums of one operand.
#[test]
fn a_linear_layer_has_exactly_the_known_strategies() {
    let all = [R, P, s(0), s(1), s(2), Placement::Partial(Reduction::Max)];
    let mut allowed = Vec::new();
    for x in &all {
        for w in all.iter().filter(|w| w.dim() != Some(2)) {
            let given = [(&[6, 5, 8][..], x.clone()), (&[4, 8], w.clone())];
            if let Ok(y) = infer(&linear(), given) {
                allowed.push((x.clone(), w.clone(), y[0].clone()));
            }
        }
    }
    let expected = [
        (R, R, R),
        (R, P, P),
        (R, s(0), s(2)),
        (P, R, P),
        (s(0), R, s(0)),
        (s(1), R, s(1)),
        (s(2), s(1), P),
    ];
    assert_eq!(allowed, expected);
}

#[test]
fn each_result_has_its_own_placement() {
    let given = [(&[4, 6, 8][..], s(1)), (&[8], R)];
    assert_eq!(infer(&rms_norm(), given).unwrap(), [s(1), s(1)]);

    let gradient = "dy: F[.. d], x: F[.. d], inv_rms: A[..], dw: A[d] -> dw: A[d]";
    let gradient = ShardingRule::new("rms_norm_grad_weight_into", gradient).unwrap();
    let rows = |dw| [(&[4, 8][..], s(0)), (&[4, 8], s(0)), (&[4], s(0)), (&[8], dw)];
    assert_eq!(infer(&gradient, rows(P)).unwrap(), [P]);
    assert!(infer(&gradient, rows(R)).is_err());
}

#[test]
fn a_broadcast_dim_is_not_sharded() {
    let shapes = |a, b| [(&[4, 6][..], a), (&[6][..], b)];
    assert_eq!(infer(&add(), shapes(s(1), s(0))).unwrap(), [s(1)]);
    assert_eq!(infer(&add(), shapes(s(0), R)).unwrap(), [s(0)]);
    assert!(infer(&add(), shapes(s(1), R)).is_err());

    let ones = |a, b| [(&[4, 1][..], a), (&[4, 6][..], b)];
    assert_eq!(infer(&add(), ones(R, s(1))).unwrap(), [s(1)]);
    assert_eq!(infer(&add(), ones(s(0), s(0))).unwrap(), [s(0)]);
    assert!(infer(&add(), ones(s(1), s(1))).is_err());
}

#[test]
fn query_heads_are_sharded_with_their_key_heads() {
    let heads = |h, g, q, k: Placement| {
        let (of_q, of_k) = ([2, 5, h, 8], [2, 7, g, 8]);
        attention().propagate_axis("tp", 2, &[(&of_q, q), (&of_k, k.clone()), (&of_k, k)])
    };
    assert_eq!(heads(8, 4, s(2), s(2)).unwrap(), [s(2), s(1)]);
    assert!(heads(8, 4, s(2), R).is_err());
    assert_eq!(heads(8, 1, s(2), R).unwrap(), [s(2), s(1)]);
    // Shards of 3 + 3 query heads but 2 + 1 key heads.
    assert!(heads(6, 3, s(2), s(2)).is_err());
    let ragged = |sizes: [usize; 2]| Placement::ragged(2, sizes);
    let results = heads(6, 3, ragged([4, 2]), ragged([2, 1])).unwrap();
    assert_eq!(results, [ragged([4, 2]), Placement::ragged(1, [4, 2])]);
}

#[test]
fn operands_must_shard_a_dim_into_the_same_sizes() {
    let sum = |a: Placement, b: Placement| infer(&add(), [(&[5, 3][..], a), (&[5, 3], b)]);
    let ragged = Placement::ragged(0, [3, 2]);
    assert_eq!(sum(s(0), ragged.clone()).unwrap(), [s(0)]);
    let other = Placement::ragged(0, [1, 4]);
    let same = sum(other.clone(), other.clone()).unwrap();
    assert_eq!(same[0], other);
    assert!(sum(s(0), other).is_err());
}

#[test]
fn reductions_over_a_sharded_dim_are_partial() {
    let reduce = |by, given| {
        let rule = ShardingRule::reduction("reduce", 3, &[0, 2], by).unwrap();
        rule.propagate_axis("tp", 2, &[(&[4, 3, 5], given)])
    };
    let part = |by| Placement::Partial(by);
    for by in [Reduction::Sum, Reduction::Avg, Reduction::Max] {
        assert_eq!(reduce(Some(by), s(1)).unwrap(), [s(0)]);
        assert_eq!(reduce(Some(by), s(0)).unwrap(), [part(by)]);
        assert_eq!(reduce(Some(by), part(by)).unwrap(), [part(by)]);
        // Shards of 3 + 2: the mean of their means would be wrong.
        assert_eq!(reduce(Some(by), s(2)).is_ok(), by != Reduction::Avg);
    }
    assert_eq!(reduce(None, s(1)).unwrap(), [s(0)]);
    assert!(reduce(None, s(0)).is_err());
    assert!(reduce(Some(Reduction::Max), P).is_err());
}

#[test]
fn ops_with_dim_arguments_have_rules() {
    let concat = ShardingRule::concat("concat", 2, 2, 1).unwrap();
    let pair = |a, b| infer(&concat, [(&[4, 3][..], a), (&[4, 5], b)]);
    assert_eq!(pair(s(0), s(0)).unwrap(), [s(0)]);
    assert_eq!(pair(P, P).unwrap(), [P]);
    assert!(pair(s(1), s(1)).is_err());

    let select = ShardingRule::index_select("index_select", 3, 1).unwrap();
    let by = |x, ids| infer(&select, [(&[4, 6, 5][..], x), (&[7], ids)]);
    assert_eq!(by(s(2), R).unwrap(), [s(2)]);
    assert_eq!(by(R, s(0)).unwrap(), [s(1)]);
    assert_eq!(by(s(1), R).unwrap(), [P]);
    assert!(by(s(1), s(0)).is_err());

    let permute = ShardingRule::permute("permute", &[2, 0, 1]).unwrap();
    assert_eq!(infer(&permute, [(&[4, 6, 5][..], s(0))]).unwrap(), [s(1)]);
}

/// An empty buffer takes the partial values of what is added, but not its shards.
#[test]
fn an_open_operand_takes_the_partial_values_of_its_result() {
    let rule = "dy[.. d], ids[..], into[v d] -> into[v d]";
    let rule = ShardingRule::new("embedding_grad", rule).unwrap();
    let mesh = Mesh::new(&[2], &["tp"]).unwrap();
    let derived = |rows: Placement, into: Placement| {
        let of = |shape: &[usize], at| Sharding::new(&mesh, [("tp", at)], shape).unwrap();
        let (dy, ids) = (of(&[5, 4], rows.clone()), of(&[5], rows));
        let into = of(&[6, 4], into);
        let operands = [Some(&dy), Some(&ids), Some(&into)];
        let results = rule.derive_into(&operands)?;
        results[0].sharding(&[6, 4]).map(|into| into.to_string())
    };
    assert_eq!(derived(s(0), R).unwrap(), "tp: partial(sum)");
    assert_eq!(derived(R, s(0)).unwrap(), "tp: shard(0)");
    assert_eq!(derived(R, R).unwrap(), "tp: replicate");
    assert!(derived(s(0), s(0)).is_err());
}

fn message<const N: usize>(rule: &ShardingRule, operands: [(&[usize], Placement); N]) -> String {
    infer(rule, operands).unwrap_err().to_string()
}

#[test]
fn errors_name_the_remedies() {
    insta::assert_snapshot!(message(&softmax(), [(&[64, 8], s(1))]));
    insta::assert_snapshot!(message(&softmax(), [(&[64, 8], P)]));
    insta::assert_snapshot!(message(&linear(), [(&[64, 8], s(1)), (&[32, 8], R)]));
    insta::assert_snapshot!(message(&linear(), [(&[64, 8], P), (&[32, 8], P)]));
    insta::assert_snapshot!(message(&linear(), [(&[64, 8], s(0)), (&[32, 8], s(0))]));
    insta::assert_snapshot!(message(&add(), [(&[64, 8], P), (&[8], R)]));
    insta::assert_snapshot!(message(&add(), [(&[64, 8], s(0)), (&[64, 8], R)]));
    let heads = [(&[2, 5, 6, 8][..], s(2)), (&[2, 7, 3, 8], s(2)), (&[2, 7, 3, 8], s(2))];
    insta::assert_snapshot!(message(&attention(), heads));
    let mean = ShardingRule::reduction("mean", 1, &[0], Some(Reduction::Avg)).unwrap();
    insta::assert_snapshot!(message(&mean, [(&[5], s(0))]));
    let (even, other) = (s(0), Placement::ragged(0, [1, 4]));
    insta::assert_snapshot!(message(&add(), [(&[5, 3], even), (&[5, 3], other)]));
    let text = "dy: F[.. o], x: F[.. i], into: A[o i] -> into: A[o i]";
    let gradient = ShardingRule::new("linear_grad_weight_into", text).unwrap();
    let rows = [(&[64, 32][..], s(0)), (&[64, 8], s(0)), (&[32, 8], R)];
    insta::assert_snapshot!(message(&gradient, rows));
}

/// Every incompatible call has remedies, and each remedy leads to the promised results.
#[test]
fn remedies_lead_to_the_promised_results() {
    let mean = ShardingRule::reduction("mean", 2, &[0], Some(Reduction::Avg)).unwrap();
    let text = "dy: F[.. o], x: F[.. i], into: A[o i] -> into: A[o i]";
    let gradient = ShardingRule::new("linear_grad_weight_into", text).unwrap();
    let calls: [(ShardingRule, Vec<Vec<usize>>); 7] = [
        (linear(), vec![vec![6, 8], vec![4, 8]]),
        (add(), vec![vec![6, 8], vec![8]]),
        (softmax(), vec![vec![6, 8]]),
        (rms_norm(), vec![vec![6, 8], vec![8]]),
        (mean, vec![vec![5, 8]]),
        (gradient.linear_in(&["dy", "x"]).unwrap(), vec![vec![6, 4], vec![6, 8], vec![4, 8]]),
        (attention(), vec![vec![2, 5, 6, 4], vec![2, 5, 3, 4], vec![2, 5, 3, 4]]),
    ];
    for (rule, shapes) in calls {
        let mut refused = 0;
        for placements in all_choices(&shapes) {
            let infer = |placements: &[Placement]| {
                let operands = shapes.iter().zip(placements);
                let operands = operands.map(|(shape, at)| (&shape[..], at.clone()));
                rule.propagate_axis("tp", 2, &operands.collect::<Vec<_>>())
            };
            let Err(error) = infer(&placements) else {
                continue;
            };
            let wrong = error.details::<Incompatible>().unwrap();
            assert!(!wrong.remedies.is_empty(), "{wrong}");
            for remedy in &wrong.remedies {
                let mut helped = placements.clone();
                for change in &remedy.changes {
                    let at = rule.operands().position(|name| name == change.operand).unwrap();
                    assert_eq!(helped[at], change.from);
                    helped[at] = change.to.clone();
                }
                let promised = remedy.results.iter().map(|(_, result)| result.clone());
                assert_eq!(infer(&helped).unwrap(), promised.collect::<Vec<_>>(), "{wrong}");
            }
            refused += 1;
        }
        assert!(refused > 0, "{}", rule.op());
    }
}

fn all_choices(shapes: &[Vec<usize>]) -> Vec<Vec<Placement>> {
    let mut choices = vec![Vec::new()];
    for shape in shapes {
        let mut all = vec![R, P, Placement::Partial(Reduction::Max)];
        all.extend((0..shape.len()).map(s));
        if shape[0] > 2 {
            all.push(Placement::ragged(0, [1, shape[0] - 1]));
        }
        let longer = |choice: Vec<Placement>| {
            let with = |next: &Placement| [&choice[..], std::slice::from_ref(next)].concat();
            all.iter().map(with).collect::<Vec<_>>()
        };
        choices = choices.into_iter().flat_map(longer).collect();
    }
    choices
}

#[test]
fn invalid_signatures_and_calls_are_errors() {
    let texts = [
        ShardingRule::new("f", "x[i]").unwrap_err().to_string(),
        ShardingRule::new("f", "-> y[i]").unwrap_err().to_string(),
        ShardingRule::new("f", "x i] -> y[i]").unwrap_err().to_string(),
        ShardingRule::new("f", "x[i ..] -> y[i]").unwrap_err().to_string(),
        ShardingRule::new("f", "x[i] -> y[.. i]").unwrap_err().to_string(),
        linear().linear_in(&["v"]).unwrap_err().to_string(),
        linear().grouped("h", "i").unwrap_err().to_string(),
        ShardingRule::reduction("sum", 2, &[2], None).unwrap_err().to_string(),
        ShardingRule::permute("permute", &[0, 0]).unwrap_err().to_string(),
        ShardingRule::reshape("reshape", &[4], &[5]).unwrap_err().to_string(),
        infer(&linear(), [(&[64, 8], R)]).unwrap_err().to_string(),
        message(&linear(), [(&[64, 8], R), (&[8], R)]),
        message(&linear(), [(&[64, 8], R), (&[32, 9], R)]),
        message(&linear(), [(&[64, 8], s(2)), (&[32, 8], R)]),
        message(&add(), [(&[64, 8], R), (&[32, 8], R)]),
    ];
    insta::assert_snapshot!(texts.join("\n"));
}

fn mesh() -> Mesh {
    Mesh::new(&[2, 2, 2], &["pp", "dp", "tp"]).unwrap()
}

fn sharding(placements: &[(&str, Placement)], shape: &[usize]) -> Sharding {
    Sharding::new(&mesh(), placements, shape).unwrap()
}

#[test]
fn axes_are_independent() {
    let x = sharding(&[("dp", s(0)), ("tp", s(2))], &[4, 6, 8]);
    let w = sharding(&[("tp", s(1))], &[10, 8]);
    let y = linear().propagate(&[&x, &w], &[&[2, 6, 10]]).unwrap();
    assert_eq!(y, [sharding(&[("dp", s(0)), ("tp", P)], &[4, 6, 10])]);

    // FSDP weights must be gathered first.
    let w = sharding(&[("tp", s(1)), ("dp", s(0))], &[10, 8]);
    let error = linear().propagate(&[&x, &w], &[&[2, 6, 10]]).unwrap_err();
    insta::assert_snapshot!(error);
}

/// An outer axis shards the key heads to one; an inner axis then shards their query heads, and
/// replicates the keys.
#[test]
fn one_key_head_is_replicated() {
    let heads = |axes: &[&str], heads| {
        let placements: Vec<_> = axes.iter().map(|axis| (*axis, s(2))).collect();
        sharding(&placements, &[3, 5, heads, 4])
    };
    let attend = |key_heads, keys: &[&str]| {
        let (q, k) = (heads(&["dp", "tp"], 8), heads(keys, key_heads));
        attention().propagate(&[&q, &k, &k], &[&[3, 5, 2, 4], &[3, 2, 5]])
    };
    assert_eq!(attend(2, &["dp"]).unwrap()[0], heads(&["dp", "tp"], 8));
    assert!(attend(4, &["dp"]).is_err());
    assert!(attend(4, &["dp", "tp"]).is_ok());
}

#[test]
fn axes_that_shard_one_dim_keep_their_order() {
    let (dp_tp, tp_dp) = ([("dp", s(0)), ("tp", s(0))], [("tp", s(0)), ("dp", s(0))]);
    let (a, b) = (sharding(&tp_dp, &[8, 3]), sharding(&tp_dp, &[8, 3]));
    let sum = add().propagate(&[&a, &b], &[&[2, 3]]).unwrap();
    assert_eq!(sum[0], a);

    let b = sharding(&dp_tp, &[8, 3]);
    insta::assert_snapshot!(add().propagate(&[&a, &b], &[&[2, 3]]).unwrap_err());
}

/// A mean needs equal shards along each axis, even inside the shards of another axis.
#[test]
fn nested_shards_are_checked_exactly() {
    let mean = ShardingRule::reduction("mean", 1, &[0], Some(Reduction::Avg)).unwrap();
    let both = |extent| sharding(&[("dp", s(0)), ("tp", s(0))], &[extent]);
    assert!(mean.propagate(&[&both(8)], &[&[]]).is_ok());
    assert!(mean.propagate(&[&both(6)], &[&[]]).is_err());
    assert!(mean.propagate(&[&both(7)], &[&[]]).is_err());

    // Shards of no groups at all.
    let (q, k): (&[usize], &[usize]) = (&[1, 5, 8, 4], &[1, 5, 0, 4]);
    assert!(infer(&attention(), [(q, R), (k, s(2)), (k, s(2))]).is_err());
    let blocks = Placement::in_blocks(2, 4);
    assert!(infer(&attention(), [(q, blocks), (k, R), (k, R)]).is_err());

    // dp divides the groups into 3 + 1; tp cannot halve the 3.
    let heads = |dim: usize, a: usize| Placement::ragged(dim, [3 * a, a]);
    let q = sharding(&[("dp", heads(2, 2)), ("tp", s(2))], &[1, 5, 8, 4]);
    let k = sharding(&[("dp", heads(2, 1)), ("tp", s(2))], &[1, 5, 4, 4]);
    assert!(attention().propagate(&[&q, &k, &k], &[&[1, 5, 8, 4], &[1, 8, 5]]).is_err());
}

#[test]
fn operands_must_fit_the_signature_and_share_a_mesh() {
    let other = Mesh::new(&[8], &["dp"]).unwrap();
    let (a, b) = (sharding(&[], &[8, 3]), Sharding::replicated(&other, &[8, 3]).unwrap());
    insta::assert_snapshot!(add().propagate(&[&a, &b], &[&[8, 3]]).unwrap_err());
    insta::assert_snapshot!(add().propagate(&[&a, &a], &[]).unwrap_err());
    insta::assert_snapshot!(add().propagate(&[&a, &a], &[&[8]]).unwrap_err());
}

/// On one rank every placement is equivalent to replicate.
#[test]
fn an_axis_of_one_rank_accepts_every_placement() {
    for placement in [R, P, s(0), s(1)] {
        let y = softmax().propagate_axis("tp", 1, &[(&[4, 8], placement.clone())]).unwrap();
        assert_eq!(y.len(), 1);
        assert!(placement == y[0] || y[0] == R);
    }
    assert_eq!(softmax().propagate_axis("tp", 1, &[(&[4, 8], s(1))]).unwrap(), [R]);
}

/// The global indices of a rank's elements, in local order.
fn elements(sharding: &Sharding, rank: usize) -> Vec<usize> {
    let region = sharding.region(rank).unwrap();
    let mut elements = vec![0];
    for (indices, extent) in region.dims().iter().zip(sharding.shape()) {
        let of = |index: usize| {
            let inner = indices.ranges().iter().cloned().flatten();
            inner.map(move |at| index * *extent + at)
        };
        elements = elements.into_iter().flat_map(of).collect();
    }
    elements
}

/// The divisions of an extent: even, both ends, and both in blocks of each length.
fn divisions(extent: usize) -> Vec<Division> {
    let mut divisions = vec![Division::Even, Division::HeadAndTail];
    for length in (1..extent).filter(|length| extent.is_multiple_of(*length)) {
        divisions.push(Division::in_blocks(length, Division::Even));
        divisions.push(Division::in_blocks(length, Division::HeadAndTail));
    }
    divisions
}

fn shapes() -> impl Strategy<Value = (Vec<usize>, Vec<usize>)> {
    let factors = prop::collection::vec(prop::sample::select(vec![1, 2, 2, 3, 4]), 0..6);
    (factors, any::<u8>(), any::<u8>()).prop_map(|(factors, from, to)| {
        let merged = |joins: u8| {
            let mut shape: Vec<usize> = Vec::new();
            for (at, factor) in factors.iter().enumerate() {
                match shape.last_mut() {
                    Some(last) if joins >> at & 1 == 1 => *last *= factor,
                    _ => shape.push(*factor),
                }
            }
            shape
        };
        (merged(from), merged(to))
    })
}

proptest! {
    /// An accepted reshape leaves each rank's elements and their order unchanged.
    #[test]
    fn reshapes_move_nothing(
        (from, to) in shapes(),
        shards in prop::collection::vec((0usize..6, 0usize..3, 0usize..9), 1..4),
    ) {
        let rule = ShardingRule::reshape("reshape", &from, &to).unwrap();
        let mut placements: Vec<(&str, Placement)> = Vec::new();
        for (dim, axis, division) in shards {
            let axis = ["dp", "tp", "pp"][axis];
            if dim < from.len() && placements.iter().all(|(name, _)| *name != axis) {
                let all = divisions(from[dim]);
                let division = all[division % all.len()].clone();
                placements.push((axis, Placement::Shard(dim, division)));
            }
        }
        // Blocks need not fit the shards of outer axes.
        if let Ok(x) = Sharding::new(&mesh(), &placements, &from)
            && let Ok(y) = rule.propagate(&[&x], &[&to])
        {
            for rank in 0..8 {
                prop_assert_eq!(elements(&x, rank), elements(&y[0], rank), "{} to {}", x, y[0]);
            }
        }
    }

    /// If a reshape is rejected, no shards of a dim of the result have the elements of the operand's.
    #[test]
    fn rejected_reshapes_have_no_placement(
        (from, to) in shapes(),
        dim in 0usize..6,
        ranks in 2usize..4,
        division in 0usize..9,
    ) {
        if dim >= from.len() || from[dim] == 1 {
            return Ok(());
        }
        let mesh = Mesh::new(&[ranks], &["tp"]).unwrap();
        let all = divisions(from[dim]);
        let placement = Placement::Shard(dim, all[division % all.len()].clone());
        let x = Sharding::new(&mesh, [("tp", placement)], &from).unwrap();
        let rule = ShardingRule::reshape("reshape", &from, &to).unwrap();
        if rule.propagate(&[&x], &[&to]).is_err() {
            for (dim, extent) in to.iter().enumerate() {
                for division in divisions(*extent) {
                    let placement = Placement::Shard(dim, division);
                    let y = Sharding::new(&mesh, [("tp", placement)], &to).unwrap();
                    let same = (0..ranks).all(|rank| elements(&x, rank) == elements(&y, rank));
                    prop_assert!(!same, "{} of {:?} to {} of {:?}", x, from, y, to);
                }
            }
        }
    }

    /// On a mesh with one sharded axis, `propagate` equals `propagate_axis`.
    #[test]
    fn propagate_equals_propagate_axis(
        placements in prop::collection::vec(prop::sample::select(vec![R, P, s(0), s(1)]), 2),
        ragged in any::<bool>(),
    ) {
        let mut given = placements;
        for placement in &mut given {
            if ragged && placement.dim() == Some(0) {
                *placement = Placement::Shard(0, Division::Ragged([5, 3].into()));
            }
        }
        for rule in [linear(), add()] {
            let shape = [8usize, 8];
            let on_tp = |at: &Placement| sharding(&[("tp", at.clone())], &shape);
            let shardings: Vec<Sharding> = given.iter().map(on_tp).collect();
            let several = rule.propagate(&[&shardings[0], &shardings[1]], &[&shape]);
            let one = infer(&rule, [(&shape, given[0].clone()), (&shape, given[1].clone())]);
            prop_assert_eq!(
                several.map(|y| y[0].placement("tp").unwrap()).ok(),
                one.map(|y| y[0].clone()).ok()
            );
        }
    }
}
