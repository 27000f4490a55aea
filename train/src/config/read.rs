//! Reads a [`Config`] from a file and overrides.
//!
//! Both are settings, which have a key path, a value and an origin. Each setting is checked against
//! the default configuration, which is the schema, and then replaces the default value. Every error
//! therefore names its origin.

use std::path::Path;

use meshgrad_ckpt::io_error;
use meshgrad_error::{Error, Result, error};
use toml::{Table, Value};

use super::setting::{Setting, insert, lookup, paths};
use super::sources::{Override, Sources};
use super::tables::{ModelTables, check_defaults, check_names, check_strict, written};
use super::{Config, TokenizerChoice, Violations, choice};

impl Config {
    /// Reads `file` (or uses the defaults), applies `overrides` in order and validates the result.
    /// `T` is the type of the model's tables; [`NoTables`](super::NoTables) if it has none.
    ///
    /// # Errors
    /// When a key or value is not allowed: the error names the key, its origin, and how to fix it.
    pub fn read<T: ModelTables>(file: Option<&Path>, overrides: &[Override]) -> Result<Self> {
        let Some(path) = file else {
            return Self::parse::<T>("", "defaults", overrides);
        };

        let text = std::fs::read_to_string(path)
            .map_err(|cause| io_error("read the configuration", path, cause))?;
        Self::parse::<T>(&text, &path.display().to_string(), overrides)
    }

    /// As [`Config::read`], from `text`; error messages call it `name`.
    ///
    /// # Errors
    /// As [`Config::read`].
    pub fn parse<T: ModelTables>(text: &str, name: &str, overrides: &[Override]) -> Result<Self> {
        let sources = Sources { text, name, overrides };
        let schema = Schema::new::<T>(sources)?;
        let settings = sources.settings(&schema.defaults)?;
        for setting in &settings {
            schema.check(setting)?;
        }
        // Serde then checks the values.
        let (mut config, tables) = typed::<T>(&schema.with(&settings))
            .map_err(|error| schema.blamed::<T>(&settings, error))?;
        if !settings.iter().any(|it| it.key == ["train", "micro_batch_size"]) {
            config.train.micro_batch_size = config.train.batch_size;
        }
        check_strict::<T>(&config.tables)?;
        config.tables = written(&tables)?;
        config.weights_from = tables.weights_from();
        Violations([tables.violations(&config), config.violations()].concat()).check()?;
        Ok(config)
    }

    /// Checks the range of every value, except those of the model's tables:
    /// [`Config::model_tables`] checks them.
    ///
    /// # Errors
    /// With [`Violations`].
    pub fn check(&self) -> Result<()> {
        Violations(self.violations()).check()
    }

    /// The whole configuration as TOML, with every default. [`Config::parse`] reads it back.
    ///
    /// # Errors
    /// When a number does not fit TOML.
    pub fn to_toml(&self) -> Result<String> {
        toml::to_string(self).map_err(not_toml)
    }

    /// The settings that all ranks of a run share: those that change its numbers, or which
    /// collectives follow each other. Paths, output, and what only rank 0 does are left out.
    ///
    /// # Errors
    /// As [`Config::to_toml`].
    pub fn shared(&self) -> Result<Table> {
        let mut table = Table::try_from(self).map_err(not_toml)?;
        for (name, key) in OWN_KEYS {
            if let Some(Value::Table(keys)) = table.get_mut(name) {
                keys.remove(key);
            }
        }
        if let (TokenizerChoice::File(_), Some(Value::Table(data))) =
            (&self.data.tokenizer, table.get_mut("data"))
        {
            data.remove("tokenizer");
        }
        Ok(table)
    }
}

/// The error for a configuration that cannot be written.
pub(crate) fn not_toml(cause: toml::ser::Error) -> Error {
    error!(Invalid, "the configuration cannot be written as TOML: {cause}").caused_by(cause)
}

/// The error for a default configuration that cannot be read back.
pub(super) fn bad_default(cause: toml::de::Error) -> Error {
    error!(Invalid, "the default configuration is invalid: {cause}").caused_by(cause)
}

/// The tables and keys that may differ between the ranks of a run.
const OWN_KEYS: [(&str, &str); 8] = [
    ("model", "from"),
    ("data", "paths"),
    ("data", "validation"),
    ("data", "sources"),
    ("checkpoint", "keep"),
    ("log", "every"),
    ("log", "tensorboard"),
    ("log", "trace_step"),
];

/// Deserializes `resolved`: the configuration, and the tables of its model.
fn typed<T: ModelTables>(resolved: &Table) -> Result<(Config, T), toml::de::Error> {
    let config: Config = resolved.clone().try_into()?;
    let tables = config.tables.clone().try_into()?;
    Ok((config, tables))
}

/// The keys that a configuration may have.
struct Schema {
    /// Every key with its default.
    defaults: Table,
    /// The defaults of keys that do not belong to the model.
    common: Table,
}

impl Schema {
    /// The schema of configurations with the tables `T`, for the choices that `sources` make.
    fn new<T: ModelTables>(sources: Sources<'_>) -> Result<Schema> {
        let common = Table::try_from(Config::default()).map_err(not_toml)?;
        let own = written(&T::default())?;
        check_names::<T>(&own, &common)?;
        let mut defaults = common.clone();
        defaults.extend(own);

        let settings = sources.settings(&defaults)?;
        let mut given = Table::new();
        for setting in &settings {
            insert(&mut given, &setting.key, setting.value.clone());
        }
        let own = written(&T::defaults(&given))?;
        check_names::<T>(&own, &common)?;
        check_defaults::<T>(&own)?;
        let mut defaults = choice::schema(&settings, common.clone())?;
        for (key, value) in T::defaults_elsewhere(&given) {
            insert(&mut defaults, &key.map(str::to_owned), value);
        }
        defaults.extend(own);
        Ok(Schema { defaults, common })
    }

    /// The defaults, with the values of `settings` in order.
    fn with<'a>(&self, settings: impl IntoIterator<Item = &'a Setting>) -> Table {
        let mut resolved = self.defaults.clone();
        for setting in settings {
            insert(&mut resolved, &setting.key, setting.value.clone());
        }
        resolved
    }

    /// Finds the setting that caused serde's `error`, and returns an error that names it: the last
    /// setting whose removal makes the configuration valid. If there is none: the first that, added
    /// to the settings before it, gives the same error.
    fn blamed<T: ModelTables>(&self, settings: &[Setting], error: toml::de::Error) -> Error {
        let others = |at: usize| {
            let settings = settings.iter().enumerate();
            let others = settings.filter(move |(other, _)| *other != at);
            others.map(|(_, setting)| setting)
        };
        let is_culprit = |at: &usize| typed::<T>(&self.with(others(*at))).is_ok();
        let is_first = |at: &usize| {
            let found = typed::<T>(&self.with(&settings[..=*at])).err();
            found.is_some_and(|found| found.message() == error.message())
        };
        let mut all = 0..settings.len();
        let culprit = all.clone().rev().find(is_culprit);
        match culprit.or_else(|| all.find(is_first)).map(|at| &settings[at]) {
            Some(setting) => setting.rejected(error.message(), &self.defaults),
            None => bad_default(error),
        }
    }

    /// Checks key and type of `setting`.
    fn check(&self, setting: &Setting) -> Result<()> {
        match lookup(&self.defaults, &setting.key) {
            Some(default) => setting.check_type(default),
            None => self.unknown(setting),
        }
    }

    /// Handles a key without a default. If it belongs to the model's tables, serde decides whether
    /// it exists.
    fn unknown(&self, setting: &Setting) -> Result<()> {
        if !self.common.contains_key(&setting.key[0]) {
            return setting.check_parents(&self.defaults);
        }
        let other = choice::other_choice(setting, &self.defaults);
        Err(other.unwrap_or_else(|| setting.unknown(&paths(&self.defaults))))
    }
}
