//! Documents from files, folders and globs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::{CorpusError, Document};

/// Extensions that count as text in folders and globs. A file that is named explicitly is read
/// whatever its extension.
const EXTENSIONS: [&str; 24] = [
    "txt", "text", "md", "markdown", "rst", "tex", "rs", "py", "c", "h", "cc", "cpp", "hpp", "cu",
    "go", "java", "js", "ts", "sh", "toml", "html", "csv", "jsonl", "ndjson",
];

/// All documents of `paths`, and the number of invalid UTF-8 bytes.
pub(super) fn read(paths: &[String]) -> Result<(Vec<Document>, u64), CorpusError> {
    let mut seen = BTreeSet::new();
    let mut documents = Vec::new();
    let mut replaced = 0;

    for path in paths {
        for file in resolve(path)? {
            if seen.insert(file.clone()) {
                replaced += read_file(&file, &mut documents)?;
            }
        }
    }
    Ok((documents, replaced))
}

fn resolve(path: &str) -> Result<Vec<PathBuf>, CorpusError> {
    let plain = Path::new(path);
    if plain.is_dir() {
        let mut files = Vec::new();
        walk(plain, &mut files)?;
        return not_empty(path, files);
    }
    if plain.exists() || !path.contains(['*', '?', '[']) {
        return Ok(vec![plain.to_owned()]);
    }

    let matches = glob::glob(path).map_err(|error| CorpusError::BadGlob {
        pattern: path.to_owned(),
        message: error.to_string(),
    })?;
    let mut files = Vec::new();
    for found in matches {
        let found = found.map_err(|error| CorpusError::Read {
            path: error.path().to_owned(),
            source: error.into(),
        })?;
        if found.is_file() && is_text(&found) {
            files.push(found);
        }
    }
    files.sort();
    not_empty(path, files)
}

fn not_empty(place: &str, files: Vec<PathBuf>) -> Result<Vec<PathBuf>, CorpusError> {
    if files.is_empty() {
        let extensions = EXTENSIONS
            .map(|extension| format!(".{extension}"))
            .join(" ");
        return Err(CorpusError::NoMatch {
            place: place.to_owned(),
            extensions,
        });
    }
    Ok(files)
}

/// Text files in `folder`, depth first, sorted by name in each folder. Hidden entries and links to
/// folders, which may form cycles, are left out.
fn walk(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), CorpusError> {
    let error = |source| CorpusError::Read {
        path: folder.to_owned(),
        source,
    };

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
    let extension = path.extension().and_then(|it| it.to_str());
    extension.is_some_and(|it| EXTENSIONS.contains(&it.to_ascii_lowercase().as_str()))
}

fn is_json_lines(path: &Path) -> bool {
    let extension = path.extension().and_then(|it| it.to_str());
    extension.is_some_and(|it| ["jsonl", "ndjson"].contains(&it.to_ascii_lowercase().as_str()))
}

fn read_file(path: &Path, documents: &mut Vec<Document>) -> Result<u64, CorpusError> {
    let bytes = std::fs::read(path).map_err(|source| CorpusError::Read {
        path: path.to_owned(),
        source,
    })?;
    let (text, replaced) = to_text(bytes);
    if text.trim().is_empty() {
        return Err(CorpusError::Empty {
            path: path.to_owned(),
        });
    }

    let name = path.to_string_lossy();
    if is_json_lines(path) {
        read_json_lines(path, &name, &text, documents)?;
    } else {
        documents.push(Document {
            name: name.into_owned(),
            text,
        });
    }
    Ok(replaced)
}

/// Each line is an object whose `text` is a document. Blank lines and empty texts are left out.
fn read_json_lines(
    path: &Path,
    name: &str,
    lines: &str,
    documents: &mut Vec<Document>,
) -> Result<(), CorpusError> {
    let before = documents.len();

    for (index, line) in lines.lines().enumerate() {
        let bad = |problem: String| CorpusError::BadLine {
            path: path.to_owned(),
            line: index + 1,
            problem,
        };
        if line.trim().is_empty() {
            continue;
        }

        let value: serde_json::Value =
            serde_json::from_str(line).map_err(|error| bad(format!("not JSON: {error}")))?;
        let text = value
            .get("text")
            .and_then(|text| text.as_str())
            .ok_or_else(|| {
                bad("no string in field `text`; every line must be an object with one".to_owned())
            })?;
        if !text.is_empty() {
            let name = format!("{name}:{}", index + 1);
            documents.push(Document {
                name,
                text: text.to_owned(),
            });
        }
    }

    match documents.len() {
        after if after > before => Ok(()),
        _ => Err(CorpusError::Empty {
            path: path.to_owned(),
        }),
    }
}

/// The text, with U+FFFD in place of invalid UTF-8, and the number of invalid bytes.
fn to_text(bytes: Vec<u8>) -> (String, u64) {
    let bytes = match String::from_utf8(bytes) {
        Ok(text) => return (text, 0),
        Err(error) => error.into_bytes(),
    };

    let mut text = String::with_capacity(bytes.len());
    let mut replaced = 0;
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        if !chunk.invalid().is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
            replaced += chunk.invalid().len() as u64;
        }
    }
    (text, replaced)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

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

    fn load(folder: &tempfile::TempDir, paths: &[&str]) -> Result<Corpus, CorpusError> {
        let absolute = |path: &&str| folder.path().join(path).to_string_lossy().into_owned();
        Corpus::load(&paths.iter().map(absolute).collect::<Vec<_>>())
    }

    fn texts(corpus: &Corpus) -> Vec<&str> {
        corpus
            .documents
            .iter()
            .map(|document| document.text.as_str())
            .collect()
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
        let folder = folder(&[
            ("b.txt", b"2"),
            ("a.txt", b"1"),
            ("c.md", b"3"),
            ("odd", b"4"),
        ]);
        let corpus = load(&folder, &["*.txt", "b.txt", "c.md", "odd"]).unwrap();
        assert_eq!(texts(&corpus), ["1", "2", "3", "4"]);
    }

    #[test]
    fn json_lines_take_the_text_field() {
        let lines = b"{\"text\": \"one\\n\", \"id\": 1}\n\n{\"text\": \"\"}\n{\"text\": \"two\"}\n";
        let folder = folder(&[
            ("a.jsonl", lines),
            ("bad.jsonl", b"{\"text\": \"x\"}\n{\"txt\": 1}\n"),
        ]);

        let corpus = load(&folder, &["a.jsonl"]).unwrap();
        assert_eq!(texts(&corpus), ["one\n", "two"]);
        assert!(corpus.documents[1].name.ends_with("a.jsonl:4"));

        let error = load(&folder, &["bad.jsonl"]).unwrap_err().to_string();
        assert!(
            error.contains("bad.jsonl:2: no string in field `text`"),
            "{error}"
        );
    }

    #[test]
    fn missing_and_empty_paths_are_named() {
        let folder = folder(&[("empty.txt", b" \n"), ("none/x.png", b"x")]);
        let cases = [
            ("nothing.txt", "cannot read"),
            ("*.md", "no text file in"),
            ("none", "no text file in"),
            ("empty.txt", "is empty"),
            ("[.txt", "is not a glob"),
        ];
        for (path, expected) in cases {
            let error = load(&folder, &[path]).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains(path), "{error}");
        }
    }

    #[test]
    fn invalid_utf8_is_replaced_and_counted() {
        let folder = folder(&[("a.txt", b"ok \xff\xfe caf\xc3\xa9 \xe2\x82")]);
        let corpus = load(&folder, &["a.txt"]).unwrap();
        assert_eq!(texts(&corpus), ["ok \u{fffd}\u{fffd} caf\u{e9} \u{fffd}"]);
        assert_eq!(corpus.replaced_bytes, 4);
    }

    proptest! {
        /// The text equals the standard library's lossy conversion, and the count is zero exactly
        /// for valid UTF-8.
        #[test]
        fn lossy_text_equals_the_standard_librarys(bytes: Vec<u8>) {
            let (text, replaced) = to_text(bytes.clone());
            prop_assert_eq!(&text, &String::from_utf8_lossy(&bytes));
            prop_assert_eq!(replaced == 0, std::str::from_utf8(&bytes).is_ok());
        }
    }
}
