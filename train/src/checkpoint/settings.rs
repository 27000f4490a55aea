//! Differences between the settings of a run and the settings in its checkpoint.

use std::fmt;

use meshgrad_ckpt::Committed;
use toml::{Table, Value};

use super::{other_run, read_config};
use crate::Result;
use crate::config::{Config, not_toml};

/// The tables and the keys that a run may not change: its model, what is trained of it, and what decides the
/// order and the split of the data.
const UNCHANGING: [&str; 7] = [
    "model",
    "adapter",
    "data.val_fraction",
    "train.seed",
    "train.batch_size",
    "train.seq_len",
    "train.only",
];

/// A setting that differs.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// The full key path.
    pub key: String,
    /// Its value in the checkpoint, or its default; `None` if it was unset.
    pub saved: Option<Value>,
    /// Its value now.
    pub now: Option<Value>,
}

/// As in `optimizer.learning_rate 1e-3 -> 3e-3`.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Change { key, saved, now } = self;
        write!(f, "{key} {} -> {}", Shown(saved), Shown(now))
    }
}

impl Change {
    fn is_allowed(&self) -> bool {
        let is_or_has = |key: &str| {
            let rest = self.key.strip_prefix(key);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        // The weights of a run that resumes are in the checkpoint.
        ["model.from", "model.ignore_unused", "adapter.from"].contains(&&*self.key)
            || !UNCHANGING.iter().any(|key| is_or_has(key))
    }
}

/// Formats a value; small floats in scientific notation.
struct Shown<'a>(&'a Option<Value>);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("unset"),
            Some(Value::Float(value)) if *value != 0.0 && value.abs() < 0.01 => {
                write!(f, "{value:e}")
            }
            Some(value) => write!(f, "{value}"),
        }
    }
}

/// Checks that the settings that a run may not change equal those in `checkpoint`: `[model]`, `[adapter]`, the
/// seed, and the keys that decide the order and the split of the data. Returns the other changes.
///
/// # Errors
/// When a key that may not differ does, with the first; when it is not a checkpoint of a run.
pub fn check_config(checkpoint: &Committed, config: &Config) -> Result<Vec<Change>> {
    let saved = read_config(checkpoint)?;
    // A key that this version added has its default.
    let written = |config: &Config| Table::try_from(config).map_err(not_toml);
    let (now, defaults) = (written(config)?, written(&Config::default())?);
    let mut changes = Vec::new();
    add_changes("", &saved, &now, Some(&defaults), &mut changes);

    match changes.iter().find(|change| !change.is_allowed()) {
        None => Ok(changes),
        Some(Change { key, saved, now }) => {
            let [saved, now] = [saved, now].map(|value| Shown(value).to_string());
            Err(other_run(checkpoint, key, saved, now))
        }
    }
}

fn add_changes(
    parent: &str,
    saved: &Table,
    now: &Table,
    defaults: Option<&Table>,
    changes: &mut Vec<Change>,
) {
    let added = now.keys().filter(|key| !saved.contains_key(*key));
    for name in saved.keys().chain(added) {
        let key = match parent.is_empty() {
            true => name.clone(),
            false => format!("{parent}.{name}"),
        };
        let default = defaults.and_then(|table| table.get(name));
        match (saved.get(name), now.get(name)) {
            (Some(Value::Table(saved)), Some(Value::Table(now))) => {
                let defaults = default.and_then(Value::as_table);
                add_changes(&key, saved, now, defaults, changes);
            }
            (saved, now) => {
                let saved = saved.or(default);
                if saved != now {
                    let (saved, now) = (saved.cloned(), now.cloned());
                    changes.push(Change { key, saved, now });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(saved: &str, now: &str) -> Vec<String> {
        let [saved, now] = [saved, now].map(|text| toml::from_str(text).unwrap());
        let defaults = toml::from_str("[a]\nnew = 1").unwrap();
        let mut changes = Vec::new();
        add_changes("", &saved, &now, Some(&defaults), &mut changes);
        changes.iter().map(Change::to_string).collect()
    }

    #[test]
    fn changes_are_shown_with_both_values() {
        let saved =
            "gone = 1\n[a]\nrate = 1e-3\nsteps = 5\nsame = true\nlist = [1, 2]\ninner.x = 0.5";
        let now = "[a]\nrate = 3e-3\nsteps = 6\nsame = true\nlist = [1]\ninner.x = 0.0\nnew = 1";
        assert_eq!(
            changes(saved, now),
            [
                "a.inner.x 0.5 -> 0.0",
                "a.list [1, 2] -> [1]",
                "a.rate 1e-3 -> 3e-3",
                "a.steps 5 -> 6",
                "gone 1 -> unset",
            ]
        );
        assert_eq!(changes("[a]", "[a]\nnew = 2"), ["a.new 1 -> 2"]);
        assert!(changes(saved, saved).is_empty());
    }

    #[test]
    fn only_settings_that_determine_model_and_data_must_not_change() {
        let allowed = |key: &str| {
            let (key, saved, now) = (key.to_owned(), None, None);
            Change { key, saved, now }.is_allowed()
        };
        for key in ["model", "model.rope.x", "train.seed", "data.val_fraction"] {
            assert!(!allowed(key), "{key}");
        }
        for key in [
            "models",
            "train.seeds",
            "train.steps",
            "data.paths",
            "model.from",
            "model.ignore_unused",
        ] {
            assert!(allowed(key), "{key}");
        }
    }
}
