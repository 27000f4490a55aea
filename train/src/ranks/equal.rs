//! What must be equal on all ranks of a run: settings, program and data.

use std::collections::BTreeMap;

use meshgrad_comm::Rank;
use meshgrad_error::error;
use meshgrad_runtime::Properties;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{LIMIT, of_json};
use crate::config::SumOrder;
use crate::{Error, Result};

/// The features of this crate that are on.
const FEATURES: [(&str, bool); 4] = [
    ("parquet", cfg!(feature = "parquet")),
    ("plots", cfg!(feature = "plots")),
    ("progress", cfg!(feature = "progress")),
    ("tokenizers", cfg!(feature = "tokenizers")),
];

/// What a rank compares with the others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Compared {
    /// By key.
    settings: BTreeMap<String, String>,
    /// The instructions, or the GPU, that compute.
    instructions: String,
}

/// Checks that all ranks of the world of `rank` have equal `settings`, and run the same version of
/// meshgrad with the same features. All ranks make this call before they train. Settings are what
/// changes the numbers of a run, or which collectives follow each other, such as
/// [`Config::shared`](crate::config::Config::shared) and the digest of the data.
///
/// Returns a warning if ranks compute with different instructions. Their results are then those of
/// none of these instructions alone.
///
/// ```
/// use meshgrad_comm::{Local, Rank};
/// use meshgrad_train::ranks::check_equal;
///
/// let checked = Local::run(2, |rank| {
///     let learning_rate = if rank.rank() == 1 { 0.02 } else { 0.01 };
///     check_equal(rank, &serde_json::json!({ "optimizer": { "learning_rate": learning_rate } }))
/// });
/// let error = checked.unwrap_err().to_string();
/// assert!(error.contains("optimizer.learning_rate: 0.01 on rank 0, 0.02 on rank 1"), "{error}");
/// ```
///
/// # Errors
/// When they have not, with every difference, on all ranks; when ranks cannot communicate.
pub fn check_equal(rank: &dyn Rank, settings: &impl Serialize) -> Result<Vec<String>> {
    let mut own = Compared {
        settings: BTreeMap::new(),
        instructions: instructions(rank.device().properties()),
    };
    flatten("", &serde_json::to_value(settings).map_err(of_json)?, &mut own.settings);
    let features = FEATURES.iter().filter(|(_, is_on)| *is_on).map(|(name, _)| *name);
    let program = [
        ("program.version", env!("CARGO_PKG_VERSION").to_owned()),
        ("program.features", features.collect::<Vec<_>>().join(", ")),
    ];
    own.settings.extend(program.map(|(key, value)| (key.to_owned(), value)));

    let own = serde_json::to_vec(&own).map_err(of_json)?;
    let ranks = rank.control(0, LIMIT)?.all_gather(&own)?;
    let ranks = ranks.iter().map(|bytes| serde_json::from_slice(bytes));
    compare(&ranks.collect::<Result<Vec<Compared>, _>>().map_err(of_json)?)
}

fn instructions(of: &Properties) -> String {
    match &of.gpu {
        Some(gpu) => gpu.model.clone(),
        None if of.native_bf16 => format!("{} with bf16", of.simd),
        None => of.simd.to_owned(),
    }
}

/// Adds the values of `value` under their whole keys. Lists are values.
fn flatten(key: &str, value: &Value, into: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(entries) => entries.iter().for_each(|(name, value)| {
            let key = match key.is_empty() {
                true => name.clone(),
                false => format!("{key}.{name}"),
            };
            flatten(&key, value, into);
        }),
        value => drop(into.insert(key.to_owned(), value.to_string())),
    }
}

/// The warnings about `ranks`, in rank order.
fn compare(ranks: &[Compared]) -> Result<Vec<String>> {
    let keys = ranks.iter().flat_map(|rank| rank.settings.keys());
    let keys: BTreeMap<&String, ()> = keys.map(|key| (key, ())).collect();
    let differences = keys.into_keys().filter_map(|key| {
        let value = |rank: &Compared| rank.settings.get(key).cloned();
        let values = ranks.iter().map(|rank| value(rank).unwrap_or_else(|| "unset".to_owned()));
        Some(format!("{key}: {}", difference(values)?))
    });
    let differences: Vec<String> = differences.collect();
    if !differences.is_empty() {
        return Err(unequal(&differences));
    }
    let instructions = difference(ranks.iter().map(|rank| rank.instructions.clone()));
    let warning = instructions.map(|by_rank| {
        format!("ranks compute with different instructions, which round differently: {by_rank}")
    });
    Ok(warning.into_iter().collect())
}

fn unequal(differences: &[String]) -> Error {
    error!(
        Mismatch,
        "the ranks of a run must be equal:\n  {}\nstart all ranks with the same program, configuration \
         and data",
        differences.join("\n  ")
    )
}

/// The ranks of each value, as in `1 on ranks 0 and 2-3, 2 on rank 1`; `None` if all are equal.
fn difference(values: impl Iterator<Item = String>) -> Option<String> {
    let mut ranks_of: Vec<(String, Vec<usize>)> = Vec::new();
    for (rank, value) in values.enumerate() {
        match ranks_of.iter_mut().find(|(known, _)| *known == value) {
            Some((_, ranks)) => ranks.push(rank),
            None => ranks_of.push((value, vec![rank])),
        }
    }
    let parts = ranks_of.iter().map(|(value, ranks)| format!("{value} on {}", Ranges(ranks)));
    let parts: Vec<String> = parts.collect();
    (parts.len() > 1).then(|| parts.join(", "))
}

/// Ascending ranks as ranges.
struct Ranges<'r>(&'r [usize]);

/// As in `rank 1`, `ranks 0 and 2-3`.
impl std::fmt::Display for Ranges<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let runs = self.0.chunk_by(|a, b| a + 1 == *b);
        let runs: Vec<String> = runs
            .map(|run| match run {
                [first, .., last] => format!("{first}-{last}"),
                run => run.iter().map(usize::to_string).collect(),
            })
            .collect();
        let noun = if self.0.len() == 1 { "rank" } else { "ranks" };
        match &runs[..] {
            [all @ .., last] if !all.is_empty() => {
                write!(f, "{noun} {} and {last}", all.join(", "))
            }
            runs => write!(f, "{noun} {}", runs.concat()),
        }
    }
}

/// Ranks with different instructions cannot have the bits of one. So with a tree, the
/// warnings of [`check_equal`] are errors; else they are messages to report.
pub(crate) fn weigh(warnings: Vec<String>, reduction: SumOrder) -> Result<Vec<String>> {
    let warnings = warnings.into_iter();
    match reduction {
        SumOrder::Tree if warnings.len() > 0 => {
            let differences = warnings
                .map(|it| format!("{it}; use equal machines, or train.reduction = \"sum\""));
            Err(unequal(&differences.collect::<Vec<_>>()))
        }
        _ => Ok(warnings.map(|it| format!("warning: {it}")).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(settings: &[(&str, &str)], instructions: &str) -> Compared {
        let settings = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Compared { settings: settings.collect(), instructions: instructions.to_owned() }
    }

    #[test]
    fn every_difference_names_key_values_and_ranks() {
        let ranks = [
            compared(&[("a", "1"), ("b", "x")], "avx2"),
            compared(&[("a", "2"), ("b", "x"), ("c", "3")], "avx2"),
            compared(&[("a", "1"), ("b", "x")], "avx2"),
            compared(&[("a", "1"), ("b", "x")], "avx2"),
            compared(&[("a", "4"), ("b", "x")], "avx2"),
        ];
        let error = compare(&ranks).unwrap_err().to_string();
        let expected = [
            "a: 1 on ranks 0 and 2-3, 2 on rank 1, 4 on rank 4",
            "c: unset on ranks 0 and 2-4, 3 on rank 1",
        ];
        assert!(error.contains(&expected.join("\n  ")), "{error}");
        assert!(!error.contains("b:"), "{error}");
        assert_eq!(compare(&[ranks[0].clone(), ranks[2].clone()]).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn other_instructions_are_a_warning_and_with_a_tree_an_error() {
        let ranks = ["avx512 with bf16", "avx2"].map(|simd| compared(&[("a", "1")], simd));
        let warnings = compare(&ranks).unwrap();
        assert_eq!(warnings.len(), 1);
        assert!(
            warnings[0].ends_with("avx512 with bf16 on rank 0, avx2 on rank 1"),
            "{warnings:?}"
        );
        let reported = weigh(warnings.clone(), SumOrder::Sum).unwrap();
        assert_eq!(reported, [format!("warning: {}", warnings[0])]);
        let error = weigh(warnings, SumOrder::Tree).unwrap_err().to_string();
        assert!(
            error.contains("avx2 on rank 1; use equal machines, or train.reduction"),
            "{error}"
        );
        assert_eq!(weigh(Vec::new(), SumOrder::Tree).unwrap(), Vec::<String>::new());
    }
}
