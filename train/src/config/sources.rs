//! The settings that a file and `--set` give, with their origins.

use std::collections::HashSet;

use meshgrad_error::{Error, Result, bail, error};
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

use super::setting::{Setting, lookup};

/// The origin of overrides.
const COMMAND_LINE: &str = "--set";

/// One `--set key.path=value`.
#[derive(Debug, Clone, PartialEq)]
pub struct Override {
    key: Vec<String>,
    text: String,
}

impl std::str::FromStr for Override {
    type Err = Error;

    /// Splits at the first `=`. The value is interpreted later, when the type of the key is known.
    fn from_str(text: &str) -> Result<Self> {
        let bad = || {
            error!(
                Invalid,
                "`--set {text}` is not of the form key.path=value, for example train.steps=100"
            )
        };

        let (key, value) = text.split_once('=').ok_or_else(bad)?;
        let key: Vec<String> = key.trim().split('.').map(|part| part.trim().to_owned()).collect();
        if key.iter().any(String::is_empty) {
            return Err(bad());
        }
        Ok(Self { key, text: value.trim().to_owned() })
    }
}

impl Override {
    /// The parts of the key path.
    pub fn key(&self) -> &[String] {
        &self.key
    }

    /// The text as TOML, or as a string if it is not TOML or the key expects a string. If the key
    /// expects a list, a single value becomes a list of one.
    ///
    /// # Errors
    /// For an integer that TOML cannot hold.
    fn value(&self, schema: &Table) -> Result<Value> {
        let plain = || Value::String(self.text.clone());
        let parsed = toml::from_str::<Table>(&format!("value = {}", self.text));
        let value = parsed.ok().and_then(|mut table| table.remove("value")).unwrap_or_else(plain);

        Ok(match (lookup(schema, &self.key), value) {
            (Some(Value::String(_)), value) if !value.is_str() => plain(),
            (Some(Value::Array(_)), value) if !value.is_array() => Value::Array(vec![value]),
            (Some(Value::Integer(_)), Value::String(_)) if is_integer(&self.text) => {
                bail!(
                    Invalid,
                    "`{}`: {} is out of range; must be from {} to {} ({COMMAND_LINE})",
                    self.key.join("."),
                    self.text,
                    i64::MIN,
                    i64::MAX
                );
            }
            (_, value) => value,
        })
    }
}

/// Whether `text` is a decimal integer, of any size.
fn is_integer(text: &str) -> bool {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// Where settings come from.
#[derive(Clone, Copy)]
pub(super) struct Sources<'a> {
    /// The text of the file.
    pub(super) text: &'a str,
    /// Its name in errors.
    pub(super) name: &'a str,
    pub(super) overrides: &'a [Override],
}

impl Sources<'_> {
    /// The settings in order, without those that a later one replaces. The tables of `schema` are
    /// split into their keys; any other table is one value.
    ///
    /// # Errors
    /// When the file is not TOML, or an integer is out of range.
    pub(super) fn settings(&self, schema: &Table) -> Result<Vec<Setting>> {
        let mut settings = self.of_file(schema)?;
        for set in self.overrides {
            let mut key = set.key.clone();
            split(&mut key, set.value(schema)?, schema, &mut settings);
        }
        Ok(last_of_each_key(settings))
    }

    fn of_file(&self, schema: &Table) -> Result<Vec<Setting>> {
        let syntax = |error: toml::de::Error| {
            // It shows the line.
            let problem = error.to_string();
            error!(Invalid, "{} is not valid TOML: {}", self.name, problem.trim_end())
        };
        // `spans` has the positions of the keys, `values` their values.
        let spans = DeTable::parse(self.text).map_err(syntax)?;
        let values: Table = toml::from_str(self.text).map_err(syntax)?;

        let at = |offset: usize| {
            let line = 1 + self.text[..offset].matches('\n').count();
            format!("{}:{line}", self.name)
        };
        let (mut path, mut settings) = (Vec::new(), Vec::new());
        flatten(spans.get_ref(), &values, schema, &mut path, &at, &mut settings);
        Ok(settings)
    }
}

fn flatten(
    spans: &DeTable<'_>,
    values: &Table,
    schema: &Table,
    path: &mut Vec<String>,
    at: &impl Fn(usize) -> String,
    settings: &mut Vec<Setting>,
) {
    for (name, span) in spans {
        let Some(value) = values.get(name.get_ref().as_ref()) else {
            continue;
        };
        path.push(name.get_ref().to_string());
        match (span.get_ref(), value) {
            (DeValue::Table(spans), Value::Table(values)) if is_table(schema, path) => {
                flatten(spans, values, schema, path, at, settings);
            }
            _ => settings.push(Setting {
                key: path.clone(),
                value: value.clone(),
                origin: at(name.span().start),
            }),
        }
        path.pop();
    }
}

/// Adds `value` for `path` from the command line.
fn split(path: &mut Vec<String>, value: Value, schema: &Table, settings: &mut Vec<Setting>) {
    match value {
        Value::Table(values) if is_table(schema, path) => {
            for (name, value) in values {
                path.push(name);
                split(path, value, schema, settings);
                path.pop();
            }
        }
        value => settings.push(Setting { key: path.clone(), value, origin: COMMAND_LINE.into() }),
    }
}

fn is_table(schema: &Table, path: &[String]) -> bool {
    matches!(lookup(schema, path), Some(Value::Table(_)))
}

/// `settings` without those that a later one replaces, in the same order.
fn last_of_each_key(settings: Vec<Setting>) -> Vec<Setting> {
    let mut seen = HashSet::new();
    let later_first = settings.into_iter().rev();
    let mut last: Vec<Setting> =
        later_first.filter(|setting| seen.insert(setting.key.clone())).collect();
    last.reverse();
    last
}
