//! What every bench needs: spread, the machine, and the report.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Context;
use serde_json::{Value, json};

/// The options that all benches share.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Also write the report, with the machine and the versions, to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// One short round, to see that the bench works.
    #[arg(long)]
    pub(crate) smoke: bool,
    /// What cargo passes to every bench.
    #[arg(long, hide = true)]
    pub(crate) bench: bool,
}

/// The median of some measurements, and how far they lie apart.
#[derive(Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// Of at least one measurement.
    pub(crate) fn of(values: &[f64]) -> Spread {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
            _ => sorted[middle],
        };
        Spread {
            median,
            min: sorted[0],
            max: sorted[sorted.len() - 1],
        }
    }

    pub(crate) fn json(self) -> Value {
        let round = |x: f64| (x * 1e4).round() / 1e4;
        json!({"median": round(self.median), "min": round(self.min), "max": round(self.max)})
    }
}

impl std::fmt::Display for Spread {
    /// `median (min - max)`, with digits that suit the size.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let digits = if self.median < 10.0 { 2 } else { 0 };
        write!(
            f,
            "{:.digits$} ({:.digits$} - {:.digits$})",
            self.median, self.min, self.max
        )
    }
}

/// Seconds that `f` takes.
pub(crate) fn seconds<T>(f: impl FnOnce() -> T) -> (f64, T) {
    let start = std::time::Instant::now();
    let result = f();
    (start.elapsed().as_secs_f64(), result)
}

/// Adds machine and versions to `report`, and writes it where the options say.
pub(crate) fn finish(options: &Options, mut report: Value, peers: Value) -> anyhow::Result<()> {
    report["machine"] = machine();
    report["versions"] = json!({
        "meshgrad": env!("CARGO_PKG_VERSION"),
        "commit": version(
            "MESHGRAD_BENCH_COMMIT",
            "git",
            &["describe", "--always", "--dirty", "--exclude", "*"],
        ),
        "rustc": version("MESHGRAD_BENCH_RUSTC", "rustc", &["--version"]),
        "peers": peers,
    });
    if let Some(file) = &options.json {
        let text = format!("{report:#}\n");
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
        println!("\nwrote {}", file.display());
    }
    Ok(())
}

fn machine() -> Value {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(':'))
            .map(|(_, value)| value.trim().to_owned())
            .unwrap_or_default()
    };
    let device = meshgrad::runtime::Device::cpu();
    let properties = device.properties();
    json!({
        "cpu": field("model name"),
        "family_model_stepping": [field("cpu family"), field("model\t"), field("stepping")],
        "threads": properties.threads,
        "simd": properties.simd,
        "native_bf16": properties.native_bf16,
        "system": output("uname", &["-sm"]),
    })
}

/// What `variable` says, for executables that were taken elsewhere, or a program.
fn version(variable: &str, program: &str, arguments: &[&str]) -> String {
    std::env::var(variable).unwrap_or_else(|_| output(program, arguments))
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.unwrap_or_default()
}
