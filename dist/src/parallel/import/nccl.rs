//! Megatron's YAML file of NCCL options per group.

use std::path::Path;

use meshgrad_error::error;
use meshgrad_mesh::GroupOptions;
use yaml_rust2::{Yaml, YamlLoader};

use super::of_file;
use super::scalar::Scalar;
use crate::parallel::violation::unknown_key;
use crate::parallel::{Settings, Source};

/// The groups for which Megatron looks up options (megatron-core 0.16.1).
pub(super) const GROUPS: [&str; 21] = [
    "dp_cp",
    "intra_dp_cp",
    "dp",
    "cp",
    "hcp",
    "mp",
    "tp",
    "pp",
    "embd",
    "pos_embd",
    "tp_dp_cp",
    "tp_dp",
    "tp_cp",
    "ep",
    "ep_tp",
    "tp_ep_mp",
    "tp_ep_pp",
    "ep_dp",
    "intra_ep_dp",
    "inter_ep_dp",
    "intra_dist_opt_instance",
];

const FIELDS: [&str; 5] =
    ["is_high_priority_stream", "cga_cluster_size", "max_ctas", "min_ctas", "net_name"];

/// Reads a file for Megatron's `--nccl-communicator-config-path`; `path` names the text in errors.
/// Groups and fields that Megatron silently ignores are violations.
pub fn megatron_nccl(text: &str, path: &str) -> Settings {
    let mut settings = Settings::new();
    let location = Source::file(path);
    match YamlLoader::load_from_str(text) {
        Ok(documents) => match documents.as_slice() {
            // An empty file.
            [] | [Yaml::Null] => {}
            [Yaml::Hash(groups)] => {
                for (group, options) in groups {
                    read_group(group, options, &location, &mut settings);
                }
            }
            _ => {
                settings.add_violation(error!(
                    Invalid,
                    "{location}: expected one mapping of groups to options"
                ));
            }
        },
        Err(error) => {
            let location = location.at_line(error.marker().line());
            let info = error.info();
            settings.add_violation(error!(Malformed, "{location}: invalid YAML: {info}"));
        }
    }
    settings
}

/// [`megatron_nccl`] for a file.
pub fn megatron_nccl_file(path: impl AsRef<Path>) -> Settings {
    of_file(path.as_ref(), megatron_nccl)
}

fn read_group(group: &Yaml, options: &Yaml, location: &Source, settings: &mut Settings) {
    let name = scalar(group).to_string();
    let location = location.clone().at_key(name.clone());
    if !GROUPS.contains(&name.as_str()) {
        settings.add_violation(unknown_key(&name, &location, GROUPS));
        return;
    }
    match options {
        Yaml::Hash(fields) => {
            let mut options = GroupOptions::default();
            for (field, value) in fields {
                let field = scalar(field).to_string();
                let location = location.clone().at_key(format!("{name}.{field}"));
                read_field(&field, &scalar(value), &location, &mut options, settings);
            }
            settings.options(name, options, location);
        }
        Yaml::Null => {}
        other => scalar(other).reject(settings, "a mapping of options", &location),
    }
}

fn read_field(
    field: &str,
    value: &Scalar,
    location: &Source,
    options: &mut GroupOptions,
    settings: &mut Settings,
) {
    let count = |settings: &mut Settings| {
        let count = value.count_or_reject(settings, "a number of blocks", location)?;
        u32::try_from(count).ok()
    };
    match field {
        "is_high_priority_stream" => match value {
            Scalar::Truth(truth) => options.high_priority = Some(*truth),
            _ => value.reject(settings, "true or false", location),
        },
        "cga_cluster_size" => options.cga_cluster_size = count(settings),
        "max_ctas" => options.max_ctas = count(settings),
        "min_ctas" => options.min_ctas = count(settings),
        "net_name" => match value {
            Scalar::Text(name) if ["ib", "socket"].contains(&name.to_lowercase().as_str()) => {
                options.net_name = Some(name.clone());
            }
            _ => value.reject(settings, "IB or socket", location),
        },
        _ => {
            settings.add_violation(unknown_key(field, location, FIELDS));
        }
    }
}

fn scalar(value: &Yaml) -> Scalar {
    match value {
        Yaml::Null => Scalar::Nothing,
        Yaml::Integer(number) => Scalar::Integer(*number),
        Yaml::Boolean(truth) => Scalar::Truth(*truth),
        Yaml::String(text) => Scalar::Text(text.clone()),
        Yaml::Real(text) => Scalar::Other(text.clone()),
        other => Scalar::Other(format!("{other:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(yaml: &str) -> Vec<String> {
        let settings = megatron_nccl(yaml, "nccl.yaml");
        let violations = settings.violations().iter();
        violations.map(ToString::to_string).collect()
    }

    #[test]
    fn options_are_read() {
        let settings = megatron_nccl(
            "tp: {cga_cluster_size: 2, max_ctas: 8, min_ctas: 1}\npp:\n  net_name: socket\nembd:\n",
            "nccl.yaml",
        );
        let mut tp = GroupOptions::default();
        (tp.cga_cluster_size, tp.max_ctas, tp.min_ctas) = (Some(2), Some(8), Some(1));
        let mut pp = GroupOptions::default();
        pp.net_name = Some("socket".to_owned());
        let mut expected = Settings::new();
        expected.options("tp", tp, Source::file("nccl.yaml").at_key("tp")).options(
            "pp",
            pp,
            Source::file("nccl.yaml").at_key("pp"),
        );
        assert_eq!(settings, expected);
        assert_eq!(megatron_nccl("", "nccl.yaml"), Settings::new());
    }

    #[test]
    fn errors_are_violations() {
        assert!(texts("tp_cpp: {max_ctas: 4}")[0].contains("did you mean `tp_cp`?"));
        assert!(texts("tp: {max_cta: 4}")[0].contains("did you mean `max_ctas`?"));
        assert!(texts("tp: {max_ctas: many}")[0].contains("`many` is not a number of blocks"));
        assert!(texts("tp: {net_name: tcp}")[0].contains("`tcp` is not IB or socket"));
        assert!(texts("- tp")[0].contains("expected one mapping"));
        assert!(texts("tp: [1, 2")[0].contains("invalid YAML"));
        assert!(texts("tp: 3")[0].contains("`3` is not a mapping of options"));
    }
}
