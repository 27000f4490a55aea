//! Reads a [`Config`] from a file and overrides.
//!
//! Both are settings, which have a key path, a value and an origin. Each setting is checked against
//! the default configuration, which is the schema, and then replaces the default value. Every error
//! therefore names its origin.

use std::path::Path;

use toml::Table;

use super::setting::{Setting, insert, lookup, paths};
use super::sources::{Override, Sources};
use super::tables::{ModelTables, check_names, check_strict, written};
use super::{Config, ConfigError, Violations, choice};

impl Config {
    /// Reads `file` (or uses the defaults), applies `overrides` in order and validates the result.
    /// `T` are the tables of the model; [`NoTables`](super::NoTables) if it has none.
    ///
    /// # Errors
    /// [`ConfigError`]: names the key, its origin, and how to fix it.
    pub fn read<T: ModelTables>(
        file: Option<&Path>,
        overrides: &[Override],
    ) -> Result<Self, ConfigError> {
        let Some(path) = file else {
            return Self::parse::<T>("", "defaults", overrides);
        };

        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse::<T>(&text, &path.display().to_string(), overrides)
    }

    /// As [`Config::read`], from `text`; error messages call it `name`.
    ///
    /// # Errors
    /// As [`Config::read`].
    pub fn parse<T: ModelTables>(
        text: &str,
        name: &str,
        overrides: &[Override],
    ) -> Result<Self, ConfigError> {
        let sources = Sources {
            text,
            name,
            overrides,
        };
        let schema = Schema::new::<T>(sources)?;
        let mut resolved = schema.defaults.clone();
        for setting in sources.settings(&schema.defaults)? {
            schema.check(&setting)?;
            insert(&mut resolved, &setting.key, setting.value.clone());
            // Serde then checks the value, and its error has this setting's origin.
            if let Err(error) = typed::<T>(&resolved) {
                return Err(setting.rejected(error.message(), &schema.defaults));
            }
        }

        let (mut config, tables) = typed::<T>(&resolved)?;
        check_strict::<T>(&config.tables)?;
        config.tables = written(&tables)?;
        Violations([tables.violations(), config.violations()].concat()).check()?;
        Ok(config)
    }

    /// Checks the range of every value. Those of the model's tables are checked by
    /// [`Config::model_tables`].
    ///
    /// # Errors
    /// [`ConfigError::Range`] with every violation.
    pub fn check(&self) -> Result<(), ConfigError> {
        Violations(self.violations()).check()
    }

    /// The whole configuration as TOML, with every default. [`Config::parse`] reads it back.
    ///
    /// # Errors
    /// [`ConfigError::Write`] when a number does not fit TOML.
    pub fn to_toml(&self) -> Result<String, ConfigError> {
        Ok(toml::to_string(self)?)
    }
}

/// The configuration of the values in `resolved`, and its model's tables.
fn typed<T: ModelTables>(resolved: &Table) -> Result<(Config, T), toml::de::Error> {
    let config: Config = resolved.clone().try_into()?;
    let tables = config.tables.clone().try_into()?;
    Ok((config, tables))
}

/// The keys that a configuration may have.
struct Schema {
    /// Every key with its default.
    defaults: Table,
    /// The part of them that does not depend on the model.
    common: Table,
}

impl Schema {
    /// The schema of configurations with the tables `T`, for the choices that `sources` make.
    fn new<T: ModelTables>(sources: Sources<'_>) -> Result<Schema, ConfigError> {
        let common = Table::try_from(Config::default())?;
        let own = written(&T::default())?;
        check_names::<T>(&own, &common)?;
        let mut defaults = common.clone();
        defaults.extend(own);

        let settings = sources.settings(&defaults)?;
        let mut given = Table::new();
        for setting in &settings {
            if !common.contains_key(&setting.key[0]) {
                insert(&mut given, &setting.key, setting.value.clone());
            }
        }
        defaults.extend(written(&T::defaults(&given))?);
        Ok(Schema {
            defaults: choice::schema(&settings, defaults)?,
            common,
        })
    }

    /// Checks key and type of `setting`.
    fn check(&self, setting: &Setting) -> Result<(), ConfigError> {
        match lookup(&self.defaults, &setting.key) {
            Some(default) => setting.check_type(default),
            None => self.unknown(setting),
        }
    }

    /// Handles a key without a default. Whether the model's tables have it is decided by their type.
    fn unknown(&self, setting: &Setting) -> Result<(), ConfigError> {
        if !self.common.contains_key(&setting.key[0]) {
            return Ok(());
        }
        let other = choice::other_choice(setting, &self.defaults);
        Err(other.unwrap_or_else(|| setting.unknown(&paths(&self.defaults))))
    }
}
