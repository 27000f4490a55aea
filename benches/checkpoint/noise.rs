//! Detects samples that other processes disturbed, by their CPU time in /proc/stat.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Context;
use meshgrad_harness::drop_pages;

/// The unit of times in /proc, in seconds.
const TICK: f64 = 0.01;

/// The CPU time of other processes on all cores that a clean sample tolerates, as a share of its
/// duration.
const SHARE_OF_OTHERS: f64 = 0.15;

/// Separates the CPU time of our processes from that of others.
pub(super) struct Monitor {
    own: Vec<u32>,
    /// Maximum wait for a quiet moment before a sample.
    patience: Duration,
}

/// A sample and the load of the machine.
pub(super) struct Observed {
    /// Duration that the contestant reports.
    pub(super) seconds: f64,
    /// CPU seconds of all our processes.
    pub(super) own_cpu: f64,
    pub(super) is_clean: bool,
}

impl Monitor {
    /// Counts this process and its peer as our processes.
    pub(super) fn new(peer: Option<u32>, patience: Duration) -> Monitor {
        let own = [Some(std::process::id()), peer];
        Monitor { own: own.into_iter().flatten().collect(), patience }
    }

    /// Waits for a tenth of a second in which other processes are nearly idle, then takes a sample.
    pub(super) fn observe(
        &self,
        sample: impl FnOnce() -> anyhow::Result<f64>,
    ) -> anyhow::Result<Observed> {
        self.wait()?;
        let (others, own, start) = (self.others()?, self.own()?, Instant::now());
        let seconds = sample()?;
        let wall = start.elapsed().as_secs_f64();
        // Each of the two counters may lag by one tick.
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

    /// CPU seconds of other processes since boot, including time stolen by the host.
    fn others(&self) -> anyhow::Result<f64> {
        let stat = std::fs::read_to_string("/proc/stat")?;
        let line = stat.lines().next().context("/proc/stat is empty")?;
        // user, nice, system, idle, iowait, irq, softirq, steal
        let ticks: Vec<f64> = line.split_whitespace().skip(1).flat_map(str::parse).collect();
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

/// Syncs files and drops them from the page cache.
pub(super) fn evict(paths: &[PathBuf]) -> anyhow::Result<()> {
    for path in paths {
        each_file(path, &mut |file| Ok(drop_pages(&File::open(file)?)?))?;
    }
    Ok(())
}

/// Reads files into the page cache.
pub(super) fn read_all(paths: &[PathBuf]) -> anyhow::Result<()> {
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
