//! Reads a [`Config`] from a file and overrides.
//!
//! Both are converted to settings, which have a key path, a value and an origin. Each setting is
//! checked against the default configuration, which is the schema, and then replaces the default
//! value. Every error therefore names its origin.

use std::collections::HashSet;
use std::path::Path;

use meshgrad_models::config::Qwen3Config;
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

use super::choice;
use super::setting::{Setting, lookup};
use super::{Config, ConfigError, Origin, Violations};

/// One `--set key.path=value`.
#[derive(Debug, Clone, PartialEq)]
pub struct Override {
    key: Vec<String>,
    text: String,
}

impl std::str::FromStr for Override {
    type Err = ConfigError;

    /// Splits at the first `=`. The value is interpreted later, when the type of the key is known.
    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let bad = || ConfigError::Override {
            text: text.to_owned(),
        };

        let (key, value) = text.split_once('=').ok_or_else(bad)?;
        let key: Vec<String> = key
            .trim()
            .split('.')
            .map(|part| part.trim().to_owned())
            .collect();
        if key.iter().any(String::is_empty) {
            return Err(bad());
        }
        Ok(Self {
            key,
            text: value.trim().to_owned(),
        })
    }
}

impl Override {
    /// The text as TOML, or as a string if it is not TOML or the key expects a string. If the key
    /// expects a list, a single value becomes a list of one.
    fn value(&self, schema: &Table) -> Value {
        let plain = || Value::String(self.text.clone());
        let parsed = toml::from_str::<Table>(&format!("value = {}", self.text));
        let value = parsed
            .ok()
            .and_then(|mut table| table.remove("value"))
            .unwrap_or_else(plain);

        match (lookup(schema, &self.key), value) {
            (Some(Value::String(_)), value) if !value.is_str() => plain(),
            (Some(Value::Array(_)), value) if !value.is_array() => Value::Array(vec![value]),
            (_, value) => value,
        }
    }
}

impl Config {
    /// Reads `file` (or uses the defaults), applies `overrides` in order and validates the result.
    ///
    /// # Errors
    /// [`ConfigError`]: names the key, its origin, and how to fix it.
    pub fn read(file: Option<&Path>, overrides: &[Override]) -> Result<Self, ConfigError> {
        let Some(path) = file else {
            return Self::parse("", "defaults", overrides);
        };

        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text, &path.display().to_string(), overrides)
    }

    /// As [`Config::read`], from `text`; error messages call it `name`.
    ///
    /// # Errors
    /// As [`Config::read`].
    pub fn parse(text: &str, name: &str, overrides: &[Override]) -> Result<Self, ConfigError> {
        let defaults = Table::try_from(Self::default())?;
        let settings = |schema: &Table| settings(text, name, overrides, schema);
        // The choices decide which keys there are.
        let schema = choice::schema(&settings(&defaults)?, defaults)?;
        let settings = last_of_each_key(settings(&schema)?);

        let mut resolved = schema.clone();
        if settings
            .iter()
            .any(|setting| setting.names_other_model(&schema))
        {
            resolved.insert("model".to_owned(), Value::Table(Table::new()));
        }
        for setting in settings {
            setting.check(&schema)?;
            insert(&mut resolved, &setting.key, setting.value);
        }

        // Each setting was checked alone, so this fails only if two settings exclude each other.
        let config: Self = resolved.try_into().map_err(|error| ConfigError::Syntax {
            origin: name.to_owned(),
            message: error.to_string(),
        })?;
        config.check()?;
        Ok(config)
    }

    /// Checks the range of every value.
    ///
    /// # Errors
    /// [`ConfigError::Range`] with every violation.
    pub fn check(&self) -> Result<(), ConfigError> {
        match self.violations() {
            none if none.is_empty() => Ok(()),
            some => Err(ConfigError::Range(Violations(some))),
        }
    }

    /// The whole configuration as TOML, with every default. [`Config::parse`] reads it back.
    ///
    /// # Errors
    /// [`ConfigError::Write`] when a number does not fit TOML.
    pub fn to_toml(&self) -> Result<String, ConfigError> {
        Ok(toml::to_string(self)?)
    }
}

/// The settings of `text` and of `overrides`, in order.
fn settings(
    text: &str,
    name: &str,
    overrides: &[Override],
    schema: &Table,
) -> Result<Vec<Setting>, ConfigError> {
    let mut settings = settings_of_file(text, name, schema)?;
    settings.extend(overrides.iter().map(|set| Setting {
        key: set.key.clone(),
        value: set.value(schema),
        origin: Origin::CommandLine,
    }));
    Ok(settings)
}

impl Setting {
    /// Whether the setting selects another model type than the default. Its keys differ, so
    /// `[model]` then starts empty.
    fn names_other_model(&self, defaults: &Table) -> bool {
        self.key == ["model", "model_type"] && lookup(defaults, &self.key) != Some(&self.value)
    }

    fn check(&self, defaults: &Table) -> Result<(), ConfigError> {
        if is_open(&self.key) {
            let key = self.key[1].as_str();
            return match Qwen3Config::KEYS.contains(&key) || OTHER_NAMES.contains(&key) {
                true => Ok(()),
                false => Err(self.unknown(&model_keys())),
            };
        }

        let mut known = defaults;
        for (depth, part) in self.key.iter().enumerate() {
            let is_last = depth + 1 == self.key.len();
            match known.get(part) {
                Some(default) if is_last => self.check_type(default)?,
                Some(Value::Table(inner)) => known = inner,
                _ => {
                    let other = choice::other_choice(self, defaults);
                    return Err(other.unwrap_or_else(|| self.unknown(&paths(defaults))));
                }
            }
        }
        self.check_alone(defaults)
    }

    /// Applies this setting alone to the defaults. Serde then checks the value (a name from a list,
    /// a non-negative number), and an error can be reported with the setting's origin.
    fn check_alone(&self, defaults: &Table) -> Result<(), ConfigError> {
        let mut table = defaults.clone();
        insert(&mut table, &self.key, self.value.clone());

        let Err(error) = table.try_into::<Config>() else {
            return Ok(());
        };
        Err(ConfigError::BadValue {
            key: self.key.join("."),
            problem: error.message().to_owned(),
            origin: self.origin.clone(),
        })
    }

    fn unknown(&self, known: &[String]) -> ConfigError {
        let key = self.key.join(".");
        let nearest = nearest(&key, known);
        ConfigError::UnknownKey {
            key,
            origin: self.origin.clone(),
            nearest,
        }
    }
}

/// `settings` without those that a later one replaces, in the same order.
fn last_of_each_key(settings: Vec<Setting>) -> Vec<Setting> {
    let mut seen = HashSet::new();
    let later_first = settings.into_iter().rev();
    let mut last: Vec<Setting> = later_first
        .filter(|setting| seen.insert(setting.key.clone()))
        .collect();
    last.reverse();
    last
}

/// Keys of `[model]` that are aliases of other keys.
const OTHER_NAMES: &[&str] = &["num_local_experts"];

fn model_keys() -> Vec<String> {
    let keys = Qwen3Config::KEYS.iter();
    keys.map(|key| format!("model.{key}")).collect()
}

/// Whether the models crate checks the key's value: valid values in `[model]` depend on the model
/// type.
fn is_open(key: &[String]) -> bool {
    key.len() > 1 && key[0] == "model"
}

fn settings_of_file(text: &str, name: &str, schema: &Table) -> Result<Vec<Setting>, ConfigError> {
    let table = DeTable::parse(text).map_err(|error| ConfigError::Syntax {
        origin: name.to_owned(),
        message: error.to_string().trim_end().to_owned(),
    })?;
    // `table` has the positions of the keys, `values` their values.
    let values: Table = toml::from_str(text).map_err(|error| ConfigError::Syntax {
        origin: name.to_owned(),
        message: error.to_string().trim_end().to_owned(),
    })?;

    let mut settings = Vec::new();
    let line_of = |offset: usize| 1 + text[..offset].matches('\n').count();
    let at = |offset| Origin::File {
        name: name.to_owned(),
        line: line_of(offset),
    };
    flatten(
        table.get_ref(),
        &values,
        schema,
        &mut Vec::new(),
        &at,
        &mut settings,
    );
    Ok(settings)
}

fn flatten(
    spans: &DeTable<'_>,
    values: &Table,
    schema: &Table,
    path: &mut Vec<String>,
    at: &impl Fn(usize) -> Origin,
    settings: &mut Vec<Setting>,
) {
    for (name, span) in spans {
        let Some(value) = values.get(name.get_ref().as_ref()) else {
            continue;
        };
        path.push(name.get_ref().to_string());

        let nested = is_open(path) || matches!(lookup(schema, path), Some(Value::Table(_)));
        match (span.get_ref(), value) {
            (DeValue::Table(spans), Value::Table(values)) if nested => {
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

fn insert(table: &mut Table, key: &[String], value: Value) {
    let [part, rest @ ..] = key else { return };
    if rest.is_empty() {
        table.insert(part.clone(), value);
        return;
    }

    let inner = table
        .entry(part.clone())
        .or_insert_with(|| Value::Table(Table::new()));
    if !inner.is_table() {
        *inner = Value::Table(Table::new());
    }
    if let Value::Table(inner) = inner {
        insert(inner, rest, value);
    }
}

/// The full paths of all tables and keys.
fn paths(table: &Table) -> Vec<String> {
    let mut paths = Vec::new();
    for (name, value) in table {
        paths.push(name.clone());
        if let Value::Table(inner) = value {
            paths.extend(
                self::paths(inner)
                    .into_iter()
                    .map(|path| format!("{name}.{path}")),
            );
        }
    }
    paths
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

#[cfg(test)]
mod tests {
    use super::super::{Algorithm, ComputeDType, OptimizerConfig, ScheduleConfig, TokenizerChoice};
    use super::*;
    use crate::schedule::{Curve, Length, Phase};

    fn parse(text: &str, sets: &[&str]) -> Result<Config, ConfigError> {
        let overrides: Vec<Override> = sets.iter().map(|set| set.parse().unwrap()).collect();
        Config::parse(text, "run.toml", &overrides)
    }

    fn message(text: &str, sets: &[&str]) -> String {
        parse(text, sets).unwrap_err().to_string()
    }

    #[test]
    fn an_empty_file_is_the_default() {
        assert_eq!(parse("", &[]).unwrap(), Config::default());
    }

    #[test]
    fn a_written_configuration_reads_back_equal() {
        let custom = parse(
            "[model]\nrope_scaling = { type = 'yarn', factor = 4.0 }\n[optimizer]\neps = 1e-12",
            &[
                "data.paths=['a b', '*.txt']",
                "train.dtype=bf16",
                "sample.prompt=\"a\\n\\\"b\"",
            ],
        );
        for config in [Config::default(), custom.unwrap()] {
            let written = config.to_toml().unwrap();
            assert_eq!(
                Config::parse(&written, "written", &[]).unwrap(),
                config,
                "{written}"
            );
        }
    }

    #[test]
    fn every_key_of_the_schema_is_written() {
        let written = Config::default().to_toml().unwrap();
        let keys = paths(&Table::try_from(Config::default()).unwrap());

        for key in keys.iter().filter(|key| key.contains('.')) {
            let last = key.rsplit('.').next().unwrap();
            assert!(
                written.contains(&format!("{last} = ")),
                "{key} is missing:\n{written}"
            );
        }
    }

    #[test]
    fn later_settings_win() {
        let config = parse("[train]\nsteps = 5", &["train.steps=6", "train.steps=7"]).unwrap();
        assert_eq!(config.train.steps, 7);

        let sgd = "[optimizer]\nname = \"sgd\"\n[schedule]\nkind = \"cosine\"";
        let sets = [
            "optimizer.name=lion",
            "optimizer.name=muon",
            "schedule.kind=wsd",
        ];
        let config = parse(sgd, &sets).unwrap();
        assert!(matches!(config.optimizer.algorithm, Algorithm::Muon(_)));
        assert!(matches!(config.schedule, ScheduleConfig::Wsd { .. }));
    }

    #[test]
    fn overrides_are_toml_or_strings() {
        let sets = [
            "data.tokenizer=byte",
            "data.paths=notes.txt",
            "sample.prompt=42",
            "optimizer.learning_rate=1",
            "train.dtype=\"bf16\"",
            "model.hidden_size=64",
        ];
        let config = parse("", &sets).unwrap();

        assert_eq!(config.data.tokenizer, TokenizerChoice::Byte);
        assert_eq!(config.data.paths, ["notes.txt"]);
        assert_eq!(config.sample.prompt, "42");
        assert_eq!(config.optimizer.learning_rate, 1.0);
        assert_eq!(config.train.dtype, ComputeDType::Bf16);
        assert_eq!(config.model["hidden_size"].as_integer(), Some(64));
        assert_eq!(config.model["head_dim"].as_integer(), Some(32));
    }

    #[test]
    fn another_model_type_starts_from_an_empty_table() {
        let config = parse("[model]\nmodel_type = 'qwen3'\nhidden_size = 64", &[]).unwrap();
        assert_eq!(config.model.len(), 2);
    }

    /// Every optimizer and schedule is written out in full and reads back.
    #[test]
    fn every_choice_reads_back_equal() {
        let groups = "[[optimizer.groups]]\npattern = '*'\nweight_decay = 0.0";
        for name in OptimizerConfig::NAMES {
            for kind in ScheduleConfig::KINDS {
                let sets = [
                    &format!("optimizer.name={name}"),
                    &format!("schedule.kind={kind}"),
                ];
                let config = parse(groups, &sets.map(String::as_str)).unwrap();
                let written = config.to_toml().unwrap();
                let read = Config::parse(&written, "written", &[]);
                assert_eq!(read.unwrap(), config, "{written}");
                assert!(written.contains(&format!("name = \"{name}\"")), "{written}");
                assert!(written.contains(&format!("kind = \"{kind}\"")), "{written}");
            }
        }
    }

    #[test]
    fn a_choice_decides_the_keys_of_its_table() {
        let text = "[optimizer]\nname = 'muon'\nmomentum = 0.9\n[optimizer.adamw]\neps = 1";
        let config = parse(text, &["optimizer.adamw.beta2=0.9"]).unwrap();
        let Algorithm::Muon(keys) = config.optimizer.algorithm else {
            panic!("{config:?}");
        };
        let adamw = (keys.adamw.eps, keys.adamw.beta2, keys.adamw.beta1);
        assert_eq!((keys.momentum, adamw), (0.9, (1.0, 0.9, 0.9)));

        let phases = "[[schedule.phases]]\nlength = '50%'\ntarget = 1\n\
                      [[schedule.phases]]\nlength = 7\ntarget = 0.5\ncurve = 'poly:2'";
        let config = parse(phases, &["schedule.kind=phases"]).unwrap();
        let phases = vec![
            Phase::new(Length::Percent(50.0), 1.0, Curve::Linear),
            Phase::new(Length::Steps(7), 0.5, Curve::Poly(2.0)),
        ];
        let initial = 1.0;
        assert_eq!(config.schedule, ScheduleConfig::Phases { initial, phases });
    }

    #[test]
    fn keys_of_another_choice_are_errors() {
        let cases = [
            (
                "[optimizer]\nname = 'sgd'\nbeta1 = 0.9",
                "`optimizer.beta1` does not apply to optimizer.name = \"sgd\" (run.toml:3); its \
                 keys are dampening, ema_decay, groups, learning_rate, max_grad_norm, momentum, \
                 name, nesterov, weight_decay",
            ),
            (
                "[schedule]\ndecay_steps = 3",
                "`schedule.decay_steps` does not apply to schedule.kind = \"cosine\" \
                 (run.toml:2); its keys are kind, min_lr_ratio, warmup_steps",
            ),
            (
                "[optimizer]\nname = 'adam'",
                "`optimizer.name`: unknown optimizer `adam`; use adamw, sgd, lion, muon; did you \
                 mean `adamw`? (run.toml:2)",
            ),
            (
                "[schedule]\nkind = 1",
                "`schedule.kind` is an integer but must be a string (run.toml:2)",
            ),
            (
                "[optimizer]\nname = 'lion'\nbeta3 = 1",
                "unknown key `optimizer.beta3` (run.toml:3); did you mean `optimizer.beta2`?",
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(message(text, &[]), expected);
        }

        let group = message("[[optimizer.groups]]\npatern = '*'", &[]);
        assert!(group.contains("unknown field `patern`"), "{group}");
        assert!(group.contains("`optimizer.groups`") && group.contains("run.toml:1"));
        let length = "schedule.phases=[{ length = 'most', target = 1 }]";
        let length = message("schedule.kind = 'phases'", &[length]);
        assert!(length.contains("unknown length `most`"), "{length}");
        let curve = message("", &["schedule.kind=wsd", "schedule.curve=cubic"]);
        assert!(
            curve.contains("unknown curve `cubic`; use linear"),
            "{curve}"
        );
    }

    #[test]
    fn unknown_keys_name_the_line_and_the_nearest() {
        let cases = [
            (
                "[train]\nsteps = 1\nbatchsize = 2",
                "unknown key `train.batchsize` (run.toml:3); did you mean `train.batch_size`?",
            ),
            (
                "[optimiser]\nbeta1 = 0.9",
                "unknown key `optimiser` (run.toml:1); did you mean `optimizer`?",
            ),
            (
                "learning_rate = 0.1",
                "unknown key `learning_rate` (run.toml:1); did you mean `optimizer.learning_rate`?",
            ),
            ("[train]\nzzz = 1", "unknown key `train.zzz` (run.toml:2)"),
        ];
        for (text, expected) in cases {
            assert_eq!(message(text, &[]), expected);
        }

        let set = message("", &["optimizer.lerning_rate=1"]);
        assert_eq!(
            set,
            "unknown key `optimizer.lerning_rate` (--set); did you mean `optimizer.learning_rate`?"
        );
        assert!(message("", &["train.steps.more=1"]).starts_with("unknown key `train.steps.more`"));
    }

    #[test]
    fn wrong_types_name_both_types() {
        let cases = [
            (
                "[train]\n\nsteps = 'many'",
                "`train.steps` is a string but must be an integer (run.toml:3)",
            ),
            (
                "[train]\nsteps = 1.5",
                "`train.steps` is a float but must be an integer (run.toml:2)",
            ),
            (
                "train = 3",
                "`train` is an integer but must be a table (run.toml:1)",
            ),
            (
                "[train.steps]\na = 1",
                "`train.steps` is a table but must be an integer (run.toml:1)",
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(message(text, &[]), expected);
        }
    }

    #[test]
    fn bad_values_name_the_key_and_the_line() {
        let dtype = message("[train]\ndtype = 'f31'", &[]);
        assert!(
            dtype.starts_with("`train.dtype`: unknown variant `f31`"),
            "{dtype}"
        );
        assert!(dtype.ends_with("(run.toml:2)"), "{dtype}");

        let steps = message("", &["train.steps=-1"]);
        assert!(
            steps.contains("`train.steps`") && steps.contains("-1"),
            "{steps}"
        );

        let tokenizer = message("", &["data.tokenizer=bpe:many"]);
        assert!(tokenizer.contains("`bpe:many` has no size"), "{tokenizer}");

        let elements = message("[data]\npaths = ['a', 1]", &[]);
        assert!(elements.starts_with("`data.paths`"), "{elements}");
    }

    #[test]
    fn ranges_are_reported_together() {
        let found = message("[data]\nval_fraction = 2.0", &["train.steps=0"]);
        assert!(
            found.contains("data.val_fraction") && found.contains("train.steps"),
            "{found}"
        );
    }

    #[test]
    fn broken_toml_names_the_line() {
        let found = message("[train]\nsteps = = 1", &[]);
        assert!(
            found.contains("run.toml") && found.contains("line 2"),
            "{found}"
        );
    }

    #[test]
    fn overrides_without_a_value_are_errors() {
        for text in ["train.steps", "=1", "train..steps=1", ""] {
            assert!(text.parse::<Override>().is_err(), "{text}");
        }
    }
}
