//! Parquet files that pyarrow wrote have the documents of the same records as JSON Lines.
//! `tests/all/parquet/make_fixtures.py` wrote them.

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::Command;

use meshgrad_train::corpus::{Corpus, Document};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/parquet").join(name)
}

fn load(path: &Path) -> Result<Corpus, String> {
    let path = path.to_str().unwrap().to_owned();
    Corpus::load(&[path]).map_err(|error| error.to_string())
}

/// The documents of a file, with names that do not depend on it.
fn documents(path: &Path) -> Vec<Document> {
    let mut documents = load(path).unwrap().documents;
    for document in &mut documents {
        let (file, row) = document.name.rsplit_once(':').unwrap();
        assert_eq!(Path::new(file), path);
        document.name = row.to_owned();
    }
    documents
}

#[test]
fn parquet_has_the_documents_of_json_lines() {
    let cases = [
        ("text-snappy", "text"),
        ("text-gzip", "text"),
        ("text-none", "text"),
        ("text-binary-zstd", "text"),
        ("messages-zstd", "messages"),
        ("messages-snappy", "messages"),
        ("both-snappy", "both"),
        ("both-unused-bytes", "both"),
    ];
    for (parquet, json) in cases {
        let expected = documents(&fixture(&format!("{json}.jsonl")));
        assert!(expected.len() >= 9);
        let found = documents(&fixture(&format!("{parquet}.parquet")));
        assert_eq!(found, expected, "{parquet}");
    }
}

#[test]
fn a_folder_has_its_parquet_files() {
    let place = tempfile::tempdir().unwrap();
    let name = "messages-zstd.parquet";
    fs::copy(fixture(name), place.path().join(name)).unwrap();
    let found = load(place.path()).unwrap();
    assert_eq!(found.documents.len(), documents(&fixture(name)).len());
}

#[test]
fn files_without_text_name_their_columns() {
    let error = load(&fixture("no-text.parquet")).unwrap_err();
    let expected = "no column `text` or `messages` (columns: body, label)";
    assert!(error.contains(expected) && error.contains("no-text.parquet"), "{error}");
}

/// As in text files: some invalid UTF-8 is replaced and counted; bytes that are not text are an
/// error that names file, row and column.
#[test]
fn bytes_that_are_no_utf8_are_counted_or_refused() {
    let corpus = load(&fixture("latin-1.parquet")).unwrap();
    let texts: Vec<&str> = corpus.documents.iter().map(|it| it.text.as_str()).collect();
    assert_eq!(texts, ["in UTF-8: \u{e4}", "D\u{fffd}j\u{fffd} vu, in Latin-1"]);
    assert_eq!(corpus.replaced_bytes, 2);

    let error = load(&fixture("no-text-in-bytes.parquet")).unwrap_err();
    let expected = "no-text-in-bytes.parquet: row 2: `text` is not text: 100% of it is not UTF-8";
    assert!(error.ends_with(expected), "{error}");
}

/// A panic of the library prints nothing, and other panics print their message.
#[test]
fn panics_of_the_library_are_quiet() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "parquet::damaged_files_do_not_panic", "--nocapture"])
        .output()
        .unwrap();
    assert!(output.status.success());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(errors.matches("panicked at").count(), 1, "{errors}");
    assert!(errors.contains(OF_THIS_TEST), "{errors}");
}

const OF_THIS_TEST: &str = "a panic of this test";

/// A damaged file is an error or, if the damage is not in the text, gives some documents; a panic
/// of the library does not escape.
#[test]
fn damaged_files_do_not_panic() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("damaged.parquet");
    let whole = fs::read(fixture("messages-zstd.parquet")).unwrap();
    for length in (0..whole.len()).step_by(37) {
        fs::write(&path, &whole[..length]).unwrap();
        let error = load(&path).unwrap_err();
        assert!(error.contains("damaged.parquet"), "{length} bytes: {error}");
    }
    let mut panics = 0;
    for at in (0..whole.len()).step_by(3) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x55;
        fs::write(&path, &bytes).unwrap();
        panics += usize::from(load(&path).is_err_and(|it| it.ends_with("the file is damaged")));
    }
    assert!(panics > 0, "the library does not panic any more");
    assert!(catch_unwind(|| panic!("{OF_THIS_TEST}")).is_err());
}
