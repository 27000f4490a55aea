//! Documents from files, folders and globs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use meshgrad_error::{Result, bail, ensure, error};

use super::contents::Contents;
use super::text::to_text;
use super::{Document, parquet, records, unreadable};

/// Extensions that count as text in folders and globs. A file that is named explicitly is read
/// whatever its extension.
const EXTENSIONS: [&str; 25] = [
    "txt", "text", "md", "markdown", "rst", "tex", "rs", "py", "c", "h", "cc", "cpp", "hpp", "cu",
    "go", "java", "js", "ts", "sh", "toml", "html", "csv", "jsonl", "ndjson", "parquet",
];

/// The contents of `paths`.
pub(super) fn read(paths: &[String]) -> Result<Contents> {
    let mut seen = BTreeSet::new();
    let mut contents = Contents::default();

    for path in paths {
        for file in resolve(path)? {
            if seen.insert(file.clone()) {
                read_file(&file, &mut contents)?;
            }
        }
    }
    if contents.documents.is_empty() {
        let all_empty = match contents.empty_files {
            1 => "the only file is empty".to_owned(),
            files => format!("all {files} files are empty"),
        };
        let paths = paths.join(" ");
        bail!(Invalid, "data: no text in `{paths}`: {all_empty}; name another file");
    }
    Ok(contents)
}

fn resolve(path: &str) -> Result<Vec<PathBuf>> {
    let plain = Path::new(path);
    if plain.is_dir() {
        let mut files = Vec::new();
        walk(plain, &mut files)?;
        return not_empty(path, files);
    }
    if plain.exists() || !path.contains(['*', '?', '[']) {
        return Ok(vec![plain.to_owned()]);
    }

    let matches = glob::glob(path)
        .map_err(|problem| error!(Invalid, "data: `{path}` is not a glob: {problem}"))?;
    let mut files = Vec::new();
    for found in matches {
        let found = found.map_err(|error| {
            let path = error.path().to_owned();
            unreadable(&path, error.into())
        })?;
        if found.is_file() && is_text(&found) {
            files.push(found);
        }
    }
    files.sort();
    not_empty(path, files)
}

fn not_empty(place: &str, files: Vec<PathBuf>) -> Result<Vec<PathBuf>> {
    ensure!(
        !files.is_empty(),
        Missing,
        "data: no text file in `{place}` (looked for {})",
        EXTENSIONS.map(|extension| format!(".{extension}")).join(" ")
    );
    Ok(files)
}

/// Text files in `folder`, depth first, sorted by name in each folder. Hidden entries and links to
/// folders, which may form cycles, are left out.
fn walk(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let error = |cause| unreadable(folder, cause);

    let mut entries = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(error)? {
        entries.push(entry.map_err(error)?);
    }
    entries.sort_by_key(std::fs::DirEntry::file_name);

    for entry in entries {
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let path = entry.path();
        if entry.file_type().map_err(error)?.is_dir() {
            walk(&path, files)?;
        } else if path.is_file() && is_text(&path) {
            files.push(path);
        }
    }
    Ok(())
}

fn is_text(path: &Path) -> bool {
    EXTENSIONS.contains(&extension(path).as_str())
}

/// The extension in lower case; empty without one.
fn extension(path: &Path) -> String {
    let extension = path.extension().and_then(|it| it.to_str());
    extension.unwrap_or_default().to_ascii_lowercase()
}

/// Adds the documents of the file at `path`.
fn read_file(path: &Path, to: &mut Contents) -> Result<()> {
    let before = to.documents.len();
    match extension(path).as_str() {
        "parquet" => parquet::read(path, to)?,
        "jsonl" | "ndjson" => read_json_lines(path, &read_text(path, to)?, to)?,
        _ => {
            let text = read_text(path, to)?;
            if !text.trim().is_empty() {
                let name = path.to_string_lossy().into_owned();
                to.documents.push(Document::new(name, text));
            }
        }
    }
    to.empty_files += u64::from(to.documents.len() == before);
    Ok(())
}

fn read_text(path: &Path, to: &mut Contents) -> Result<String> {
    let bytes = std::fs::read(path).map_err(|cause| unreadable(path, cause))?;
    let (text, replaced) = to_text(bytes)
        .map_err(|problem| error!(Malformed, "data: {} is not text: {problem}", path.display()))?;
    to.replaced_bytes += replaced;
    Ok(text)
}

/// Each line is a record. Blank lines and empty records are left out.
fn read_json_lines(path: &Path, lines: &str, to: &mut Contents) -> Result<()> {
    let name = path.to_string_lossy();
    for (index, line) in lines.lines().enumerate() {
        let bad = |problem: String| {
            error!(Malformed, "data: {}:{}: {problem}", path.display(), index + 1)
        };
        if line.trim().is_empty() {
            continue;
        }
        let record =
            serde_json::from_str(line).map_err(|error| bad(format!("not JSON: {error}")))?;
        let name = format!("{name}:{}", index + 1);
        to.documents.extend(records::document(name, &record).map_err(bad)?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::Corpus;
    use super::*;

    fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        folder
    }

    fn load(folder: &tempfile::TempDir, paths: &[&str]) -> Result<Corpus> {
        let absolute = |path: &&str| folder.path().join(path).to_string_lossy().into_owned();
        Corpus::load(&paths.iter().map(absolute).collect::<Vec<_>>())
    }

    fn texts(corpus: &Corpus) -> Vec<&str> {
        corpus.documents.iter().map(|document| document.text.as_str()).collect()
    }

    #[test]
    fn folders_are_recursive_and_sorted() {
        let folder = folder(&[
            ("b.txt", b"2"),
            ("a/z.md", b"1"),
            ("c/d/e.rs", b"3"),
            ("picture.png", b"no"),
            (".git/x.txt", b"no"),
        ]);
        let corpus = load(&folder, &["."]).unwrap();
        assert_eq!(texts(&corpus), ["1", "2", "3"]);
        assert_eq!(corpus.bytes(), 3);
    }

    #[test]
    fn globs_are_sorted_and_repeats_read_once() {
        let folder = folder(&[("b.txt", b"2"), ("a.txt", b"1"), ("c.md", b"3"), ("odd", b"4")]);
        let corpus = load(&folder, &["*.txt", "b.txt", "c.md", "odd"]).unwrap();
        assert_eq!(texts(&corpus), ["1", "2", "3", "4"]);
    }

    #[test]
    fn json_lines_take_the_text_field() {
        let lines = b"{\"text\": \"one\\n\", \"id\": 1}\n\n{\"text\": \"\"}\n{\"text\": \"two\"}\n";
        let folder =
            folder(&[("a.jsonl", lines), ("bad.jsonl", b"{\"text\": \"x\"}\n{\"txt\": 1}\n")]);

        let corpus = load(&folder, &["a.jsonl"]).unwrap();
        assert_eq!(texts(&corpus), ["one\n", "two"]);
        assert!(corpus.documents[1].name.ends_with("a.jsonl:4"));

        let error = load(&folder, &["bad.jsonl"]).unwrap_err().to_string();
        assert!(error.contains("bad.jsonl:2: no string in field `text`"), "{error}");
    }

    #[test]
    fn missing_and_empty_paths_are_named() {
        let folder = folder(&[
            ("empty.txt", b" \n"),
            ("packed.txt", b"\x1f\x8b\x08\0\0\xff"),
            ("none/x.png", b"x"),
        ]);
        let cases = [
            ("nothing.txt", "cannot read"),
            ("*.md", "no text file in"),
            ("none", "no text file in"),
            ("empty.txt", "the only file is empty"),
            ("packed.txt", "it is gzip; decompress it first"),
            ("[.txt", "is not a glob"),
        ];
        for (path, expected) in cases {
            let error = load(&folder, &[path]).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains(path), "{error}");
        }
    }

    #[test]
    fn empty_files_are_counted() {
        let folder =
            folder(&[("a.txt", b""), ("b.txt", b"text"), ("c.jsonl", b"{\"text\": \"\"}\n\n")]);
        let corpus = load(&folder, &["."]).unwrap();
        assert_eq!(texts(&corpus), ["text"]);
        assert_eq!(corpus.empty_files, 2);

        let error = load(&folder, &["a.txt", "c.jsonl"]).unwrap_err().to_string();
        assert!(error.contains("all 2 files are empty"), "{error}");
    }

    #[test]
    fn invalid_utf8_is_replaced_and_counted() {
        let folder = folder(&[("a.txt", b"fine: ok \xff\xfe caf\xc3\xa9 \xe2\x82")]);
        let corpus = load(&folder, &["a.txt"]).unwrap();
        assert_eq!(texts(&corpus), ["fine: ok \u{fffd}\u{fffd} caf\u{e9} \u{fffd}"]);
        assert_eq!(corpus.replaced_bytes, 4);
    }
}
