//! Defects of a checkpoint are detected and named.

use super::*;

/// A folder whose name reached the disk before its content is never chosen, for any truncation of
/// any file. (A correct file system prevents this, but disks may lie about flushes.)
#[test]
fn a_partly_written_folder_is_never_chosen() {
    let run = tempfile::tempdir().unwrap();
    save(run.path(), 1);
    let torn = save(run.path(), 2).path().to_owned();

    for file in ["manifest.json", "train.json", "model/config.json", "model/model.safetensors"] {
        let path = torn.join(file);
        let whole = fs::read(&path).unwrap();

        for len in 0..whole.len() {
            fs::write(&path, &whole[..len]).unwrap();
            assert_eq!(steps(run.path()), [1], "{file} truncated to {len}");
        }

        fs::remove_file(&path).unwrap();
        assert_eq!(steps(run.path()), [1], "{file} removed");
        fs::write(&path, &whole).unwrap();
        assert_eq!(steps(run.path()), [1, 2]);
    }

    fs::write(torn.join("train.json"), b"longer than it was").unwrap();
    let scan = scan(run.path()).unwrap();
    assert_eq!((scan.complete.len(), scan.incomplete.len()), (1, 1));
    let text = scan.incomplete[0].to_string();
    assert!(text.contains("step-000002") && text.contains("train.json has 18 bytes"), "{text}");
}

/// Any single flipped bit is detected: in the data by its digest, in the manifest by its seal.
#[test]
fn every_bit_flip_is_detected() {
    let run = tempfile::tempdir().unwrap();
    let published = save(run.path(), 1);
    let folder = published.path();

    for file in ["manifest.json", "train.json", "model/config.json", "model/model.safetensors"] {
        let path = folder.join(file);
        let whole = fs::read(&path).unwrap();

        for at in 0..whole.len() {
            let bit = 1 << (at % 8);
            let mut flipped = whole.clone();
            flipped[at] ^= bit;
            fs::write(&path, &flipped).unwrap();

            match Committed::open(folder).and_then(|found| found.verify()) {
                Err(error) if error.details::<Incomplete>().is_some() => {}
                other => panic!("byte {at} of {file}: {other:?}"),
            }
        }
        fs::write(&path, &whole).unwrap();
    }
    published.verify().unwrap();
}

/// The manifest with a modified text above its seal, and a matching new seal.
fn reseal(manifest: &str, from: &str, to: &str) -> String {
    let (above, seal) = manifest.split_once("  \"seal\"").unwrap();
    let above = above.replace(from, to);
    let old = seal.split('"').nth(1).unwrap();
    format!("{above}  \"seal\"{}", seal.replace(old, &Digest::of(above.as_bytes()).to_string()))
}

#[test]
fn manifests_cannot_lead_out_of_their_folder() {
    let run = tempfile::tempdir().unwrap();
    let published = save(run.path(), 1);
    let path = published.path().join("manifest.json");
    let whole = fs::read_to_string(&path).unwrap();

    for to in ["../train.json", "/etc/passwd", "model/../train.json"] {
        fs::write(&path, reseal(&whole, "train.json", to)).unwrap();
        let problem = problem(published.path());
        assert!(matches!(problem, IntegrityError::BadManifest { .. }), "{to}: {problem}");
    }
    fs::write(&path, reseal(&whole, "train.json", "drain.json")).unwrap();
    assert!(matches!(problem(published.path()), IntegrityError::MissingFiles { .. }));
    fs::write(&path, whole.replace("train.json", "drain.json")).unwrap();
    assert!(matches!(problem(published.path()), IntegrityError::BrokenSeal { .. }));

    fs::write(&path, reseal(&whole, "\"version\": 2", "\"version\": 3")).unwrap();
    assert_eq!(problem(published.path()), IntegrityError::NewerVersion { found: 3 });

    // Written by a newer program: it must not be replaced.
    let error = Staging::new(run.path(), &step_name(1)).unwrap_err();
    assert!(error.to_string().contains(" already exists; "), "{error}");
}

/// `newest` returns the newest complete checkpoint, and a reason for each newer incomplete one.
#[test]
fn newer_incomplete_checkpoints_are_skipped_with_a_reason() {
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
    assert_eq!(skipped.len(), 2, "only the newer ones: {skipped:?}");
    assert!(skipped[0].contains("step-000005") && skipped[0].contains("no manifest.json"));
    assert!(skipped[1].contains("step-000004") && skipped[1].contains("`train.json`"));
}

/// Metadata of any type round-trips.
#[test]
fn metadata_round_trips() {
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
fn damage_is_located() {
    let run = tempfile::tempdir().unwrap();
    let mut staging = Staging::new(run.path(), "export").unwrap().block_bytes(1000);
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
        let damage = published.find_damage(threads, count).unwrap();
        assert_eq!(read.into_inner(), 5000);

        let places: Vec<_> = damage
            .iter()
            .map(|problem| match problem {
                IntegrityError::WrongDigest { file, block, range, .. } => {
                    (file.as_str(), *block, range.clone())
                }
                other => panic!("{other}"),
            })
            .collect();
        assert_eq!(places, [("b.bin", 0, 0..1000), ("b.bin", 2, 2000..2500)]);
    }
    let text = problem(published.path()).to_string();
    assert!(text.contains("b.bin is damaged: bytes 0..1000 (block 0)"), "{text}");
}

#[test]
fn reserved_files_must_be_written() {
    let run = tempfile::tempdir().unwrap();
    let mut staging = stage(run.path(), 1);
    staging.reserve("big.bin", 10).unwrap();
    assert_eq!(fs::metadata(staging.folder().join("big.bin")).unwrap().len(), 10);
    let error = staging.write("big.bin", &[1; 9]).unwrap_err();
    assert!(error.to_string().contains("with 10 bytes, but 9 were written"), "{error}");

    staging.reserve("big.bin", 10).unwrap();
    let error = staging.commit().unwrap_err();
    assert!(error.to_string().contains("with 10 bytes, but 0 were written"), "{error}");
    assert_eq!(names_in(run.path()), [""; 0]);
}

/// A missing folder is distinguished from an incomplete one, and the error names an alternative.
/// The search for the newest checkpoint silently ignores missing folders.
#[test]
fn absent_checkpoints_are_not_incomplete() {
    let run = tempfile::tempdir().unwrap();
    let absent = run.path().join("step-000003");
    let error = |path: &Path| match Committed::open(path) {
        Err(error) if error.kind() == Kind::Missing => error.to_string(),
        other => panic!("{other:?}"),
    };
    let expected = "step-000003 does not exist; its parent folder has no complete checkpoint";
    assert!(error(&absent).ends_with(expected), "{}", error(&absent));

    save(run.path(), 1);
    let newest = save(run.path(), 2);
    fs::create_dir(run.path().join("step-000009")).unwrap();
    let said = error(&absent);
    assert!(said.starts_with(&format!("{} does not exist; ", absent.display())));
    let expected = format!("its parent folder is {}", newest.path().display());
    assert!(said.ends_with(&expected), "{said}");
    assert!(matches!(problem(&run.path().join("step-000009")), IntegrityError::NoManifest));

    let said = error(&run.path().join("none/step-000001"));
    assert!(said.ends_with("its parent folder has no complete checkpoint"), "{said}");
}

/// Neither the manifest nor files are read through links, at any position in their path.
#[test]
fn links_are_not_part_of_a_checkpoint() {
    let run = tempfile::tempdir().unwrap();
    for (step, linked) in [(1, "manifest.json"), (2, "train.json"), (3, "model")] {
        let path = save(run.path(), step).path().to_owned();
        let elsewhere = run.path().join(format!("elsewhere-{step}"));
        fs::rename(path.join(linked), &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, path.join(linked)).unwrap();
        match (linked, problem(&path)) {
            ("manifest.json", IntegrityError::NoManifest) => {}
            ("train.json", IntegrityError::MissingFiles { files }) => {
                assert_eq!(files, ["train.json"])
            }
            ("model", IntegrityError::MissingFiles { files }) => assert_eq!(files.len(), 2),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(steps(run.path()), [0; 0]);
}
