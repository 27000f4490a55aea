//! Assembles kernels with NVIDIA's ptxas. There must be no warnings, and the use of registers and
//! memory must match a golden table.
//!
//! A line of the table holds a digest of the PTX and of the version of ptxas. A kernel whose digest
//! has not changed is not assembled again, unless `MESHGRAD_EXHAUSTIVE=1`.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::{env, fs, thread};

use meshgrad_kernels::{Ptx, Target};
use twox_hash::XxHash3_64;

/// Exit status of scripts/cuda-tools if PyPI is unreachable.
const UNREACHABLE: i32 = 3;

/// The script that installs ptxas, with its version.
const INSTALLER: &str = include_str!("../../../../scripts/cuda-tools");

/// Strings in the output of ptxas that mean a defect of a kernel: spills and local memory,
/// serialized wgmma, ignored setmaxnreg, barriers named by registers.
const MISTAKES: [&str; 4] = ["warning", "error", "(C75", "sed 16 barriers"];

/// Assembles all `kernels` for the oldest and the newest GPU that we support. Compares their use of
/// registers and memory with the table `golden`, a path in the crate's folder `tests`.
/// `UPDATE_GOLDEN=1` rewrites the table. Without ptxas, prints a message and returns.
pub(crate) fn assemble(kernels: &[Ptx], golden: &str) {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(golden);
    let known = match env::var_os("MESHGRAD_EXHAUSTIVE") {
        None => known(&golden),
        Some(_) => HashMap::new(),
    };
    let jobs = kernels.iter().flat_map(|ptx| architectures(ptx).iter().map(move |it| (ptx, *it)));
    let (mut lines, mut changed) = (Vec::new(), Vec::new());
    for (ptx, arch) in jobs {
        let digest = digest(ptx);
        match known.get(&[ptx.entry.as_str(), arch, &digest].map(str::to_owned)) {
            Some(line) => lines.push(line.clone()),
            None => changed.push((ptx, arch, digest)),
        }
    }

    println!("{} kernels are as in the table, {} are assembled", lines.len(), changed.len());
    if !changed.is_empty() {
        let Some(ptxas) = ptxas() else {
            println!("skipped: ptxas needs Linux on x86-64, and PyPI for its installation");
            return;
        };
        lines.extend(in_parallel(&changed, |job| line_of_table(&ptxas, job)));
    }
    lines.sort();
    compare_with_golden(&golden, &aligned(&lines));
}

/// The lines of a table by kernel, architecture and digest.
fn known(golden: &Path) -> HashMap<[String; 3], Columns> {
    let table = fs::read_to_string(golden).unwrap_or_default();
    let columns = |line: &str| {
        let columns: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Columns::try_from(columns).ok()
    };
    let lines = table.lines().filter_map(columns);
    lines.map(|line| ([line[0].clone(), line[1].clone(), line[2].clone()], line)).collect()
}

/// A digest of everything that the columns of a line depend on. The lines of Rust that instructions
/// come from do not count.
fn digest(ptx: &Ptx) -> String {
    let version = INSTALLER.lines().find(|line| line.starts_with("version=")).unwrap();
    let mut text = format!("{version} {}\n", ptx.dynamic_shared);
    for line in ptx.text.lines() {
        if ![".loc", ".file"].iter().any(|mark| line.trim_start().starts_with(mark)) {
            text.push_str(line);
            text.push('\n');
        }
    }
    format!("{:016x}", XxHash3_64::oneshot(text.as_bytes()))
}

/// The GPUs to assemble for. PTX for sm_80 runs on all of them, PTX for sm_90a only on sm_90a.
fn architectures(ptx: &Ptx) -> &'static [&'static str] {
    match ptx.target {
        Target::Sm80 => &["sm_80", "sm_90a"],
        Target::Sm90a => &["sm_90a"],
    }
}

fn ptxas() -> Option<PathBuf> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return None;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/cuda-tools");
    let output = Command::new(script).arg("ptxas").output().unwrap();
    if output.status.code() == Some(UNREACHABLE) {
        return None;
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    Some(String::from_utf8(output.stdout).unwrap().trim().into())
}

type Columns = [String; 7];

/// The columns of the table: name, architecture, digest, registers, shared memory, stack, spills.
fn line_of_table(ptxas: &Path, (ptx, arch, digest): &(&Ptx, &str, String)) -> Columns {
    // The name of a kernel can be longer than that of a file.
    let name = format!("{}-{digest}-{arch}.ptx", std::process::id());
    let source = env::temp_dir().join(name);
    fs::write(&source, &ptx.text).unwrap();
    let output = Command::new(ptxas)
        .args(["-v", "-warn-spills", "-warn-lmem-usage", "-lineinfo", "-o", "/dev/null"])
        .arg(format!("-arch={arch}"))
        .arg(&source)
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();

    let mistake = MISTAKES.iter().any(|mark| log.contains(mark));
    assert!(output.status.success() && !mistake, "{} for {arch}:\n{log}", source.display());
    fs::remove_file(&source).unwrap();

    let count = |unit: &str| number_before(&log, unit).unwrap_or(0);
    let shared = count("bytes smem") + u64::from(ptx.dynamic_shared);
    let spills = count("bytes spill stores") + count("bytes spill loads");
    [
        ptx.entry.clone(),
        (*arch).to_owned(),
        digest.clone(),
        count("registers").to_string(),
        shared.to_string(),
        count("bytes stack frame").to_string(),
        spills.to_string(),
    ]
}

/// The number in front of `unit`: `Used 36 registers`.
fn number_before(log: &str, unit: &str) -> Option<u64> {
    let (before, _) = log.split_once(&format!(" {unit}"))?;
    before.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// The results of `f` for every job, run by one thread per core.
pub(crate) fn in_parallel<J: Sync, R: Send>(jobs: &[J], f: impl Fn(&J) -> R + Sync) -> Vec<R> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let result = f(job);
            results.lock().unwrap_or_else(PoisonError::into_inner).push(result);
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, Into::into) {
            scope.spawn(work);
        }
    });
    results.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn aligned(lines: &[Columns]) -> String {
    let header = ["kernel", "arch", "digest", "registers", "shared", "stack", "spills"];
    let header = header.map(str::to_owned);
    let width = lines.iter().map(|line| line[0].len()).max().unwrap_or(0);
    let mut table = String::new();
    for [name, arch, digest, numbers @ ..] in [&header].into_iter().chain(lines) {
        let [registers, shared, stack, spills] = numbers;
        writeln!(
            table,
            "{name:width$}  {arch:6}  {digest:16}  {registers:>9}  {shared:>6}  {stack:>5}  {spills:>6}"
        )
        .unwrap();
    }
    table
}

fn compare_with_golden(path: &Path, table: &str) {
    if env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(path, table).unwrap();
        return;
    }
    let golden = fs::read_to_string(path).unwrap_or_default();
    let known: Vec<&str> = golden.lines().collect();
    let news: Vec<&str> = table.lines().filter(|line| !known.contains(line)).collect();
    let gone: Vec<&str> =
        known.iter().copied().filter(|line| !table.lines().any(|new| new == *line)).collect();
    assert!(
        golden == table,
        "registers or memory of kernels changed; if intended, run with UPDATE_GOLDEN=1\n\
         before:\n{}\nnow:\n{}",
        gone.join("\n"),
        news.join("\n"),
    );
}
