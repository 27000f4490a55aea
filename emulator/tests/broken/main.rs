//! Kernels with one mistake each, and kernels that only look as if they had one.
//!
//! The kernels are `emulator/broken/*.ptx` and `emulator/broken/fine/*.ptx`. Each says in its
//! header how to run it and what must be found (`emulator/broken/README.md` has the grammar); here
//! every one of them is run, and its report held against its header.

#[path = "../driver/mod.rs"]
mod driver;
mod header;
mod machine;

use std::ffi::CStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use header::{Content, Header};
use machine::{Buffer, Machine};

/// One after the other: the emulator keeps one latest report for all.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn every_mistake_is_found_where_it_is() {
    let _alone = alone();
    let failures = failures_of(
        "emulator/broken",
        c"broken",
        |header, outcome| match outcome {
            Outcome::Report(report) => header.check_report(report),
            Outcome::Words(_) => Err("ran without a report".to_owned()),
        },
    );
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    let _alone = alone();
    let failures = failures_of(
        "emulator/broken/fine",
        c"fine",
        |header, outcome| match outcome {
            Outcome::Report(report) => Err(format!("was accused:\n{report}")),
            Outcome::Words(words) => header.check_result(words),
        },
    );
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// What came of a kernel.
enum Outcome {
    /// What the emulator said about it.
    Report(String),
    /// It ran to its end, and its context too: the words of the buffer that the header asks for.
    Words(Vec<u32>),
}

/// The kernels of `folder`, all of one name, that did not come out as `expected` says, and why.
fn failures_of(
    folder: &str,
    name: &CStr,
    expected: impl Fn(&Header, &Outcome) -> Result<(), String>,
) -> Vec<String> {
    let kernels = kernels_of(folder);
    assert!(
        kernels.len() >= 15,
        "{folder} has only {} kernels",
        kernels.len()
    );
    let failure = |(path, text, header): &(PathBuf, String, Header)| {
        let reason = expected(header, &run(text, name, header)).err()?;
        Some(format!("{}: {reason}", path.display()))
    };
    kernels.iter().filter_map(failure).collect()
}

/// All kernels of a folder, with their headers.
fn kernels_of(folder: &str) -> Vec<(PathBuf, String, Header)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the workspace");
    let files = fs::read_dir(root.join(folder)).expect("the folder of kernels");
    let mut paths: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "ptx"));
    paths.sort();
    let parsed = paths.into_iter().map(|path| {
        let text = fs::read_to_string(&path).expect("a readable file");
        let header = Header::parse(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        (path, text, header)
    });
    parsed.collect()
}

/// Runs a kernel in a context of its own, from loading it to the end of the context.
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
            Content::Filled => machine.write(&buffer, &counted(described.bytes)),
        }
        buffers.push((buffer, &described.name));
    }
    let is_freed = |name: &str| header.freed.as_deref() == Some(name);
    let is_kept = |name: &str| header.kept.as_deref() == Some(name);
    for (buffer, _) in buffers.iter().filter(|(_, name)| is_freed(name)) {
        machine.free(buffer);
    }

    let kernel = machine.kernel(&module, name);
    machine.launch(
        &kernel,
        header.grid,
        header.block,
        header.dynamic_shared,
        &buffers,
    )?;

    let mut words = Vec::new();
    if let Some((wanted, values)) = &header.result {
        let (buffer, _) = buffers
            .iter()
            .find(|(_, name)| name == wanted)
            .expect("a known buffer");
        words = machine.read(buffer, values.len());
    }
    for (buffer, name) in &buffers {
        if !is_freed(name) && !is_kept(name) {
            machine.free(buffer);
        }
    }
    module.unload().expect("it is loaded");
    Ok(words)
}

/// Words 0, 1, 2, ..
fn counted(bytes: usize) -> Vec<u8> {
    (0..(bytes as u32).div_ceil(4))
        .flat_map(u32::to_le_bytes)
        .take(bytes)
        .collect()
}
