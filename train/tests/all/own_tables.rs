//! Configurations of a model with tables of its own: everything that holds for the other tables
//! holds for them.

use std::collections::BTreeMap;

use meshgrad_train::config::{Config, ModelTables, NoTables, Violation};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tables {
    model: Sizes,
    noise: Noise,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sizes {
    kind: Kind,
    width: usize,
    depth: usize,
    /// Has no default.
    window: Option<Window>,
    labels: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Narrow,
    Wide,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Window {
    tokens: usize,
    sink: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Noise {
    std: f64,
    by_layer: BTreeMap<String, f64>,
}

impl Sizes {
    fn new(kind: Kind, width: usize) -> Sizes {
        Sizes { kind, width, depth: 2, window: None, labels: None }
    }
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes::new(Kind::Narrow, 64)
    }
}

impl ModelTables for Tables {
    /// The kind decides the width.
    fn defaults(given: &toml::Table) -> Tables {
        let kind = given.get("model").and_then(|model| model.get("kind"));
        match kind.and_then(toml::Value::as_str) {
            Some("wide") => Tables { model: Sizes::new(Kind::Wide, 512), ..Tables::default() },
            _ => Tables::default(),
        }
    }

    fn violations(&self, _: &Config) -> Vec<Violation> {
        let too_loud = (self.noise.std > 1.0).then(|| Violation {
            key: "noise.std".to_owned(),
            problem: format!("{} is above 1", self.noise.std),
        });
        too_loud.into_iter().collect()
    }
}

fn parse(text: &str, sets: &[&str]) -> meshgrad_train::Result<Config> {
    let sets: Vec<_> = sets.iter().map(|set| set.parse().unwrap()).collect();
    Config::parse::<Tables>(text, "run.toml", &sets)
}

#[test]
fn files_and_overrides_set_them() {
    let text = "
        train = { steps = 3 }
        [model]
        width = 128
        window = { tokens = 8, sink = true }
        [noise]
        std = 1
    ";
    let sets = [
        "model.depth=5",
        "model.window.tokens=9",
        "model.labels=a b",
        "noise={ by_layer = { first = 0.5 } }",
    ];
    let config = parse(text, &sets).unwrap();
    let expected = Tables {
        model: Sizes {
            depth: 5,
            window: Some(Window { tokens: 9, sink: true }),
            labels: Some("a b".to_owned()),
            ..Sizes::new(Kind::Narrow, 128)
        },
        noise: Noise { std: 1.0, by_layer: [("first".to_owned(), 0.5)].into() },
    };
    assert_eq!(config.model_tables::<Tables>().unwrap(), expected);
    assert_eq!(config.train.steps, 3);

    // The file of the run folder has all of them, and reads back equal.
    let written = config.to_toml().unwrap();
    assert_eq!(parse(&written, &[]).unwrap(), config, "{written}");
    let defaults = parse("", &[]).unwrap();
    assert_eq!(parse(&defaults.to_toml().unwrap(), &[]).unwrap(), defaults);
    assert!(defaults.to_toml().unwrap().contains("depth = 2"));
}

#[test]
fn one_value_can_decide_the_defaults_of_others() {
    let sizes = |text: &str, sets: &[&str]| {
        let tables: Tables = parse(text, sets).unwrap().model_tables().unwrap();
        (tables.model.kind, tables.model.width)
    };
    assert_eq!(sizes("model = { kind = 'wide' }", &[]), (Kind::Wide, 512));
    assert_eq!(sizes("", &["model.kind=wide"]), (Kind::Wide, 512));
    let narrow = "model = { kind = 'wide', width = 3 }";
    assert_eq!(sizes(narrow, &["model.kind=narrow"]), (Kind::Narrow, 3));
}

#[test]
fn mistakes_are_errors_with_their_origin() {
    let cases = [
        (
            "[model]\nwidht = 3",
            "",
            "unknown key `model.widht` (run.toml:2); did you mean `model.width`?",
        ),
        ("", "model.windw=3", "unknown key `model.windw` (--set); did you mean `model.window`?"),
        ("[nois]\nstd = 3", "", "unknown key `nois` (run.toml:1); did you mean `noise`?"),
        (
            "[model]\n\nwidth = 'x'",
            "",
            "`model.width` is a string but must be an integer (run.toml:3)",
        ),
        ("model = 3", "", "`model` is an integer but must be a table (run.toml:1)"),
        (
            "",
            "model.width=-1",
            "`model.width`: invalid value: integer `-1`, expected usize (--set)",
        ),
        (
            "[model]\nkind = 'tall'",
            "",
            "`model.kind`: unknown variant `tall`, expected `narrow` or `wide` (run.toml:2)",
        ),
        (
            "model.window = { tokens = 3, sik = true }",
            "",
            "`model.window`: unknown field `sik`, expected `tokens` or `sink`; did you mean \
             `sink`? (run.toml:1)",
        ),
        ("", "model.window.tokens=3", "`model.window.tokens`: missing field `sink` (--set)"),
        ("", "model.width.more=1", "`model.width` is a table but must be an integer (--set)"),
        (
            "noise.std = 2.0\nlog.every = 0",
            "",
            "invalid configuration:\n  noise.std: 2 is above 1\n  log.every: 0 steps; must be at \
             least 1",
        ),
    ];
    for (text, set, expected) in cases {
        let sets: &[&str] = if set.is_empty() { &[] } else { &[set] };
        assert_eq!(parse(text, sets).unwrap_err().to_string(), expected);
    }

    let text = "model = { width = 3 }";
    let error = Config::parse::<NoTables>(text, "run.toml", &[]).unwrap_err();
    assert_eq!(error.to_string(), "unknown key `model` (run.toml:1)");
    let error = parse("", &[]).unwrap().model_tables::<NoTables>();
    let error = error.unwrap_err().to_string();
    assert!(error.contains("NoTables`: unknown field `model`"), "{error}");
}

/// Keys of a table without a default, each set by itself, are valid together. An error names the
/// setting that causes it, in any order.
#[test]
fn settings_are_valid_together() {
    let window = ["model.window.tokens=3", "model.window.sink=true"];
    let tables: Tables = parse("", &window).unwrap().model_tables().unwrap();
    let expected = Window { tokens: 3, sink: true };
    assert_eq!(tables.model.window, Some(expected));

    let [tokens, sink] = window;
    let wrong = "model.width=-1";
    for sets in [[tokens, sink, wrong], [tokens, wrong, sink], [wrong, tokens, sink]] {
        let error = parse("", &sets).unwrap_err().to_string();
        let expected = "`model.width`: invalid value: integer `-1`, expected usize (--set)";
        assert_eq!(error, expected);
    }
    let two_wrong = ["model.kind=tall", tokens, "model.depth=-2", sink];
    let error = parse("", &two_wrong).unwrap_err().to_string();
    assert!(error.starts_with("`model.depth`: invalid value: integer `-2`"), "{error}");
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Careless {
    model: Open,
    noise: Option<Open>,
}

#[derive(Default, Serialize, Deserialize)]
struct Open {
    width: usize,
}

impl ModelTables for Careless {}

/// The table whose type ignores unknown keys has no default.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Hidden {
    noise: Option<Open>,
}

impl ModelTables for Hidden {}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Taken {
    train: Noise,
}

impl ModelTables for Taken {}

/// Has a list whose elements ignore unknown keys.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Listed {
    model: Layers,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Layers {
    layers: Vec<Open>,
}

impl ModelTables for Listed {}

/// Writes a key under another name than it reads.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Renamed {
    model: Twice,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Twice {
    #[serde(rename(serialize = "size", deserialize = "width"))]
    width: usize,
}

impl ModelTables for Renamed {}

/// A type that would ignore misspelled keys, or that has a table which every run has, is an error.
#[test]
fn types_that_hide_mistakes_are_errors() {
    let error = Config::read::<Careless>(None, &[]).unwrap_err().to_string();
    assert!(
        error.ends_with(
            "Careless`: unknown keys of `model` are ignored; \
             add #[serde(deny_unknown_fields)] to its type"
        ),
        "{error}"
    );
    assert!(Config::read::<Hidden>(None, &[]).is_ok());
    let text = "noise = { width = 3, widht = 4 }";
    let error = Config::parse::<Hidden>(text, "run.toml", &[]).unwrap_err();
    let expected = "unknown keys of `noise` are ignored";
    assert!(error.to_string().contains(expected), "{error}");
    let text = "model.layers = [{ width = 1 }, { width = 2, widht = 3 }]";
    let error = Config::parse::<Listed>(text, "run.toml", &[]).unwrap_err();
    let expected = "unknown keys of `model.layers.0` are ignored";
    assert!(error.to_string().contains(expected), "{error}");
    let set = "train.steps=3".parse().unwrap();
    let error = Config::read::<Renamed>(None, &[set]).unwrap_err();
    let expected = "Renamed`: the default cannot be read back: unknown field `size`";
    assert!(error.to_string().contains(expected), "{error}");
    let error = Config::read::<Taken>(None, &[]).unwrap_err().to_string();
    assert!(error.ends_with("Taken`: every run has a table `train`; use another name"), "{error}");
}

/// Has a `[noise]` table by default, unless the kind is wide.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Optional {
    model: Sizes,
    noise: Option<Noise>,
}

impl Default for Optional {
    fn default() -> Optional {
        Optional { model: Sizes::default(), noise: Some(Noise::default()) }
    }
}

impl ModelTables for Optional {
    fn defaults(given: &toml::Table) -> Optional {
        let Tables { model, noise } = Tables::defaults(given);
        let noise = (model.kind == Kind::Narrow).then_some(noise);
        Optional { model, noise }
    }
}

#[test]
fn one_value_can_remove_a_table() {
    let read = |text: &str| Config::parse::<Optional>(text, "run.toml", &[]).unwrap();
    for (text, has_noise) in [("", true), ("model = { kind = 'wide' }", false)] {
        let config = read(text);
        let tables: Optional = config.model_tables().unwrap();
        assert_eq!(tables.noise.is_some(), has_noise);
        let written = config.to_toml().unwrap();
        assert_eq!(written.contains("[noise]"), has_noise, "{written}");
        assert_eq!(read(&written), config, "{written}");
    }
    let given = read("model = { kind = 'wide' }\nnoise = { std = 0.5, by_layer = {} }");
    let tables: Optional = given.model_tables().unwrap();
    assert_eq!(tables.noise.unwrap().std, 0.5);
}
