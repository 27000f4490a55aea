//! NVIDIA's compiler, with a cache of its output.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::OnceLock;
use std::thread;

/// The exit code of `scripts/cuda-tools` if PyPI is unreachable.
const UNREACHABLE: i32 = 3;

/// A source line with additional options: `// nvcc: --use_fast_math`.
const OPTIONS: &str = "// nvcc: ";

/// The architecture, unless the options have another.
const ARCHITECTURE: &str = "-arch=sm_80";

/// PTX of `emulator/conformance/<name>.cu`; `None` without a compiler.
pub(crate) fn compile(name: &str) -> Option<String> {
    let source = root().join("emulator/conformance").join(name).with_extension("cu");
    let text = fs::read_to_string(&source).unwrap_or_else(|e| panic!("{}: {e}", source.display()));
    let nvcc = compiler()?;

    let mut hasher = DefaultHasher::new();
    (&text, nvcc).hash(&mut hasher);
    let cache = root().join("target/conformance");
    let made = cache.join(format!("{name}-{:016x}.ptx", hasher.finish()));
    if !made.exists() {
        fs::create_dir_all(&cache).expect("target/ is writable");
        // Concurrent tests may compile the same file; the last rename writes the same text.
        let unfinished =
            cache.join(format!("{name}-{}-{:?}", process::id(), thread::current().id()));
        run(nvcc, &source, options(&text), &unfinished);
        fs::rename(unfinished, &made).expect("target/ is writable");
    }
    Some(fs::read_to_string(made).expect("just written"))
}

fn options(source: &str) -> impl Iterator<Item = &str> {
    let lines = source.lines().filter_map(|line| line.strip_prefix(OPTIONS));
    lines.flat_map(str::split_whitespace)
}

fn run<'a>(nvcc: &Path, source: &Path, options: impl Iterator<Item = &'a str>, to: &Path) {
    let options: Vec<&str> = options.collect();
    let mut command = Command::new(nvcc);
    command.args(["-ptx", "-lineinfo"]).args(&options);
    if !options.iter().any(|it| it.starts_with("-arch=")) {
        command.arg(ARCHITECTURE);
    }
    let done = command.arg(source).arg("-o").arg(to).output().expect("nvcc starts");
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{}: {errors}", source.display());
}

/// The path of nvcc, fetched once.
fn compiler() -> Option<&'static Path> {
    static COMPILER: OnceLock<Option<PathBuf>> = OnceLock::new();
    COMPILER.get_or_init(fetch).as_deref()
}

fn fetch() -> Option<PathBuf> {
    let mut script = Command::new(root().join("scripts/cuda-tools"));
    let done = script.arg("nvcc").output().expect("scripts/cuda-tools starts");
    let said = String::from_utf8_lossy(&done.stdout);
    if done.status.code() == Some(UNREACHABLE) {
        return None;
    }
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "scripts/cuda-tools nvcc: {errors}");
    Some(PathBuf::from(said.trim()))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in the workspace")
}
