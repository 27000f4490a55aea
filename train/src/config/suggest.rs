//! "Did you mean": the known key that is most similar to an unknown one.

use super::ConfigError;
use super::setting::{Setting, paths};

impl Setting {
    /// The error of a key that is not one of `known`.
    pub(super) fn unknown(&self, known: &[String]) -> ConfigError {
        let key = self.key.join(".");
        let nearest = nearest(&key, known);
        ConfigError::UnknownKey {
            key,
            origin: self.origin.clone(),
            nearest,
        }
    }

    /// The error of a value that serde rejected with `message`. `defaults` are all known tables.
    pub(super) fn rejected(&self, message: &str, defaults: &toml::Table) -> ConfigError {
        let bad_value = |problem: String| ConfigError::BadValue {
            key: self.key.join("."),
            problem,
            origin: self.origin.clone(),
        };
        let Some((field, fields)) = unknown_field(message) else {
            return bad_value(message.to_owned());
        };
        if self.key.last().is_some_and(|last| last == field) {
            let parents = &self.key[..self.key.len() - 1];
            let beside = fields
                .iter()
                .map(|field| [parents, std::slice::from_ref(field)].concat().join("."));
            let known: Vec<String> = paths(defaults).into_iter().chain(beside).collect();
            return self.unknown(&known);
        }
        let hint = nearest(field, &fields).map(|name| format!("; did you mean `{name}`?"));
        bad_value(format!("{message}{}", hint.unwrap_or_default()))
    }
}

/// The unknown field of serde's `message` for one, and the fields that it lists.
fn unknown_field(message: &str) -> Option<(&str, Vec<String>)> {
    let (field, fields) = message.strip_prefix("unknown field `")?.split_once("`, ")?;
    let fields = fields.split('`').skip(1).step_by(2);
    Some((field, fields.map(str::to_owned).collect()))
}

/// The path whose last part is most similar to that of `wrong`; the whole path decides ties. `None`
/// if no last part is similar.
fn nearest(wrong: &str, paths: &[String]) -> Option<String> {
    let last = |path: &str| path.rsplit('.').next().unwrap_or_default().to_owned();
    let similarity = |path: &str| strsim::jaro_winkler(&last(wrong), &last(path));
    let rank = |path: &str| similarity(path) + 0.1 * strsim::jaro_winkler(wrong, path);

    let similar = paths.iter().filter(|path| similarity(path) > 0.8);
    similar.max_by(|a, b| rank(a).total_cmp(&rank(b))).cloned()
}
