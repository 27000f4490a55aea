//! Domains, compared with d9d's and with their invariants.

use meshgrad_dist::parallel::{Order, ParallelConfig, Parallelism, Token};
use meshgrad_mesh::{Mesh, RankLayout, Relation};
use proptest::prelude::*;

use crate::table::{config, here, number, ordered, settings, table};

fn domain<'a>(config: &'a ParallelConfig, name: &str) -> &'a Mesh {
    let found = config.domains().iter().find(|(domain, _)| domain == name);
    &found.unwrap().1
}

/// The axes that d9d has too, in order.
fn axes_of_d9d(mesh: &Mesh) -> Vec<(String, usize)> {
    let axes = mesh.axes().iter().filter(|axis| !["sp", "etp"].contains(&axis.name()));
    axes.map(|axis| (axis.name().to_owned(), axis.size())).collect()
}

fn flat(nested: &serde_json::Value) -> Vec<usize> {
    match nested.as_array() {
        Some(parts) => parts.iter().flat_map(flat).collect(),
        None => vec![nested.as_u64().unwrap() as usize],
    }
}

#[test]
fn domains_match_d9d() {
    let mut wrong = 0;
    for row in table("d9d.json")["domains"].as_array().unwrap() {
        let mut given = vec![("world", number(row, "world").unwrap()), ("dp_shard", 1)];
        for (name, size) in row["given"].as_object().unwrap() {
            given.retain(|(other, _)| other != name);
            given.push((name.as_str(), size.as_u64().unwrap() as usize));
        }
        let is_wrong = |name: &str| row["wrong"].as_array().unwrap().iter().any(|it| it == name);
        let Ok(config) = ParallelConfig::new(&settings(&given)) else {
            assert!(is_wrong("expert"), "{row}");
            wrong += 1;
            continue;
        };
        for name in ["regular", "dense", "expert", "batch", "flat"] {
            let ours = domain(&config, name);
            if is_wrong(name) {
                assert_eq!(ours.covers(config.world()), Ok(()));
                wrong += 1;
                continue;
            }
            let axes = row[name]["axes"].as_object().unwrap().iter();
            let axes: Vec<_> =
                axes.map(|(name, size)| (name.clone(), size.as_u64().unwrap() as usize)).collect();
            assert_eq!(axes_of_d9d(ours), axes, "{name} of {}", row["given"]);
            assert_eq!(ours.ranks(), flat(&row[name]["ranks"]), "{name} of {}", row["given"]);
        }
    }
    assert!(wrong > 0, "d9d's expert domain is wrong when tp is more than 1");
}

/// d9d's expert domain omits ranks when tp is more than 1. Here experts regroup tp ranks too.
#[test]
fn experts_use_all_ranks_of_a_stage() {
    let config = config(&[("world", 16), ("pp", 2), ("dp_shard", 4), ("tp", 2), ("ep", 4)]);
    let expert = domain(&config, "expert");
    assert_eq!(expert.to_string(), "pp 2 x ep_replicate 2 x ep_shard 4 x etp 1");
    assert_eq!(expert.covers(16), Ok(()));
    let groups = expert.groups(["ep_shard"]).unwrap();
    assert_eq!(groups[1].ranks(), [4, 5, 6, 7]);
}

/// The degrees (pp, dp_replicate, dp_shard, cp_shard, cp_replicate, sp, tp), then ep and etp.
fn degrees() -> impl Strategy<Value = ([usize; 7], usize, usize)> {
    let all = prop::array::uniform7(1..=3usize)
        .prop_filter("small", |all| all.iter().product::<usize>() <= 256);
    all.prop_flat_map(|all| {
        let stage: usize = all[1..].iter().product();
        let divisors: Vec<usize> = (1..=stage).filter(|it| stage.is_multiple_of(*it)).collect();
        prop::sample::select(divisors).prop_flat_map(move |ep| {
            let rest = stage / ep;
            let divisors: Vec<usize> = (1..=rest).filter(|it| rest.is_multiple_of(*it)).collect();
            (Just(all), Just(ep), prop::sample::select(divisors))
        })
    })
}

proptest! {
    /// Every domain has each rank once, and a shared axis has the same layout in all domains.
    #[test]
    fn domains_are_consistent(
        (all, ep, etp) in degrees(),
        tokens in Just(Token::ALL.to_vec()).prop_shuffle(),
    ) {
        let names = ["pp", "dp_replicate", "dp_shard", "cp_shard", "cp_replicate", "sp", "tp"];
        let mut given: Vec<(&str, usize)> = names.into_iter().zip(all).collect();
        given.extend([("ep", ep), ("etp", etp)]);
        let tokens: Vec<&str> = tokens.iter().map(|token| token.name()).collect();
        let order = tokens.join("-");

        let same_pipelines = {
            let sizes = |tp, dp, rest: [usize; 3]| {
                let sizes = [(Token::Pp, all[0]), (Token::Tp, tp), (Token::Dp, dp)];
                let more = [Token::Cp, Token::Sp, Token::Ep].into_iter().zip(rest);
                sizes.into_iter().chain(more).collect()
            };
            let stage: usize = all[1..].iter().product();
            let order = Order::parse(&order).unwrap();
            let dense = sizes(all[6], all[1] * all[2], [all[3] * all[4], all[5], 1]);
            let expert = sizes(etp, stage / ep / etp, [1, 1, ep]);
            let of = |sizes| meshgrad_dist::parallel::RankGenerator::new(&order, &sizes).unwrap();
            of(dense).ranks("pp") == of(expert).ranks("pp")
        };
        let config = ordered(&given, &order);
        prop_assert_eq!(config.is_ok(), same_pipelines);
        let Ok(config) = config else { return Ok(()) };

        for (_, mesh) in config.domains() {
            prop_assert_eq!(mesh.len(), config.world());
            let mut ranks = mesh.ranks();
            ranks.sort_unstable();
            prop_assert!(ranks.into_iter().eq(0..config.world()));
            for axis in mesh.axes() {
                for (_, other) in config.domains() {
                    if let Ok(other) = other.axis(axis.name()) {
                        prop_assert_eq!(axis.layout().relation(other.layout()), Relation::Same);
                    }
                }
            }
        }
        let dense = domain(&config, "dense");
        prop_assert_eq!(dense.size("dp_cp_shard").unwrap(), all[2] * all[3]);
        let batch = domain(&config, "batch");
        prop_assert_eq!(batch.size("dp").unwrap(), all[1] * all[2]);
    }
}

/// A rank's coordinates in one domain determine those in the others, as in d9d's index maps.
#[test]
fn coordinates_are_consistent() {
    let given = [
        ("pp", 2),
        ("dp_replicate", 2),
        ("dp_shard", 3),
        ("cp_shard", 2),
        ("cp_replicate", 2),
        ("tp", 2),
        ("ep", 4),
        ("etp", 2),
    ];
    let config = config(&given);
    assert_eq!(config.world(), 96);
    for rank in 0..96 {
        let at = |name: &str| domain(&config, name).coordinate(rank).unwrap();
        let [pp, dpr, dps, cps, cpr, sp, tp] = at("regular")[..] else { panic!() };
        assert_eq!(rank, ((((pp * 2 + dpr) * 3 + dps) * 2 + cps) * 2 + cpr) * 2 + tp);
        assert_eq!(at("dense"), [pp, dpr, dps * 2 + cps, cpr, sp, tp]);
        assert_eq!(at("batch"), [pp, dpr * 3 + dps, cps * 2 + cpr, sp, tp]);
        let within = rank % 48;
        assert_eq!(at("expert"), [pp, within / 8, within / 2 % 4, within % 2]);
    }
}

/// Layouts are checked instead of ranks, so 100,000 ranks cost no more than 8.
#[test]
fn large_worlds_are_checked() {
    let mut settings = settings(&[("world", 100_000), ("pp", 10), ("tp", 8), ("ep", 125)]);
    settings.ranks_per_host(8, here());
    let config = ParallelConfig::new(&settings).unwrap();
    assert_eq!(config.degree(Parallelism::DpShard), 1250);
    let expert = domain(&config, "expert");
    assert_eq!(expert.axis("ep_shard").unwrap().layout(), &RankLayout::contiguous(125).unwrap());
}
