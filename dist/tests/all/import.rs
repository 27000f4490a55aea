//! Imported configurations have the same groups as in their own libraries, according to golden
//! tables of torchtitan, Megatron-LM and DeepSpeed (`scripts/parallel-golden`).

use std::fmt::Write;

use meshgrad_dist::parallel::import::{deepspeed, megatron_arguments, megatron_nccl, torchtitan};
use meshgrad_dist::parallel::{ParallelConfig, ParallelState, Settings, Source, View};
use serde_json::Value;

use crate::table::{lists, table};

fn rows<'v>(table: &'v Value, key: &str) -> &'v Vec<Value> {
    table[key].as_array().unwrap()
}

fn number(value: &Value) -> usize {
    value.as_u64().unwrap() as usize
}

fn ranks(value: &Value) -> Vec<usize> {
    value.as_array().unwrap().iter().map(number).collect()
}

fn on(mut settings: Settings, world: usize) -> Settings {
    settings.world(world, Source::code("the test"));
    settings
}

fn state(settings: &Settings) -> ParallelState {
    ParallelState::new(ParallelConfig::new(settings).unwrap_or_else(|error| panic!("{error}")))
}

fn group(state: &ParallelState, name: &str, rank: usize) -> Vec<usize> {
    let group = state.group(name, rank).unwrap();
    group.unwrap().ranks().to_vec()
}

fn groups(state: &ParallelState, name: &str) -> Vec<Vec<usize>> {
    let groups = state.groups(name).unwrap();
    groups.iter().map(|group| group.ranks().to_vec()).collect()
}

/// torchtitan's axes and the corresponding groups of ours. Its `batch` is the axis dp of the domain
/// batch, and its `efsdp` does not cross replicas.
const TORCHTITAN_AXES: [(&str, &str); 11] = [
    ("pp", "pp"),
    ("batch", "dp"),
    ("dp", "dp"),
    ("loss", "loss"),
    ("dp_replicate", "dp_replicate"),
    ("dp_shard", "dp_shard"),
    ("fsdp", "fsdp"),
    ("cp", "cp"),
    ("tp", "tp"),
    ("ep", "ep"),
    ("efsdp", "intra_ep_dp"),
];

fn torchtitan_text(section: &Value, given: &Value) -> String {
    let mut text = "[parallelism]\n".to_owned();
    for (degree, size) in given.as_object().unwrap() {
        let key = section["degrees"][degree].as_str().unwrap_or(degree);
        writeln!(text, "{key} = {size}").unwrap();
    }
    text
}

#[test]
fn torchtitan_groups_are_equal() {
    let mut compared = 0;
    for file in ["torchtitan.json", "torchtitan-0.2.2.json"] {
        let table = table(file);
        for row in rows(&table, "meshes") {
            let text = torchtitan_text(&table["section"], &row["given"]);
            let state = state(&on(torchtitan(&text, "train.toml"), number(&row["world"])));
            for (rank, axes) in row["of"].as_object().unwrap() {
                for (axis, expected) in axes.as_object().unwrap() {
                    // 0.2.2 creates expert axes with an etp that the configuration lacks.
                    let name = TORCHTITAN_AXES.iter().find(|(theirs, _)| theirs == axis);
                    let Some((_, name)) = name else {
                        assert_eq!(axis, "etp", "{file}: {row}");
                        assert_eq!(group(&state, "etp", rank.parse().unwrap()), ranks(expected));
                        continue;
                    };
                    let found = group(&state, name, rank.parse().unwrap());
                    assert_eq!(found, ranks(expected), "{file}: {axis} of {rank}\n{text}");
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 500, "{compared}");
}

/// Every key of torchtitan is accepted with its default.
#[test]
fn torchtitan_defaults_are_read() {
    for file in ["torchtitan.json", "torchtitan-0.2.2.json"] {
        let table = table(file);
        let mut text = "[parallelism]\n".to_owned();
        for (key, default) in table["section"]["defaults"].as_object().unwrap() {
            if !default.is_null() {
                writeln!(text, "{key} = {default}").unwrap();
            }
        }
        let settings = torchtitan(&text, "train.toml");
        assert!(settings.violations().is_empty(), "{:?}", settings.violations());
    }
}

/// Every configuration that torchtitan's check rejects is rejected, except for its limits on etp.
/// Expert groups that span replicas fail in torch's mesh creation. Here, as in d9d, they are valid,
/// because the expert domain regroups all ranks of a stage.
#[test]
fn configurations_that_torchtitan_rejects_are_rejected() {
    for file in ["torchtitan.json", "torchtitan-0.2.2.json"] {
        let table = table(file);
        for row in rows(&table, "refused") {
            if row["raises"].is_null() {
                continue;
            }
            let text = torchtitan_text(&table["section"], &row["given"]);
            let settings = on(torchtitan(&text, "train.toml"), number(&row["world"]));
            let ours = ParallelConfig::new(&settings);
            match row["when"].as_str().unwrap() {
                "check" => assert!(ours.is_err() || row["given"].get("etp").is_some(), "{row}"),
                _ => assert!(ours.is_err() || row["given"].get("ep").is_some(), "{row}"),
            }
        }
    }
}

fn megatron_line(arguments: &Value, given: &Value) -> Vec<String> {
    let given = given.as_object().unwrap().iter();
    let words = given.flat_map(|(key, value)| {
        let name = arguments[key].as_str().unwrap().replace('_', "-");
        [format!("--{name}"), value.to_string()]
    });
    words.collect()
}

/// Passes sizes as arguments. `megatron.rs` compares all groups.
#[test]
fn megatron_arguments_give_equal_groups() {
    let table = table("megatron.json");
    let known = ["tensor", "pipeline", "context", "expert", "expert_tensor", "instances"];
    let mut compared = 0;
    for row in rows(&table, "initialize") {
        let given = row["given"].as_object().unwrap();
        if given.keys().any(|key| !known.contains(&key.as_str())) {
            continue;
        }
        let arguments = megatron_line(&table["arguments"], &row["given"]);
        let state = state(&on(megatron_arguments(&arguments), number(&row["world"])));
        let calls = row.get("calls").and_then(Value::as_array);
        for call in calls.into_iter().flatten() {
            let name = call[1].as_str().unwrap();
            if ["tp", "pp", "cp", "dp", "dp_cp", "mp", "ep", "ep_tp", "ep_dp"].contains(&name) {
                let expected = ranks(&call[2]);
                assert_eq!(group(&state, name, expected[0]), expected, "{row}");
                compared += 1;
            }
        }
    }
    assert!(compared > 100, "{compared}");
}

#[test]
fn nccl_options_match_megatron() {
    let table = &table("megatron.json")["nccl"];
    let settings = megatron_nccl(table["file"].as_str().unwrap(), "nccl.yaml");
    // Megatron silently ignores an unknown group and two unknown fields.
    let texts: Vec<String> = settings.violations().iter().map(|it| it.to_string()).collect();
    assert_eq!(texts.len(), 3, "{texts:?}");
    for (text, key) in texts.iter().zip(["traffic_class", "misspelt_ctas", "no_such_group"]) {
        assert!(text.starts_with(&format!("unknown key `{key}`")), "{text}");
    }

    let right = "tp: {cga_cluster_size: 2, max_ctas: 8, min_ctas: 2}\npp: {net_name: socket}\n";
    let mut settings = on(megatron_nccl(right, "nccl.yaml"), 8);
    settings.merge(megatron_arguments(["--tensor-model-parallel-size", "2"]));
    let state = state(&settings);
    for (name, expected) in [("tp", &table["options"]["tp"]), ("pp", &table["options"]["pp"])] {
        let group = state.group(name, 0).unwrap().unwrap();
        let options = group.options();
        let found = [
            ("cga_cluster_size", options.cga_cluster_size),
            ("max_ctas", options.max_ctas),
            ("min_ctas", options.min_ctas),
        ];
        for (field, found) in found {
            assert_eq!(found.map(u64::from), expected[field].as_u64(), "{name}.{field}");
        }
    }
}

/// The pull request's configuration file can set every size. A row holds the resulting groups.
#[test]
fn deepspeed_files_give_equal_groups() {
    let keys = [
        ("tp", "tensor_model_parallel_size"),
        ("pp", "pipeline_model_parallel_size"),
        ("cp", "context_parallel_size"),
        ("sp", "sequence_parallel_size"),
        ("ep", "expert_model_parallel_size"),
        ("etp", "expert_tensor_parallel_size"),
    ];
    let dense = [
        ("tp", "tp"),
        ("dp", "dp"),
        ("pp", "pp"),
        ("cp", "cp"),
        ("dp-cp", "dp_cp"),
        ("sp", "sp"),
        ("sp-dp", "sp_dp"),
    ];
    let expert = [("tp", "ep_tp"), ("ep", "ep"), ("dp", "ep_dp"), ("tp-ep", "tp_ep_mp")];
    let mut compared = 0;
    for row in rows(&table("deepspeed.json"), "pull_request_groups") {
        let mut file = serde_json::Map::new();
        file.insert("order".to_owned(), row["order"].clone());
        for (degree, key) in keys {
            let sizes =
                if ["ep", "etp"].contains(&degree) { "expert_sizes" } else { "dense_sizes" };
            let size = &row[sizes][if degree == "etp" { "tp" } else { degree }];
            if !size.is_null() {
                file.insert(key.to_owned(), size.clone());
            }
        }
        let text = Value::Object(file).to_string();
        let settings = on(deepspeed(&text, "ds.json"), number(&row["world"]));
        // The pull request accepts different dense and expert pipelines, which cannot work.
        let Ok(config) = ParallelConfig::new(&settings) else {
            assert_ne!(row["dense"]["pp"], row["expert"]["pp"], "{row}");
            continue;
        };
        let state = ParallelState::new(config);
        for (table, names) in [(&row["dense"], &dense[..]), (&row["expert"], &expert[..])] {
            for (token, name) in names {
                if let Some(expected) = table.get(*token) {
                    let mut expected = lists(expected);
                    expected.sort();
                    assert_eq!(groups(&state, name), expected, "{name} of {text}");
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 50, "{compared}");
}

/// Compares with `deepspeed.utils.groups` and its sequence-parallel state. The file has the keys of
/// the release.
#[test]
fn deepspeed_groups_match_the_release() {
    let table = table("deepspeed.json");
    for row in rows(&table, "sequence") {
        let text = format!(r#"{{"sequence_parallel_size": {}}}"#, row["sp"]);
        let state = state(&on(deepspeed(&text, "ds.json"), number(&row["world"])));
        assert_eq!(groups(&state, "sp"), lists(&row["sequence"]), "{row}");
        assert_eq!(groups(&state, "sp_dp"), lists(&row["sequence_data"]), "{row}");
    }
    for row in rows(&table, "all_to_all") {
        let (world, per_host) = (number(&row["world"]), number(&row["devices_per_host"]));
        let mut settings = on(deepspeed("{}", "ds.json"), world);
        settings.ranks_per_host(per_host, Source::code("the test"));
        let Ok(config) = ParallelConfig::new(&settings) else {
            continue;
        };
        let state = ParallelState::new(config);
        for (name, expected) in row["groups"].as_object().unwrap() {
            let expected = ranks(expected);
            let ours = match name.starts_with("local") {
                true => "all_to_all_local",
                false => "all_to_all_global",
            };
            assert_eq!(group(&state, ours, expected[0]), expected, "{name} of {row}");
        }
    }
}

/// The state of a file whose experts are sharded over `tp` ranks like the rest of the model; `tp` 1
/// leaves them whole.
fn deepspeed_experts(row: &Value, tp: &Value, pp: &Value, data_first: bool) -> ParallelState {
    let text = format!(
        r#"{{"tensor_parallel": {{"autotp_size": {tp}}}, "pipeline_model_parallel_size": {pp},
            "expert_parallel": {{"autoep_size": {}, "expert_tensor_parallel_size": {tp}}},
            "use_data_before_expert_parallelism": {data_first}}}"#,
        row["ep"],
    );
    let mut settings = on(deepspeed(&text, "ds.json"), number(&row["world"]));
    // With an `mp_size`, DeepSpeed's replicas of experts mix tensor-parallel shards.
    let mixed = View::new("mixed", "expert", ["etp", "ep_replicate"]);
    settings.view(mixed, Source::code("the test"));
    state(&settings)
}

fn assert_groups(state: &ParallelState, name: &str, mut expected: Vec<Vec<usize>>, row: &Value) {
    expected.sort();
    assert_eq!(groups(state, name), expected, "{name} of {row}");
}

#[test]
fn deepspeed_experts_match_the_release() {
    let table = table("deepspeed.json");
    let one = Value::from(1);
    for row in rows(&table, "expert") {
        let given = &row["given"];
        let is_sharded = given.get("mp_size").is_some() && given["mp_mode"] != "sp";
        let tp = if is_sharded { &given["mp_size"] } else { &one };
        let pp = given.get("pp_size").unwrap_or(&one);
        let data_first = given.get("use_data_before_expert_parallel_").is_some();
        let state = deepspeed_experts(row, tp, pp, data_first);

        let of_kind = |kind: &str| -> Vec<Vec<usize>> {
            let calls = rows(row, "calls").iter().filter(|call| call[0] == kind);
            calls.map(|call| ranks(&call[1])).collect()
        };
        assert_groups(&state, "ep", of_kind("ep"), row);
        let replicas = if is_sharded { "mixed" } else { "ep_dp" };
        assert_groups(&state, replicas, of_kind("edp"), row);
    }
    for row in rows(&table, "expert_and_model") {
        let data_first = row["use_data_before_expert_parallelism"] == true;
        let state = deepspeed_experts(row, &row["tp"], &row["pp"], data_first);
        assert_groups(&state, "ep", lists(&row["expert"]), row);
        assert_groups(&state, "ep_dp", lists(&row["expert_data"]), row);
    }
}

/// Both keys for tensor parallelism are read. If their values differ, the error names both keys.
#[test]
fn conflicting_sizes_are_reported_with_both_keys() {
    let text = r#"{"tensor_parallel": {"autotp_size": 4}, "tensor_model_parallel_size": 2}"#;
    let settings = on(deepspeed(text, "ds.json"), 8);
    let error = ParallelConfig::new(&settings).unwrap_err().to_string();
    assert!(error.contains("ds.json, tensor_parallel.autotp_size"), "{error}");
    assert!(error.contains("ds.json, tensor_model_parallel_size"), "{error}");
}
