//! Several writers of one checkpoint: their parts must be complete, and missing writers are named.

use std::fs;
use std::path::Path;

use meshgrad_ckpt::{Block, Digest, Error, Result, Staging, WriteReport, Writer, step_name};

/// Starts a checkpoint with a file of ten bytes that two ranks write.
fn stage(run: &Path) -> Staging {
    let mut staging = Staging::new(run, &step_name(1)).unwrap();
    staging.create("model/x.bin", 10).unwrap();
    staging.expect_writers(["rank 0", "rank 1"]);
    staging
}

/// Writes bytes of the file at these offsets, as a separate process would.
fn write(staging: &Staging, name: &str, parts: &[(u64, &str)]) -> WriteReport {
    let mut writer = Writer::join(staging.folder(), name).unwrap();
    for (offset, bytes) in parts {
        let file = writer.file("model/x.bin").unwrap();
        file.write_at(*offset, bytes.as_bytes()).unwrap();
    }
    let report = writer.finish().unwrap();

    // The report arrives in serialized form.
    let json = serde_json::to_string(&report).unwrap();
    let arrived: WriteReport = serde_json::from_str(&json).unwrap();
    assert_eq!(arrived, report);
    arrived
}

/// The commit's error after these ranks have written.
fn error_of(ranks: &[(&str, &[(u64, &str)])]) -> Error {
    let run = tempfile::tempdir().unwrap();
    let mut staging = stage(run.path());
    for (name, parts) in ranks {
        let report = write(&staging, name, parts);
        staging.accept(report).unwrap();
    }
    let error = staging.commit().unwrap_err();
    assert_eq!(fs::read_dir(run.path()).unwrap().count(), 0, "nothing is published");
    error
}

#[test]
fn parts_written_by_ranks_form_the_file() {
    let run = tempfile::tempdir().unwrap();
    let mut staging = stage(run.path());
    let one = write(&staging, "rank 1", &[(7, "hij"), (2, "cde")]);
    let zero = write(&staging, "rank 0", &[(0, "a"), (1, "b"), (5, "f"), (6, "g")]);
    staging.accept(one).unwrap();
    staging.accept(zero).unwrap();

    let committed = staging.commit().unwrap();
    committed.verify().unwrap();
    let path = committed.path().join("model/x.bin");
    assert_eq!(fs::read(&path).unwrap(), b"abcdefghij");

    // The ranks computed the digests while they wrote; the digests detect damage.
    fs::write(path, b"abcdXfghij").unwrap();
    let text = committed.verify().unwrap_err().to_string();
    assert!(text.contains("bytes 2..5 (block 1)"), "{text}");
}

#[test]
fn gaps_overlaps_and_missing_writers_are_named() {
    let gap = error_of(&[("rank 0", &[(0, "abc")]), ("rank 1", &[(5, "fghij")])]);
    let text = gap.to_string();
    assert!(text.contains(" is not complete: bytes 3..5 were not written"), "{text}");
    assert!(text.contains("x.bin") && text.contains("`rank 0`") && text.contains("`rank 1`"));

    let overlap = error_of(&[("rank 0", &[(0, "abcdef")]), ("rank 1", &[(5, "fghij")])]);
    let text = overlap.to_string();
    let expected = "bytes 5..6 were written twice, by `rank 0` and by `rank 1`";
    assert!(text.contains(expected), "{text}");

    let twice = error_of(&[("rank 0", &[(0, "abcdefghij"), (0, "abcdefghij")]), ("rank 1", &[])]);
    assert!(twice.to_string().contains("twice, by `rank 0` and by `rank 0`"), "{twice}");

    let missing = error_of(&[("rank 0", &[(0, "abcdefghij")])]);
    assert!(missing.to_string().contains("no report from `rank 1`"), "{missing}");
}

#[test]
fn invalid_reports_are_rejected() {
    let run = tempfile::tempdir().unwrap();
    let mut staging = stage(run.path());
    let report = write(&staging, "rank 0", &[(0, "abc")]);
    staging.accept(report.clone()).unwrap();
    let mut problem = |report| staging.accept(report).unwrap_err().to_string();
    let twice = problem(report);
    assert!(twice.starts_with("invalid report of writer `rank 0` for "), "{twice}");
    assert!(twice.contains(": a writer with this name has already reported"), "{twice}");

    for (file, offset, bytes) in [
        ("model/y.bin", 0, 1),
        ("model/x.bin", 0, 0),
        ("model/x.bin", 0, 11),
        ("model/x.bin", 9, 2),
        ("model/x.bin", u64::MAX, 2),
        ("model/x.bin", 2, u64::MAX),
    ] {
        let block = Block { offset, bytes, xxh3: Digest(0) };
        let report = WriteReport {
            writer: "rank 1".to_owned(),
            parts: [(file.to_owned(), vec![block])].into(),
        };
        let found = problem(report);
        let expected = match file {
            "model/y.bin" => "`model/y.bin` was not created as a shared file",
            _ => "`model/x.bin` of 10 bytes cannot have a block of",
        };
        assert!(found.contains(expected), "{found}");
    }
}

#[test]
fn only_a_staged_checkpoint_can_be_joined() {
    let run = tempfile::tempdir().unwrap();
    let staging = stage(run.path());
    let folder = staging.folder().to_owned();
    let mut writer = Writer::join(&folder, "rank 0").unwrap();
    for (path, is_name) in [("../x", true), ("/etc/passwd", true), ("none.bin", false)] {
        let error = writer.file(path).unwrap_err();
        assert_eq!(error.to_string().contains("invalid file name `"), is_name, "{error}");
    }

    drop(staging);
    for path in [folder.as_path(), run.path(), Path::new("/")] {
        let error = Writer::join(path, "rank 0").unwrap_err();
        assert!(error.to_string().contains("no checkpoint is being staged in"), "{error}");
    }
}

/// A file that was created and never written is incomplete, unless it is empty.
#[test]
fn created_files_must_be_written() {
    let run = tempfile::tempdir().unwrap();
    let staging = |bytes| -> Result<()> {
        let mut staging = Staging::new(run.path(), &step_name(bytes)).unwrap();
        staging.create("x.bin", bytes)?;
        staging.commit().map(|committed| committed.verify().unwrap())
    };
    staging(0).unwrap();
    let error = staging(1).unwrap_err();
    assert!(error.to_string().contains(" is not complete: bytes 0..1 were not written"), "{error}");
}
