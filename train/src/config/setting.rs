//! A value for a key, with its origin.

use std::fmt;

use meshgrad_dist::parallel::Parallelism;
use meshgrad_error::{Error, Result, error};
use toml::{Table, Value};

/// A value for a key.
pub(super) struct Setting {
    pub(super) key: Vec<String>,
    pub(super) value: Value,
    /// File and line, or `--set`.
    pub(super) origin: String,
}

impl Setting {
    /// Checks that the value has the TOML type of `default`. An integer is also a float, and a degree
    /// of parallelism is an integer or a string.
    pub(super) fn check_type(&self, default: &Value) -> Result<()> {
        let same = match (default, &self.value) {
            (Value::Float(_), Value::Integer(_)) => true,
            (default, value) if self.is_degree() && is_number_or_text(default) => {
                is_number_or_text(value)
            }
            (default, value) => default.same_type(value),
        };
        match same {
            true => Ok(()),
            false => Err(self.wrong_type(&self.key, &self.value, default)),
        }
    }

    /// Whether it is a degree of `[parallel]`.
    fn is_degree(&self) -> bool {
        let names = Parallelism::ALL.map(Parallelism::name);
        matches!(&self.key[..], [table, name] if table == "parallel" && names.contains(&&**name))
    }

    /// Checks that every parent of this key is a table in `defaults`, or is missing there.
    pub(super) fn check_parents(&self, defaults: &Table) -> Result<()> {
        let parents = (1..self.key.len()).map(|count| &self.key[..count]);
        for parent in parents {
            match lookup(defaults, parent) {
                None | Some(Value::Table(_)) => (),
                Some(value) => {
                    let table = Value::Table(Table::new());
                    return Err(self.wrong_type(parent, &table, value));
                }
            }
        }
        Ok(())
    }

    /// The error for a value that is invalid because of `problem`.
    pub(super) fn bad_value(&self, problem: impl fmt::Display) -> Error {
        error!(Invalid, "`{}`: {problem} ({})", self.key.join("."), self.origin)
    }

    fn wrong_type(&self, key: &[String], found: &Value, expected: &Value) -> Error {
        error!(
            Invalid,
            "`{}` is {} but must be {} ({})",
            key.join("."),
            type_name(found),
            type_name(expected),
            self.origin
        )
    }
}

fn is_number_or_text(value: &Value) -> bool {
    matches!(value, Value::Integer(_) | Value::String(_))
}

/// The value of the key path `key`.
pub(super) fn lookup<'t>(table: &'t Table, key: &[String]) -> Option<&'t Value> {
    let (last, parents) = key.split_last()?;
    lookup_table(table, parents)?.get(last)
}

fn lookup_table<'t>(table: &'t Table, key: &[String]) -> Option<&'t Table> {
    key.iter().try_fold(table, |table, part| table.get(part)?.as_table())
}

/// The value at `path`, whose parts are keys of tables and numbers of list elements.
pub(super) fn at<'v>(value: &'v Value, path: &[String]) -> Option<&'v Value> {
    path.iter().try_fold(value, |value, part| match value {
        Value::Table(table) => table.get(part),
        Value::Array(values) => values.get(part.parse::<usize>().ok()?),
        _ => None,
    })
}

/// As [`at`], to change it.
pub(super) fn at_mut<'v>(value: &'v mut Value, path: &[String]) -> Option<&'v mut Value> {
    path.iter().try_fold(value, |value, part| match value {
        Value::Table(table) => table.get_mut(part),
        Value::Array(values) => values.get_mut(part.parse::<usize>().ok()?),
        _ => None,
    })
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "a string",
        Value::Integer(_) => "an integer",
        Value::Float(_) => "a float",
        Value::Boolean(_) => "a boolean",
        Value::Datetime(_) => "a date",
        Value::Array(_) => "a list",
        Value::Table(_) => "a table",
    }
}

/// Sets the value of the key path `key`, and creates the tables on the way.
pub(super) fn insert(table: &mut Table, key: &[String], value: Value) {
    let [part, rest @ ..] = key else { return };
    if rest.is_empty() {
        table.insert(part.clone(), value);
        return;
    }

    let inner = table.entry(part.clone()).or_insert_with(|| Value::Table(Table::new()));
    if !inner.is_table() {
        *inner = Value::Table(Table::new());
    }
    if let Value::Table(inner) = inner {
        insert(inner, rest, value);
    }
}

/// The full paths of all tables and keys.
pub(super) fn paths(table: &Table) -> Vec<String> {
    let mut paths = Vec::new();
    for (name, value) in table {
        paths.push(name.clone());
        if let Value::Table(inner) = value {
            let inner = self::paths(inner);
            paths.extend(inner.into_iter().map(|path| format!("{name}.{path}")));
        }
    }
    paths
}
