//! Saves to a disk that is really full: 8 MiB in memory, which this process mounts in its own
//! namespaces. Where the system does not allow this, the test reports it and passes without
//! testing.

#![cfg(target_os = "linux")]

use std::env;
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::Command;

use meshgrad_ckpt::{
    Dtype, Error, FolderWriter, NoSpace, OutputFile, Result, Snapshot, Staging, available_bytes,
    discover, keep_last, step_name,
};

use crate::on_disk::names_in;

const DISK: &str = "MESHGRAD_CKPT_SMALL_DISK";
const MIB: usize = 1 << 20;

#[test]
fn a_full_disk_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mounted = |then: &str| {
        let script = format!("mount -t tmpfs -o size=8m tmpfs \"$1\" && {then}");
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c", &script, "sh"]);
        command.arg(folder.path()).arg(env::current_exe().unwrap());
        command.env(DISK, folder.path()).output()
    };
    if !mounted("true").is_ok_and(|output| output.status.success()) {
        println!("not tested: cannot mount a disk here");
        return;
    }

    let child = "exec \"$2\" --exact small_disk::child_saves_until_the_disk_is_full --nocapture";
    let output = mounted(child).unwrap();
    let [said, errors] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    assert!(output.status.success(), "{said}\n{errors}");
    assert!(said.contains("the disk was full"), "{said}\n{errors}");
}

fn model(bytes: usize) -> FolderWriter {
    let mut model = FolderWriter::new();
    model.add("w", Dtype::U8, &[bytes]).unwrap();
    model
}

fn save(run: &Path, step: u64, bytes: usize) -> Result<()> {
    let mut snapshot = Snapshot::new(run, &step_name(step));
    snapshot.add_model("", model(bytes), move |tensor, data| {
        data.append(&vec![step as u8; tensor.byte_len()])
    });
    snapshot.save().map(|committed| committed.verify().unwrap())
}

/// A way to allocate space.
type Way = fn(&mut Staging, usize) -> Result<()>;

/// All ways of writing for which the size is known in advance.
const EARLY: [Way; 5] = [
    |staging, bytes| staging.check_space(bytes as u64),
    |staging, bytes| staging.create("x", bytes as u64).map(|_| ()),
    |staging, bytes| staging.reserve("x", bytes as u64),
    |staging, bytes| model(bytes).layout("")?.create(staging),
    |staging, bytes| model(bytes).write(staging, "", |_, _| panic!("no data may be requested")),
];

/// Writes without a known size, until the system reports that the disk is full.
fn write_on_and_on(file: &mut OutputFile) -> Result<()> {
    (0..1000).try_for_each(|_| file.append(&[1; MIB / 10]))
}

/// Runs on the small disk, as a child process of the other test. Returns immediately if there is
/// none.
#[test]
fn child_saves_until_the_disk_is_full() {
    let Some(disk) = env::var_os(DISK) else {
        return;
    };
    let run = Path::new(&disk);
    save(run, 1, 3 * MIB).unwrap();
    let available = available_bytes(run).unwrap();
    assert!(available < 6 * MIB as u64, "{available}");

    let unharmed = |error: Error| {
        assert!(error.details::<NoSpace>().is_some(), "{error}");
        assert_eq!(names_in(run), ["step-000001"]);
        assert_eq!(available_bytes(run), Some(available));
        discover(run).unwrap()[0].verify().unwrap();
    };
    for way in EARLY {
        let mut staging = Staging::new(run, &step_name(2)).unwrap();
        let error = way(&mut staging, 6 * MIB).unwrap_err();
        let written: u64 = names_in(staging.folder())
            .iter()
            .map(|name| fs::metadata(staging.folder().join(name)).unwrap().len())
            .sum();
        assert_eq!(written, 0, "before the first byte: {error}");
        drop(staging);
        unharmed(error);
    }
    unharmed(save(run, 2, 6 * MIB).unwrap_err());

    let mut staging = Staging::new(run, &step_name(2)).unwrap();
    let error = staging.write_with("x", write_on_and_on).unwrap_err();
    assert_eq!(names_in(staging.folder()), [""; 0]);
    drop(staging);
    unharmed(error);
    println!("\nthe disk was full");

    // A save that fits succeeds, even after space was freed.
    save(run, 2, 4 * MIB).unwrap();
    save(run, 3, 4 * MIB).unwrap_err();
    assert_eq!(keep_last(run, NonZeroUsize::MIN).unwrap().len(), 1);
    save(run, 3, 3 * MIB).unwrap();
    assert_eq!(names_in(run), ["step-000002", "step-000003"]);
}
