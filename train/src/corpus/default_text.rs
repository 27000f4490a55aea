//! The default text: the Rust sources of meshgrad's dependencies, pinned so that it is the same on
//! every machine.
//!
//! `default_text.txt` lists crates and versions of meshgrad's Cargo.lock, in its order. Cargo has
//! their sources on any machine that built meshgrad. Crates that only some platforms compile are
//! left out, because cargo does not download them elsewhere (`default_text.sh` writes the list). If
//! any crate is missing, the text is meshgrad's own sources, which are embedded in the program.

use std::path::{Path, PathBuf};

use super::{Corpus, Document};

/// Files of this size or more are left out, because most of them are generated tables.
pub const MAX_FILE_BYTES: u64 = 64 << 10;

/// The size limit of the default text. It ends before the first file that would exceed the limit.
pub const MAX_DEFAULT_BYTES: u64 = 16 << 20;

/// First line: `# digest HEX`. Then one `NAME VERSION` per line.
const PINNED: &str = include_str!("default_text.txt");

include!(concat!(env!("OUT_DIR"), "/own_sources.rs"));

/// The pinned text, or meshgrad's own sources if the pinned text is not available.
pub(super) fn load() -> Corpus {
    let pinned = cargo_home().and_then(|home| read_pinned(&home.join("registry/src")));
    pinned.unwrap_or_else(own_sources)
}

fn own_sources() -> Corpus {
    let document = |&(name, text): &(&str, &str)| Document::new(name.to_owned(), text.to_owned());
    let documents = OWN_SOURCES.iter().filter(|(_, text)| !text.is_empty()).map(document).collect();
    Corpus::new("meshgrad's own sources (some pinned crates are missing)".to_owned(), documents)
}

fn cargo_home() -> Option<PathBuf> {
    let chosen = std::env::var_os("CARGO_HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    chosen.or_else(|| Some(std::env::home_dir()?.join(".cargo")))
}

/// `NAME-VERSION` of every pinned crate.
fn pinned_crates() -> impl Iterator<Item = String> {
    PINNED.lines().skip(1).map(|line| line.replacen(' ', "-", 1))
}

fn pinned_digest() -> Option<u128> {
    let hex = PINNED.lines().next()?.strip_prefix("# digest ")?;
    u128::from_str_radix(hex, 16).ok()
}

/// Reads the pinned text; `None` if a crate that it needs is missing.
fn read_pinned(registry: &Path) -> Option<Corpus> {
    // The registry has one folder per index: crates.io, whose folder name depends on the cargo
    // version, and mirrors.
    let indices: Vec<PathBuf> =
        std::fs::read_dir(registry).ok()?.flatten().map(|entry| entry.path()).collect();

    let mut documents = Vec::new();
    let mut left = MAX_DEFAULT_BYTES;
    let mut crates = 0;
    'crates: for name in pinned_crates() {
        let folder = indices.iter().map(|index| index.join(&name)).find(|path| path.is_dir())?;
        crates += 1;

        for file in rust_files(&folder, &name)? {
            let size = file.text.len() as u64;
            if size > left {
                break 'crates;
            }
            left -= size;
            documents.push(file);
        }
    }

    let mut corpus = Corpus::new(format!("Rust sources of {crates} crates"), documents);
    if pinned_digest() != Some(corpus.digest) {
        corpus.title.push_str(" (modified on this machine: not the pinned text)");
    }
    Some(corpus)
}

/// A crate's `.rs` files below the size limit, named `CRATE/path` and sorted by that name.
fn rust_files(folder: &Path, name: &str) -> Option<Vec<Document>> {
    let mut documents = Vec::new();
    collect(folder, name, &mut documents)?;
    documents.sort_by(|a, b| a.name.cmp(&b.name));
    Some(documents)
}

fn collect(folder: &Path, name: &str, documents: &mut Vec<Document>) -> Option<()> {
    for entry in std::fs::read_dir(folder).ok()? {
        let entry = entry.ok()?;
        let file_name = entry.file_name();
        let file_name = file_name.to_str()?;
        let name = format!("{name}/{file_name}");

        let kind = entry.file_type().ok()?;
        if kind.is_dir() {
            collect(&entry.path(), &name, documents)?;
        } else if kind.is_file() && file_name.ends_with(".rs") {
            let bytes = std::fs::read(entry.path()).ok()?;
            if !bytes.is_empty() && (bytes.len() as u64) < MAX_FILE_BYTES {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                documents.push(Document::new(name, text));
            }
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_text_is_the_pinned_one() {
        let registry = cargo_home().unwrap().join("registry/src");
        let Some(corpus) = read_pinned(&registry) else {
            eprintln!("skipped: the registry does not have all pinned crates");
            return;
        };

        assert!(corpus.bytes() <= MAX_DEFAULT_BYTES);
        assert!(corpus.bytes() > MAX_DEFAULT_BYTES - MAX_FILE_BYTES);
        assert_eq!(
            pinned_digest(),
            Some(corpus.digest),
            "the first line of default_text.txt must be `# digest {:032x}`",
            corpus.digest
        );
    }

    #[test]
    fn default_text_is_in_the_lock_file() {
        let lock = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.lock");
        let Ok(lock) = std::fs::read_to_string(lock) else {
            return;
        };

        let mut rest = lock.as_str();
        for line in PINNED.lines().skip(1) {
            let (name, version) = line.split_once(' ').unwrap();
            let entry = format!("name = \"{name}\"\nversion = \"{version}\"\n");
            let found = rest.find(&entry);
            let found =
                found.unwrap_or_else(|| panic!("{line}: run train/src/corpus/default_text.sh"));
            rest = &rest[found + entry.len()..];
        }
    }

    #[test]
    fn own_sources_contain_this_file() {
        let corpus = own_sources();
        let this =
            corpus.documents.iter().find(|found| found.name == "train/src/corpus/default_text.rs");
        assert_eq!(this.unwrap().text, include_str!("default_text.rs"));
    }

    #[test]
    fn an_incomplete_registry_is_not_used() {
        let registry = tempfile::tempdir().unwrap();
        assert!(read_pinned(registry.path()).is_none());

        let first = pinned_crates().next().unwrap();
        std::fs::create_dir_all(registry.path().join("index").join(first)).unwrap();
        assert!(read_pinned(registry.path()).is_none());
    }
}
