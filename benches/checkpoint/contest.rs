//! Contestants in turns, round after round, until each has enough clean samples.

use std::path::PathBuf;
use std::time::Instant;

use meshgrad_harness::{Spread, interleave};
use serde_json::{Value, json};

use super::quiet::{Watch, make_cold, make_warm};

/// Where the page cache stands before a turn.
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

/// What takes turns.
pub(super) struct Contestant<'a> {
    pub(super) name: String,
    /// Where the bytes end up: what is compared should be alike in that.
    pub(super) destination: &'static str,
    /// What it reads, to make it cold or warm.
    pub(super) files: Vec<PathBuf>,
    /// Done before each turn, not counted.
    pub(super) before: Box<dyn FnMut() -> anyhow::Result<()> + 'a>,
    /// Returns its seconds.
    pub(super) turn: Box<dyn FnMut() -> anyhow::Result<f64> + 'a>,
}

/// What came of the turns of one contestant.
pub(super) struct Standing {
    pub(super) name: String,
    destination: &'static str,
    pub(super) cache: Cache,
    clean: Vec<f64>,
    own_cpu: Vec<f64>,
    dropped: usize,
    failure: Option<String>,
}

/// How long a contest goes on.
#[derive(Clone, Copy)]
pub(super) struct Length {
    /// Clean samples that each contestant needs.
    pub(super) samples: usize,
    /// Rounds after which it ends, however many there are.
    pub(super) most_rounds: usize,
    pub(super) ends: Instant,
}

/// Lets them take turns. The first turn of each does not count.
pub(super) fn hold(
    contestants: &mut [Contestant<'_>],
    cache: Cache,
    watch: &Watch,
    length: Length,
) -> anyhow::Result<Vec<Standing>> {
    let mut standings: Vec<Standing> = contestants
        .iter()
        .map(|it| Standing::of(it, cache))
        .collect();
    interleave(contestants.len(), length.most_rounds, |round, at| {
        let (contestant, standing) = (&mut contestants[at], &mut standings[at]);
        if standing.clean.len() >= length.samples || standing.failure.is_some() {
            return anyhow::Ok(());
        }
        if round > 1 && Instant::now() > length.ends {
            return Ok(());
        }
        (contestant.before)()?;
        match cache {
            Cache::Warm => make_warm(&contestant.files)?,
            Cache::Cold => make_cold(&contestant.files)?,
        }
        if round == 0 {
            standing.failure = (contestant.turn)().err().map(|error| format!("{error:#}"));
            return Ok(());
        }
        match watch.observe(&mut contestant.turn) {
            Err(error) => standing.failure = Some(format!("{error:#}")),
            Ok(observed) if !observed.is_clean => standing.dropped += 1,
            Ok(observed) => {
                standing.clean.push(observed.seconds);
                standing.own_cpu.push(observed.own_cpu);
            }
        }
        Ok(())
    })?;
    Ok(standings)
}

impl Standing {
    fn of(contestant: &Contestant<'_>, cache: Cache) -> Standing {
        Standing {
            name: contestant.name.clone(),
            destination: contestant.destination,
            cache,
            clean: Vec::new(),
            own_cpu: Vec::new(),
            dropped: 0,
            failure: None,
        }
    }

    /// Seconds, if there are clean samples.
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

    /// A row of a table: seconds, GB/s, own CPU, samples.
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
            (None, Some(failure)) => format!(
                "| {} | | {} | failed: {failure} | | | |",
                self.name,
                self.cache.name()
            ),
            (None, None) => format!(
                "| {} | {} | {} | - | - | - | {samples} |",
                self.name,
                self.destination,
                self.cache.name()
            ),
        }
    }
}
