//! Megatron-LM's command line.
//!
//! Only flags that determine groups and their communicators are read: sizes, the order, and NCCL
//! options. Other flags are ignored.

use std::time::Duration;

use meshgrad_error::error;
use meshgrad_mesh::{GroupOptions, Size};

use super::nccl::{GROUPS, megatron_nccl_file};
use super::scalar::Scalar;
use crate::parallel::violation::unknown_key;
use crate::parallel::{Order, Parallelism, Settings, Source};

const DEGREES: [(&str, Parallelism); 6] = [
    ("--tensor-model-parallel-size", Parallelism::Tp),
    ("--pipeline-model-parallel-size", Parallelism::Pp),
    ("--context-parallel-size", Parallelism::CpShard),
    ("--expert-model-parallel-size", Parallelism::Ep),
    ("--expert-tensor-parallel-size", Parallelism::Etp),
    ("--num-distributed-optimizer-instances", Parallelism::DpReplicate),
];

/// The order of `--use-tp-pp-dp-mapping`.
const ORDER_OF_MAPPING: &str = "tp-cp-ep-pp-dp";

/// Reads Megatron's arguments, such as `--tensor-model-parallel-size 2`. dp_shard is inferred, and
/// etp defaults to tp. The file of `--nccl-communicator-config-path` is read too.
pub fn megatron_arguments<S: AsRef<str>>(arguments: impl IntoIterator<Item = S>) -> Settings {
    let words: Vec<String> =
        arguments.into_iter().flat_map(|word| split_equals(word.as_ref())).collect();
    let mut settings = Settings::new();
    let mut has_etp = false;
    let mut tensor: Option<(Size, Source)> = None;
    let mut order = None;

    let mut at = 0;
    while at < words.len() {
        let flag = words[at].as_str();
        let values = values_after(&words, at);
        let location = Source::flag(flag);
        if let Some((_, kind)) = DEGREES.iter().find(|(name, _)| *name == flag) {
            let value = one_value(flag, values, &mut settings);
            let scalar = value.map(number);
            if let Some(scalar) = &scalar {
                scalar.set_degree(&mut settings, *kind, location.clone());
            }
            has_etp |= *kind == Parallelism::Etp;
            if *kind == Parallelism::Tp {
                let ranks = scalar.and_then(|scalar| scalar.count());
                tensor = ranks.map(|ranks| (Size::Ranks(ranks), location));
            }
        } else {
            match flag {
                "--use-tp-pp-dp-mapping" => order = Some((ORDER_OF_MAPPING, location)),
                "--nccl-communicator-config-path" => {
                    if let Some(path) = one_value(flag, values, &mut settings) {
                        settings.merge(megatron_nccl_file(path));
                    }
                }
                "--high-priority-stream-groups" => high_priority(values, &location, &mut settings),
                "--distributed-timeout-minutes" => {
                    if let Some(minutes) = one_value(flag, values, &mut settings) {
                        timeout(&number(minutes), &location, &mut settings);
                    }
                }
                _ => {}
            }
        }
        at += 1 + values.len();
    }

    let default = || Source::default_of("Megatron");
    let (order, location) = order.unwrap_or((Order::MEGATRON, default()));
    settings.order(order, location);
    settings.set(Parallelism::DpShard, Size::Auto, default());
    if let (false, Some((size, _))) = (has_etp, tensor) {
        settings.set(Parallelism::Etp, size, default());
    }
    settings
}

/// Splits `--flag=value` into two words.
fn split_equals(word: &str) -> Vec<String> {
    match word.split_once('=') {
        Some((flag, value)) if flag.starts_with("--") => vec![flag.to_owned(), value.to_owned()],
        _ => vec![word.to_owned()],
    }
}

/// The words after a flag up to the next flag.
fn values_after(words: &[String], flag: usize) -> &[String] {
    let values = &words[flag + 1..];
    let len = values.iter().position(|word| word.starts_with("--")).unwrap_or(values.len());
    &values[..len]
}

fn one_value<'v>(flag: &str, values: &'v [String], settings: &mut Settings) -> Option<&'v str> {
    match values {
        [value] => Some(value),
        _ => {
            let len = values.len();
            settings.add_violation(error!(Invalid, "{flag}: expected one value, got {len}"));
            None
        }
    }
}

fn number(text: &str) -> Scalar {
    match text.parse() {
        Ok(number) => Scalar::Integer(number),
        Err(_) => Scalar::Other(text.to_owned()),
    }
}

fn high_priority(groups: &[String], location: &Source, settings: &mut Settings) {
    for group in groups {
        if !GROUPS.contains(&group.as_str()) {
            settings.add_violation(unknown_key(group, location, GROUPS));
            continue;
        }
        let mut options = GroupOptions::default();
        options.high_priority = Some(true);
        settings.options(group, options, location.clone());
    }
}

/// Sets the timeout of every Megatron group that a state has (all but `hcp`), and of `sp` and `sp_dp`.
pub(super) fn timeout(minutes: &Scalar, location: &Source, settings: &mut Settings) {
    let minutes = minutes.count_or_reject(settings, "a number of minutes", location);
    let seconds = minutes.and_then(|minutes| (minutes as u64).checked_mul(60));
    let groups = GROUPS.into_iter().filter(|group| *group != "hcp").chain(["sp", "sp_dp"]);
    for group in groups.filter(|_| seconds.is_some()) {
        let mut options = GroupOptions::default();
        options.timeout = seconds.map(Duration::from_secs);
        settings.options(group, options, location.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(line: &str) -> Settings {
        megatron_arguments(line.split_whitespace())
    }

    #[test]
    fn sizes_are_read_and_other_flags_ignored() {
        let settings = arguments(
            "--num-layers 61 --tensor-model-parallel-size 2 --swiglu \
             --pipeline-model-parallel-size=8 --expert-model-parallel-size 64 --bf16",
        );
        let default = || Source::default_of("Megatron");
        let flag = |name: &str| Source::flag(format!("--{name}-model-parallel-size"));
        let mut expected = Settings::new();
        expected
            .set(Parallelism::Tp, 2, flag("tensor"))
            .set(Parallelism::Pp, 8, flag("pipeline"))
            .set(Parallelism::Ep, 64, flag("expert"))
            .order("tp-cp-ep-dp-pp", default())
            .set(Parallelism::DpShard, Size::Auto, default())
            .set(Parallelism::Etp, 2, default());
        assert_eq!(settings, expected);

        let mapped = arguments("--use-tp-pp-dp-mapping");
        let mut expected = Settings::new();
        expected.order("tp-cp-ep-pp-dp", Source::flag("--use-tp-pp-dp-mapping")).set(
            Parallelism::DpShard,
            Size::Auto,
            default(),
        );
        assert_eq!(mapped, expected);
    }

    #[test]
    fn errors_are_violations() {
        let settings = arguments(
            "--tensor-model-parallel-size --context-parallel-size two \
             --high-priority-stream-groups tp ttp --nccl-communicator-config-path /nowhere.yaml",
        );
        let texts: Vec<String> = settings.violations().iter().map(|it| it.to_string()).collect();
        assert_eq!(texts.len(), 4, "{texts:?}");
        assert!(texts[0].contains("expected one value, got 0"));
        assert!(texts[1].starts_with("cp_shard is `two` (--context-parallel-size)"));
        assert!(texts[2].contains("`ttp`"));
        assert!(texts[3].contains("/nowhere.yaml: cannot be read"));
    }
}
