//! What a step sends: what each dimension sends alone, and no more.

use std::collections::{BTreeMap, BTreeSet};

use crate::together::all_dimensions;
use crate::together::draw::{Combination, Kind};
use crate::together::run::{Sent, sent};

const AXES: [&str; 7] = ["pp", "dp_replicate", "dp_shard", "cp_shard", "cp_replicate", "sp", "tp"];

/// The calls of collectives of one kind in groups along one set of axes, and their bytes, each summed
/// over all ranks.
type Costs = BTreeMap<(String, String), [u64; 2]>;

/// The axes along which ranks differ, the outermost first.
fn axes(of: &Combination, ranks: &[usize]) -> String {
    let mut stride = of.ranks();
    let mut differing = Vec::new();
    for axis in AXES {
        stride /= of.degree(axis);
        let index = |rank: usize| rank / stride % of.degree(axis);
        if ranks.iter().any(|rank| index(*rank) != index(ranks[0])) {
            differing.push(axis);
        }
    }
    differing.join(" ")
}

fn costs(of: &Combination, sent: &[Sent]) -> Costs {
    let mut costs = Costs::new();
    for Sent { log, .. } in sent {
        for call in log.calls() {
            let axes = axes(of, log.groups()[call.group].ranks());
            let kind = call.request.fingerprint.collective.to_string();
            let [calls, bytes] = costs.entry((axes, kind)).or_default();
            *calls += 1;
            *bytes += call.bytes;
        }
    }
    costs
}

fn get(costs: &Costs, axes: &str, kind: &str) -> [u64; 2] {
    let key = (axes.to_owned(), kind.to_owned());
    *costs.get(&key).unwrap_or_else(|| panic!("no {kind} along {axes}: {costs:?}"))
}

/// Checks that collectives of these kinds run along these axes, and no others.
fn runs_only(costs: &Costs, expected: &[(&str, &[&str])]) {
    let mut keys = BTreeSet::new();
    for (axes, kinds) in expected {
        keys.extend(kinds.iter().map(|kind| ((*axes).to_owned(), (*kind).to_owned())));
    }
    assert_eq!(costs.keys().cloned().collect::<BTreeSet<_>>(), keys);
}

const STAGE: &str = "dp_replicate dp_shard cp_shard sp tp";
const WORLD: &str = "pp dp_replicate dp_shard cp_shard sp tp";

fn all(model: Kind) -> Combination {
    let all = Combination { documents: false, ..all_dimensions(model) };
    if model == Kind::Experts { all.with("ep", 4) } else { all }
}

/// The tokens of a step.
fn tokens(of: &Combination) -> u64 {
    (of.replicas() * of.tokens() * of.microbatches()) as u64
}

/// How often the ranks run a layer in a step, summed over ranks.
fn layers(of: &Combination) -> u64 {
    (of.ranks() * of.microbatches() / of.degree("pp")) as u64
}

/// The calls and bytes of an axis, and those of the degree alone, with their quotients by the layers that
/// ranks run and by tokens.
fn check(all: &(Combination, Costs), inside: &str, alone: &Combination, along: &str, kind: &str) {
    let of_alone = get(&costs(alone, &sent(alone)), along, kind);
    let (all, in_all) = (&all.0, get(&all.1, inside, kind));
    assert_eq!(
        in_all[0] * layers(alone),
        of_alone[0] * layers(all),
        "{kind} along {inside}: calls"
    );
    assert_eq!(
        in_all[1] * tokens(alone),
        of_alone[1] * tokens(all),
        "{kind} along {inside}: bytes"
    );
}

/// Activations: as many bytes per token as the degree sends alone, and as many calls per layer on a rank.
/// Sums: of the norm over all ranks; of the loss over those of a stage, and over stages.
#[test]
fn dense_layers_send_what_each_degree_sends_alone() {
    let of = all(Kind::Dense);
    let costs = costs(&of, &sent(&of));
    let ranks = of.ranks() as u64;
    let expected: [(&str, &[&str]); 8] = [
        ("pp", &["send", "recv", "all_reduce"]),
        ("cp_shard", &["send", "recv"]),
        ("sp", &["all_to_all"]),
        // Also of gradients of parameters that all ranks of tensor parallelism have.
        ("tp", &["all_gather", "reduce_scatter", "all_reduce"]),
        ("dp_shard cp_shard", &["all_gather", "reduce_scatter"]),
        ("dp_replicate sp", &["all_reduce"]),
        (STAGE, &["all_reduce"]),
        (WORLD, &["all_reduce"]),
    ];
    runs_only(&costs, &expected);
    for (axes, ranks) in [(WORLD, ranks), ("pp", ranks), (STAGE, ranks / 2)] {
        assert_eq!(get(&costs, axes, "all_reduce")[0], ranks, "{axes}");
    }
    let all = (of, costs);
    let alone = |axis| Combination { degrees: vec![(axis, 2)], ..all.0.clone() };
    check(&all, "pp", &alone("pp"), "pp", "send");
    check(&all, "tp", &alone("tp"), "tp", "all_gather");
    check(&all, "tp", &alone("tp"), "tp", "reduce_scatter");
}

/// As above. Parameters: a rank of a pipeline gathers those that it computes with once per step, scatters
/// their gradients once per microbatch, and sums its shards over the copies once per step.
#[test]
fn sparse_layers_send_what_each_degree_sends_alone() {
    let of = all(Kind::Experts);
    let sent = sent(&of);
    let costs = costs(&of, &sent);
    let expected: [(&str, &[&str]); 12] = [
        ("pp", &["send", "recv", "all_reduce"]),
        ("cp_shard", &["send", "recv", "all_gather", "reduce_scatter"]),
        ("sp", &["all_to_all"]),
        ("sp tp", &["all_to_all"]),
        ("tp", &["all_gather", "reduce_scatter", "all_reduce"]),
        ("dp_shard cp_shard", &["all_gather", "reduce_scatter"]),
        ("dp_replicate sp", &["all_reduce"]),
        ("dp_replicate dp_shard", &["all_reduce"]),
        // The balancing losses of a microbatch.
        ("dp_replicate", &["all_gather", "reduce_scatter"]),
        ("dp_shard cp_shard sp tp", &["all_reduce"]),
        (STAGE, &["all_reduce"]),
        (WORLD, &["all_reduce"]),
    ];
    runs_only(&costs, &expected);
    let microbatches = of.microbatches() as u64;
    let bytes =
        |is_expert: bool| -> u64 { sent.iter().map(|it| it.params[usize::from(is_expert)]).sum() };
    // (bytes, shards, axes of shards, axes of copies)
    let homes = [
        (bytes(false), 4, "dp_shard cp_shard", "dp_replicate sp"),
        (bytes(true), 2, "cp_shard", "dp_replicate dp_shard"),
    ];
    for (bytes, shards, sharding, copies) in homes {
        assert_eq!(get(&costs, sharding, "all_gather")[1], bytes, "{sharding}");
        assert_eq!(get(&costs, sharding, "reduce_scatter")[1], microbatches * bytes, "{sharding}");
        assert_eq!(get(&costs, copies, "all_reduce")[1], bytes / shards, "{copies}");
    }
    let all = (of, costs);
    let alone = |axis, degree| Combination { degrees: vec![(axis, degree)], ..all.0.clone() };
    check(&all, "cp_shard", &alone("cp_shard", 2), "cp_shard", "send");
    check(&all, "sp", &alone("sp", 2), "sp", "all_to_all");
    // Experts are divided over the innermost ranks.
    check(&all, "sp tp", &alone("dp_shard", 4).with("ep", 4), "dp_shard", "all_to_all");
}
