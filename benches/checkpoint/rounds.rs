//! Interleaved rounds until each contestant has enough clean samples.

use std::path::PathBuf;
use std::time::Instant;

use meshgrad_harness::{Spread, interleave};
use serde_json::{Value, json};

use super::noise::{Monitor, evict, read_all};

/// The state of the page cache before a sample.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cache {
    Warm,
    Cold,
}

impl Cache {
    pub(super) fn name(self) -> &'static str {
        match self {
            Cache::Warm => "warm",
            Cache::Cold => "cold",
        }
    }
}

/// One of the implementations that are compared.
pub(super) struct Contestant<'a> {
    pub(super) name: String,
    /// The kind of memory that it writes to. Only equal kinds are comparable.
    pub(super) destination: &'static str,
    /// The files that it reads, which are dropped from the page cache or read into it.
    pub(super) files: Vec<PathBuf>,
    /// Called before each sample, not timed.
    pub(super) before: Box<dyn FnMut() -> anyhow::Result<()> + 'a>,
    /// Takes a sample and returns its seconds.
    pub(super) sample: Box<dyn FnMut() -> anyhow::Result<f64> + 'a>,
}

/// The samples of one contestant.
pub(super) struct Measurement {
    pub(super) name: String,
    destination: &'static str,
    pub(super) cache: Cache,
    clean: Vec<f64>,
    own_cpu: Vec<f64>,
    dropped: usize,
    failure: Option<String>,
}

/// When the rounds end.
#[derive(Clone, Copy)]
pub(super) struct Length {
    /// Clean samples per contestant.
    pub(super) samples: usize,
    /// Maximum number of rounds.
    pub(super) max_rounds: usize,
    pub(super) deadline: Instant,
}

/// Takes samples of all contestants in interleaved rounds. The first round is not counted.
pub(super) fn measure(
    contestants: &mut [Contestant<'_>],
    cache: Cache,
    monitor: &Monitor,
    length: Length,
) -> anyhow::Result<Vec<Measurement>> {
    let mut measurements: Vec<Measurement> =
        contestants.iter().map(|it| Measurement::of(it, cache)).collect();
    interleave(contestants.len(), length.max_rounds, |round, at| {
        let (contestant, measurement) = (&mut contestants[at], &mut measurements[at]);
        if measurement.clean.len() >= length.samples || measurement.failure.is_some() {
            return anyhow::Ok(());
        }
        if round > 1 && Instant::now() > length.deadline {
            return Ok(());
        }
        (contestant.before)()?;
        match cache {
            Cache::Warm => read_all(&contestant.files)?,
            Cache::Cold => evict(&contestant.files)?,
        }
        if round == 0 {
            measurement.failure = (contestant.sample)().err().map(|error| format!("{error:#}"));
            return Ok(());
        }
        match monitor.observe(&mut contestant.sample) {
            Err(error) => measurement.failure = Some(format!("{error:#}")),
            Ok(observed) if !observed.is_clean => measurement.dropped += 1,
            Ok(observed) => {
                measurement.clean.push(observed.seconds);
                measurement.own_cpu.push(observed.own_cpu);
            }
        }
        Ok(())
    })?;
    Ok(measurements)
}

impl Measurement {
    fn of(contestant: &Contestant<'_>, cache: Cache) -> Measurement {
        Measurement {
            name: contestant.name.clone(),
            destination: contestant.destination,
            cache,
            clean: Vec::new(),
            own_cpu: Vec::new(),
            dropped: 0,
            failure: None,
        }
    }

    /// Seconds of the clean samples, if any.
    pub(super) fn seconds(&self) -> Option<Spread> {
        Spread::try_of(&self.clean)
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "name": self.name,
            "cache": self.cache.name(),
            "destination": self.destination,
            "seconds": self.seconds().map(Spread::json),
            "own_cpu_s": Spread::try_of(&self.own_cpu).map(Spread::json),
            "samples": self.clean.len(),
            "dropped": self.dropped,
            "failure": self.failure,
        })
    }

    /// A table row: seconds, GB/s, own CPU seconds, samples.
    pub(super) fn row(&self, bytes: u64) -> String {
        let samples = match self.dropped {
            0 => self.clean.len().to_string(),
            dropped => format!("{}, {dropped} dropped", self.clean.len()),
        };
        match (self.seconds(), &self.failure) {
            (Some(Spread { median, min, max }), _) => format!(
                "| {} | {} | {} | {median:.3} ({min:.3} - {max:.3}) | {:.2} | {:.2} | {samples} |",
                self.name,
                self.destination,
                self.cache.name(),
                bytes as f64 / median / 1e9,
                Spread::of(&self.own_cpu).median,
            ),
            (None, Some(failure)) => {
                format!("| {} | | {} | failed: {failure} | | | |", self.name, self.cache.name())
            }
            (None, None) => format!(
                "| {} | {} | {} | - | - | - | {samples} |",
                self.name,
                self.destination,
                self.cache.name()
            ),
        }
    }
}
