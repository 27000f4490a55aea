//! Kernels with one bug each, and correct kernels that look suspicious.
//!
//! The kernels are `emulator/broken/*.ptx` and `emulator/broken/fine/*.ptx`. The header of each
//! says how to run it and what must be reported (`emulator/broken/README.md` defines the format).
//! These tests run every kernel and compare its report with its header.

mod header;
mod machine;

use std::ffi::CStr;
use std::fs;
use std::path::{Path, PathBuf};

use crate::driver;
use header::{Content, Header};
use machine::{Buffer, Machine};

#[test]
fn every_bug_is_reported_at_its_line() {
    let _guard = driver::reports();
    let failures = failures_of("emulator/broken", c"broken", |header, outcome| match outcome {
        Outcome::Report(report) => header.check_report(report),
        Outcome::Words(_) => Err("ran without a report".to_owned()),
    });
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

#[test]
fn correct_kernels_run_without_reports() {
    let _guard = driver::reports();
    let failures = failures_of("emulator/broken/fine", c"fine", |header, outcome| match outcome {
        Outcome::Report(report) => Err(format!("unexpected report:\n{report}")),
        Outcome::Words(words) => header.check_result(words),
    });
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// The outcome of a run.
enum Outcome {
    /// The emulator's report.
    Report(String),
    /// No report: the words of the buffer that the header names.
    Words(Vec<u32>),
}

/// Runs the kernels of `folder` and returns those for which `expected` fails, with the reason. The
/// entry of every file is called `name`.
fn failures_of(
    folder: &str,
    name: &CStr,
    expected: impl Fn(&Header, &Outcome) -> Result<(), String>,
) -> Vec<String> {
    let kernels = kernels_of(folder);
    assert!(kernels.len() >= 15, "{folder} has only {} kernels", kernels.len());
    let failure = |(path, text, header): &(PathBuf, String, Header)| {
        let reason = expected(header, &run(text, name, header)).err()?;
        Some(format!("{}: {reason}", path.display()))
    };
    kernels.iter().filter_map(failure).collect()
}

/// All kernels of a folder, with their headers.
fn kernels_of(folder: &str) -> Vec<(PathBuf, String, Header)> {
    let root =
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in the workspace");
    let files = fs::read_dir(root.join(folder)).expect("the folder exists");
    let mut paths: Vec<PathBuf> =
        files.map(|file| file.expect("the folder is readable").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "ptx"));
    paths.sort();
    let parsed = paths.into_iter().map(|path| {
        let text = fs::read_to_string(&path).expect("the file is readable");
        let header = Header::parse(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        (path, text, header)
    });
    parsed.collect()
}

/// Runs a kernel in its own context, from loading to the end of the context.
fn run(text: &str, name: &CStr, header: &Header) -> Outcome {
    let machine = Machine::new();
    let outcome = launch(&machine, text, name, header);
    match (outcome, machine.end()) {
        (Err(report), _) | (Ok(_), Some(report)) => Outcome::Report(report),
        (Ok(words), None) => Outcome::Words(words),
    }
}

fn launch(machine: &Machine, text: &str, name: &CStr, header: &Header) -> Result<Vec<u32>, String> {
    let module = machine.load(text)?;
    let mut buffers: Vec<(Buffer, &str)> = Vec::new();
    for described in &header.buffers {
        let buffer = machine.allocate(described.bytes);
        match described.content {
            Content::Uninitialized => {}
            Content::Zero => machine.write(&buffer, &vec![0; described.bytes]),
            Content::Filled => machine.write(&buffer, &ascending(described.bytes)),
        }
        buffers.push((buffer, &described.name));
    }
    let is_freed = |name: &str| header.freed.as_deref() == Some(name);
    let is_kept = |name: &str| header.kept.as_deref() == Some(name);
    for (buffer, _) in buffers.iter().filter(|(_, name)| is_freed(name)) {
        machine.free(buffer);
    }

    let kernel = machine.kernel(&module, name);
    machine.launch(&kernel, header.grid, header.block, header.dynamic_shared, &buffers)?;

    // The host reads everything, so that undefined values that a kernel stored are found.
    let mut words = Vec::new();
    for ((buffer, name), described) in buffers.iter().zip(&header.buffers) {
        if is_freed(name) {
            continue;
        }
        let read = machine.read(buffer, described.bytes / 4)?;
        if let Some((of_result, values)) = &header.result
            && name == of_result
        {
            words = read[..values.len()].to_vec();
        }
    }
    for (buffer, name) in &buffers {
        if !is_freed(name) && !is_kept(name) {
            machine.free(buffer);
        }
    }
    module.unload().expect("the module is loaded");
    Ok(words)
}

/// Words 0, 1, 2, ..
fn ascending(bytes: usize) -> Vec<u8> {
    (0..(bytes as u32).div_ceil(4)).flat_map(u32::to_le_bytes).take(bytes).collect()
}
