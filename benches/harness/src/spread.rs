//! Taking and summarizing samples.

use std::fmt;
use std::time::Instant;

use serde::Serialize;
use serde_json::{Value, json};

/// Median, minimum and maximum of some samples.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The middle sample, or the mean of the two middle samples.
    pub median: f64,
    /// The minimum.
    pub min: f64,
    /// The maximum.
    pub max: f64,
}

impl Spread {
    /// The spread of `samples`.
    ///
    /// # Panics
    /// If `samples` is empty.
    pub fn of(samples: &[f64]) -> Spread {
        Spread::try_of(samples).expect("at least one sample")
    }

    /// The spread of `samples`, or `None` if it is empty.
    pub fn try_of(samples: &[f64]) -> Option<Spread> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        let median = (low + high) / 2.0;
        Some(Spread { median, min, max })
    }

    /// The spread in a report, rounded to four decimals.
    pub fn json(self) -> Value {
        let round = |x: f64| (x * 1e4).round() / 1e4;
        json!({"median": round(self.median), "min": round(self.min), "max": round(self.max)})
    }
}

impl fmt::Display for Spread {
    /// `median (min - max)`, with two decimals below 10.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = if self.median < 10.0 { 2 } else { 0 };
        write!(f, "{:.digits$} ({:.digits$} - {:.digits$})", self.median, self.min, self.max)
    }
}

/// A table cell: the spread, or `-` without samples.
pub fn cell(spread: Option<Spread>) -> String {
    spread.map_or("-".to_owned(), |spread| spread.to_string())
}

/// Runs `f`; returns the elapsed seconds and its result.
pub fn seconds<T>(f: impl FnOnce() -> T) -> (f64, T) {
    let start = Instant::now();
    let result = f();
    (start.elapsed().as_secs_f64(), result)
}

/// Runs `f`; returns the elapsed seconds. Dropping its value is not timed.
pub fn timed<T, E>(f: impl FnOnce() -> Result<T, E>) -> Result<f64, E> {
    let (seconds, result) = seconds(f);
    result.map(|_| seconds)
}

/// Calls `sample(round, contestant)` for every contestant in rounds 0 to `rounds`, where round 0
/// warms up. A disturbance hits all contestants of a round alike. The order rotates, so that no
/// contestant always runs first.
pub fn interleave<E>(
    contestants: usize,
    rounds: usize,
    mut sample: impl FnMut(usize, usize) -> Result<(), E>,
) -> Result<(), E> {
    for round in 0..=rounds {
        for step in 0..contestants {
            sample(round, (step + round) % contestants)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_the_mean_of_the_two_middle_samples() {
        let spread = |median, min, max| Some(Spread { median, min, max });
        assert_eq!(Spread::try_of(&[]), None);
        assert_eq!(Spread::try_of(&[3.0]), spread(3.0, 3.0, 3.0));
        assert_eq!(Spread::try_of(&[9.0, 1.0, 2.0]), spread(2.0, 1.0, 9.0));
        assert_eq!(Spread::try_of(&[4.0, 1.0, 2.0, 9.0]), spread(3.0, 1.0, 9.0));
    }
}
