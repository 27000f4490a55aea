//! What [`Config::parse`] accepts, and its errors.

use toml::Table;

use super::setting::paths;
use super::{
    Algorithm, ComputeDType, Config, OptimizerConfig, Override, ScheduleConfig, TokenizerChoice,
};
use crate::decoder;
use crate::schedule::{Curve, Length, Phase};

fn parse(text: &str, sets: &[&str]) -> crate::Result<Config> {
    let overrides: Vec<Override> = sets.iter().map(|set| set.parse().unwrap()).collect();
    Config::parse::<decoder::Tables>(text, "run.toml", &overrides)
}

fn message(text: &str, sets: &[&str]) -> String {
    parse(text, sets).unwrap_err().to_string()
}

#[test]
fn an_empty_file_is_the_default() {
    let config = parse("", &[]).unwrap();
    let without_tables = Config { tables: Table::new(), ..config.clone() };
    assert_eq!(without_tables, Config::default());
    let tables: decoder::Tables = config.model_tables().unwrap();
    assert_eq!(tables, decoder::Tables::default());
}

#[test]
fn a_written_configuration_reads_back_equal() {
    let custom = parse(
        "[model]\nrope_scaling = { type = 'yarn', factor = 4.0 }\n[optimizer]\neps = 1e-12",
        &["data.paths=['a b', '*.txt']", "train.dtype=bf16", "sample.prompt=\"a\\n\\\"b\""],
    );
    for config in [parse("", &[]).unwrap(), custom.unwrap()] {
        let written = config.to_toml().unwrap();
        assert_eq!(
            Config::parse::<decoder::Tables>(&written, "written", &[]).unwrap(),
            config,
            "{written}"
        );
    }
}

#[test]
fn every_key_of_the_schema_is_written() {
    let config = parse("", &[]).unwrap();
    let written = config.to_toml().unwrap();
    let keys = paths(&Table::try_from(config).unwrap());

    for key in keys.iter().filter(|key| key.contains('.')) {
        let last = key.rsplit('.').next().unwrap();
        assert!(written.contains(&format!("{last} = ")), "{key} is missing:\n{written}");
    }
}

#[test]
fn later_settings_win() {
    let config = parse("[train]\nsteps = 5", &["train.steps=6", "train.steps=7"]).unwrap();
    assert_eq!(config.train.steps, 7);

    let sgd = "[optimizer]\nname = \"sgd\"\n[schedule]\nkind = \"cosine\"";
    let sets = ["optimizer.name=lion", "optimizer.name=muon", "schedule.kind=wsd"];
    let config = parse(sgd, &sets).unwrap();
    assert!(matches!(config.optimizer.algorithm, Algorithm::Muon(_)));
    assert!(matches!(config.schedule, ScheduleConfig::Wsd { .. }));
}

/// A table on the command line changes only the keys that it has, as a table in the file does.
#[test]
fn tables_on_the_command_line_keep_other_keys() {
    let set = "train={ steps = 7, dtype = 'bf16' }";
    let config = parse("train = { steps = 5, seq_len = 6 }", &[set]).unwrap();
    assert_eq!((config.train.steps, config.train.seq_len), (7, 6));
    assert_eq!(config.train.dtype, ComputeDType::Bf16);

    let unknown = message("", &["train={ stepz = 7 }"]);
    assert_eq!(unknown, "unknown key `train.stepz` (--set); did you mean `train.steps`?");
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
    assert_eq!(config.tables["model"]["hidden_size"].as_integer(), Some(64));
    assert_eq!(config.tables["model"]["head_dim"].as_integer(), Some(32));
}

#[test]
fn another_model_type_starts_from_an_empty_table() {
    let text = "[model]\nmodel_type = 'qwen3'\nhidden_size = 64\nintermediate_size = 128\n\
                num_hidden_layers = 2\nnum_attention_heads = 4";
    let config = parse(text, &[]).unwrap();
    assert_eq!(config.tables["model"].as_table().unwrap().len(), 5);
}

#[test]
fn all_missing_keys_of_a_model_are_reported_together() {
    let found = message("[model]\nmodel_type = 'qwen3'\nhidden_size = 64", &[]);
    let expected = "invalid configuration:\n  \
        model.num_hidden_layers: missing; a qwen3 needs it\n  \
        model.num_attention_heads: missing; a qwen3 needs it\n  \
        model.intermediate_size: missing; a qwen3 needs it";
    assert_eq!(found, expected);
}

/// Without `train.micro_batch_size`, a microbatch is the whole batch, wherever the batch size comes
/// from.
#[test]
fn the_microbatch_defaults_to_the_batch() {
    let sizes = |text: &str, sets: &[&str]| {
        let train = parse(text, sets).unwrap().train;
        (train.batch_size, train.micro_batch_size)
    };
    assert_eq!(sizes("", &[]), (8, 8));
    assert_eq!(sizes("", &["train.batch_size=2"]), (2, 2));
    assert_eq!(sizes("[train]\nbatch_size = 12", &[]), (12, 12));
    assert_eq!(sizes("[train]\nmicro_batch_size = 3", &["train.batch_size=6"]), (6, 3));
    assert!(message("", &["train.micro_batch_size=3"]).contains("not a multiple"));
}

/// An unknown key that another program has suggests our key with the same meaning.
#[test]
fn names_of_other_programs_suggest_ours() {
    let cases = [
        ("optimizer.lr", "optimizer.learning_rate"),
        ("lr", "optimizer.learning_rate"),
        ("train.gradient_accumulation_steps", "train.micro_batch_size"),
        ("train.max_iters", "train.steps"),
        ("train.block_size", "train.seq_len"),
        ("train.grad_clip", "optimizer.max_grad_norm"),
        ("schedule.min_lr", "schedule.min_lr_ratio"),
        ("log.eval_interval", "log.val_every"),
        ("model.n_layer", "model.num_hidden_layers"),
        ("model.d_ff", "model.intermediate_size"),
        ("train.warmup_steps", "schedule.warmup_steps"),
    ];
    for (key, meant) in cases {
        let found = message("", &[&format!("{key}=1")]);
        let expected = format!("unknown key `{key}` (--set); did you mean `{meant}`?");
        assert_eq!(found, expected);
    }
}

#[test]
fn an_integer_that_does_not_fit_is_out_of_range() {
    let found = message("", &["train.seed=99999999999999999999"]);
    assert_eq!(
        found,
        "`train.seed`: 99999999999999999999 is out of range; must be from -9223372036854775808 to \
         9223372036854775807 (--set)"
    );
    let text = message("", &["train.seed=\"5\""]);
    assert!(text.contains("is a string but must be an integer"), "{text}");
    let file = message("[train]\nseed = 99999999999999999999", &[]);
    assert!(file.contains("run.toml") && file.contains("line 2"), "{file}");
}

/// Every optimizer and schedule is written out in full and reads back.
#[test]
fn every_choice_reads_back_equal() {
    let groups = "[[optimizer.groups]]\npattern = '*'\nweight_decay = 0.0";
    for name in OptimizerConfig::NAMES {
        for kind in ScheduleConfig::KINDS {
            let sets = [&format!("optimizer.name={name}"), &format!("schedule.kind={kind}")];
            let config = parse(groups, &sets.map(String::as_str)).unwrap();
            let written = config.to_toml().unwrap();
            let read = Config::parse::<decoder::Tables>(&written, "written", &[]);
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
             name, nesterov, skip_nonfinite, weight_decay",
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
        ("[schedule]\nkind = 1", "`schedule.kind` is an integer but must be a string (run.toml:2)"),
        (
            "[optimizer]\nname = 'lion'\nbeta3 = 1",
            "unknown key `optimizer.beta3` (run.toml:3); did you mean `optimizer.beta2`?",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(message(text, &[]), expected);
    }

    let group = message("[[optimizer.groups]]\npatern = '*'", &[]);
    let expected = "`optimizer.groups`: unknown field `patern`, expected one of `pattern`, \
         `learning_rate_factor`, `weight_decay`; did you mean `pattern`? (run.toml:1)";
    assert_eq!(group, expected);
    let phase = "schedule.phases=[{ lenght = 3, target = 1 }]";
    let phase = message("schedule.kind = 'phases'", &[phase]);
    assert!(phase.ends_with("; did you mean `length`? (--set)"), "{phase}");
    let length = "schedule.phases=[{ length = 'most', target = 1 }]";
    let length = message("schedule.kind = 'phases'", &[length]);
    assert!(length.contains("unknown length `most`"), "{length}");
    let curve = message("", &["schedule.kind=wsd", "schedule.curve=cubic"]);
    assert!(curve.contains("unknown curve `cubic`; use linear"), "{curve}");
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
        ("[train]\nsteps = 1.5", "`train.steps` is a float but must be an integer (run.toml:2)"),
        ("train = 3", "`train` is an integer but must be a table (run.toml:1)"),
        ("[train.steps]\na = 1", "`train.steps` is a table but must be an integer (run.toml:1)"),
    ];
    for (text, expected) in cases {
        assert_eq!(message(text, &[]), expected);
    }
}

#[test]
fn bad_values_name_the_key_and_the_line() {
    let dtype = message("[train]\ndtype = 'f31'", &[]);
    assert!(dtype.starts_with("`train.dtype`: unknown variant `f31`"), "{dtype}");
    assert!(dtype.ends_with("(run.toml:2)"), "{dtype}");

    let steps = message("", &["train.steps=-1"]);
    assert!(steps.contains("`train.steps`") && steps.contains("-1"), "{steps}");

    let tokenizer = message("", &["data.tokenizer=bpe:many"]);
    assert!(tokenizer.contains("`bpe:many` has no size"), "{tokenizer}");

    let elements = message("[data]\npaths = ['a', 1]", &[]);
    assert!(elements.starts_with("`data.paths`"), "{elements}");
}

#[test]
fn ranges_are_reported_together() {
    let found = message("[data]\nval_fraction = 2.0", &["train.steps=0"]);
    assert!(found.contains("data.val_fraction") && found.contains("train.steps"), "{found}");
}

#[test]
fn broken_toml_names_the_line() {
    let found = message("[train]\nsteps = = 1", &[]);
    assert!(found.contains("run.toml") && found.contains("line 2"), "{found}");
}

#[test]
fn overrides_without_a_value_are_errors() {
    for text in ["train.steps", "=1", "train..steps=1", ""] {
        assert!(text.parse::<Override>().is_err(), "{text}");
    }
}
