//! torchtitan's section `[parallelism]`, as of 0.3.0 and 0.2.2.
//!
//! torchtitan shards parameters over `dp_shard` and `cp` together, and experts regroup `dp_shard`,
//! `cp` and `tp` with the expert axis fastest. These are the `dense` and `expert` domains.

use std::path::Path;

use meshgrad_mesh::Size;

use super::scalar::Scalar;
use super::tree::Tree;
use super::{of_file, of_section};
use crate::parallel::violation::unknown_key;
use crate::parallel::{Parallelism, Settings, Source};

/// Degrees by torchtitan's names.
const DEGREES: [(&str, Parallelism); 7] = [
    ("pipeline_parallel_degree", Parallelism::Pp),
    ("data_parallel_replicate_degree", Parallelism::DpReplicate),
    ("data_parallel_shard_degree", Parallelism::DpShard),
    ("context_parallel_degree", Parallelism::CpShard),
    ("tensor_parallel_degree", Parallelism::Tp),
    ("expert_parallel_degree", Parallelism::Ep),
    ("expert_tensor_parallel_degree", Parallelism::Etp),
];

/// Keys of the section that do not affect groups of ranks.
const OTHERS: [&str; 20] = [
    "context_parallel_load_balancer",
    "context_parallel_ptrr_mask_key",
    "context_parallel_rotate_method",
    "disable_loss_parallel",
    "enable_async_tensor_parallel",
    "enable_compiled_autograd",
    "enable_fsdp_symm_mem",
    "enable_sequence_parallel",
    "expert_parallel_a2a_impl",
    "expert_parallel_comm_backend",
    "fsdp_reshard_after_forward",
    "module_fqns_per_model_part",
    "pipeline_parallel_expert_parallel_overlap",
    "pipeline_parallel_first_stage_less_layers",
    "pipeline_parallel_last_stage_less_layers",
    "pipeline_parallel_layers_per_stage",
    "pipeline_parallel_microbatch_size",
    "pipeline_parallel_schedule",
    "pipeline_parallel_schedule_csv",
    "spmd_backend",
];

/// Reads the section `[parallelism]` of torchtitan's TOML; `path` names the text in errors. A
/// sharding degree of -1, the default, is `auto`.
pub fn torchtitan(text: &str, path: &str) -> Settings {
    of_section(text, path, "parallelism", read)
}

/// [`torchtitan`] for a file.
pub fn torchtitan_file(path: impl AsRef<Path>) -> Settings {
    of_file(path.as_ref(), torchtitan)
}

fn read(section: &Tree, settings: &mut Settings) {
    for (key, value) in section.entries() {
        match DEGREES.iter().find(|(name, _)| name == key) {
            Some((_, kind)) => degree(value, *kind, settings),
            None if OTHERS.contains(&key.as_str()) => {}
            None => unknown(key, value, settings),
        }
    }
    let defaults = [
        ("data_parallel_shard_degree", Parallelism::DpShard, Size::Auto),
        ("expert_tensor_parallel_degree", Parallelism::Etp, Size::Ranks(1)),
    ];
    for (key, kind, size) in defaults {
        if section.get(key).is_none() {
            settings.set(kind, size, Source::default_of("torchtitan"));
        }
    }
}

/// Sets a degree. Only the sharding degree may be -1.
fn degree(value: &Tree, kind: Parallelism, settings: &mut Settings) {
    match value.scalar() {
        Scalar::Integer(-1) if kind == Parallelism::DpShard => {
            settings.set(kind, Size::Auto, value.location.clone());
        }
        scalar => scalar.set_degree(settings, kind, value.location.clone()),
    }
}

fn unknown(key: &str, value: &Tree, settings: &mut Settings) {
    let known = DEGREES.iter().map(|(name, _)| *name).chain(OTHERS);
    settings.add_violation(unknown_key(key, &value.location, known));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parallel::Settings;

    #[test]
    fn names_are_translated_and_other_keys_ignored() {
        let text = "
            [training]
            steps = 3
            [parallelism]
            data_parallel_replicate_degree = 2
            data_parallel_shard_degree = -1
            context_parallel_degree = 2
            tensor_parallel_degree = 4
            pipeline_parallel_degree = 8
            pipeline_parallel_schedule = 'Interleaved1F1B'
            expert_parallel_degree = 16
        ";
        let at = |line, key: &str| {
            let location = Source::file("x.toml").at_line(line);
            location.at_key(format!("parallelism.{key}"))
        };
        let mut expected = Settings::new();
        let degrees = [
            (5, "data_parallel_replicate_degree", Parallelism::DpReplicate, 2.into()),
            (6, "data_parallel_shard_degree", Parallelism::DpShard, Size::Auto),
            (7, "context_parallel_degree", Parallelism::CpShard, 2.into()),
            (8, "tensor_parallel_degree", Parallelism::Tp, 4.into()),
            (9, "pipeline_parallel_degree", Parallelism::Pp, 8.into()),
            (11, "expert_parallel_degree", Parallelism::Ep, 16.into()),
        ];
        for (line, key, kind, size) in degrees {
            expected.set(kind, size, at(line, key));
        }
        expected.set(Parallelism::Etp, 1, Source::default_of("torchtitan"));
        assert_eq!(torchtitan(text, "x.toml"), expected);
    }

    #[test]
    fn errors_have_their_lines() {
        let text = "[parallelism]\ntensor_paralel_degree = 2\npipeline_parallel_degree = -1\n";
        let texts: Vec<String> =
            torchtitan(text, "x.toml").violations().iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "pp is `-1` (x.toml:3, parallelism.pipeline_parallel_degree): expected an integer \
                 of at least 1, or `auto`",
                "unknown key `tensor_paralel_degree` (x.toml:2, parallelism.tensor_paralel_degree); \
                 did you mean `tensor_parallel_degree`?",
            ]
        );
    }
}
