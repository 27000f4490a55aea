//! Embeds meshgrad's own sources, which are the default text on machines without the pinned crates.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// The crates that this one depends on, and this crate itself. A published package contains only
/// the last.
const CRATES: [&str; 6] = ["../runtime", "../autograd", "../ckpt", "../load", "../models", "."];

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());

    let mut sources = String::from("const OWN_SOURCES: &[(&str, &str)] = &[\n");
    for part in CRATES {
        let folder = root.join(part).join("src");
        if folder.is_dir() {
            let name = part.trim_start_matches("../").replace('.', "train");
            add(&folder, &format!("{name}/src"), &mut sources)?;
        }
    }
    sources.push_str("];\n");

    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    fs::write(out.join("own_sources.rs"), sources)
}

fn add(folder: &Path, name: &str, sources: &mut String) -> io::Result<()> {
    println!("cargo::rerun-if-changed={}", folder.display());

    let mut entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let name = format!("{name}/{}", entry.file_name().to_string_lossy());

        if path.is_dir() {
            add(&path, &name, sources)?;
        } else if name.ends_with(".rs") {
            let path = path.canonicalize()?;
            let line = writeln!(sources, "    ({name:?}, include_str!({path:?})),");
            line.map_err(io::Error::other)?;
        }
    }
    Ok(())
}
