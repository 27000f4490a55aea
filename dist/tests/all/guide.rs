//! `docs/from-deepspeed.md` against the pull request's getters, ours, and the reader of its file.

use meshgrad_dist::parallel::import::deepspeed;
use meshgrad_dist::parallel::{ParallelConfig, Parallelism};

use crate::table::{here, table};

const GUIDE: &str = include_str!("../../../docs/from-deepspeed.md");
const GETTERS: &str = include_str!("../../src/parallel/mpu.rs");

/// The rows of a section: what is in backquotes on the left, and the right.
fn rows(section: &str) -> impl Iterator<Item = (Vec<&'static str>, &'static str)> {
    let text = GUIDE.split("\n## ").find(|text| text.starts_with(section)).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
    rows.map(|(left, right)| (code(left), right))
}

fn code(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

#[test]
fn every_getter_of_the_pull_request_has_an_answer_that_exists() {
    let pull_request = &table("deepspeed.json")["pull_request"];
    let names = ["getters", "module"].map(|kind| pull_request[kind].as_object().unwrap());
    let answered = rows("Creation").chain(rows("Getters"));
    let answered: Vec<&str> = answered.flat_map(|(theirs, _)| theirs).collect();
    for (name, _) in names.into_iter().flatten() {
        assert!(answered.contains(&&**name), "{name}");
    }
    for (theirs, answer) in rows("Getters") {
        let same = if answer.starts_with("the same") { theirs } else { Vec::new() };
        for name in same.into_iter().chain(code(answer)).filter(|name| name.starts_with("get_")) {
            let is_getter = |end| GETTERS.contains(&format!(" {name}{end}"));
            assert!([",", ";", "("].map(is_getter).contains(&true), "{name}");
        }
    }
}

/// Experts are sharded over tp by default with the pull request's key, but not with the release's.
#[test]
fn the_keys_are_read_as_the_guide_says() {
    let nothing = deepspeed("{}", "ds.json");
    for (keys, answer) in rows("Keys of the JSON file") {
        for key in keys {
            let value = match key {
                "order" => "\"dp-tp\"",
                "use_data_before_expert_parallelism" => "true",
                "context_parallel_size" => "2, \"order\": \"tp-cp-ep-dp-pp\"",
                _ => "2",
            };
            let mut settings = deepspeed(&format!("{{\"{key}\": {value}}}"), "ds.json");
            let is_refused = answer.starts_with("refused");
            assert_eq!(!settings.violations().is_empty(), is_refused, "{key}");
            assert_eq!(settings == nothing, answer.starts_with("not read"), "{key}");
            let named = |kind: &&Parallelism| code(answer).first() == Some(&kind.name());
            if let (Some(kind), false) = (Parallelism::ALL.iter().find(named), is_refused) {
                let config = ParallelConfig::new(settings.world(2, here())).unwrap();
                assert_eq!(config.degree(*kind), 2, "{key}");
            }
        }
    }
    for (key, etp) in [("expert_model_parallel_size", 2), ("expert_parallel.autoep_size", 1)] {
        let json = format!(r#"{{"tensor_model_parallel_size": 2, "{key}": 2}}"#);
        let config = ParallelConfig::new(deepspeed(&json, "ds.json").world(8, here())).unwrap();
        assert_eq!(config.degree(Parallelism::Etp), etp);
    }
}
