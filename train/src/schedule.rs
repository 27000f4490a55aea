//! The learning rate of a step: a pure function, so resuming needs no state.
//!
//! A schedule is a sequence of phases; each moves from the previous value to its target along a
//! curve. Steps count from 1, so a warm-up of `n` steps starts at `1/n` and not at 0.

use std::f64::consts::PI;

use meshgrad_error::{Result, ensure};
use serde::{Deserialize, Serialize};

/// A factor of the learning rate for each step: a pure function, so resuming needs no state.
///
/// [`Phases`] has the usual schedules; a closure is a schedule too.
///
/// ```
/// use meshgrad_train::schedule::Schedule;
///
/// let inverse_root = |step: u64| 1.0 / (step as f64).sqrt();
/// assert_eq!(inverse_root.factor(4), 0.5);
/// ```
pub trait Schedule: Send + Sync {
    /// The factor at `step`, from 1.
    fn factor(&self, step: u64) -> f64;
}

/// The curve from one value to another. In configurations: `linear`, `cosine`, `poly:2`,
/// `poly_out:2`, `exponential`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Curve {
    /// A straight line.
    #[default]
    Linear,
    /// Half a cosine: flat at both ends.
    Cosine,
    /// `progress ^ power`: changes late for powers above 1, early below 1.
    Poly(f64),
    /// `1 - (1 - progress) ^ power`: flat at the end for powers above 1, as torch's `PolynomialLR`.
    PolyOut(f64),
    /// A straight line between logarithms; values below 1e-8 are raised to 1e-8.
    Exponential,
}

impl Curve {
    /// The value at `progress` in [0, 1], exactly `start` and `end` at the ends.
    pub fn at(self, start: f64, end: f64, progress: f64) -> f64 {
        const SMALLEST: f64 = 1e-8;

        if progress <= 0.0 {
            return start;
        }
        if progress >= 1.0 {
            return end;
        }
        let blend = |weight: f64| start + (end - start) * weight;
        match self {
            Self::Linear => blend(progress),
            Self::Cosine => blend(0.5 * (1.0 - (PI * progress).cos())),
            Self::Poly(power) => blend(progress.powf(power)),
            Self::PolyOut(power) => blend(1.0 - (1.0 - progress).powf(power)),
            Self::Exponential => {
                let (start, end) = (start.max(SMALLEST).ln(), end.max(SMALLEST).ln());
                (start + (end - start) * progress).exp()
            }
        }
    }
}

impl TryFrom<String> for Curve {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let hint = "use linear, cosine, exponential, poly:2 or poly_out:2";
        let (name, power) = match text.split_once(':') {
            Some((name, power)) => (name, Some(power.parse().unwrap_or(f64::NAN))),
            None => (text.as_str(), None),
        };
        match (name, power) {
            ("linear", None) => Ok(Self::Linear),
            ("cosine", None) => Ok(Self::Cosine),
            ("exponential", None) => Ok(Self::Exponential),
            ("poly", Some(power)) if power > 0.0 => Ok(Self::Poly(power)),
            ("poly_out", Some(power)) if power > 0.0 => Ok(Self::PolyOut(power)),
            _ => Err(format!("unknown curve `{text}`; {hint}")),
        }
    }
}

impl From<Curve> for String {
    fn from(curve: Curve) -> Self {
        match curve {
            Curve::Linear => "linear".to_owned(),
            Curve::Cosine => "cosine".to_owned(),
            Curve::Exponential => "exponential".to_owned(),
            Curve::Poly(power) => format!("poly:{power}"),
            Curve::PolyOut(power) => format!("poly_out:{power}"),
        }
    }
}

/// How long a phase is. In configurations: a number of steps, `"20%"` or `"rest"`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "LengthText", into = "LengthText")]
pub enum Length {
    /// A number of steps.
    Steps(u64),
    /// A percentage of the run. Percentages that add up to 100 fill the run exactly.
    Percent(f64),
    /// The steps that the other phases leave. At most one phase can have this length, in any
    /// position.
    Rest,
}

/// A [`Length`] as it is written.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum LengthText {
    Steps(u64),
    Text(String),
}

impl TryFrom<LengthText> for Length {
    type Error = String;

    fn try_from(written: LengthText) -> Result<Self, String> {
        let text = match written {
            LengthText::Steps(steps) => return Ok(Self::Steps(steps)),
            LengthText::Text(text) => text,
        };
        let percent = text.strip_suffix('%').map(str::parse);
        match (text.as_str(), percent) {
            ("rest", None) => Ok(Self::Rest),
            (_, Some(Ok(percent))) => Ok(Self::Percent(percent)),
            _ => {
                Err(format!("unknown length `{text}`; use a number of steps, \"20%\" or \"rest\""))
            }
        }
    }
}

impl From<Length> for LengthText {
    fn from(length: Length) -> Self {
        match length {
            Length::Steps(steps) => Self::Steps(steps),
            Length::Percent(percent) => Self::Text(format!("{percent}%")),
            Length::Rest => Self::Text("rest".to_owned()),
        }
    }
}

/// A phase of a run, for [`Phases::of_run`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// How long it is.
    pub length: Length,
    /// The value that it reaches.
    pub target: f64,
    /// The curve from the value before to the target.
    #[serde(default)]
    pub curve: Curve,
}

/// A phase with its steps.
#[derive(Debug, Clone, PartialEq)]
struct Interval {
    first: u64,
    last: u64,
    start: f64,
    end: f64,
    curve: Curve,
}

/// A factor for each step, as a sequence of phases.
///
/// ```
/// use meshgrad_train::schedule::{Curve, Phases, Schedule};
///
/// let warm_stable_decay = Phases::starting_at(0.0)
///     .for_steps(100, 1.0, Curve::Linear)
///     .for_steps(800, 1.0, Curve::Linear)
///     .for_steps(100, 0.0, Curve::Poly(0.5));
/// assert_eq!(warm_stable_decay.factor(50), 0.5);
/// assert_eq!(warm_stable_decay.factor(500), 1.0);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Phases {
    initial: f64,
    phases: Vec<Interval>,
}

impl Phases {
    /// A schedule without phases: `initial` at every step.
    pub fn starting_at(initial: f64) -> Self {
        Self { initial, phases: Vec::new() }
    }

    /// Adds a phase that reaches `target` after `steps` more steps. Zero steps are a jump.
    pub fn for_steps(mut self, steps: u64, target: f64, curve: Curve) -> Self {
        let (first, start) = self.end();
        let last = first.saturating_add(steps);
        self.phases.push(Interval { first, last, start, end: target, curve });
        self
    }

    /// Adds a phase that reaches `target` at `step`, counted from the start of training. If the
    /// earlier phases end later, it is a jump.
    pub fn until_step(self, step: u64, target: f64, curve: Curve) -> Self {
        let (first, _) = self.end();
        self.for_steps(step.saturating_sub(first), target, curve)
    }

    /// The phases of a run of `steps` steps, from `initial`.
    ///
    /// ```
    /// use meshgrad_train::schedule::{Curve, Length, Phase, Phases, Schedule};
    ///
    /// let phases = [
    ///     Phase::new(Length::Steps(10), 1.0, Curve::Linear),
    ///     Phase::new(Length::Rest, 1.0, Curve::Linear),
    ///     Phase::new(Length::Percent(20.0), 0.0, Curve::Poly(0.5)),
    /// ];
    /// let schedule = Phases::of_run(100, 0.0, &phases)?;
    /// assert_eq!([5, 80, 85, 100].map(|step| schedule.factor(step)), [0.5, 1.0, 0.5, 0.0]);
    /// # Ok::<(), meshgrad_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the phases are longer than the run, several take the rest of it, or a percentage is outside
    /// of 0 to 100.
    pub fn of_run(steps: u64, initial: f64, phases: &[Phase]) -> Result<Phases> {
        let mut stated = 0.0;
        let mut rests = 0;
        for phase in phases {
            match phase.length {
                Length::Steps(steps) => stated += steps as f64,
                Length::Percent(percent) => stated += part_of(steps, percent)?,
                Length::Rest => rests += 1,
            }
        }
        ensure!(rests <= 1, Invalid, "{rests} phases have the length \"rest\", but only one may");
        ensure!(
            stated.round() <= steps as f64,
            Invalid,
            "the phases of the schedule have {} steps, but the run has {steps}",
            stated.round() as u64
        );

        // Ends are rounded, not lengths, so that rounding errors do not add up.
        let (mut schedule, mut end) = (Phases::starting_at(initial), 0.0);
        for phase in phases {
            end += match phase.length {
                Length::Steps(steps) => steps as f64,
                Length::Percent(percent) => part_of(steps, percent)?,
                Length::Rest => (steps as f64 - stated).max(0.0),
            };
            let end = (end.round() as u64).min(steps);
            schedule = schedule.until_step(end, phase.target, phase.curve);
        }
        Ok(schedule)
    }

    /// The full rate at every step.
    pub fn constant() -> Phases {
        Phases::starting_at(1.0)
    }

    /// A linear warm-up, then a straight line to `end` at the last step of a run of `steps`.
    ///
    /// # Errors
    /// When the warm-up is longer than the run.
    pub fn linear(steps: u64, warmup: u64, end: f64) -> Result<Phases> {
        Phases::warmed_up(steps, warmup, end, Curve::Linear)
    }

    /// A linear warm-up, then half a cosine to `end` at the last step of a run of `steps`
    /// (Loshchilov & Hutter 2017, without restarts).
    ///
    /// # Errors
    /// When the warm-up is longer than the run.
    pub fn cosine(steps: u64, warmup: u64, end: f64) -> Result<Phases> {
        Phases::warmed_up(steps, warmup, end, Curve::Cosine)
    }

    /// A linear warm-up, the full rate, and a decay along `curve` to `end` over the last `decay`
    /// steps of a run of `steps` (Hu et al. 2024). [`Curve::Poly`]`(0.5)` decays as
    /// 1 - progress^0.5 (Hägele et al. 2024).
    ///
    /// # Errors
    /// When warm-up and decay are longer than the run.
    pub fn warmup_stable_decay(
        steps: u64,
        warmup: u64,
        decay: u64,
        end: f64,
        curve: Curve,
    ) -> Result<Phases> {
        let phases = [
            Phase::new(Length::Steps(warmup), 1.0, Curve::Linear),
            Phase::new(Length::Rest, 1.0, Curve::Linear),
            Phase::new(Length::Steps(decay), end, curve),
        ];
        Phases::of_run(steps, 0.0, &phases)
    }

    fn warmed_up(steps: u64, warmup: u64, end: f64, curve: Curve) -> Result<Phases> {
        let phases = [
            Phase::new(Length::Steps(warmup), 1.0, Curve::Linear),
            Phase::new(Length::Rest, end, curve),
        ];
        Phases::of_run(steps, 0.0, &phases)
    }

    fn end(&self) -> (u64, f64) {
        self.phases.last().map_or((0, self.initial), |phase| (phase.last, phase.end))
    }
}

impl Schedule for Phases {
    /// After the last phase, the factor keeps its end value.
    fn factor(&self, step: u64) -> f64 {
        let Some(phase) = self.phases.iter().find(|phase| step <= phase.last) else {
            return self.end().1;
        };
        if phase.first == phase.last {
            return phase.end;
        }
        let progress = (step - phase.first) as f64 / (phase.last - phase.first) as f64;
        phase.curve.at(phase.start, phase.end, progress)
    }
}

impl<F: Fn(u64) -> f64 + Send + Sync> Schedule for F {
    fn factor(&self, step: u64) -> f64 {
        self(step)
    }
}

impl Phase {
    /// A phase of `length` that reaches `target` along `curve`.
    pub fn new(length: Length, target: f64, curve: Curve) -> Phase {
        Phase { length, target, curve }
    }
}

/// `percent` of `steps`.
fn part_of(steps: u64, percent: f64) -> Result<f64> {
    ensure!(
        (0.0..=100.0).contains(&percent),
        Invalid,
        "a phase has length {percent}%; its length must be 0% to 100% of the run"
    );
    Ok(steps as f64 * (percent / 100.0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn without_phases_the_factor_is_constant_and_phases_of_zero_steps_jump() {
        assert_eq!(Phases::starting_at(0.3).factor(7), 0.3);

        let jump = Phases::starting_at(1.0)
            .for_steps(2, 1.0, Curve::Linear)
            .for_steps(0, 0.5, Curve::Linear)
            .for_steps(2, 0.0, Curve::Linear);
        let factors: Vec<f64> = (1..=4).map(|step| jump.factor(step)).collect();
        assert_eq!(factors, [1.0, 1.0, 0.25, 0.0]);
    }

    #[test]
    fn phases_fill_a_run() {
        let third = Phase::new(Length::Percent(100.0 / 3.0), 0.0, Curve::Linear);
        let thirds = [Phase { target: 1.0, ..third }, third, Phase { target: 1.0, ..third }];
        for steps in [1, 2, 3, 7, 100] {
            let schedule = Phases::of_run(steps, 0.0, &thirds).unwrap();
            assert_eq!(schedule.end(), (steps, 1.0));
        }

        let schedule = Phases::warmup_stable_decay(100, 10, 20, 0.1, Curve::Cosine).unwrap();
        let factors = [1, 10, 11, 80, 90, 100, 101].map(|step| schedule.factor(step));
        assert_eq!(factors[..4], [0.1, 1.0, 1.0, 1.0]);
        assert!((factors[4] - 0.55).abs() < 1e-15);
        assert_eq!(factors[5..], [0.1, 0.1]);
        assert_eq!(Phases::constant().factor(3), 1.0);
    }

    #[test]
    fn phases_that_do_not_fit_a_run_are_errors() {
        let message = |phases: &[Phase]| Phases::of_run(10, 0.0, phases).unwrap_err().to_string();
        let of = |length| Phase::new(length, 1.0, Curve::Linear);
        assert_eq!(
            message(&[of(Length::Steps(6)), of(Length::Percent(50.0))]),
            "the phases of the schedule have 11 steps, but the run has 10"
        );
        assert_eq!(
            message(&[of(Length::Rest), of(Length::Rest)]),
            "2 phases have the length \"rest\", but only one may"
        );
        assert_eq!(
            message(&[of(Length::Percent(-1.0))]),
            "a phase has length -1%; its length must be 0% to 100% of the run"
        );
        assert!(message(&[of(Length::Percent(f64::NAN))]).contains("NaN"));
    }

    proptest! {
        /// Every curve meets both ends and stays between them.
        #[test]
        fn curves_stay_between_their_ends(
            start in 1e-6f64..1.0,
            end in 1e-6f64..1.0,
            progress in 0.0f64..1.0,
            power in 0.2f64..4.0,
        ) {
            let curves = [
                Curve::Linear,
                Curve::Cosine,
                Curve::Poly(power),
                Curve::PolyOut(power),
                Curve::Exponential,
            ];
            for curve in curves {
                prop_assert_eq!(curve.at(start, end, 0.0), start);
                prop_assert_eq!(curve.at(start, end, 1.0), end);
                let value = curve.at(start, end, progress);
                prop_assert!(value >= start.min(end) * (1.0 - 1e-12));
                prop_assert!(value <= start.max(end) * (1.0 + 1e-12));
            }
        }
    }
}
