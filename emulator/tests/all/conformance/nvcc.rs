//! NVIDIA's compiler, whose output is committed.
//!
//! `emulator/conformance/ptx` has the PTX of every source. Its first line is a digest of the source
//! and of the compiler's version. `UPDATE_GOLDEN=1` compiles the sources whose digest has changed;
//! `MESHGRAD_EXHAUSTIVE=1` compiles all and compares.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::{env, fs};

use twox_hash::XxHash3_64;

/// The exit code of `scripts/cuda-tools` if PyPI is unreachable.
const UNREACHABLE: i32 = 3;

/// The script that installs nvcc, with its version.
const INSTALLER: &str = include_str!("../../../../scripts/cuda-tools");

/// A source line with additional options: `// nvcc: --use_fast_math`.
const OPTIONS: &str = "// nvcc: ";

/// The architecture, unless the options have another.
const ARCHITECTURE: &str = "-arch=sm_80";

/// PTX of `emulator/conformance/<name>.cu`.
pub(crate) fn ptx(name: &str) -> String {
    // Several tests need the same file.
    static UPDATED: Mutex<()> = Mutex::new(());
    let _guard = UPDATED.lock().unwrap_or_else(PoisonError::into_inner);
    let source = Source::read(name);
    let known = source.committed();
    if known.lines().next() == Some(source.digest().as_str()) {
        return known;
    }
    assert!(
        env::var_os("UPDATE_GOLDEN").is_some(),
        "{name}.cu or the version of nvcc has changed: run with UPDATE_GOLDEN=1 to compile it again"
    );
    let ptx = source.compiled(&nvcc().expect("PyPI is reachable to fetch nvcc"));
    fs::create_dir_all(folder().join("ptx")).expect("the folder is writable");
    fs::write(source.golden(), &ptx).expect("the folder is writable");
    ptx
}

#[test]
fn the_compiler_gives_the_committed_ptx() {
    let files = fs::read_dir(folder()).expect("the folder exists");
    let paths = files.map(|file| file.expect("the folder is readable").path());
    let sources = paths.filter(|path| path.extension().is_some_and(|it| it == "cu"));
    let names: Vec<String> =
        sources.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    let committed = fs::read_dir(folder().join("ptx")).expect("the folder exists");
    assert_eq!(committed.count(), names.len(), "one file for each source");

    if env::var_os("MESHGRAD_EXHAUSTIVE").is_none() {
        return;
    }
    let Some(nvcc) = nvcc() else {
        println!("skipped: nvcc needs PyPI for its installation");
        return;
    };
    for name in names {
        let same = ptx(&name) == Source::read(&name).compiled(&nvcc);
        assert!(same, "{name}.cu: delete its .ptx and run with UPDATE_GOLDEN=1");
    }
}

/// A file of CUDA C++.
struct Source {
    name: String,
    text: String,
}

impl Source {
    fn read(name: &str) -> Source {
        let path = folder().join(name).with_extension("cu");
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Source { name: name.to_owned(), text }
    }

    fn golden(&self) -> PathBuf {
        folder().join("ptx").join(&self.name).with_extension("ptx")
    }

    fn committed(&self) -> String {
        fs::read_to_string(self.golden()).unwrap_or_default()
    }

    /// The first line of the PTX.
    fn digest(&self) -> String {
        let version = INSTALLER.lines().find(|line| line.starts_with("version=")).unwrap();
        let text = format!("{version} {ARCHITECTURE}\n{}", self.text);
        format!("// digest {:016x}", XxHash3_64::oneshot(text.as_bytes()))
    }

    fn compiled(&self, nvcc: &Path) -> String {
        let lines = self.text.lines().filter_map(|line| line.strip_prefix(OPTIONS));
        let options: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
        let mut command = Command::new(nvcc);
        command.arg("-ptx").args(&options);
        if !options.iter().any(|it| it.starts_with("-arch=")) {
            command.arg(ARCHITECTURE);
        }

        // The names of internal symbols depend on the path of the source.
        let folder = Path::new("/tmp/meshgrad-conformance");
        let [source, to] = ["cu", "ptx"].map(|kind| format!("{}.{kind}", self.name));
        fs::create_dir_all(folder).expect("the folder is writable");
        fs::write(folder.join(&source), &self.text).expect("the folder is writable");
        command.current_dir(folder).arg(&source).arg("-o").arg(&to);
        let done = command.output().expect("nvcc starts");
        let errors = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{source}: {errors}");
        let ptx = fs::read_to_string(folder.join(to)).expect("just written");
        format!("{}\n{}", self.digest(), portable(&ptx))
    }
}

/// The PTX without the folders of the compiler.
fn portable(ptx: &str) -> String {
    let line = |line: &str| match line.trim_start().starts_with(".file") {
        true => {
            let (file, path) = line.split_once('"').expect("a quoted path");
            format!("{file}\"{}\n", path.rsplit('/').next().unwrap_or(path))
        }
        false => format!("{line}\n"),
    };
    ptx.lines().map(line).collect()
}

/// The path of nvcc, fetched if needed; `None` if PyPI is unreachable.
fn nvcc() -> Option<PathBuf> {
    let mut script = Command::new(folder().join("../../scripts/cuda-tools"));
    let done = script.arg("nvcc").output().expect("scripts/cuda-tools starts");
    if done.status.code() == Some(UNREACHABLE) {
        return None;
    }
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "scripts/cuda-tools nvcc: {errors}");
    Some(PathBuf::from(String::from_utf8_lossy(&done.stdout).trim()))
}

/// `emulator/conformance`.
fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/conformance"))
}
