//! Compute orders and messages, action by action, compared with those that torch's and d9d's own
//! code computes. The tables were made by `scripts/pipeline-golden`.

use std::path::Path;

use meshgrad_pipeline::{Lowering, Named, Schedule, Shape};
use serde_json::Value;

fn tables() -> [(&'static str, Value); 2] {
    ["torch", "d9d"].map(|library| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        let text = std::fs::read_to_string(folder.join(format!("{library}.json"))).unwrap();
        (library, serde_json::from_str(&text).unwrap())
    })
}

fn number(row: &Value, key: &str) -> usize {
    row[key].as_u64().unwrap() as usize
}

fn named(row: &Value) -> Named {
    row["schedule"].as_str().unwrap().parse().unwrap()
}

fn schedule(row: &Value) -> Schedule {
    let (ranks, stages) = (number(row, "ranks"), number(row, "stages"));
    let shape = Shape::new(ranks, stages, number(row, "microbatches")).unwrap();
    named(row).schedule(shape).unwrap()
}

fn rows<A: ToString>(lists: &[Vec<A>]) -> Vec<String> {
    let row = |list: &Vec<A>| list.iter().map(A::to_string).collect::<Vec<_>>().join(" ");
    lists.iter().map(row).collect()
}

/// Compares the written-out lists of both libraries with ours.
fn compare(key: &str, ours: fn(&Schedule) -> Vec<String>) {
    for (library, table) in tables() {
        let shown = table[key].as_array().unwrap();
        assert!(shown.len() >= 20, "{library}");
        for row in shown {
            let ours = ours(&schedule(row));
            assert_eq!(Value::from(ours), row["rows"], "{library}: {row}");
        }
    }
}

#[test]
fn compute_orders_equal_those_of_torch_and_d9d() {
    compare("orders", |schedule| rows(schedule.ranks()));
}

#[test]
fn messages_equal_those_of_torch_and_d9d() {
    compare("lowered", |schedule| rows(schedule.lower(&Lowering::default()).unwrap().ranks()));
}

/// Digests of all shapes with up to 8 ranks, 4 stages per rank and 32 microbatches. Shapes that the
/// library refuses are refused by us too, except where one stage per rank makes any number possible.
#[test]
fn digests_of_all_small_shapes_equal_those_of_torch_and_d9d() {
    for (library, table) in tables() {
        let digests = table["digests"].as_array().unwrap();
        assert!(digests.len() >= 100, "{library}");
        for row in digests {
            let (ranks, stages) = (number(row, "ranks"), number(row, "stages"));
            let refused = row["refused"].as_array().unwrap();
            let mut texts = Vec::new();
            for microbatches in 1..=32 {
                let shape = Shape::new(ranks, stages, microbatches).unwrap();
                let ours = named(row).schedule(shape);
                if refused.contains(&microbatches.into()) {
                    assert!(ours.is_err() || stages == ranks, "{library}: {row}");
                } else {
                    texts.push(rows(ours.unwrap().ranks()).join("\n"));
                }
            }
            let digest = twox_hash::XxHash3_64::oneshot(texts.join("\n\n").as_bytes());
            assert_eq!(format!("{digest:016x}"), row["xxh3"], "{library}: {row}");
        }
    }
}
