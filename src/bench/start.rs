//! Time to the first training step of newly started programs, compared with torch.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};
use meshgrad::prelude::Device;
use meshgrad_harness::{Options, Peer, PeerOptions, Spread, finish, interleave, scripts, seconds};
use serde_json::{Value, json};

/// Time from the start of the program to the end of the first training step: `meshgrad train` with
/// its defaults, including tokenizer and token cache, compared with torch.
#[derive(clap::Args)]
pub(crate) struct Start {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    peer: PeerOptions,
    /// Measured starts of each program, after one warm-up start.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Passed to `meshgrad train`.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// A program that is started repeatedly.
struct Program<'a> {
    name: &'static str,
    start: Box<dyn Fn() -> anyhow::Result<Started> + 'a>,
    seconds: Vec<f64>,
    versions: Value,
}

struct Started {
    /// Seconds to the end of the first step.
    seconds: f64,
    versions: Value,
}

impl<'a> Program<'a> {
    fn new(name: &'static str, start: impl Fn() -> anyhow::Result<Started> + 'a) -> Self {
        Program { name, start: Box::new(start), seconds: Vec::new(), versions: Value::Null }
    }
}

impl Start {
    pub(crate) fn run(&self, cpu: &Device) -> anyhow::Result<()> {
        let threads = cpu.properties().threads.to_string();
        let scratch = Scratch::new()?;
        let folder = &scratch.0;
        let mut programs =
            vec![Program::new("meshgrad train", || self.start_meshgrad(folder, &threads))];
        if let Some(python) = &self.peer.torch {
            let of_torch = |name, implementation, cache: &'static str| {
                let (folder, threads) = (folder.join(cache), &threads);
                Program::new(name, move || start_torch(python, implementation, threads, &folder))
            };
            programs.extend([
                of_torch("torch eager", "eager", KEPT),
                of_torch("torch.compile, warm cache", "compile", KEPT),
                of_torch("torch.compile, cold cache", "compile", EMPTIED),
            ]);
        }

        let rounds = if self.options.smoke { 0 } else { self.rounds.max(1) };
        interleave(programs.len(), rounds, |round, at| {
            let program = &mut programs[at];
            scratch.remove(EMPTIED)?;
            let started = (program.start)()?;
            program.versions = started.versions;
            // The first start fills the caches of files and compilers.
            if round > 0 || self.options.smoke {
                program.seconds.push(started.seconds);
            }
            anyhow::Ok(())
        })?;
        self.report(&programs)
    }

    /// Starts this program, and kills it after its first step.
    fn start_meshgrad(&self, folder: &Path, threads: &str) -> anyhow::Result<Started> {
        let executable = std::env::current_exe().context("cannot find this program")?;
        let start = Instant::now();
        let mut process = Command::new(executable)
            .args(["train", "--device", "cpu", "--threads", threads])
            .args(["--set", "log.every=1", "--run-dir"])
            .arg(folder.join(EMPTIED))
            .args(self.set.iter().flat_map(|set| ["--set", set]))
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start meshgrad train")?;
        let output = process.stdout.take().context("no standard output")?;
        let is_first = |line: &std::io::Result<String>| {
            let step = line.as_ref().ok().and_then(|line| line.strip_prefix("step "));
            step.is_some_and(|step| step.trim_start().starts_with("1/"))
        };
        let reached = BufReader::new(output).lines().any(|line| is_first(&line));
        let seconds = start.elapsed().as_secs_f64();
        process.kill()?;
        process.wait()?;
        if !reached {
            bail!("meshgrad train ended before its first step; its message is above");
        }
        let versions = Value::Null;
        Ok(Started { seconds, versions })
    }

    fn report(&self, programs: &[Program<'_>]) -> anyhow::Result<()> {
        println!("| | seconds to the end of the first step | relative to meshgrad |");
        println!("|---|---|---|");
        let meshgrad = Spread::of(&programs[0].seconds).median;
        let mut rows = Vec::new();
        for Program { name, seconds, .. } in programs {
            let spread = Spread::of(seconds);
            println!("| {name} | {spread} | {:.2} |", spread.median / meshgrad);
            rows.push(json!({"what": name, "seconds": spread.json()}));
        }
        let report = json!({"bench": "start", "rounds": self.rounds, "rows": rows});
        let versions = programs.last().map(|last| last.versions.clone());
        finish(&self.options, report, versions.unwrap_or_default())
    }
}

/// Starts `train_tiny.py`, which writes its first line after its first training step. `cache` is
/// the cache folder of torch.compile.
fn start_torch(
    python: &Path,
    implementation: &str,
    threads: &str,
    cache: &Path,
) -> anyhow::Result<Started> {
    let mut command = Command::new(python);
    command
        .arg(scripts().join("train_tiny.py"))
        .args(["--serve", "--warmup", "1", "--impl", implementation])
        .args(["--threads", threads])
        .env("TORCHINDUCTOR_CACHE_DIR", cache);
    let (seconds, peer) = seconds(|| Peer::start_command(&mut command));
    let versions = peer?.hello["versions"].clone();
    Ok(Started { seconds, versions })
}

/// A scratch folder that is kept between starts.
const KEPT: &str = "kept";

/// A scratch folder that is removed before each start.
const EMPTIED: &str = "emptied";

/// A temporary folder, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> anyhow::Result<Scratch> {
        let folder = format!("meshgrad-bench-start-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Scratch(folder))
    }

    fn remove(&self, name: &str) -> anyhow::Result<()> {
        let folder = self.0.join(name);
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", folder.display()))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Errors in `drop` are ignored.
        let _ = fs::remove_dir_all(&self.0);
    }
}
