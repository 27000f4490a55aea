//! A checkpoint exists completely or not at all.

mod defects;
mod removal;

use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use meshgrad_ckpt::{
    Committed, Digest, Dtype, Error, FolderWriter, Incomplete, IntegrityError, Kind, NoSpace,
    Staging, discover, keep_last, newest, scan, step_name, sweep,
};

use crate::on_disk::{names_in, steps};

/// Starts a checkpoint of three files, whose content depends on the step.
fn stage(parent: &Path, step: u64) -> Staging {
    let mut staging = Staging::new(parent, &step_name(step)).unwrap();
    let weight = [step as u8; 64];

    let mut model = FolderWriter::new();
    model.add("w", Dtype::U8, &[64]).unwrap();
    model.write(&mut staging, "model", |_, out| out.append(&weight)).unwrap();

    staging.write("model/config.json", b"{}").unwrap();
    staging.write("train.json", format!("{{\"step\":{step}}}").as_bytes()).unwrap();
    staging
}

fn save(parent: &Path, step: u64) -> Committed {
    stage(parent, step).commit().unwrap()
}

/// Copies a folder recursively: its state after a kill at this moment.
fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[track_caller]
fn problem(path: &Path) -> IntegrityError {
    let error = Committed::open(path).and_then(|published| published.verify()).unwrap_err();
    error.details::<Incomplete>().expect("a problem of the checkpoint").problem.clone()
}

#[test]
fn published_checkpoints_are_complete() {
    let run = tempfile::tempdir().unwrap();
    assert_eq!(steps(run.path()), [0u64; 0]);

    for step in [10, 9, 1_000_000, 200] {
        let published = save(run.path(), step);
        assert_eq!(published.path(), run.path().join(step_name(step)));
        published.verify().unwrap();

        let files: Vec<_> = published.files().map(|(path, _)| path).collect();
        assert_eq!(files, ["model/config.json", "model/model.safetensors", "train.json"]);
    }
    assert_eq!(steps(run.path()), [9, 10, 200, 1_000_000]);
    assert_eq!(names_in(run.path()).len(), 4, "no hidden folder is left");
}

/// Files that other programs add to the folder are sealed with the rest.
#[test]
fn foreign_files_are_sealed_too() {
    let run = tempfile::tempdir().unwrap();
    let staging = stage(run.path(), 1);
    fs::create_dir(staging.folder().join("extra")).unwrap();
    fs::write(staging.folder().join("extra/tokenizer.json"), b"[1]").unwrap();

    let published = staging.commit().unwrap();
    assert!(published.files().any(|file| file == ("extra/tokenizer.json", 3)));

    fs::write(published.path().join("extra/tokenizer.json"), b"[2]").unwrap();
    assert!(matches!(problem(published.path()), IntegrityError::WrongDigest { .. }));
}

#[test]
fn a_dropped_staging_leaves_nothing() {
    let run = tempfile::tempdir().unwrap();
    drop(stage(run.path(), 1));
    assert_eq!(names_in(run.path()), [""; 0]);

    // The same holds when a file's data cannot be produced.
    let mut staging = stage(run.path(), 1);
    let failed = staging.write_with("big.bin", |file| {
        file.append(&[0; 100])?;
        Err(Error::new(Kind::Invalid, "no data"))
    });
    assert!(failed.is_err());
    assert!(!staging.folder().join("big.bin").exists());
    drop(staging);
    assert_eq!(names_in(run.path()), [""; 0]);
}

/// After a kill at any moment before the rename, the newest checkpoint is still the old one, and
/// the next call of `sweep` removes the rest. Files may be complete or truncated, sealed or not.
#[test]
fn a_kill_while_staging_keeps_the_old_state() {
    let run = tempfile::tempdir().unwrap();
    save(run.path(), 1);
    let sealed = save(run.path(), 2);

    let scratch = tempfile::tempdir().unwrap();
    let whole = scratch.path().join("whole");
    fs::rename(sealed.path(), &whole).unwrap();

    let leftover = run.path().join(".step-000002.tmp-0123456789abcdef");
    let files = ["manifest.json", "train.json", "model/config.json", "model/model.safetensors"];
    for cut in files {
        let len = fs::metadata(whole.join(cut)).unwrap().len();
        for kept in [0, len / 2, len] {
            copy(&whole, &leftover);
            let file = fs::OpenOptions::new().write(true).open(leftover.join(cut)).unwrap();
            file.set_len(kept).unwrap();

            assert_eq!(steps(run.path()), [1]);
            sweep(run.path()).unwrap();
            assert_eq!(names_in(run.path()), ["step-000001"]);
        }
    }
}

#[test]
fn a_name_can_be_published_once() {
    let run = tempfile::tempdir().unwrap();
    let first = stage(run.path(), 1);
    let second = stage(run.path(), 1);
    assert_ne!(first.folder(), second.folder());

    first.commit().unwrap();
    let error = second.commit().unwrap_err();
    assert!(error.to_string().contains(" already exists; "), "{error}");
    let error = Staging::new(run.path(), &step_name(1)).unwrap_err();
    assert!(error.to_string().contains(" already exists; "), "{error}");

    discover(run.path()).unwrap()[0].verify().unwrap();
    assert_eq!(names_in(run.path()), ["step-000001"]);
}

/// An incomplete checkpoint of a step is replaced; anything else with the name is not.
#[test]
fn only_incomplete_checkpoints_are_replaced() {
    let run = tempfile::tempdir().unwrap();
    let path = save(run.path(), 1).path().to_owned();
    fs::remove_file(path.join("manifest.json")).unwrap();

    let staging = stage(run.path(), 1);
    assert!(path.join("train.json").exists(), "untouched until the commit");
    staging.commit().unwrap().verify().unwrap();
    assert_eq!(names_in(run.path()), ["step-000001"]);

    fs::create_dir(run.path().join("export")).unwrap();
    fs::write(run.path().join("export/notes.txt"), b"dear").unwrap();
    fs::write(run.path().join("step-000002"), b"a file").unwrap();
    for name in ["export", "step-000002"] {
        let error = Staging::new(run.path(), name).unwrap_err();
        assert!(error.to_string().contains(" already exists; "), "{error}");
    }
}

#[test]
fn paths_stay_in_the_staging_folder() {
    let run = tempfile::tempdir().unwrap();
    for name in ["", "..", "a/b", "/tmp/x", ".hidden"] {
        let error = Staging::new(run.path(), name).unwrap_err();
        assert!(error.to_string().contains("invalid file name `"), "{name}: {error}");
    }

    let mut staging = stage(run.path(), 1);
    for path in ["", "..", "../x", "/x", "a/../x", "a//b"] {
        let error = staging.write(path, b"x").unwrap_err();
        assert!(error.to_string().contains("invalid file name `"), "{path}: {error}");
    }
    let error = staging.write("manifest.json", b"{}").unwrap_err();
    let error = error.to_string();
    assert!(error.starts_with("invalid file name `manifest.json` in "), "{error}");
    assert!(error.ends_with(": this name is used by the checkpoint itself"), "{error}");
    let error = staging.write("train.json", b"again").unwrap_err();
    assert!(error.to_string().contains(" already exists; "), "{error}");

    let error = Staging::new(run.path().join("none"), "x").unwrap_err();
    assert_eq!(error.kind(), Kind::Missing);
    assert!(error.to_string().starts_with("cannot write "), "{error}");
}

#[test]
fn files_modified_by_other_programs_are_not_sealed() {
    let run = tempfile::tempdir().unwrap();

    let staging = stage(run.path(), 1);
    fs::write(staging.folder().join("train.json"), b"x").unwrap();
    let error = staging.commit().unwrap_err();
    assert!(error.to_string().contains(" has 1 bytes but "), "{error}");

    let staging = stage(run.path(), 1);
    fs::remove_file(staging.folder().join("train.json")).unwrap();
    let error = staging.commit().unwrap_err();
    assert!(error.to_string().contains("another program modified it"), "{error}");

    let staging = stage(run.path(), 1);
    std::os::unix::fs::symlink("/etc/passwd", staging.folder().join("link")).unwrap();
    let error = staging.commit().unwrap_err();
    assert!(error.to_string().contains(" is not a regular file"), "{error}");

    assert_eq!(names_in(run.path()), [""; 0]);
}

#[test]
fn a_checkpoint_that_does_not_fit_is_rejected_before_it_starts() {
    let run = tempfile::tempdir().unwrap();
    save(run.path(), 1);
    let mut staging = Staging::new(run.path(), &step_name(2)).unwrap();

    let mut model = FolderWriter::new().max_shard_bytes(u64::MAX);
    model.add("huge", Dtype::U8, &[1 << 60]).unwrap();
    let error = model
        .write::<Error>(&mut staging, "", |_, _| panic!("no data may be requested"))
        .unwrap_err();

    let NoSpace { needed, available, .. } = error.details().expect("details");
    assert!(*needed > 1 << 60, "including the header: {needed}");
    assert!(available.is_some());

    drop(staging);
    assert_eq!(names_in(run.path()), ["step-000001"]);
    discover(run.path()).unwrap()[0].verify().unwrap();
}
