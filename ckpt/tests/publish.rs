//! A checkpoint is there completely or not at all.

use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use meshgrad_ckpt::{
    Committed, Digest, Dtype, Error, Flaw, FolderWriter, NameProblem, Staging, discover, keep_last,
    newest, step_name, survey, sweep,
};

/// Begins a checkpoint of three files, whose content depends on the step.
fn stage(parent: &Path, step: u64) -> Staging {
    let mut staging = Staging::new(parent, &step_name(step)).unwrap();
    let weight = [step as u8; 64];

    let mut model = FolderWriter::new();
    model.add("w", Dtype::U8, &[64]).unwrap();
    model
        .write(&mut staging, "model", |_, out| out.append(&weight))
        .unwrap();

    staging.write("model/config.json", b"{}").unwrap();
    staging
        .write("train.json", format!("{{\"step\":{step}}}").as_bytes())
        .unwrap();
    staging
}

fn save(parent: &Path, step: u64) -> Committed {
    stage(parent, step).commit().unwrap()
}

fn steps(parent: &Path) -> Vec<u64> {
    let found = discover(parent).unwrap();
    found
        .iter()
        .map(|published| published.step().unwrap())
        .collect()
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Copies a folder with all below it: how it would look after a kill at this moment.
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
fn flaw(path: &Path) -> Flaw {
    match Committed::open(path).and_then(|published| published.verify()) {
        Err(Error::Incomplete { flaw, .. }) => flaw,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_published_is_complete() {
    let run = tempfile::tempdir().unwrap();
    assert_eq!(steps(run.path()), [0u64; 0]);

    for step in [10, 9, 1_000_000, 200] {
        let published = save(run.path(), step);
        assert_eq!(published.path(), run.path().join(step_name(step)));
        published.verify().unwrap();

        let files: Vec<_> = published.files().map(|(path, _)| path).collect();
        assert_eq!(
            files,
            ["model/config.json", "model/model.safetensors", "train.json"]
        );
    }
    assert_eq!(steps(run.path()), [9, 10, 200, 1_000_000]);
    assert_eq!(names_in(run.path()).len(), 4, "nothing hidden is left");
}

/// Files of other writers in the folder are sealed with the rest.
#[test]
fn foreign_files_are_sealed_too() {
    let run = tempfile::tempdir().unwrap();
    let staging = stage(run.path(), 1);
    fs::create_dir(staging.folder().join("extra")).unwrap();
    fs::write(staging.folder().join("extra/tokenizer.json"), b"[1]").unwrap();

    let published = staging.commit().unwrap();
    assert!(
        published
            .files()
            .any(|file| file == ("extra/tokenizer.json", 3))
    );

    fs::write(published.path().join("extra/tokenizer.json"), b"[2]").unwrap();
    assert!(matches!(flaw(published.path()), Flaw::WrongDigest { .. }));
}

#[test]
fn a_dropped_staging_leaves_nothing() {
    let run = tempfile::tempdir().unwrap();
    drop(stage(run.path(), 1));
    assert_eq!(names_in(run.path()), [""; 0]);

    // Also when the data of a file cannot be made.
    let mut staging = stage(run.path(), 1);
    let failed = staging.write_with("big.bin", |file| {
        file.append(&[0; 100])?;
        Err(Error::NotAFile { path: "x".into() })
    });
    assert!(failed.is_err());
    assert!(!staging.folder().join("big.bin").exists());
    drop(staging);
    assert_eq!(names_in(run.path()), [""; 0]);
}

/// A kill at any moment before the rename: whatever files are there, whole or cut, sealed or not,
/// the newest checkpoint is still the old one, and the next sweep removes the rest.
#[test]
fn a_kill_while_staging_leaves_the_old_state() {
    let run = tempfile::tempdir().unwrap();
    save(run.path(), 1);
    let sealed = save(run.path(), 2);

    let scratch = tempfile::tempdir().unwrap();
    let whole = scratch.path().join("whole");
    fs::rename(sealed.path(), &whole).unwrap();

    let leftover = run.path().join(".step-000002.tmp-0123456789abcdef");
    let files = [
        "manifest.json",
        "train.json",
        "model/config.json",
        "model/model.safetensors",
    ];
    for cut in files {
        let len = fs::metadata(whole.join(cut)).unwrap().len();
        for kept in [0, len / 2, len] {
            copy(&whole, &leftover);
            let file = fs::OpenOptions::new()
                .write(true)
                .open(leftover.join(cut))
                .unwrap();
            file.set_len(kept).unwrap();

            assert_eq!(steps(run.path()), [1]);
            sweep(run.path()).unwrap();
            assert_eq!(names_in(run.path()), ["step-000001"]);
        }
    }
}

/// A folder whose name reached the disk before its content (no file system that keeps to the rules
/// does this, but disks lie): never chosen, whichever file is cut to whatever length.
#[test]
fn a_torn_folder_is_never_chosen() {
    let run = tempfile::tempdir().unwrap();
    save(run.path(), 1);
    let torn = save(run.path(), 2).path().to_owned();

    for file in [
        "manifest.json",
        "train.json",
        "model/config.json",
        "model/model.safetensors",
    ] {
        let path = torn.join(file);
        let whole = fs::read(&path).unwrap();

        for len in 0..whole.len() {
            fs::write(&path, &whole[..len]).unwrap();
            assert_eq!(steps(run.path()), [1], "{file} cut to {len}");
        }

        fs::remove_file(&path).unwrap();
        assert_eq!(steps(run.path()), [1], "{file} removed");
        fs::write(&path, &whole).unwrap();
        assert_eq!(steps(run.path()), [1, 2]);
    }

    fs::write(torn.join("train.json"), b"longer than it was").unwrap();
    let survey = survey(run.path()).unwrap();
    assert_eq!((survey.complete.len(), survey.incomplete.len()), (1, 1));
    let text = survey.incomplete[0].to_string();
    assert!(
        text.contains("step-000002") && text.contains("train.json has 18 bytes"),
        "{text}"
    );
}

/// Any single flipped bit is found, wherever it is: in the data by its digest, in the manifest by
/// its seal.
#[test]
fn every_flipped_bit_is_found() {
    let run = tempfile::tempdir().unwrap();
    let published = save(run.path(), 1);
    let folder = published.path();

    for file in [
        "manifest.json",
        "train.json",
        "model/config.json",
        "model/model.safetensors",
    ] {
        let path = folder.join(file);
        let whole = fs::read(&path).unwrap();

        for at in 0..whole.len() {
            let bit = 1 << (at % 8);
            let mut flipped = whole.clone();
            flipped[at] ^= bit;
            fs::write(&path, &flipped).unwrap();

            match Committed::open(folder).and_then(|found| found.verify()) {
                Err(Error::Incomplete { .. }) => {}
                other => panic!("byte {at} of {file}: {other:?}"),
            }
        }
        fs::write(&path, &whole).unwrap();
    }
    published.verify().unwrap();
}

/// The manifest with another text above its seal, and the seal that belongs to that.
fn reseal(manifest: &str, from: &str, to: &str) -> String {
    let (above, seal) = manifest.split_once("  \"seal\"").unwrap();
    let above = above.replace(from, to);
    let old = seal.split('"').nth(1).unwrap();
    format!(
        "{above}  \"seal\"{}",
        seal.replace(old, &Digest::of(above.as_bytes()).to_string())
    )
}

#[test]
fn manifests_cannot_lead_out_of_their_folder() {
    let run = tempfile::tempdir().unwrap();
    let published = save(run.path(), 1);
    let path = published.path().join("manifest.json");
    let whole = fs::read_to_string(&path).unwrap();

    for to in ["../train.json", "/etc/passwd", "model/../train.json"] {
        fs::write(&path, reseal(&whole, "train.json", to)).unwrap();
        let flaw = flaw(published.path());
        assert!(matches!(flaw, Flaw::BadManifest { .. }), "{to}: {flaw}");
    }
    fs::write(&path, reseal(&whole, "train.json", "drain.json")).unwrap();
    assert!(matches!(flaw(published.path()), Flaw::MissingFiles { .. }));
    fs::write(&path, whole.replace("train.json", "drain.json")).unwrap();
    assert!(matches!(flaw(published.path()), Flaw::BrokenSeal { .. }));

    fs::write(&path, reseal(&whole, "\"version\": 2", "\"version\": 3")).unwrap();
    assert_eq!(flaw(published.path()), Flaw::NewerVersion { found: 3 });

    // Made by a newer program: not ours to replace.
    let error = Staging::new(run.path(), &step_name(1)).unwrap_err();
    assert!(matches!(error, Error::Exists { .. }), "{error}");
}

/// The newest that is complete, and a reason for each newer one that is not.
#[test]
fn newer_but_incomplete_checkpoints_are_passed_over_with_a_reason() {
    let run = tempfile::tempdir().unwrap();
    assert!(newest(run.path()).unwrap().committed.is_none());
    for step in 1..=5 {
        save(run.path(), step);
    }
    for (step, file) in [(5, "manifest.json"), (4, "train.json"), (2, "train.json")] {
        fs::remove_file(run.path().join(step_name(step)).join(file)).unwrap();
    }

    let newest = newest(run.path()).unwrap();
    assert_eq!(newest.committed.unwrap().step(), Some(3));
    let skipped: Vec<String> = newest.skipped.iter().map(Error::to_string).collect();
    assert_eq!(skipped.len(), 2, "of the newer ones only: {skipped:?}");
    assert!(skipped[0].contains("step-000005") && skipped[0].contains("no manifest.json"));
    assert!(skipped[1].contains("step-000004") && skipped[1].contains("`train.json`"));
}

/// What a checkpoint says about itself comes back, of any type.
#[test]
fn what_is_said_about_a_checkpoint_is_found_again() {
    let run = tempfile::tempdir().unwrap();
    let mut staging = stage(run.path(), 7);
    staging.set_about("step", 7);
    staging.set_about("loss", 0.1 + 0.2);
    staging.set_about("mesh", serde_json::json!({"dp": 2, "tp": [1, 2]}));
    staging.commit().unwrap();

    let found = newest(run.path()).unwrap().committed.unwrap();
    assert_eq!(found.about()["step"], 7);
    assert_eq!(found.about()["loss"], 0.1 + 0.2);
    assert_eq!(found.about()["mesh"]["tp"][1], 2);
}

/// Every damaged block is named, with its bytes.
#[test]
fn damage_has_a_place() {
    let run = tempfile::tempdir().unwrap();
    let mut staging = Staging::new(run.path(), "export")
        .unwrap()
        .block_bytes(1000);
    for file in ["a.bin", "b.bin"] {
        staging.write(file, &[7; 2500]).unwrap();
    }
    let published = staging.commit().unwrap();

    let mut bytes = [7; 2500];
    (bytes[999], bytes[2499]) = (8, 8);
    fs::write(published.path().join("b.bin"), bytes).unwrap();
    for threads in [1, 4] {
        let read = std::sync::atomic::AtomicU64::new(0);
        let count = |bytes| {
            read.fetch_add(bytes, Ordering::Relaxed);
        };
        let damage = published.damage(threads, count).unwrap();
        assert_eq!(read.into_inner(), 5000);

        let places: Vec<_> = damage
            .iter()
            .map(|flaw| match flaw {
                Flaw::WrongDigest {
                    file, block, range, ..
                } => (file.as_str(), *block, range.clone()),
                other => panic!("{other}"),
            })
            .collect();
        assert_eq!(places, [("b.bin", 0, 0..1000), ("b.bin", 2, 2000..2500)]);
    }
    let text = flaw(published.path()).to_string();
    assert!(
        text.contains("b.bin is damaged: bytes 0..1000 (block 0)"),
        "{text}"
    );
}

#[test]
fn what_is_reserved_must_be_written() {
    let run = tempfile::tempdir().unwrap();
    let mut staging = stage(run.path(), 1);
    staging.reserve("big.bin", 10).unwrap();
    assert_eq!(
        fs::metadata(staging.folder().join("big.bin"))
            .unwrap()
            .len(),
        10
    );
    let error = staging.write("big.bin", &[1; 9]).unwrap_err();
    assert!(
        matches!(
            error,
            Error::WrongLength {
                wanted: 10,
                given: 9,
                ..
            }
        ),
        "{error}"
    );

    staging.reserve("big.bin", 10).unwrap();
    let error = staging.commit().unwrap_err();
    assert!(
        matches!(error, Error::WrongLength { given: 0, .. }),
        "{error}"
    );
    assert_eq!(names_in(run.path()), [""; 0]);
}

#[test]
fn a_name_is_given_once() {
    let run = tempfile::tempdir().unwrap();
    let first = stage(run.path(), 1);
    let second = stage(run.path(), 1);
    assert_ne!(first.folder(), second.folder());

    first.commit().unwrap();
    let error = second.commit().unwrap_err();
    assert!(matches!(error, Error::Exists { .. }), "{error}");
    let error = Staging::new(run.path(), &step_name(1)).unwrap_err();
    assert!(matches!(error, Error::Exists { .. }), "{error}");

    discover(run.path()).unwrap()[0].verify().unwrap();
    assert_eq!(names_in(run.path()), ["step-000001"]);
}

/// An incomplete checkpoint of a step gives way; what else has the name does not.
#[test]
fn only_incomplete_checkpoints_are_replaced() {
    let run = tempfile::tempdir().unwrap();
    let path = save(run.path(), 1).path().to_owned();
    fs::remove_file(path.join("manifest.json")).unwrap();

    let staging = stage(run.path(), 1);
    assert!(
        path.join("train.json").exists(),
        "untouched until the commit"
    );
    staging.commit().unwrap().verify().unwrap();
    assert_eq!(names_in(run.path()), ["step-000001"]);

    fs::create_dir(run.path().join("export")).unwrap();
    fs::write(run.path().join("export/notes.txt"), b"dear").unwrap();
    fs::write(run.path().join("step-000002"), b"a file").unwrap();
    for name in ["export", "step-000002"] {
        let error = Staging::new(run.path(), name).unwrap_err();
        assert!(matches!(error, Error::Exists { .. }), "{error}");
    }
}

#[test]
fn paths_stay_in_the_staging_folder() {
    let run = tempfile::tempdir().unwrap();
    for name in ["", "..", "a/b", "/tmp/x", ".hidden"] {
        let error = Staging::new(run.path(), name).unwrap_err();
        assert!(matches!(error, Error::FileName { .. }), "{name}: {error}");
    }

    let mut staging = stage(run.path(), 1);
    for path in ["", "..", "../x", "/x", "a/../x", "a//b"] {
        let error = staging.write(path, b"x").unwrap_err();
        assert!(matches!(error, Error::FileName { .. }), "{path}: {error}");
    }
    let error = staging.write("manifest.json", b"{}").unwrap_err();
    assert!(
        matches!(
            error,
            Error::FileName {
                problem: NameProblem::Taken,
                ..
            }
        ),
        "{error}"
    );
    let error = staging.write("train.json", b"again").unwrap_err();
    assert!(matches!(error, Error::Exists { .. }), "{error}");

    let error = Staging::new(run.path().join("none"), "x").unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
}

#[test]
fn files_changed_behind_our_back_are_not_sealed() {
    let run = tempfile::tempdir().unwrap();

    let staging = stage(run.path(), 1);
    fs::write(staging.folder().join("train.json"), b"x").unwrap();
    let error = staging.commit().unwrap_err();
    assert!(
        matches!(error, Error::ChangedWhileStaged { found: 1, .. }),
        "{error}"
    );

    let staging = stage(run.path(), 1);
    fs::remove_file(staging.folder().join("train.json")).unwrap();
    let error = staging.commit().unwrap_err();
    assert!(matches!(error, Error::ChangedWhileStaged { .. }), "{error}");

    let staging = stage(run.path(), 1);
    std::os::unix::fs::symlink("/etc/passwd", staging.folder().join("link")).unwrap();
    let error = staging.commit().unwrap_err();
    assert!(matches!(error, Error::NotAFile { .. }), "{error}");

    assert_eq!(names_in(run.path()), [""; 0]);
}

#[test]
fn the_last_ones_are_kept() {
    let run = tempfile::tempdir().unwrap();
    for step in 1..=5 {
        save(run.path(), step);
    }
    // Newer, but not complete: does not count, and is not removed.
    fs::create_dir(run.path().join("step-000006")).unwrap();
    fs::write(run.path().join("notes.txt"), b"dear").unwrap();

    let keep = |count| keep_last(run.path(), NonZeroUsize::new(count).unwrap()).unwrap();
    keep(9);
    assert_eq!(steps(run.path()), [1, 2, 3, 4, 5]);
    keep(2);
    assert_eq!(steps(run.path()), [4, 5]);
    keep(1);
    assert_eq!(
        names_in(run.path()),
        ["notes.txt", "step-000005", "step-000006"]
    );
}

/// A removal that was killed between rename and unlink is finished by the next.
#[test]
fn interrupted_removals_are_finished() {
    let run = tempfile::tempdir().unwrap();
    save(run.path(), 1);
    let removed = save(run.path(), 2);
    let trash = run.path().join(".step-000002.trash-0123456789abcdef");
    fs::rename(removed.path(), &trash).unwrap();
    fs::remove_file(trash.join("train.json")).unwrap();

    assert_eq!(steps(run.path()), [1]);
    sweep(run.path()).unwrap();
    assert_eq!(names_in(run.path()), ["step-000001"]);
}

#[test]
fn a_running_save_is_not_swept() {
    let run = tempfile::tempdir().unwrap();
    let running = stage(run.path(), 2);
    save(run.path(), 1);

    keep_last(run.path(), NonZeroUsize::MIN).unwrap();
    running.commit().unwrap().verify().unwrap();
    assert_eq!(steps(run.path()), [1, 2]);
}

/// A sweep may come at any moment, also between the making of a folder and its lock.
#[test]
fn sweeps_never_disturb_saves() {
    let run = tempfile::tempdir().unwrap();
    let done = AtomicBool::new(false);

    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                sweep(run.path()).unwrap();
            }
        });

        // No file: a sync would take so long that the two hardly met.
        let lost = (0..300).find_map(|step| match Staging::new(run.path(), &step_name(step)) {
            Ok(staging) if staging.folder().is_dir() => None,
            other => Some(other),
        });
        done.store(true, Ordering::Relaxed);
        assert!(lost.is_none(), "{lost:?}");
    });
    assert_eq!(names_in(run.path()), [""; 0]);
}

#[test]
fn too_large_a_checkpoint_is_refused_before_it_is_begun() {
    let run = tempfile::tempdir().unwrap();
    save(run.path(), 1);
    let mut staging = Staging::new(run.path(), &step_name(2)).unwrap();

    let mut model = FolderWriter::new().max_shard_bytes(u64::MAX);
    model.add("huge", Dtype::U8, &[1 << 60]).unwrap();
    let error = model
        .write::<Error>(&mut staging, "", |_, _| panic!("nothing may be asked for"))
        .unwrap_err();

    let Error::NoSpace {
        wanted, available, ..
    } = &error
    else {
        panic!("{error}")
    };
    assert_eq!(*wanted, 1 << 60);
    assert!(available.is_some());

    drop(staging);
    assert_eq!(names_in(run.path()), ["step-000001"]);
    discover(run.path()).unwrap()[0].verify().unwrap();
}
