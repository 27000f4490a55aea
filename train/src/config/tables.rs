//! The tables of a configuration that belong to a model: `[model]`, and any others.

use std::any::type_name;
use std::path::PathBuf;

use meshgrad_error::{Error, Result, error};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::setting::{at, at_mut};
use super::{Config, Violation, Violations};

/// The path of a key, and what it means.
pub type Meaning = (&'static str, &'static str);

/// The tables of a model: a struct with one field per table, such as `model`.
///
/// The default is the schema, as for all of a configuration: it has every key, and values of the
/// same TOML type are valid. A key whose default is `None` is valid with any value that its type
/// can be deserialized from. Every struct needs `#[serde(deny_unknown_fields)]`, even those in
/// lists.
///
/// ```
/// use meshgrad_train::config::{Config, ModelTables};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Default, Serialize, Deserialize)]
/// #[serde(deny_unknown_fields)]
/// struct Tables {
///     model: Sizes,
/// }
///
/// #[derive(Serialize, Deserialize)]
/// #[serde(deny_unknown_fields)]
/// struct Sizes {
///     width: usize,
///     depth: usize,
/// }
///
/// impl Default for Sizes {
///     fn default() -> Sizes {
///         Sizes { width: 64, depth: 2 }
///     }
/// }
///
/// impl ModelTables for Tables {}
///
/// # fn main() -> meshgrad_train::Result<()> {
/// let set = "model.depth=3".parse()?;
/// let config = Config::parse::<Tables>("model = { width = 128 }", "main.rs", &[set])?;
/// let Tables { model } = config.model_tables()?;
/// assert_eq!((model.width, model.depth), (128, 3));
///
/// let error = Config::parse::<Tables>("model = { widht = 1 }", "main.rs", &[]).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "unknown key `model.widht` (main.rs:1); did you mean `model.width`?"
/// );
/// # Ok(())
/// # }
/// ```
pub trait ModelTables: Default + Serialize + DeserializeOwned {
    /// The default tables. Override this if one value decides the defaults of others. `given` has
    /// the values of all tables from the file and `--set`, not yet checked. A table that is left
    /// out here has no default.
    fn defaults(given: &Table) -> Self {
        let _ = given;
        Self::default()
    }

    /// Defaults, each after its table and key, of keys in other tables that depend on a value of
    /// these tables.
    fn defaults_elsewhere(given: &Table) -> Vec<([&'static str; 2], Value)> {
        let _ = given;
        Vec::new()
    }

    /// Every value that is out of range. `config` has the other tables, whose ranges may not have
    /// been checked.
    fn violations(&self, config: &Config) -> Vec<Violation> {
        let _ = config;
        Vec::new()
    }

    /// The folder whose weights a new run starts with. [`Session::train`] refuses to start with
    /// other weights in silence.
    ///
    /// [`Session::train`]: crate::session::Session::train
    fn weights_from(&self) -> Option<PathBuf> {
        None
    }

    /// The meanings of keys, for [`Config::annotated`]. Keys without a default may be listed too,
    /// and any key may be missing.
    fn keys() -> &'static [Meaning] {
        &[]
    }
}

/// The tables of a model that has none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoTables {}

impl ModelTables for NoTables {}

impl Config {
    /// The tables of the model.
    ///
    /// # Errors
    /// When they are of another type; with [`Violations`] when a value is out of range.
    pub fn model_tables<T: ModelTables>(&self) -> Result<T> {
        let tables = self.tables.clone().try_into::<T>();
        let unread = |error: toml::de::Error| {
            let (message, tables) = (error.message(), type_name::<T>());
            unfit::<T>(&format!(
                "{message}; read the configuration with `Config::read::<{tables}>`"
            ))
        };
        let tables = tables.map_err(unread)?;
        Violations(tables.violations(self)).check()?;
        Ok(tables)
    }
}

/// `tables` as TOML.
///
/// # Errors
/// When they cannot be written.
pub(super) fn written<T: ModelTables>(tables: &T) -> Result<Table> {
    Table::try_from(tables).map_err(|error| unfit::<T>(&error.to_string()))
}

/// Checks that `tables` of `T` have other names than those in `common`.
///
/// # Errors
/// When one has a name of `common`.
pub(super) fn check_names<T: ModelTables>(tables: &Table, common: &Table) -> Result<()> {
    match tables.keys().find(|name| common.contains_key(*name)) {
        None => Ok(()),
        Some(name) => Err(unfit::<T>(&format!("every run has a table `{name}`; use another name"))),
    }
}

/// Checks that `T` rejects unknown keys in each of `tables`, so that a misspelled key is an error.
///
/// # Errors
/// When one ignores them.
pub(super) fn check_strict<T: ModelTables>(tables: &Table) -> Result<()> {
    let all = Value::Table(tables.clone());
    match open_table::<T>(&all, &all, &[]) {
        None => Ok(()),
        Some(path) => Err(unfit::<T>(&format!(
            "unknown keys of {} are ignored; add #[serde(deny_unknown_fields)] to its type",
            match path.is_empty() {
                true => "the outermost table".to_owned(),
                false => format!("`{}`", path.join(".")),
            }
        ))),
    }
}

/// Checks that `T` can read back the default values that it wrote.
///
/// # Errors
/// When it cannot.
pub(super) fn check_defaults<T: ModelTables>(defaults: &Table) -> Result<()> {
    let read = defaults.clone().try_into::<T>();
    let unread = |error: toml::de::Error| {
        let message = error.message();
        unfit::<T>(&format!(
            "the default cannot be read back: {message}; give each key a default that is valid TOML"
        ))
    };
    read.map(drop).map_err(unread)
}

/// The path of a table in which unknown keys have no effect, searched from `value`, which is at
/// `path`.
fn open_table<T: ModelTables>(all: &Value, value: &Value, path: &[String]) -> Option<Vec<String>> {
    let below = |(part, value): (String, &Value)| {
        let path = [path, &[part]].concat();
        open_table::<T>(all, value, &path)
    };
    match value {
        Value::Table(_) if ignores_keys::<T>(all, path) => Some(path.to_owned()),
        Value::Table(table) => {
            let mut values = table.iter().map(|(name, value)| (name.clone(), value));
            values.find_map(below)
        }
        Value::Array(values) => {
            let numbered = values.iter().enumerate();
            let mut values = numbered.map(|(number, value)| (number.to_string(), value));
            values.find_map(below)
        }
        _ => None,
    }
}

/// Whether an unknown key of the table at `path` has no effect.
fn ignores_keys<T: ModelTables>(all: &Value, path: &[String]) -> bool {
    let unknown = "?".to_owned();
    let mut with_key = all.clone();
    if let Some(Value::Table(table)) = at_mut(&mut with_key, path) {
        table.insert(unknown.clone(), Value::Boolean(true));
    }
    let read = with_key.try_into::<T>().ok();
    let written = read.and_then(|tables| Value::try_from(&tables).ok());
    let key = [path, &[unknown]].concat();
    written.is_some_and(|written| at(&written, &key).is_none())
}

fn unfit<T>(problem: &str) -> Error {
    error!(Invalid, "the model's tables, `{}`: {problem}", type_name::<T>())
}
