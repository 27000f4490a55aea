//! Keys that choose which other keys their table has: `optimizer.name` and `schedule.kind`.

use meshgrad_error::{Error, Result, error};
use serde::Serialize;
use toml::{Table, Value};

use super::setting::{Setting, lookup};
use super::{OptimizerConfig, ScheduleConfig};

/// A key whose value chooses the other keys of its table.
pub(super) struct Choice {
    table: &'static str,
    key: &'static str,
    /// Its values.
    pub(super) values: &'static [&'static str],
    /// The default table of a value.
    named: fn(&str) -> Option<Table>,
}

static CHOICES: [Choice; 2] = [
    Choice {
        table: "optimizer",
        key: "name",
        values: OptimizerConfig::NAMES,
        named: |name| written(&OptimizerConfig::named(name)?),
    },
    Choice {
        table: "schedule",
        key: "kind",
        values: ScheduleConfig::KINDS,
        named: |kind| written(&ScheduleConfig::named(kind)?),
    },
];

fn written(table: &impl Serialize) -> Option<Table> {
    Table::try_from(table).ok()
}

/// `defaults` with the tables that `settings` choose.
///
/// # Errors
/// For an unknown choice.
pub(super) fn schema(settings: &[Setting], mut defaults: Table) -> Result<Table> {
    for choice in &CHOICES {
        let chosen = |setting: &&Setting| setting.key == [choice.table, choice.key];
        let Some(setting) = settings.iter().rev().find(chosen) else {
            continue;
        };
        let Some(name) = setting.value.as_str() else {
            setting.check_type(&Value::String(String::new()))?;
            continue;
        };
        let table = (choice.named)(name).ok_or_else(|| choice.unknown(setting, name))?;
        defaults.insert(choice.table.to_owned(), Value::Table(table));
    }
    Ok(defaults)
}

/// The choice that decides the keys of `table`, if one does.
pub(super) fn of_table(table: &str) -> Option<&'static Choice> {
    CHOICES.iter().find(|choice| choice.table == table)
}

/// The error for a key of a choice other than that in `schema`.
pub(super) fn other_choice(setting: &Setting, schema: &Table) -> Option<Error> {
    let [table, path @ ..] = &setting.key[..] else {
        return None;
    };
    let choice = of_table(table)?;
    let others = choice.values.iter();
    let mut others = others.filter_map(|value| (choice.named)(value));
    others.find(|other| lookup(other, path).is_some())?;

    let chosen = schema.get(table)?.as_table()?;
    let keys = chosen.keys().map(String::as_str).collect::<Vec<_>>();
    Some(error!(
        Invalid,
        "`{}` does not apply to {table}.{} = {} ({}); its keys are {}",
        setting.key.join("."),
        choice.key,
        chosen.get(choice.key)?,
        setting.origin,
        keys.join(", ")
    ))
}

impl Choice {
    /// Whether `key` makes the choice.
    pub(super) fn is_key(&self, key: &str) -> bool {
        self.key == key
    }

    /// The default table of `value`.
    pub(super) fn table_of(&self, value: &str) -> Option<Table> {
        (self.named)(value)
    }

    fn unknown(&self, setting: &Setting, name: &str) -> Error {
        let similarity = |value: &&&str| strsim::jaro_winkler(name, value);
        let nearest = self.values.iter().max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
        let hint = nearest.filter(|value| similarity(value) > 0.8);
        let hint = hint.map(|value| format!("; did you mean `{value}`?"));
        setting.bad_value(format_args!(
            "unknown {} `{name}`; use {}{}",
            self.table,
            self.values.join(", "),
            hint.unwrap_or_default()
        ))
    }
}
