//! Old checkpoints and leftovers are removed, and nothing else.

use super::*;

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
