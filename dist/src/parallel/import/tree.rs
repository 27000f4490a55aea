//! Configuration files as trees with the location of each value.

use meshgrad_error::{Result, error};
use serde_json::Value;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::scalar::Scalar;
use crate::parallel::Source;

/// A value and its location.
#[derive(Debug, Clone)]
pub(super) struct Tree {
    pub(super) node: Node,
    pub(super) location: Source,
}

/// The value at a location.
#[derive(Debug, Clone)]
pub(super) enum Node {
    Scalar(Scalar),
    List(Vec<Tree>),
    Table(Vec<(String, Tree)>),
}

impl Tree {
    /// Parses TOML; locations have lines and keys.
    pub(super) fn of_toml(text: &str, path: &str) -> Result<Tree> {
        let table = DeTable::parse(text).map_err(|error| {
            let location = Source::file(path);
            let location = match error.span() {
                Some(span) => location.at_line(line_of(text, span.start)),
                None => location,
            };
            error!(Malformed, "{location}: invalid TOML: {}", error.message())
        })?;
        let reader = TomlReader { text, path };
        Ok(reader.table(table.get_ref(), Source::file(path), ""))
    }

    /// Parses JSON; locations have keys.
    pub(super) fn of_json(text: &str, path: &str) -> Result<Tree> {
        let value: Value = serde_json::from_str(text).map_err(|error| {
            let location = Source::file(path).at_line(error.line());
            error!(Malformed, "{location}: invalid JSON: {error}")
        })?;
        Ok(json(&value, path, ""))
    }

    /// The entries of a table; empty for other values.
    pub(super) fn entries(&self) -> &[(String, Tree)] {
        match &self.node {
            Node::Table(entries) => entries,
            _ => &[],
        }
    }

    /// The entry of a table with this key.
    pub(super) fn get(&self, key: &str) -> Option<&Tree> {
        let entry = self.entries().iter().find(|(name, _)| name == key)?;
        Some(&entry.1)
    }

    /// The value at a path of keys joined by dots, or at a key that contains dots.
    pub(super) fn at(&self, path: &str) -> Option<&Tree> {
        if let Some(found) = self.get(path) {
            return Some(found);
        }
        let (key, rest) = path.split_once('.')?;
        self.get(key)?.at(rest)
    }

    /// The value as a scalar; lists and tables become [`Scalar::Other`].
    pub(super) fn scalar(&self) -> Scalar {
        match &self.node {
            Node::Scalar(scalar) => scalar.clone(),
            Node::List(_) => Scalar::Other("a list".to_owned()),
            Node::Table(_) => Scalar::Other("a table".to_owned()),
        }
    }

    pub(super) fn is_table(&self) -> bool {
        matches!(self.node, Node::Table(_))
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().iter().take(offset);
    1 + before.filter(|byte| **byte == b'\n').count()
}

fn joined(path: &str, key: &str) -> String {
    match path {
        "" => key.to_owned(),
        path => format!("{path}.{key}"),
    }
}

struct TomlReader<'t> {
    text: &'t str,
    path: &'t str,
}

impl TomlReader<'_> {
    fn table(&self, table: &DeTable<'_>, location: Source, keys: &str) -> Tree {
        let entry = |(key, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
            let key: &std::borrow::Cow<'_, str> = key.get_ref();
            (key.to_string(), self.value(value, &joined(keys, key)))
        };
        Tree { node: Node::Table(table.iter().map(entry).collect()), location }
    }

    fn value(&self, value: &Spanned<DeValue<'_>>, keys: &str) -> Tree {
        let line = line_of(self.text, value.span().start);
        let location = Source::file(self.path).at_line(line).at_key(keys);
        let node = match value.get_ref() {
            DeValue::Table(table) => return self.table(table, location, keys),
            DeValue::Array(array) => {
                Node::List(array.iter().map(|value| self.value(value, keys)).collect())
            }
            DeValue::String(text) => Node::Scalar(Scalar::Text(text.to_string())),
            DeValue::Boolean(truth) => Node::Scalar(Scalar::Truth(*truth)),
            DeValue::Integer(number) => {
                let parsed = i64::from_str_radix(number.as_str(), number.radix());
                Node::Scalar(match parsed {
                    Ok(number) => Scalar::Integer(number),
                    Err(_) => Scalar::Other(number.to_string()),
                })
            }
            DeValue::Float(number) => Node::Scalar(Scalar::Other(number.to_string())),
            DeValue::Datetime(date) => Node::Scalar(Scalar::Other(date.to_string())),
        };
        Tree { node, location }
    }
}

fn json(value: &Value, path: &str, keys: &str) -> Tree {
    let location = match keys {
        "" => Source::file(path),
        keys => Source::file(path).at_key(keys),
    };
    let node = match value {
        Value::Null => Node::Scalar(Scalar::Nothing),
        Value::Bool(truth) => Node::Scalar(Scalar::Truth(*truth)),
        Value::String(text) => Node::Scalar(Scalar::Text(text.clone())),
        Value::Number(number) => Node::Scalar(match number.as_i64() {
            Some(number) => Scalar::Integer(number),
            None => Scalar::Other(number.to_string()),
        }),
        Value::Array(values) => {
            Node::List(values.iter().map(|value| json(value, path, keys)).collect())
        }
        Value::Object(entries) => {
            let entry = |(key, value): (&String, &Value)| {
                (key.clone(), json(value, path, &joined(keys, key)))
            };
            Node::Table(entries.iter().map(entry).collect())
        }
    };
    Tree { node, location }
}
