//! Checks of value ranges. All violations are reported together.

use std::fmt;

use meshgrad_error::{Error, Kind, Result};

use super::{Algorithm, Config, DataConfig, ScheduleConfig, TokenizerChoice};
use crate::optim::Ranges;

/// A key whose value is out of range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The full key path, such as `train.batch_size`.
    pub key: String,
    /// The value, and what it must be.
    pub problem: String,
}

/// Every violation of a configuration, one per line: details of an [`Error`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violations(pub Vec<Violation>);

impl Violations {
    /// # Errors
    /// If there are any.
    pub fn check(self) -> Result<()> {
        match self.0.is_empty() {
            true => Ok(()),
            false => Err(Error::with_details(Kind::Invalid, self)),
        }
    }
}

impl fmt::Display for Violations {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("invalid configuration:")?;
        let mut all = self.0.iter();
        all.try_for_each(|Violation { key, problem }| write!(out, "\n  {key}: {problem}"))
    }
}

impl Config {
    /// Every value that is out of range, in the order of the tables; empty for a valid
    /// configuration.
    pub fn violations(&self) -> Vec<Violation> {
        let mut found = Found::default();

        self.check_data(&mut found);
        self.check_train(&mut found);
        self.check_parallel(&mut found);
        self.check_optimizer(&mut found);

        self.check_schedule(&mut found);
        found.not_negative(&[("sample.temperature", self.sample.temperature)]);
        found.unless(self.log.every > 0, "log.every", || "0 steps; must be at least 1".to_owned());

        found.0
    }

    fn check_data(&self, found: &mut Found) {
        let fraction = self.data.val_fraction;
        found.unless((0.0..1.0).contains(&fraction), "data.val_fraction", || {
            format!("{fraction} is not in [0, 1)")
        });

        let DataConfig { paths, sources, .. } = &self.data;
        found.unless(paths.is_empty() || sources.is_empty(), "data.sources", || {
            "data.paths is set too; use one of them".to_owned()
        });
        for (index, source) in sources.iter().enumerate() {
            found.positive(&format!("data.sources[{index}].weight"), source.weight);
            let key = format!("data.sources[{index}].paths");
            found.unless(!source.paths.is_empty(), &key, || "empty; name a file".to_owned());
        }

        if let TokenizerChoice::Bpe(size) = self.data.tokenizer {
            found.unless(size > 256, "data.tokenizer", || {
                format!(
                    "bpe:{size} is too small; 256 bytes and the end of text need at least bpe:257"
                )
            });
            found.unless(size <= 1 << 20, "data.tokenizer", || {
                format!("bpe:{size} is too large; must be at most bpe:{}", 1 << 20)
            });
        }
    }

    fn check_train(&self, found: &mut Found) {
        let train = &self.train;
        let sizes = [
            ("train.batch_size", train.batch_size),
            ("train.micro_batch_size", train.micro_batch_size),
            ("train.seq_len", train.seq_len),
        ];
        for (key, size) in sizes {
            found.unless(size > 0, key, || "0; must be at least 1".to_owned());
        }
        found.unless(train.steps > 0, "train.steps", || "0; must be at least 1".to_owned());

        let (batch, micro) = (train.batch_size, train.micro_batch_size);
        found.unless(micro == 0 || batch.is_multiple_of(micro), "train.batch_size", || {
            format!("{batch} is not a multiple of train.micro_batch_size = {micro}")
        });
        found.unless(i64::try_from(train.seed).is_ok(), "train.seed", || {
            format!("{} does not fit a TOML integer; must be at most {}", train.seed, i64::MAX)
        });
    }

    fn check_parallel(&self, found: &mut Found) {
        let chunks = self.parallel.overlap_chunks;
        found.unless(chunks > 0, "parallel.overlap_chunks", || {
            "0; must be at least 1, which is no overlap".to_owned()
        });
        if let Err(error) = self.pipeline.choice() {
            found.unless(false, "pipeline.schedule", || error.to_string());
        }
    }

    fn check_optimizer(&self, found: &mut Found) {
        let optimizer = &self.optimizer;
        found.positive("optimizer.learning_rate", optimizer.learning_rate);
        found.not_negative(&[("optimizer.max_grad_norm", optimizer.max_grad_norm)]);
        found.decay("optimizer.ema_decay", optimizer.ema_decay);
        let table = "optimizer";
        match &optimizer.algorithm {
            Algorithm::AdamW(constants) => found.ranges(table, constants.ranges()),
            Algorithm::Sgd(constants) => found.ranges(table, constants.ranges()),
            Algorithm::Lion(constants) => found.ranges(table, constants.ranges()),
            Algorithm::Muon(constants) => {
                found.ranges(table, constants.ranges());
                found.ranges("optimizer.adamw", constants.adamw.ranges());
            }
        }
    }

    fn check_schedule(&self, found: &mut Found) {
        if let Some(ratio) = self.schedule.min_lr_ratio() {
            let valid = (0.0..=1.0).contains(&ratio);
            found.unless(valid, "schedule.min_lr_ratio", || format!("{ratio} is not in [0, 1]"));
        }
        if let ScheduleConfig::Phases { initial, phases } = &self.schedule {
            let targets = phases.iter().map(|phase| phase.target);
            for factor in std::iter::once(*initial).chain(targets) {
                found.unless(factor >= 0.0 && factor.is_finite(), "schedule", || {
                    format!("the factor {factor} is negative or not finite")
                });
            }
        }
        // Whether the program has a schedule of its own is not known here.
        if let ScheduleConfig::Own {} = self.schedule {
            return;
        }
        if let Err(error) = self.schedule.of_run(self.train.steps) {
            found.unless(false, "schedule", || error.to_string());
        }
    }
}

#[derive(Default)]
struct Found(Vec<Violation>);

impl Found {
    fn unless(&mut self, valid: bool, key: &str, problem: impl FnOnce() -> String) {
        if !valid {
            self.0.push(Violation { key: key.to_owned(), problem: problem() });
        }
    }

    fn positive(&mut self, key: &str, value: f64) {
        self.unless(value.is_finite() && value > 0.0, key, || {
            format!("{value} is not a finite number above 0")
        });
    }

    fn not_negative(&mut self, values: &[(&str, f64)]) {
        for (key, value) in values {
            self.unless(value.is_finite() && *value >= 0.0, key, || {
                format!("{value} is not a finite number of at least 0")
            });
        }
    }

    fn decay(&mut self, key: &str, value: f64) {
        self.unless((0.0..1.0).contains(&value), key, || format!("{value} is not in [0, 1)"));
    }

    fn ranges(&mut self, table: &str, ranges: Ranges) {
        self.0.extend(ranges.0.into_iter().map(|it| Violation {
            key: format!("{table}.{}", it.name),
            problem: format!("{} is not {}", it.value, it.allowed),
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{OptimizerConfig, ScheduleConfig, SourceConfig};
    use super::*;

    #[test]
    fn the_default_is_valid() {
        assert_eq!(Config::default().violations(), []);
    }

    #[test]
    fn all_violations_are_reported_together() {
        let mut config = Config::default();
        config.data.val_fraction = 1.0;
        config.data.paths = vec!["a.txt".to_owned()];
        let source = |paths: &[&str], weight| SourceConfig {
            paths: paths.iter().map(|path| (*path).to_owned()).collect(),
            weight,
        };
        config.data.sources = vec![source(&["a.txt"], 0.0), source(&[], 1.0)];
        config.data.tokenizer = TokenizerChoice::Bpe(256);
        config.train.steps = 0;
        config.train.batch_size = 10;
        config.train.micro_batch_size = 4;
        config.optimizer = OptimizerConfig::named("muon").unwrap();
        config.optimizer.learning_rate = f64::NAN;
        config.optimizer.max_grad_norm = -1.0;
        config.optimizer.ema_decay = 1.0;
        if let Algorithm::Muon(keys) = &mut config.optimizer.algorithm {
            keys.momentum = -0.1;
            keys.adamw.beta2 = 1.0;
        }
        config.schedule = ScheduleConfig::Linear { warmup_steps: 0, min_lr_ratio: 1.5 };
        config.sample.temperature = f64::INFINITY;
        config.log.every = 0;

        let keys: Vec<_> = config.violations().into_iter().map(|found| found.key).collect();
        let expected = [
            "data.val_fraction",
            "data.sources",
            "data.sources[0].weight",
            "data.sources[1].paths",
            "data.tokenizer",
            "train.steps",
            "train.batch_size",
            "optimizer.learning_rate",
            "optimizer.max_grad_norm",
            "optimizer.ema_decay",
            "optimizer.momentum",
            "optimizer.adamw.beta2",
            "schedule.min_lr_ratio",
            "sample.temperature",
            "log.every",
        ];
        assert_eq!(keys, expected);
    }

    #[test]
    fn optimizers_and_schedules_that_cannot_run_are_reported() {
        let mut config = Config {
            optimizer: OptimizerConfig::named("sgd").unwrap(),
            schedule: ScheduleConfig::named("wsd").unwrap(),
            ..Config::default()
        };
        if let Algorithm::Sgd(keys) = &mut config.optimizer.algorithm {
            (keys.nesterov, keys.dampening) = (true, 0.5);
        }
        config.train.steps = 50;
        let found = config.violations();
        let found = found.iter().map(|it| format!("{}: {}", it.key, it.problem));
        let expected = [
            "optimizer.dampening: 0.5 is not 0 with nesterov",
            "schedule: the phases of the schedule have 100 steps, but the run has 50",
        ];
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_zero_size_is_reported_once() {
        let mut config = Config::default();
        config.train.micro_batch_size = 0;

        let found = config.violations();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].key, "train.micro_batch_size");
    }
}
