//! Old checkpoints and leftovers are removed, and nothing else.

use meshgrad_ckpt::{Leftover, LeftoverKind, leftovers, surplus};

use super::*;

/// Bytes of all files below a folder.
fn bytes_of(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let bytes = entries.map(|entry| match entry.file_type().unwrap() {
        kind if kind.is_dir() => bytes_of(&entry.path()),
        _ => entry.metadata().unwrap().len(),
    });
    bytes.sum()
}

/// A run with two checkpoints to remove, leftovers of each kind, and other files.
fn littered(run: &Path) -> (Staging, Vec<Leftover>) {
    let mut surplus = Vec::new();
    for step in 1..=3 {
        let path = save(run, step).path().to_owned();
        surplus.push(Leftover { bytes: bytes_of(&path), path, kind: LeftoverKind::Checkpoint });
    }
    surplus.pop();

    for name in [
        ".step-000002.tmp-0123456789abcdef",
        ".step-000003.trash-0123456789abcdef",
        ".x.tmp-0123456789abcde",
        ".x.tmp-0123456789ABCDEF",
        ".tmp-0123456789abcdef",
        "x.trash-0123456789abcdef",
        ".git",
    ] {
        fs::create_dir_all(run.join(name).join("model")).unwrap();
        fs::write(run.join(name).join("model/x"), [0; 7]).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", run.join(name).join("link")).unwrap();
    }
    fs::write(run.join(".state.json.tmp-0123456789abcdef"), "half").unwrap();
    (stage(run, 9), surplus)
}

/// Exactly the listed leftovers are removed, and returned with the same paths and sizes; only
/// running saves remain.
#[test]
fn removed_leftovers_are_returned() {
    let run = tempfile::tempdir().unwrap();
    let (live, checkpoints) = littered(run.path());
    let keep = NonZeroUsize::MIN;
    assert_eq!(surplus(run.path(), keep).unwrap(), checkpoints);

    let found = leftovers(run.path()).unwrap();
    let kinds: Vec<LeftoverKind> = found.iter().map(|it| it.kind).collect();
    use LeftoverKind::{InterruptedRemoval, InterruptedSave, RunningSave};
    let (save, removal) = (InterruptedSave, InterruptedRemoval);
    assert_eq!(kinds, [save, save, removal, RunningSave]);
    let bytes: Vec<u64> = found.iter().map(|it| it.bytes).collect();
    assert_eq!(bytes, [4, 7, 7, bytes_of(live.folder())]);
    assert_eq!(found[3].path, live.folder());

    let others: Vec<String> = names_in(run.path());
    let removed = keep_last(run.path(), keep).unwrap();
    assert_eq!(removed, [&checkpoints[..], &found[..3]].concat());
    assert_eq!(leftovers(run.path()).unwrap(), found[3..]);
    assert_eq!(names_in(run.path()).len(), others.len() - removed.len());
    assert_eq!(sweep(run.path()).unwrap(), []);
    assert_eq!(keep_last(run.path(), keep).unwrap(), []);
    assert_eq!(surplus(run.path(), keep).unwrap(), []);
}

#[test]
fn the_newest_checkpoints_are_kept() {
    let run = tempfile::tempdir().unwrap();
    for step in 1..=5 {
        save(run.path(), step);
    }
    // Newer but incomplete: does not count, and is not removed.
    fs::create_dir(run.path().join("step-000006")).unwrap();
    fs::write(run.path().join("notes.txt"), b"dear").unwrap();

    let keep = |count| keep_last(run.path(), NonZeroUsize::new(count).unwrap()).unwrap().len();
    assert_eq!(keep(9), 0);
    assert_eq!(steps(run.path()), [1, 2, 3, 4, 5]);
    assert_eq!(keep(2), 3);
    assert_eq!(steps(run.path()), [4, 5]);
    assert_eq!(keep(1), 1);
    assert_eq!(names_in(run.path()), ["notes.txt", "step-000005", "step-000006"]);
}

/// A removal that was killed between rename and unlink is finished by the next one.
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

/// `sweep` may run at any moment, even between the creation of a folder and its lock.
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

        // No file is written: its sync would take so long that save and sweep would rarely overlap.
        let lost = (0..300).find_map(|step| match Staging::new(run.path(), &step_name(step)) {
            Ok(staging) if staging.folder().is_dir() => None,
            other => Some(other),
        });
        done.store(true, Ordering::Relaxed);
        assert!(lost.is_none(), "{lost:?}");
    });
    assert_eq!(names_in(run.path()), [""; 0]);
}
