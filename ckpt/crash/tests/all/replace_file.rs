//! `replace_file` on full disks and through power cuts.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use meshgrad_ckpt::vfs::Vfs;
use meshgrad_ckpt::{Error, NoSpace, replace_file_in};
use meshgrad_ckpt_crash::{Fault, FaultFs, Op, Rule, SimFs, Survivors};

/// Bytes of two writes: files are written 1 MiB at a time.
const TWO_WRITES: usize = 2 << 20;

#[test]
fn a_full_disk_has_its_own_error() {
    let full = Rule::new(Fault::Fail(io::ErrorKind::StorageFull)).op(Op::Write);
    let fs = FaultFs::new(Arc::new(SimFs::new()), vec![full]);
    let error = replace_file_in::<Error>(&fs, "/x", |file| {
        file.append(b"small")?;
        file.append(&vec![1; TWO_WRITES])
    });

    let error = error.unwrap_err();
    let NoSpace { needed, .. } = error.details().expect("details");
    assert_eq!(*needed, TWO_WRITES as u64);
    assert!(error.to_string().contains(": 2097152 bytes needed"), "{error}");
    assert!(fs.list(Path::new("/")).unwrap().is_empty());
}

/// Bytes after those of a failed write would be at the wrong offset.
#[test]
fn nothing_can_follow_a_failed_write() {
    let once = Rule::new(Fault::Fail(io::ErrorKind::StorageFull)).op(Op::Write).nth(0);
    let fs = FaultFs::new(Arc::new(SimFs::new()), vec![once]);
    let finished = replace_file_in::<Error>(&fs, "/x", |file| {
        file.append(&vec![1; TWO_WRITES]).unwrap_err();
        let error = file.append(b"more").unwrap_err();
        assert!(error.details::<NoSpace>().is_some(), "{error}");
        file.flush().unwrap_err();
        Ok(())
    });
    let error = finished.unwrap_err();
    assert!(error.details::<NoSpace>().is_some(), "{error}");
}

/// A power cut at any moment leaves the old content or the new.
#[test]
fn a_replaced_file_is_old_or_new() {
    let sim = SimFs::new();
    let path = Path::new("/state.json");
    replace_file_in::<Error>(&sim, path, |file| file.append(&[1; 2000])).unwrap();
    sim.record();
    replace_file_in::<Error>(&sim, path, |file| file.append(&[2; 3000])).unwrap();

    let mut found = std::collections::BTreeSet::new();
    for state in sim.history() {
        for survivors in Survivors::choose(state.pending(), 40, 3) {
            let left = state.after_crash(survivors);
            let file = left.open(path).unwrap();
            let mut bytes = vec![0; file.size().unwrap() as usize];
            file.read_at(&mut bytes, 0).unwrap();
            assert!(bytes == [1; 2000] || bytes == [2; 3000], "{survivors}");
            found.insert(bytes);
        }
    }
    assert_eq!(found.len(), 2);
}
