//! The options and the report of a bench.

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context;
use serde_json::{Value, json};

use crate::machine::{Machine, proc_field};

/// Options of all benches.
#[derive(clap::Args)]
pub struct Options {
    /// Also write the report with machine and versions to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Run one short round to check that the bench works.
    #[arg(long)]
    pub smoke: bool,
    /// Passed by cargo to every bench.
    #[arg(long, hide = true)]
    pub bench: bool,
}

/// Adds machine and versions to `report` and writes it to the file of `--json`, if given.
pub fn finish(options: &Options, mut report: Value, peers: Value) -> anyhow::Result<()> {
    report["machine"] = machine()?;
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
        // A closed pipe is not an error of the report.
        let _ = writeln!(std::io::stdout(), "\nwrote {}", file.display());
    }
    Ok(())
}

fn machine() -> anyhow::Result<Value> {
    let mut machine = serde_json::to_value(Machine::this())?;
    let device = meshgrad_runtime::Device::cpu();
    let properties = device.properties();
    let cpuinfo = ["cpu family", "model", "stepping"].map(|name| proc_field("/proc/cpuinfo", name));
    machine["family_model_stepping"] = json!(cpuinfo.map(Option::unwrap_or_default));
    machine["threads"] = json!(properties.threads);
    machine["simd"] = json!(properties.simd);
    machine["native_bf16"] = json!(properties.native_bf16);
    machine["system"] = json!(output("uname", &["-sm"]));
    Ok(machine)
}

/// The value of an environment variable, or the output of a program if it is not set. The variables
/// are for executables that run without a checkout.
fn version(variable: &str, program: &str, arguments: &[&str]) -> String {
    std::env::var(variable).unwrap_or_else(|_| output(program, arguments))
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.unwrap_or_default()
}
