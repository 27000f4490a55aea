//! For the same sizes, groups equal those of Megatron-LM and of DeepSpeed's pull request 7726: the
//! same lists in the same order.

use std::collections::BTreeMap;

use meshgrad_dist::Error;
use meshgrad_dist::parallel::{MegatronExtras, Order, ParallelConfig, RankGenerator, Token};
use proptest::prelude::*;
use serde_json::Value;

use crate::table::{config, digest, lists, number, ordered, table};

/// The configuration with the sizes of one row of Megatron's table.
fn sized(row: &Value, order: &str) -> Result<ParallelConfig, Vec<Error>> {
    let size = |key| number(row, key).unwrap();
    let given = [
        ("world", size("world")),
        ("tp", size("tp")),
        ("cp_shard", size("cp")),
        ("dp_replicate", size("dp")),
        ("dp_shard", 1),
        ("pp", size("pp")),
        ("ep", size("ep")),
        ("etp", size("etp")),
    ];
    ordered(&given, order).map_err(|violations| violations.all().to_vec())
}

fn generators(row: &Value, order: &str) -> [RankGenerator; 2] {
    let size = |key| number(row, key).unwrap();
    let order = Order::parse(order).unwrap();
    let shared = [(Token::Pp, size("pp"))];
    let dense = [(Token::Tp, size("tp")), (Token::Cp, size("cp")), (Token::Dp, size("dp"))];
    let expert = [(Token::Tp, size("etp")), (Token::Ep, size("ep")), (Token::Dp, size("edp"))];
    [dense, expert].map(|sizes| {
        let sizes = sizes.into_iter().chain(shared).collect();
        RankGenerator::new(&order, &sizes).unwrap()
    })
}

#[test]
fn lists_of_tokens_match_megatron() {
    for row in table("megatron.json")["generator"].as_array().unwrap() {
        let order = row["order"].as_str().unwrap();
        let completed = Order::parse(order).unwrap().to_string();
        assert_eq!(completed, format!("{}-sp", row["completed_order"].as_str().unwrap()));

        let generators = generators(row, order);
        for (side, generator) in ["dense", "expert"].iter().zip(&generators) {
            assert_eq!(generator.world(), number(row, "world").unwrap());
            for (tokens, expected) in row[side].as_object().unwrap() {
                assert_eq!(generator.ranks(tokens).unwrap(), lists(expected), "{side} {tokens}");
            }
        }
    }
}

/// Tests 10 sizes in all 120 orders with every set of tokens. A configuration is rejected only if
/// its dense and expert pipelines differ.
#[test]
fn all_orders_match_megatron() {
    let table = table("megatron.json");
    let names = |key: &str| {
        let names = table[key].as_array().unwrap().iter();
        names.map(|name| name.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let tokens = [names("sweep_dense_tokens"), names("sweep_expert_tokens")];

    for row in table["sweep"].as_array().unwrap() {
        let sizes = &table["sizes"][row[0].as_u64().unwrap() as usize];
        let order = row[1].as_str().unwrap();
        let generators = generators(sizes, order);
        for side in 0..2 {
            let of = |tokens: &String| generators[side].ranks(tokens).unwrap();
            let all: Vec<_> = tokens[side].iter().map(of).collect();
            assert_eq!(digest(&all), row[2 + side].as_str().unwrap(), "{order} {sizes}");
        }

        let [dense, expert] = generators;
        let same = dense.ranks("pp") == expert.ranks("pp");
        assert_eq!(Some(same), row[5].as_bool(), "{order} {sizes}");
        let config = sized(sizes, order);
        assert_eq!(config.is_ok(), same, "{order} {sizes}");
        match row[4].as_str() {
            None => assert!(same),
            Some("pipelines differ") => assert!(!same),
            reason => assert_eq!(reason, Some("data sizes differ")),
        }
        if let Err(violations) = config {
            let pp =
                |violation: &Error| violation.to_string().starts_with("axis `pp` of rank 0 has");
            assert!(violations.iter().all(pp), "{violations:?}");
        }
    }
}

/// Megatron's enumeration. `sizes` is fastest first. Ranks of one group differ only in the masked
/// dims.
fn enumerated(sizes: &[usize], masked: &[bool]) -> Vec<Vec<usize>> {
    let strides: Vec<usize> = (0..sizes.len()).map(|at| sizes[..at].iter().product()).collect();
    let offsets = |mask: bool| {
        (0..sizes.len()).filter(|at| masked[*at] == mask).fold(vec![0], |offsets, at| {
            let steps = (0..sizes[at]).map(|index| index * strides[at]);
            let shifted = |step: usize| offsets.iter().map(move |offset| offset + step);
            steps.flat_map(shifted).collect()
        })
    };
    let within = offsets(true);
    let group = |first: &usize| within.iter().map(|offset| first + offset).collect();
    offsets(false).iter().map(group).collect()
}

proptest! {
    #[test]
    fn lists_of_tokens_equal_enumeration(
        tokens in Just(Token::ALL.to_vec()).prop_shuffle(),
        sizes in prop::collection::vec(1..=4usize, 6),
        masked in prop::collection::vec(any::<bool>(), 6),
    ) {
        let names: Vec<&str> = tokens.iter().map(|token| token.name()).collect();
        let order = Order::parse(&names.join("-")).unwrap();
        let by_token: BTreeMap<Token, usize> =
            tokens.iter().copied().zip(sizes.iter().copied()).collect();
        let generator = RankGenerator::new(&order, &by_token).unwrap();

        let chosen = (0..6).filter(|at| masked[*at]).map(|at| names[at]);
        let chosen: Vec<&str> = chosen.collect();
        prop_assume!(!chosen.is_empty());
        prop_assert_eq!(generator.ranks(&chosen.join("-")).unwrap(), enumerated(&sizes, &masked));
    }
}

fn given(row: &Value) -> (Result<ParallelConfig, Vec<Error>>, MegatronExtras) {
    let given = &row["given"];
    let or_one = |key| number(given, key).unwrap_or(1);
    let etp = number(given, "expert_tensor").unwrap_or(or_one("tensor"));
    let degrees = [
        ("world", number(row, "world").unwrap()),
        ("tp", or_one("tensor")),
        ("pp", or_one("pipeline")),
        ("cp_shard", or_one("context")),
        ("ep", or_one("expert")),
        ("etp", etp),
    ];
    let order = given["order"].as_str().unwrap_or(Order::MEGATRON);
    let levels = given["context_levels"].as_array();
    let levels = levels.into_iter().flatten().map(|level| level.as_u64().unwrap() as usize);
    let extras = MegatronExtras {
        instances: or_one("instances"),
        context_levels: levels.collect(),
        hybrid: given["hybrid"] == true,
        gather: given["gather"] == true,
    };
    let config = ordered(&degrees, order).map_err(|violations| violations.all().to_vec());
    (config, extras)
}

#[test]
fn every_megatron_group_has_equal_lists() {
    for row in table("megatron.json")["initialize"].as_array().unwrap() {
        let (config, extras) = given(row);
        let groups = config.unwrap().megatron_groups(&extras).unwrap();
        let lists_in_all: usize = groups.iter().map(|kind| kind.lists.len()).sum();
        assert_eq!(Some(lists_in_all), number(&row["counts"], "calls"), "{}", row["name"]);

        let mut expected: Vec<(String, String, Vec<Vec<usize>>)> = Vec::new();
        for call in row["calls"].as_array().into_iter().flatten() {
            let key = |at: usize| call[at].as_str().unwrap().to_owned();
            let ranks = serde_json::from_value(call[2].clone()).unwrap();
            match expected.iter_mut().find(|kind| kind.0 == key(0)) {
                Some(kind) => kind.2.push(ranks),
                None => expected.push((key(0), key(1), vec![ranks])),
            }
        }
        let kinds = row["groups"].as_array().map_or(expected.len(), Vec::len);
        assert_eq!(groups.len(), kinds, "{}", row["name"]);
        for (kind, (name, options, lists)) in groups.iter().zip(&expected) {
            assert_eq!((&kind.kind, kind.options), (name, &**options), "{}", row["name"]);
            assert_eq!(&kind.lists, lists, "{} {name}", row["name"]);
        }
        for (kind, expected) in groups.iter().zip(row["groups"].as_array().into_iter().flatten()) {
            assert_eq!(kind.kind, expected["kind"].as_str().unwrap());
            assert_eq!(kind.options, expected["options"].as_str().unwrap());
            assert_eq!(digest(&kind.lists), expected["xxh3"].as_str().unwrap(), "{}", kind.kind);
        }
    }
}

/// Sizes and orders that Megatron rejects are rejected, and also one order that it wrongly accepts.
#[test]
fn configurations_that_megatron_rejects_are_rejected() {
    let of_sizes = ["tensor", "pipeline", "context", "expert", "expert_tensor", "order"];
    let of_extras = ["instances", "context_levels", "hybrid"];
    let mut tried = 0;
    for row in table("megatron.json")["refused"].as_array().unwrap() {
        let keys: Vec<&str> =
            row["given"].as_object().unwrap().keys().map(String::as_str).collect();
        let negative = row["given"]["tensor"].as_i64().is_some_and(|size| size < 0);
        let ours = |key: &&str| of_sizes.contains(key) || of_extras.contains(key);
        if negative || !keys.iter().all(ours) {
            continue;
        }

        tried += 1;
        let (config, extras) = given(row);
        let refused = match config {
            Ok(config) => config.megatron_groups(&extras).is_err(),
            Err(_) => true,
        };
        let order = row["given"]["order"].as_str().unwrap_or_default();
        // Megatron accepts both: a duplicate token, which we reject, and an order whose pipelines
        // agree for these sizes, which we accept too.
        let differs = [
            (row["raises"].is_null() && order == "tp-tp-cp-ep-dp-pp", true),
            (row["raises"].is_null() && order == "tp-cp-ep-pp-dp", false),
        ];
        let expected = differs.iter().find(|(is, _)| *is).map(|(_, ours)| *ours);
        assert_eq!(refused, expected.unwrap_or(!row["raises"].is_null()), "{row}");
    }
    assert!(tried > 15, "{tried}");
}

#[test]
fn invalid_extras_are_errors() {
    let config = config(&[("world", 8), ("cp_shard", 4)]);
    let refused = |extras: MegatronExtras| config.megatron_groups(&extras).unwrap_err();
    let plain = MegatronExtras::default;

    let error = refused(MegatronExtras { instances: 3, ..plain() });
    assert_eq!(
        error.to_string(),
        "3 optimizer instances do not divide dp x cp, which has 8 ranks: choose a divisor of 8"
    );
    let error = refused(MegatronExtras { instances: 0, ..plain() });
    assert_eq!(
        error.to_string(),
        "0 optimizer instances do not divide dp x cp, which has 8 ranks: choose a divisor of 8"
    );
    let error = refused(MegatronExtras { context_levels: vec![2, 4], ..plain() });
    assert_eq!(
        error.to_string(),
        "levels [2, 4] of context parallelism multiply to 8, but cp is 4"
    );
}

/// Follows the pull request's rule for sequence parallelism, for any order. The pull request
/// rejects sp with tp or pp, which we support.
#[test]
fn lists_match_the_pull_request() {
    let table = table("deepspeed.json");
    let counts = table["pull_request"]["counts_of_pull_request_groups"].as_array().unwrap();
    let rows = table["pull_request_groups"].as_array().unwrap();
    assert_eq!(rows.len(), counts.len());

    for (row, counts) in rows.iter().zip(counts) {
        let given = &row["given"];
        let or_one = |key| number(given, key).unwrap_or(1);
        let degrees = [
            ("world", number(row, "world").unwrap()),
            ("tp", or_one("tp")),
            ("pp", or_one("pp")),
            ("cp_shard", or_one("cp")),
            ("sp", or_one("sp")),
            ("ep", or_one("ep")),
            ("etp", number(given, "etp").unwrap_or(or_one("tp"))),
        ];
        let config = ordered(&degrees, row["order"].as_str().unwrap()).unwrap();
        assert_eq!(config.order().to_string(), counts[3].as_str().unwrap());
        for (tokens, expected) in row["dense"].as_object().unwrap() {
            let ours = config.dense_generator().ranks(tokens).unwrap();
            assert_eq!(ours, lists(expected), "{tokens} of {given}");
        }
        for (tokens, expected) in row["expert"].as_object().unwrap() {
            let ours = config.expert_generator().ranks(tokens).unwrap();
            assert_eq!(ours, lists(expected), "{tokens} of {given}");
        }

        let groups = config.megatron_groups(&MegatronExtras::default()).unwrap();
        let calls: usize = groups.iter().map(|kind| kind.lists.len()).sum();
        assert_eq!(calls as u64, counts[0].as_u64().unwrap());
    }
}

#[test]
fn configurations_that_the_pull_request_wrongly_accepts_are_rejected() {
    let degrees = [("world", 16), ("tp", 2), ("pp", 2), ("ep", 2), ("etp", 1)];
    let violations = ordered(&degrees, "ep-pp-tp-dp").unwrap_err();
    assert_eq!(violations.all().len(), 1, "{violations}");
    let text = violations.to_string();
    assert!(text.starts_with("axis `pp` of rank 0 has ranks [0, 1] in domain "), "{text}");
    assert!(text.contains(" but [0, 2] in domain "), "{text}");
}
