//! The default folder of a run. The same command has the same folder, and a command that trains
//! something else has another.

use std::path::{Path, PathBuf};

use toml::{Table, Value};
use twox_hash::XxHash3_64;

use super::{CONFIG, LOCK, RunFolder};
use crate::Result;
use crate::config::{Config, Override, not_toml};

/// Keys and tables that do not change what is trained, only the length, memory and output of a run.
const OF_NO_RUN: [&str; 8] = [
    "parallel",
    "train.steps",
    "train.micro_batch_size",
    "train.activation_checkpointing",
    "train.check_memory",
    "checkpoint",
    "sample",
    "log",
];

/// Longer names are replaced by a digest.
const LONGEST: usize = 60;

impl RunFolder {
    /// The default folder of a run with these settings: `runs/NAME`, where NAME is the name of the
    /// configuration file without its extension, or `default`. Overrides that change what is
    /// trained are appended, as in `runs/default,train.seed=2`; as a digest if they are long or
    /// have characters that shells interpret. If `file` is the `config.toml` of a run folder, the
    /// default is that folder.
    ///
    /// `config` is the configuration that `file` and `overrides` resolve to.
    ///
    /// # Errors
    /// When `config` cannot be written as TOML.
    pub fn default_path(
        file: Option<&Path>,
        overrides: &[Override],
        config: &Config,
    ) -> Result<PathBuf> {
        let folder = file.and_then(Path::parent);
        let folder = folder.map(|folder| match folder.as_os_str().is_empty() {
            true => Path::new("."),
            false => folder,
        });
        if let Some(run) = folder.filter(|folder| is_run_config(folder, file)) {
            return Ok(run.to_owned());
        }
        let stem = file.and_then(Path::file_stem);
        let mut name = stem.unwrap_or("default".as_ref()).to_owned();
        let all = Value::Table(Table::try_from(config).map_err(not_toml)?);
        let mut settings = Vec::new();
        for set in overrides {
            let parts = set.key();
            let value = parts.iter().try_fold(&all, |at, part| at.get(part));
            describe(&parts.join("."), value, &mut settings);
        }
        settings.sort();
        settings.dedup();
        if !settings.is_empty() {
            name.push(",");
            name.push(suffix(&settings.join(",")));
        }
        Ok(Path::new("runs").join(name))
    }
}

/// Whether `file` is the `config.toml` of the run folder `folder`.
fn is_run_config(folder: &Path, file: Option<&Path>) -> bool {
    let name = file.and_then(Path::file_name);
    name.is_some_and(|name| name == CONFIG) && folder.join(LOCK).exists()
}

/// Adds `key=value` for each key at or below `key`.
fn describe(key: &str, value: Option<&Value>, settings: &mut Vec<String>) {
    let is_of_run = |other: &str| {
        let rest = key.strip_prefix(other);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    if OF_NO_RUN.iter().any(|other| is_of_run(other)) {
        return;
    }
    match value {
        None => {}
        Some(Value::Table(table)) => {
            for (name, value) in table {
                describe(&format!("{key}.{name}"), Some(value), settings);
            }
        }
        Some(Value::String(text)) => settings.push(format!("{key}={text}")),
        Some(value) => settings.push(format!("{key}={value}")),
    }
}

/// `settings`, or their digest if they are too long or have characters that shells interpret.
fn suffix(settings: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-=,".contains(&byte);
    match settings.len() <= LONGEST && settings.bytes().all(is_plain) {
        true => settings.to_owned(),
        false => format!("{:08x}", XxHash3_64::oneshot(settings.as_bytes()) >> 32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decoder::Tables;

    fn path(file: Option<&str>, sets: &[&str]) -> String {
        let sets: Vec<Override> = sets.iter().map(|set| set.parse().unwrap()).collect();
        let config = Config::read::<Tables>(None, &sets).unwrap();
        let path = RunFolder::default_path(file.map(Path::new), &sets, &config).unwrap();
        path.to_str().unwrap().to_owned()
    }

    #[test]
    fn folders_are_named_after_file_and_overrides() {
        assert_eq!(path(None, &[]), "runs/default");
        assert_eq!(path(Some("configs/tiny.toml"), &[]), "runs/tiny");
        let one = path(None, &["optimizer.learning_rate=3e-3"]);
        assert_eq!(one, "runs/default,optimizer.learning_rate=0.003");
        let two = ["train.seed=2", "model.hidden_size=64"];
        let expected = "runs/a,model.hidden_size=64,train.seed=2";
        assert_eq!(path(Some("a.toml"), &two), expected);
        assert_eq!(path(Some("a.toml"), &[two[1], two[0]]), expected);
    }

    /// A run keeps its folder if only its length, memory or output changes.
    #[test]
    fn a_run_may_be_continued_with_other_settings() {
        let others = [
            "train.steps=600",
            "train.micro_batch_size=2",
            "train.activation_checkpointing=true",
            "checkpoint.every=10",
            "sample={ every = 7, tokens = 3 }",
            "log.every=2",
        ];
        assert_eq!(path(None, &others), "runs/default");
        let table = path(None, &["train={ steps = 5, seed = 2 }"]);
        assert_ne!(table, path(None, &["train={ steps = 5, seed = 3 }"]));
        assert_eq!(table, path(None, &["train={ steps = 6, seed = 2 }"]));
    }

    /// Names are short, and need no quotes in a shell.
    #[test]
    fn long_settings_are_replaced_by_digests() {
        let paths = ["data.paths=[\"a/b\", \"c d\"]", "data.paths=[\"a/b\"]"];
        let [one, other] = paths.map(|set| path(None, &[set]));
        for path in [&one, &other] {
            assert_eq!(path.len(), "runs/default,".len() + 8, "{path}");
        }
        assert_ne!(one, other);
    }

    #[test]
    fn the_configuration_of_a_run_folder_belongs_to_it() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("config.toml");
        let sets = ["train.seed=2".parse().unwrap()];
        let config = Config::read::<Tables>(None, &sets).unwrap();
        let path = || RunFolder::default_path(Some(&file), &sets, &config).unwrap();
        assert_eq!(path(), Path::new("runs/config,train.seed=2"));
        drop(RunFolder::open(place.path()).unwrap());
        assert_eq!(path(), place.path());
    }
}
