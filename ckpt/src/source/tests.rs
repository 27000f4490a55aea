//! Every backend returns the bytes of the file as it was opened, or an error.

use std::fs::{self, OpenOptions};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::Error;

const BACKENDS: [Backend; 3] = [Backend::Pread, Backend::Direct, Backend::Mapped];

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 253) as u8).collect()
}

fn file(bytes: &[u8]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    fs::write(&path, bytes).unwrap();
    (folder, path)
}

fn open_with(path: &Path, backend: Backend) -> Box<dyn Source> {
    let opened = open(path, BackendChoice::Only(backend)).unwrap();
    assert!(opened.backend == backend || opened.fallback_reason.is_some());
    opened.source
}

/// The change in the message of an error.
fn change(result: Result<()>) -> String {
    let message = result.unwrap_err().to_string();
    let change = message.split_once("detected at offset ").unwrap().1.split_once(": ").unwrap().1;
    change.strip_suffix("; do not write to a checkpoint in place").unwrap().to_owned()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Reads any range of a file, aligned or not. Reads past its last byte fail.
    #[test]
    fn every_backend_reads_the_same_bytes(
        len in prop::sample::select(vec![0usize, 1, 4095, 4096, 4097, 1 << 20, (2 << 20) + 77]),
        parts in proptest::collection::vec((any::<u32>(), any::<u32>(), 0..3usize), 1..8),
    ) {
        let bytes = content(len);
        let (_folder, path) = file(&bytes);
        for backend in BACKENDS {
            let source = open_with(&path, backend);
            prop_assert_eq!(source.byte_len(), len as u64);
            for (start, count, misaligned) in &parts {
                let start = *start as usize % (len + 1);
                let count = *count as usize % (len - start + 1);
                let mut memory = vec![0; count + misaligned];
                let data = &mut memory[*misaligned..];
                source.read_at(start as u64, data).unwrap();
                prop_assert!(data == &bytes[start..start + count], "{} {}", backend, start);
            }
            let mut whole = Aligned::new(len);
            source.read_at(0, whole.bytes()).unwrap();
            prop_assert!(whole.bytes() == &bytes[..]);
            let beyond = source.read_at(1, &mut vec![0; len]);
            prop_assert!(beyond.is_err() || len == 0, "{}", backend);
        }
    }
}

/// If a file is truncated at any moment of a read, the read returns the correct bytes or an error,
/// and the process survives. Later reads always fail.
#[test]
fn truncation_during_a_read_is_an_error() {
    const LEN: usize = 1 << 20;
    let bytes = content(LEN);
    for backend in BACKENDS {
        for round in 0..100 {
            let (_folder, path) = file(&bytes);
            let source = open_with(&path, backend);
            let begun = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    while !begun.load(Ordering::Acquire) {
                        std::hint::spin_loop();
                    }
                    (0..round * 50).for_each(|_| std::hint::spin_loop());
                    let file = OpenOptions::new().write(true).open(&path).unwrap();
                    file.set_len(round * 5000).unwrap();
                });
                let mut data = vec![0; LEN];
                begun.store(true, Ordering::Release);
                loop {
                    match source.read_at(0, &mut data) {
                        Ok(()) => assert!(data == bytes, "{backend}: a mixture"),
                        failed => {
                            let is = round * 5000;
                            let was = LEN as u64;
                            assert_eq!(change(failed), FileChange::Length { was, is }.to_string());
                            break;
                        }
                    }
                }
            });
            let still = source.read_at(0, &mut [0; 16]);
            assert!(change(still).starts_with("its length changed"));
        }
    }
}

/// Once the name refers to another file, or to none, reads fail.
#[test]
fn replacement_during_a_read_is_an_error() {
    let bytes = content(1 << 16);
    for backend in BACKENDS {
        for round in 0..100 {
            let (folder, path) = file(&bytes);
            let other = folder.path().join("other");
            fs::write(&other, &bytes).unwrap();
            let source = open_with(&path, backend);
            thread::scope(|scope| {
                scope.spawn(|| match round % 2 {
                    0 => fs::rename(&other, &path).unwrap(),
                    _ => fs::remove_file(&path).unwrap(),
                });
                let mut data = vec![0; 1 << 16];
                loop {
                    match source.read_at(0, &mut data) {
                        Ok(()) => assert!(data == bytes, "{backend}"),
                        failed => {
                            break assert_eq!(change(failed), FileChange::Replaced.to_string());
                        }
                    }
                }
            });
        }
    }
}

/// A file that was written in place has changed, even if its length is the same.
#[test]
fn a_write_in_place_is_an_error() {
    for backend in BACKENDS {
        let (_folder, path) = file(&content(10_000));
        let source = open_with(&path, backend);
        fs::write(&path, vec![0; 10_000]).unwrap();
        // Independent of the resolution of the file system's clock.
        let later = SystemTime::now() + Duration::from_secs(60);
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_modified(later).unwrap();
        let error = source.read_at(4096, &mut [0; 100]).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "{} was modified while it was read, detected at offset 4096: it was written; do not \
                 write to a checkpoint in place",
                path.display()
            )
        );
    }
}

/// If a file is replaced after its header was read, the new file is not used.
#[test]
fn sources_are_the_files_that_the_folder_has_open() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let write = |byte: u8| {
        let mut file = crate::FileWriter::new();
        file.add("x", crate::Dtype::U8, &[5000]).unwrap();
        file.save::<Error>(&path, |_, data| data.append(&[byte; 5000])).unwrap();
    };
    for backend in BACKENDS {
        write(1);
        let opened = Folder::open(folder.path()).unwrap();
        let range = opened.get("x").unwrap().range.clone();
        write(2);
        let sources = Sources::open(&opened, BackendChoice::Only(backend));
        if backend == Backend::Direct {
            assert_eq!(change(sources.map(drop)), FileChange::Replaced.to_string());
            continue;
        }
        let mut data = vec![0; 5000];
        sources.unwrap().get(0).read_at(range.start, &mut data).unwrap();
        assert!(data.iter().all(|byte| *byte == 1), "{backend}");
    }
}

/// A backend that the file system does not support is replaced, with a reason.
#[test]
#[cfg(target_os = "linux")]
fn an_unsupported_backend_is_replaced() {
    let opened = open("/proc/cpuinfo", BackendChoice::Only(Backend::Direct)).unwrap();
    assert_eq!(opened.backend, Backend::Pread);
    let reason = opened.fallback_reason.unwrap();
    assert!(reason.starts_with("the file system does not support direct reads: "), "{reason}");
    let opened = open("/proc/cpuinfo", BackendChoice::Auto).unwrap();
    assert_eq!((opened.backend, opened.fallback_reason), (Backend::Pread, None));

    let folder = tempfile::tempdir().unwrap();
    let error = open(folder.path(), BackendChoice::Auto).unwrap_err();
    assert!(error.to_string().ends_with(" is not a regular file"), "{error}");
}
