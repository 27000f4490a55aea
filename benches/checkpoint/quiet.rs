//! Samples that nobody disturbed, as /proc/stat tells: what other processes compute while a sample
//! is taken is known, and a sample that they had part in is dropped.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Context;
use meshgrad_harness::drop_pages;

/// What /proc counts time in, on every Linux.
const TICK: f64 = 0.01;

/// The part of a sample's time that others may compute, on all cores together.
const SHARE_OF_OTHERS: f64 = 0.15;

/// Tells our processes' time from that of others.
pub(super) struct Watch {
    own: Vec<u32>,
    /// How long to wait for a quiet moment before a sample is tried anyway.
    patience: Duration,
}

/// One measurement and what went on meanwhile.
pub(super) struct Observed {
    /// As the contestant says.
    pub(super) seconds: f64,
    /// Of all our processes together.
    pub(super) own_cpu: f64,
    pub(super) is_clean: bool,
}

impl Watch {
    /// Counts this process and its peer as ours.
    pub(super) fn new(peer: Option<u32>, patience: Duration) -> Watch {
        let own = [Some(std::process::id()), peer];
        Watch {
            own: own.into_iter().flatten().collect(),
            patience,
        }
    }

    /// Takes a sample, after a tenth of a second in which others did next to nothing.
    pub(super) fn observe(
        &self,
        sample: impl FnOnce() -> anyhow::Result<f64>,
    ) -> anyhow::Result<Observed> {
        self.wait()?;
        let (others, own, start) = (self.others()?, self.own()?, Instant::now());
        let seconds = sample()?;
        let wall = start.elapsed().as_secs_f64();
        // Both counters are in ticks, and each may be late by one.
        let others = self.others()? - others - 2.0 * TICK;
        Ok(Observed {
            seconds,
            own_cpu: self.own()? - own,
            is_clean: others <= SHARE_OF_OTHERS * wall,
        })
    }

    fn wait(&self) -> anyhow::Result<()> {
        let start = Instant::now();
        while start.elapsed() < self.patience {
            let before = self.others()?;
            sleep(Duration::from_millis(100));
            if self.others()? - before < 2.0 * TICK {
                break;
            }
        }
        Ok(())
    }

    /// Seconds that others have computed since the machine started, or the host took from us.
    fn others(&self) -> anyhow::Result<f64> {
        let stat = std::fs::read_to_string("/proc/stat")?;
        let line = stat.lines().next().context("/proc/stat is empty")?;
        // user, nice, system, idle, iowait, irq, softirq, steal
        let ticks: Vec<f64> = line
            .split_whitespace()
            .skip(1)
            .flat_map(str::parse)
            .collect();
        let busy = [0, 1, 2, 7].map(|at| ticks.get(at).copied().unwrap_or(0.0));
        Ok(busy.iter().sum::<f64>() * TICK - self.own()?)
    }

    fn own(&self) -> anyhow::Result<f64> {
        let seconds = |pid: &u32| -> anyhow::Result<f64> {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
            // The name, in parentheses, may contain anything; utime and stime are 14 and 15.
            let (_, rest) = stat.rsplit_once(')').context("no name in /proc/*/stat")?;
            let ticks = rest.split_whitespace().skip(11).take(2);
            Ok(ticks.flat_map(str::parse::<f64>).sum::<f64>() * TICK)
        };
        self.own.iter().map(seconds).sum()
    }
}

/// Puts files on disk and out of the page cache.
pub(super) fn make_cold(paths: &[PathBuf]) -> anyhow::Result<()> {
    for path in paths {
        each_file(path, &mut |file| Ok(drop_pages(&File::open(file)?)?))?;
    }
    Ok(())
}

/// Brings files into the page cache.
pub(super) fn make_warm(paths: &[PathBuf]) -> anyhow::Result<()> {
    for path in paths {
        each_file(path, &mut |file| {
            let mut file = File::open(file)?;
            let mut buffer = vec![0; 1 << 20];
            while file.read(&mut buffer)? > 0 {}
            Ok(())
        })?;
    }
    Ok(())
}

fn each_file(path: &Path, act: &mut impl FnMut(&Path) -> anyhow::Result<()>) -> anyhow::Result<()> {
    if !path.is_dir() {
        return act(path).with_context(|| path.display().to_string());
    }
    for entry in std::fs::read_dir(path)? {
        each_file(&entry?.path(), act)?;
    }
    Ok(())
}
