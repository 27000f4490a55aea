//! `[schedule]`: the learning rate over the run.

use meshgrad_error::bail;
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::schedule::{Curve, Phase, Phases};

/// `[schedule]`. Which keys it has depends on `kind`. All but `phases` start with a linear warm-up
/// from zero over `warmup_steps`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum ScheduleConfig {
    /// The full rate until the end.
    Constant {
        /// Steps of the warm-up.
        warmup_steps: u64,
    },
    /// A straight line to the minimum.
    Linear {
        /// Steps of the warm-up.
        warmup_steps: u64,
        /// The last step's rate as a fraction of the full one.
        min_lr_ratio: f64,
    },
    /// Half a cosine to the minimum (Loshchilov & Hutter 2017, without restarts).
    Cosine {
        /// Steps of the warm-up.
        warmup_steps: u64,
        /// The last step's rate as a fraction of the full one.
        min_lr_ratio: f64,
    },
    /// Warm-up, the full rate, and a decay over the last steps (Hu et al. 2024).
    Wsd {
        /// Steps of the warm-up.
        warmup_steps: u64,
        /// Steps of the decay.
        decay_steps: u64,
        /// The last step's rate as a fraction of the full one.
        min_lr_ratio: f64,
        /// The curve of the decay.
        curve: Curve,
    },
    /// Any sequence of phases.
    Phases {
        /// The factor of the learning rate before the first phase.
        initial: f64,
        /// The phases.
        phases: Vec<Phase>,
    },
    /// A schedule that the program sets with
    /// [`Session::schedule`](crate::session::Session::schedule). The configuration in the folder of
    /// such a run has this kind.
    Own {},
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        Self::Cosine { warmup_steps: 40, min_lr_ratio: 0.1 }
    }
}

impl ScheduleConfig {
    /// The values of `schedule.kind`.
    pub const KINDS: &[&str] = &["constant", "linear", "cosine", "wsd", "phases", "own"];

    /// The default table of the schedule `kind`.
    pub fn named(kind: &str) -> Option<ScheduleConfig> {
        let (warmup_steps, min_lr_ratio) = (40, 0.1);
        match kind {
            "constant" => Some(Self::Constant { warmup_steps }),
            "linear" => Some(Self::Linear { warmup_steps, min_lr_ratio }),
            "cosine" => Some(Self::default()),
            "wsd" => Some(Self::Wsd {
                warmup_steps,
                decay_steps: 60,
                min_lr_ratio,
                curve: Curve::Linear,
            }),
            "phases" => Some(Self::Phases { initial: 1.0, phases: Vec::new() }),
            "own" => Some(Self::Own {}),
            _ => None,
        }
    }

    /// The last step's factor, for the schedules that have one.
    pub(super) fn min_lr_ratio(&self) -> Option<f64> {
        match self {
            Self::Linear { min_lr_ratio, .. }
            | Self::Cosine { min_lr_ratio, .. }
            | Self::Wsd { min_lr_ratio, .. } => Some(*min_lr_ratio),
            Self::Constant { .. } | Self::Phases { .. } | Self::Own {} => None,
        }
    }

    /// The schedule of a run of `steps` steps. A run that is shorter than its warm-up ends during
    /// the warm-up.
    ///
    /// # Errors
    /// As [`Phases::of_run`], for `wsd` and `phases`; for `own`.
    pub fn of_run(&self, steps: u64) -> Result<Phases> {
        let (warmup, end, curve) = match self {
            Self::Constant { warmup_steps } => (*warmup_steps, 1.0, Curve::Linear),
            Self::Linear { warmup_steps, min_lr_ratio } => {
                (*warmup_steps, *min_lr_ratio, Curve::Linear)
            }
            Self::Cosine { warmup_steps, min_lr_ratio } => {
                (*warmup_steps, *min_lr_ratio, Curve::Cosine)
            }
            Self::Wsd { warmup_steps, decay_steps, min_lr_ratio, curve } => {
                let (warmup, decay) = (*warmup_steps, *decay_steps);
                return Phases::warmup_stable_decay(steps, warmup, decay, *min_lr_ratio, *curve);
            }
            Self::Phases { initial, phases } => return Phases::of_run(steps, *initial, phases),
            Self::Own {} => bail!(
                Invalid,
                "schedule.kind is \"own\", but this program has no schedule of its own: use the program \
                 that started the run (`Session::schedule`), or choose another kind"
            ),
        };

        let warm_up = Phases::starting_at(0.0).for_steps(warmup, 1.0, Curve::Linear);
        match warmup >= steps {
            true => Ok(warm_up),
            false => Ok(warm_up.until_step(steps, end, curve)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::schedule::Schedule;

    fn linear(warmup_steps: u64, min_lr_ratio: f64) -> ScheduleConfig {
        ScheduleConfig::Linear { warmup_steps, min_lr_ratio }
    }

    fn cosine(warmup_steps: u64, min_lr_ratio: f64) -> ScheduleConfig {
        ScheduleConfig::Cosine { warmup_steps, min_lr_ratio }
    }

    #[test]
    fn cosine_golden_values() {
        let schedule = cosine(10, 0.1).of_run(110).unwrap();
        let golden = [
            (1, 0.1),
            (5, 0.5),
            (10, 1.0),
            (35, 0.1 + 0.9 * 0.853_553_390_593),
            (60, 0.55),
            (110, 0.1),
        ];

        for (step, factor) in golden {
            assert!((schedule.factor(step) - factor).abs() < 1e-11, "step {step}");
        }
        assert_eq!(schedule.factor(10_000), 0.1);
    }

    #[test]
    fn linear_and_constant_golden_values() {
        let at = |config: ScheduleConfig, step| config.of_run(4).unwrap().factor(step);
        assert_eq!([1, 4].map(|step| at(linear(0, 0.0), step)), [0.75, 0.0]);
        let constant = || ScheduleConfig::Constant { warmup_steps: 2 };
        assert_eq!([1, 4].map(|step| at(constant(), step)), [0.5, 1.0]);
    }

    #[test]
    fn a_run_shorter_than_its_warm_up_only_warms_up() {
        assert_eq!(cosine(100, 0.1).of_run(50).unwrap().factor(50), 0.5);
    }

    proptest! {
        /// The factor rises during warm-up, never rises again, and stays between 0 and 1.
        #[test]
        fn rises_then_falls(
            warmup in 0u64..50, steps in 1u64..200, ratio in 0.0f64..1.0, is_cosine: bool,
        ) {
            let config = if is_cosine { cosine(warmup, ratio) } else { linear(warmup, ratio) };
            let schedule = config.of_run(steps).unwrap();

            for step in 1..steps {
                let (now, next) = (schedule.factor(step), schedule.factor(step + 1));
                prop_assert!((0.0..=1.0).contains(&now));
                if step < warmup {
                    prop_assert!(next >= now);
                } else {
                    prop_assert!(next <= now + 1e-12);
                }
            }
            if warmup < steps {
                prop_assert_eq!(schedule.factor(steps), ratio);
            }
        }
    }
}
