//! DeepSpeed's JSON, as in release 0.19 and pull request 7726 (a parallel state like Megatron's).
//!
//! Only keys that determine groups of ranks are read. A size can be set by several keys. All of
//! them are read, and different values are a violation.

use std::path::Path;

use meshgrad_error::error;
use meshgrad_mesh::Size;

use super::megatron::timeout;
use super::scalar::Scalar;
use super::tree::Tree;
use super::{of_file, of_tree};
use crate::parallel::{Order, Parallelism, Settings, Source};

/// The keys of each degree. A dotted key can be a path of nested keys or a single key with dots.
const DEGREES: [(Parallelism, &[&str]); 7] = [
    (
        Parallelism::Tp,
        &[
            "tensor_parallel.autotp_size",
            "tensor_parallel.tp.tp_size",
            "tensor_model_parallel_size",
        ],
    ),
    (Parallelism::Pp, &["pipeline_model_parallel_size"]),
    (Parallelism::Sp, &["sequence_parallel_size"]),
    (Parallelism::CpShard, &["context_parallel_size"]),
    (Parallelism::Ep, &["expert_parallel.autoep_size", "expert_model_parallel_size"]),
    (
        Parallelism::Etp,
        &["expert_parallel.expert_tensor_parallel_size", "expert_tensor_parallel_size"],
    ),
    (Parallelism::DpReplicate, &["num_distributed_optimizer_instances"]),
];

/// The pull request's order with sequence parallelism: the ranks of a sequence are consecutive.
const ORDER_OF_SEQUENCES: &str = "sp-tp-ep-dp-pp";
/// The order for `use_data_before_expert_parallelism`.
const ORDER_OF_DATA_FIRST: &str = "tp-dp-ep-pp";

/// Reads a DeepSpeed configuration; `path` names the text in errors. dp_shard is
/// `data_parallel_size`; without that key it is inferred.
pub fn deepspeed(text: &str, path: &str) -> Settings {
    of_tree(Tree::of_json(text, path), |file, settings| match file.is_table() {
        true => read(file, settings),
        false => file.scalar().reject(settings, "an object of settings", &file.location),
    })
}

/// [`deepspeed`] for a file.
pub fn deepspeed_file(path: impl AsRef<Path>) -> Settings {
    of_file(path.as_ref(), deepspeed)
}

fn read(file: &Tree, settings: &mut Settings) {
    for (kind, keys) in DEGREES {
        for value in keys.iter().filter_map(|key| file.at(key)) {
            match value.scalar() {
                // DeepSpeed's values for "off".
                Scalar::Nothing | Scalar::Integer(0) => {}
                scalar => scalar.set_degree(settings, kind, value.location.clone()),
            }
        }
    }
    shard_experts(file, settings);
    order(file, settings);
    data(file, settings);
    secondary_shards(file, settings);
    if let Some(minutes) = file.get("distributed_timeout_minutes") {
        timeout(&minutes.scalar(), &minutes.location, settings);
    }
}

/// With the pull request's key for experts, etp defaults to the tp of the file. With the release's key
/// it defaults to 1.
fn shard_experts(file: &Tree, settings: &mut Settings) {
    let is_set = settings.degrees.contains_key(&Parallelism::Etp);
    let tensor = settings.degrees.get(&Parallelism::Tp).and_then(|given| given.first());
    let (key, size) = ("expert_model_parallel_size", tensor.map(|tensor| tensor.value));
    if let (Some(_), Some(size), false) = (file.get(key), size, is_set) {
        settings.set(Parallelism::Etp, size, Source::default_of("DeepSpeed"));
    }
}

fn order(file: &Tree, settings: &mut Settings) {
    if let Some(value) = file.get("order") {
        let order = value.scalar().text_or_reject(
            settings,
            "an order such as tp-ep-dp-pp",
            &value.location,
        );
        if let Some(order) = order {
            settings.order(order, value.location.clone());
        }
        return;
    }
    let data_first = file.get("use_data_before_expert_parallelism");
    match data_first.map(|value| (value.scalar(), value)) {
        Some((Scalar::Truth(true), value)) => {
            settings.order(ORDER_OF_DATA_FIRST, value.location.clone());
        }
        None | Some((Scalar::Truth(false) | Scalar::Nothing, _)) => {
            let order = match file.get("sequence_parallel_size") {
                Some(_) => ORDER_OF_SEQUENCES,
                None => Order::DEEPSPEED,
            };
            settings.order(order, Source::default_of("DeepSpeed"));
        }
        Some((other, value)) => other.reject(settings, "true or false", &value.location),
    }
}

fn data(file: &Tree, settings: &mut Settings) {
    match file.get("data_parallel_size") {
        Some(value) if value.scalar() != Scalar::Nothing => {
            let location = value.location.clone();
            value.scalar().set_degree(settings, Parallelism::DpShard, location);
        }
        _ => {
            let default = Source::default_of("DeepSpeed");
            settings.set(Parallelism::DpShard, Size::Auto, default);
        }
    }
    if let Some(value) = file.at("zero_optimization.mics_shard_size") {
        settings.add_violation(error!(
            Unsupported,
            "mics_shard_size {} ({}) is not supported: DeepSpeed has removed it; set dp_shard and \
             dp_replicate",
            value.scalar(),
            value.location
        ));
    }
}

/// ZeRO++'s secondary copy of the weights is an additional group, not a degree.
fn secondary_shards(file: &Tree, settings: &mut Settings) {
    let Some(value) = file.at("zero_optimization.zero_hpz_partition_size") else {
        return;
    };
    if !matches!(value.scalar(), Scalar::Nothing | Scalar::Integer(0 | 1)) {
        settings.add_violation(error!(
            Unsupported,
            "zero_hpz_partition_size {} ({}) is not supported: declare a domain whose fastest axis \
             has this size",
            value.scalar(),
            value.location
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(json: &str) -> Vec<String> {
        let settings = deepspeed(json, "ds.json");
        let violations = settings.violations().iter();
        violations.map(ToString::to_string).collect()
    }

    #[test]
    fn nested_and_dotted_keys_are_equivalent() {
        let nested = deepspeed(r#"{"tensor_parallel": {"autotp_size": 4}}"#, "ds.json");
        let dotted = deepspeed(r#"{"tensor_parallel.autotp_size": 4}"#, "ds.json");
        assert_eq!(nested, dotted);

        let mut expected = Settings::new();
        let location = Source::file("ds.json").at_key("tensor_parallel.autotp_size");
        expected.set(Parallelism::Tp, 4, location);
        let default = Source::default_of("DeepSpeed");
        expected.order("tp-ep-dp-pp", default.clone());
        expected.set(Parallelism::DpShard, Size::Auto, default);
        assert_eq!(nested, expected);
    }

    #[test]
    fn errors_are_violations() {
        assert!(texts("[1]")[0].contains("is not an object of settings"));
        assert!(texts("{")[0].starts_with("ds.json:1: invalid JSON"));
        assert!(texts(r#"{"order": 3}"#)[0].contains("`3` is not an order"));
        assert!(texts(r#"{"sequence_parallel_size": 1.5}"#)[0].starts_with("sp is `1.5`"));
        let hpz = texts(r#"{"zero_optimization": {"zero_hpz_partition_size": 8}}"#);
        assert!(hpz[0].contains("declare a domain"), "{hpz:?}");
        assert!(texts(r#"{"zero_optimization": {"stage": 3}, "fp16": {}}"#).is_empty());
    }
}
