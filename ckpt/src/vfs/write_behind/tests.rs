use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Weak;

use proptest::prelude::*;
use rustix::io::Errno;
use tempfile::TempDir;

use super::*;
use crate::vfs::{RealFs, Vfs, write_all_at};

const PAGE: usize = ALIGNMENT;

type Disk = fn(&File, &[u8], u64) -> io::Result<usize>;

fn honest(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
    file.write_at(bytes, offset)
}

/// Writes a page and a few bytes at a time.
fn short(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
    file.write_at(&bytes[..bytes.len().min(PAGE + 900)], offset)
}

/// Writes less than a page if the page number is odd.
fn tiny(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
    match offset / PAGE as u64 % 2 {
        0 => file.write_at(&bytes[..PAGE], offset),
        _ => file.write_at(&bytes[..77], offset),
    }
}

fn interrupted(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
    thread_local!(static TURN: std::cell::Cell<bool> = const { std::cell::Cell::new(false) });
    TURN.set(!TURN.get());
    match TURN.get() {
        true => Err(Errno::INTR.into()),
        false => file.write_at(bytes, offset),
    }
}

/// A file system without direct writes.
fn refusing(_: &File, _: &[u8], _: u64) -> io::Result<usize> {
    Err(Errno::INVAL.into())
}

/// Rejects direct writes in the middle of a file.
fn moody(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
    match offset / PAGE as u64 {
        7 => Err(Errno::OPNOTSUPP.into()),
        _ => file.write_at(&bytes[..PAGE], offset),
    }
}

fn full(_: &File, _: &[u8], _: u64) -> io::Result<usize> {
    Err(Errno::NOSPC.into())
}

fn broken(_: &File, _: &[u8], _: u64) -> io::Result<usize> {
    Err(Errno::IO.into())
}

const WELL: [Disk; 6] = [honest, short, tiny, interrupted, refusing, moody];

/// A folder for a file, and a pool so small that it is always contended.
struct Fixture {
    folder: TempDir,
    pool: Arc<Pool>,
}

impl Fixture {
    fn new() -> Fixture {
        Fixture {
            folder: tempfile::tempdir().unwrap(),
            pool: Arc::new(Pool::new(2, 3, 2 * PAGE).unwrap()),
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("x")
    }

    /// A new file whose pages go to `disk`.
    fn file(&self, disk: Disk) -> WriteBehind {
        let file = self.plain_file();
        let direct = file.try_clone().unwrap();
        let to = Descriptors::new(&file, direct, disk);
        self.written(file, Some(to))
    }

    /// A new file with real direct writes, if the system supports them.
    fn real_file(&self) -> WriteBehind {
        let file = self.plain_file();
        let to = Descriptors::open(&file);
        self.written(file, to)
    }

    fn plain_file(&self) -> Arc<File> {
        Arc::new(File::create(self.path()).unwrap())
    }

    fn written(&self, file: Arc<File>, to: Option<Descriptors>) -> WriteBehind {
        let direct = to.map(|to| DirectWriter {
            to: Arc::new(to),
            in_flight: Arc::default(),
            pool: Arc::clone(&self.pool),
            min_bytes: PAGE,
        });
        WriteBehind { file, direct: OnceLock::from(direct) }
    }
}

fn write_all(file: &WriteBehind, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let taken = file.write_at(bytes, offset)?;
        assert!(taken > 0);
        (bytes, offset) = (&bytes[taken..], offset + taken as u64);
    }
    Ok(())
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251 + seed * 31) as u8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: 100,
        ..Default::default()
    })]

    /// Each byte has the value of its last write, for any ranges and any amounts that the disk
    /// accepts per call.
    #[test]
    fn writes_behave_as_if_sequential(
        writes in prop::collection::vec((0..12 * PAGE, 0..8 * PAGE), 1..12),
        on_pages in any::<bool>(),
        disk in prop::option::of(prop::sample::select(&WELL[..])),
    ) {
        let fixture = Fixture::new();
        let file = match disk {
            Some(disk) => fixture.file(disk),
            None => fixture.real_file(),
        };
        let mut expected = Vec::new();
        for (number, &(start, len)) in writes.iter().enumerate() {
            let start = if on_pages { start / PAGE * PAGE } else { start };
            let written = bytes(len, number);
            write_all(&file, &written, start as u64).unwrap();

            let end = start + len;
            if len > 0 {
                expected.resize(end.max(expected.len()), 0);
                expected[start..end].copy_from_slice(&written);
            }
        }
        let bytes_of_file = file.flushed().unwrap().metadata().unwrap().len();
        prop_assert_eq!(bytes_of_file, expected.len() as u64);
        prop_assert!(fs::read(fixture.path()).unwrap() == expected);
    }

    /// Threads that share the pages at the borders of their parts lose no bytes, even if cached and
    /// direct writes of adjacent pages mix.
    #[test]
    fn threads_write_parts_of_any_size(
        cuts in prop::collection::btree_set(1..40 * PAGE, 0..9),
        disk in prop::option::of(prop::sample::select(&WELL[..])),
    ) {
        let fixture = Fixture::new();
        let file = match disk {
            Some(disk) => fixture.file(disk),
            None => fixture.real_file(),
        };
        let expected = bytes(40 * PAGE, 5);

        let starts = [0].into_iter().chain(cuts.iter().copied());
        let ends = cuts.iter().copied().chain([expected.len()]);
        std::thread::scope(|scope| {
            for (start, end) in starts.zip(ends) {
                let (file, part) = (&file, &expected[start..end]);
                scope.spawn(move || write_all(file, part, start as u64).unwrap());
            }
        });
        file.flushed().unwrap();
        prop_assert!(fs::read(fixture.path()).unwrap() == expected);
    }
}

/// An error is returned by a call after its write, and by every later one.
#[test]
fn a_write_error_is_permanent() {
    for (disk, kind, code) in [
        (full as Disk, io::ErrorKind::StorageFull, Errno::NOSPC),
        (broken, io::Error::from(Errno::IO).kind(), Errno::IO),
    ] {
        let fixture = Fixture::new();
        let file = fixture.file(disk);
        assert_eq!(file.write_at(&[1; PAGE], 0).unwrap(), PAGE);

        for _ in 0..2 {
            let error = file.flushed().unwrap_err();
            assert_eq!(error.kind(), kind);
            assert_eq!(error.raw_os_error(), Some(code.raw_os_error()));
            for len in [1, PAGE] {
                let error = file.write_at(&vec![1; len], 9 * PAGE as u64).unwrap_err();
                assert_eq!(error.kind(), kind);
            }
        }
    }
}

/// Direct writes are not tried again for every block.
#[test]
fn rejected_direct_writes_are_not_retried() {
    let fixture = Fixture::new();
    let file = fixture.file(refusing);
    let Some(Some(direct)) = file.direct.get() else { panic!("simulated failure") };
    assert!(!direct.to.is_rejected());
    write_all(&file, &[1; PAGE], 0).unwrap();
    file.flushed().unwrap();
    assert!(direct.to.is_rejected());

    // Written in one call, because the cached path has no blocks.
    assert_eq!(file.write_at(&[2; 9 * PAGE], 10).unwrap(), 9 * PAGE);
}

/// A closed file has no descriptors left, even while the threads are busy with other files.
#[test]
fn a_closed_file_has_no_pending_writes() {
    let fixture = Fixture::new();
    for _ in 0..20 {
        let file = fixture.file(honest);
        let Some(Some(direct)) = file.direct.get() else { panic!("simulated failure") };
        let descriptors: Weak<Descriptors> = Arc::downgrade(&direct.to);
        let expected = bytes(5 * PAGE, 0);
        write_all(&file, &expected, 0).unwrap();

        drop(file);
        assert!(descriptors.upgrade().is_none());
        assert!(fs::read(fixture.path()).unwrap() == expected);
    }
}

/// One block and one thread are enough for any number of writers.
#[test]
fn a_small_pool_is_only_slower() {
    let mut fixture = Fixture::new();
    fixture.pool = Arc::new(Pool::new(1, 1, PAGE).unwrap());
    let file = fixture.file(honest);
    let expected = bytes(64 * PAGE, 1);
    std::thread::scope(|scope| {
        for (part, number) in expected.chunks(8 * PAGE).zip(0..) {
            let file = &file;
            scope.spawn(move || write_all(file, part, number * 8 * PAGE as u64).unwrap());
        }
    });
    file.flushed().unwrap();
    assert!(fs::read(fixture.path()).unwrap() == expected);
}

/// All files share the same few blocks.
#[test]
fn a_process_has_one_pool() {
    let [first, second] = [Pool::of_process(), Pool::of_process()].map(Option::unwrap);
    assert!(Arc::ptr_eq(&first, &second));
}

fn written_large(folder: &Path) {
    let path = folder.join(format!(".meshgrad-{:016x}", RealFs.unique()));
    let expected = bytes(5_000_003, 2);
    let file = RealFs.create_new(&path).unwrap();
    let done = file.allocate(expected.len() as u64).and_then(|()| {
        let (start, rest) = expected.split_at(1001);
        write_all_at(&*file, start, 0)?;
        write_all_at(&*file, rest, 1001)?;
        file.sync_data()?;
        fs::read(&path)
    });
    fs::remove_file(&path).unwrap();
    assert!(done.unwrap() == expected);
}

/// Holds on the file system of temporary files and on one in memory.
#[test]
fn real_files_contain_the_written_bytes() {
    let folder = tempfile::tempdir().unwrap();
    written_large(folder.path());

    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        written_large(memory);
    }
}

/// Only large writes open a second descriptor, if the system supports it.
#[test]
fn large_writes_bypass_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let file = File::create(folder.path().join("x")).unwrap();
    let file = WriteBehind::new(file);
    write_all(&file, &[1; MIN_DIRECT_BYTES - 1], 0).unwrap();
    assert!(file.direct.get().is_none());

    write_all(&file, &[1; MIN_DIRECT_BYTES], 0).unwrap();
    let opened = Descriptors::open(&file.file);
    let direct = file.direct.get().unwrap();
    assert_eq!(direct.is_some(), opened.is_some());
}
