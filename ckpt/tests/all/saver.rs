//! Saving in the background: the snapshot is saved, and no failure is lost.

use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::{fs, thread};

use meshgrad_ckpt::{
    Committed, Dtype, Folder, FolderWriter, NoSpace, Result, Saver, Snapshot, Staging, Submitted,
    Task, WhenBusy, Writer, step_name,
};

use crate::on_disk::steps;

/// A snapshot whose save waits until it is released.
fn held(run: &Path, step: u64) -> (Snapshot, Sender<()>) {
    let (go, wait): (_, Receiver<()>) = channel();
    let mut snapshot = Snapshot::new(run, &step_name(step));
    snapshot.add("weights.bin", vec![step as u8; 1000]);
    snapshot.add_with("late.bin", 4, move |file| {
        // Dropping the sender releases it too.
        let _ = wait.recv();
        file.append(b"late")
    });
    (snapshot, go)
}

fn broken(run: &Path, step: u64) -> Snapshot {
    let mut snapshot = Snapshot::new(run, &step_name(step));
    snapshot.add("../outside", b"x".to_vec());
    snapshot
}

fn started<T>(begin: Submitted<T>) -> Option<Result<T>> {
    match begin {
        Submitted::Started { previous } => previous,
        Submitted::Busy(task) => panic!("{task:?} was rejected"),
    }
}

/// The weights change all the time while they are saved; the saved bytes are those of the snapshot.
#[test]
fn the_snapshot_is_saved() {
    let run = tempfile::tempdir().unwrap();
    let weights: Arc<Vec<AtomicU8>> = Arc::new((0..20_000).map(|_| AtomicU8::new(0)).collect());
    let set = |value: u8| {
        for weight in weights.iter() {
            weight.store(value, Ordering::Relaxed);
        }
    };
    let mut saver = Saver::new(WhenBusy::Wait);

    for step in 1..=50 {
        let canary = step as u8;
        set(canary);
        let copy: Vec<u8> = weights.iter().map(|w| w.load(Ordering::Relaxed)).collect();

        let mut snapshot = Snapshot::new(run.path(), &step_name(step));
        snapshot.set_about("step", step);
        let mut model = FolderWriter::new();
        model.add("w", Dtype::U8, &[copy.len()]).unwrap();
        let (changed, wait) = channel();
        snapshot.add_model("", model, move |_, data| {
            data.append(&copy[..10_000])?;
            wait.recv().unwrap();
            data.append(&copy[10_000..])
        });
        assert!(started(saver.submit(snapshot)).is_none());

        // Half of it may already be written.
        set(255);
        changed.send(()).unwrap();
        set(254);

        let committed: Committed = saver.wait().unwrap().unwrap();
        committed.verify().unwrap();
        assert_eq!(committed.about()["step"], step);
        let saved = Folder::open(committed.path()).unwrap().read("w").unwrap();
        assert!(saved.iter().all(|&byte| byte == canary), "step {step}");
    }
}

#[test]
fn only_one_save_runs_at_a_time() {
    let run = tempfile::tempdir().unwrap();
    let mut saver = Saver::new(WhenBusy::Reject);
    let (first, go) = held(run.path(), 1);
    assert!(started(saver.submit(first)).is_none());
    assert!(saver.is_running());
    assert!(saver.poll().is_none());
    assert!(steps(run.path()).is_empty(), "not before it is complete");

    let (second, go_second) = held(run.path(), 2);
    drop(go_second);
    let Submitted::Busy(second) = saver.submit(second) else { panic!("two at once") };
    go.send(()).unwrap();
    assert_eq!(saver.wait().unwrap().unwrap().step(), Some(1));
    assert!(saver.wait().is_none(), "returned once");

    assert!(started(saver.submit(second)).is_none());
    while saver.is_running() {
        thread::yield_now();
    }
    assert_eq!(saver.poll().unwrap().unwrap().step(), Some(2));
    assert_eq!(steps(run.path()), [1, 2]);
}

#[test]
fn a_waiting_saver_returns_the_previous_result() {
    let run = tempfile::tempdir().unwrap();
    let mut saver = Saver::new(WhenBusy::Wait);
    let (first, go) = held(run.path(), 1);
    assert!(started(saver.submit(first)).is_none());
    thread::scope(|scope| {
        scope.spawn(move || go.send(()).unwrap());
        let previous = started(saver.submit(broken(run.path(), 2)));
        assert_eq!(previous.unwrap().unwrap().step(), Some(1));
    });

    let (third, go) = held(run.path(), 3);
    drop(go);
    let failed = started(saver.submit(third)).unwrap();
    let failed = failed.unwrap_err().to_string();
    assert!(failed.contains("invalid file name `"), "{failed}");
    assert_eq!(saver.wait().unwrap().unwrap().step(), Some(3));
    assert_eq!(steps(run.path()), [1, 3]);
    assert_eq!(fs::read_dir(run.path()).unwrap().count(), 2, "nothing is left");
}

/// A dropped saver waits for the save and reports its failure.
#[test]
fn no_failure_is_lost() {
    let run = tempfile::tempdir().unwrap();
    let reported: Arc<Mutex<Vec<String>>> = Arc::default();
    let saver = || {
        let reported = Arc::clone(&reported);
        Saver::new(WhenBusy::Wait).report_to(move |error| {
            reported.lock().unwrap().push(error.to_string());
        })
    };

    let mut failing = saver();
    assert!(started(failing.submit(broken(run.path(), 1))).is_none());
    drop(failing);
    assert!(reported.lock().unwrap()[0].contains("`../outside`"));

    let mut panicking: Saver = saver();
    let task = Task::new(run.path().join("x"), || panic!("simulated failure"));
    assert!(started(panicking.submit(task)).is_none());
    let error = panicking.wait().unwrap().unwrap_err().to_string();
    assert!(error.contains("panicked: simulated failure"), "{error}");

    let mut good = saver();
    let (snapshot, go) = held(run.path(), 2);
    drop(go);
    assert!(started(good.submit(snapshot)).is_none());
    drop(good);
    assert_eq!(steps(run.path()), [2]);
    assert_eq!(reported.lock().unwrap().len(), 1);
}

/// A rank saves its parts in the background and returns a report.
#[test]
fn ranks_save_in_the_background_too() {
    let run = tempfile::tempdir().unwrap();
    let mut staging = Staging::new(run.path(), &step_name(1)).unwrap();
    let file = staging.create("x.bin", 6).unwrap();
    let folder = staging.folder().to_owned();

    let mut rank = Saver::new(WhenBusy::Wait);
    let task = Task::new(folder.clone(), move || {
        let mut writer = Writer::join(&folder, "rank 1")?;
        writer.file("x.bin")?.write_at(3, b"def")?;
        writer.finish()
    });
    assert!(started(rank.submit(task)).is_none());
    file.write_at(0, b"abc").unwrap();

    staging.accept(rank.wait().unwrap().unwrap()).unwrap();
    let committed = staging.commit().unwrap();
    assert_eq!(fs::read(committed.path().join("x.bin")).unwrap(), b"abcdef");
}

#[test]
fn space_is_checked_before_the_first_byte() {
    let run = tempfile::tempdir().unwrap();
    let mut snapshot = Snapshot::new(run.path(), &step_name(1));
    snapshot.add_with("small", 1, |_| panic!("no data may be requested"));
    snapshot.add_with("huge", 1 << 60, |_| panic!("no data may be requested"));
    let error = snapshot.save().unwrap_err();
    assert!(error.details::<NoSpace>().is_some(), "{error}");
    assert_eq!(fs::read_dir(run.path()).unwrap().count(), 0);
}
