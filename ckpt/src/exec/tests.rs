//! Executed plans compared with direct evaluation of the same expressions.

mod computed;
mod element_ops;
mod replicas;
mod world;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;

use super::*;
use crate::graph::Graph;
use crate::plan::{Catalog, LoadRequest, Options, Target, Targets};
use crate::source::{Backend, BackendChoice};
use crate::{Dtype, Folder, Kind};
use world::World;

/// Allocates targets, keeps complete ones, and records the peak bytes of incomplete targets.
#[derive(Default)]
struct Collect {
    open: AtomicU64,
    most_open: AtomicU64,
    done: Mutex<BTreeMap<String, Vec<u8>>>,
}

impl Sink for Collect {
    type Buffer = Vec<u8>;
    type Error = Error;

    fn buffer(&self, target: &Target) -> Result<Vec<u8>, Error> {
        let open = self.open.fetch_add(target.bytes, Ordering::SeqCst) + target.bytes;
        self.most_open.fetch_max(open, Ordering::SeqCst);
        Ok(vec![0xaa; target.bytes as usize])
    }

    fn complete(&self, target: &Target, buffer: Vec<u8>) -> Result<(), Error> {
        self.open.fetch_sub(target.bytes, Ordering::SeqCst);
        let before = self.done.lock().unwrap().insert(target.name.to_string(), buffer);
        assert!(before.is_none(), "`{}` completed twice", target.name);
        Ok(())
    }
}

fn options() -> impl Strategy<Value = Options> {
    let sizes = (
        prop::sample::select(vec![0, 1, 16, 1000, 256 << 10]),
        prop::sample::select(vec![1, 7, 16, 100, 4096, 8 << 20]),
        prop::sample::select(vec![1, 8, 64, 1 << 20]),
    );
    let leave = any::<bool>();
    (sizes, any::<bool>(), 1..5usize, leave).prop_map(
        |((gap, window, in_place), direct, threads, leave)| {
            let (alignment, in_place) = match direct {
                true => (4096, u64::MAX),
                false => (1, in_place),
            };
            let targets = if leave { Targets::Released } else { Targets::Retained };
            Options { gap, window, in_place, alignment, threads, targets, budget: None }
        },
    )
}

fn backend() -> impl Strategy<Value = BackendChoice> {
    let backends = [Backend::Pread, Backend::Direct, Backend::Mapped];
    prop::sample::select(backends.map(BackendChoice::Only).to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// For any requests of any graph, any window sizes, backends and numbers of threads: the
    /// targets equal the regions of the fully evaluated expressions, each is completed once, and
    /// the memory of incomplete targets stays within the plan.
    #[test]
    fn execution_matches_evaluation(
        seed in any::<u64>(),
        requests in 1..5usize,
        depth in 0..7u32,
        options in options(),
        choice in backend(),
    ) {
        let mut world = World::with_requests(seed, requests, depth);
        let folder = world.write();
        let folder = Folder::open(folder.path()).unwrap();
        let (catalog, requests) = (Catalog::of(&folder), &world.requests);
        let plan = LoadPlan::new(&world.graph, &catalog, requests, &options).unwrap();

        let (sink, seen) = (Collect::default(), AtomicU64::new(0));
        let sources = Sources::open(&folder, choice).unwrap();
        let progress = |read| {
            seen.fetch_max(read, Ordering::SeqCst);
        };
        let stats = execute(&plan, &sources, &sink, &progress).unwrap();
        prop_assert_eq!(sink.done.into_inner().unwrap(), world.expected());
        prop_assert_eq!(stats.written_bytes, plan.needed_bytes());
        prop_assert_eq!(stats.read_bytes, plan.read_bytes());
        prop_assert_eq!(seen.into_inner(), plan.read_bytes());
        prop_assert!(sink.most_open.into_inner() <= plan.memory().targets);
    }
}

/// A file with one tensor of 4 MiB, and a plan for all of it with small windows.
fn large() -> (tempfile::TempDir, Folder, LoadPlan) {
    let folder = tempfile::tempdir().unwrap();
    let mut file = crate::FileWriter::new();
    file.add("x", Dtype::F32, &[1 << 10, 1 << 10]).unwrap();
    let path = folder.path().join("model.safetensors");
    file.save::<Error>(path, |tensor, data| data.append(&vec![7; tensor.byte_len()])).unwrap();
    let opened = Folder::open(folder.path()).unwrap();
    let mut graph = Graph::new();
    let x = graph.source("x", Dtype::F32, &[1 << 10, 1 << 10]).unwrap();
    let transposed = graph.transpose(x, 0, 1).unwrap();
    let requests =
        [LoadRequest::all("x", &graph, x), LoadRequest::all("transposed", &graph, transposed)];
    let options = Options { window: 64 << 10, ..Options::default() };
    let plan = LoadPlan::new(&graph, &Catalog::of(&opened), &requests, &options).unwrap();
    (folder, opened, plan)
}

/// Truncating a file while it is read, at any time and with any backend, gives an error that names
/// file and tensor, and completes no target.
#[test]
fn truncating_a_file_during_reads_is_an_error() {
    for backend in [Backend::Pread, Backend::Direct, Backend::Mapped] {
        for round in 0..10 {
            let (_folder, folder, plan) = large();
            let path = folder.files()[0].path().to_owned();
            let sources = Sources::open(&folder, BackendChoice::Only(backend)).unwrap();
            let sink = Collect::default();
            let cut = |read: u64| {
                if read >= round << 18 {
                    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
                    file.set_len(1 << 20).unwrap();
                }
            };
            let error = execute(&plan, &sources, &sink, &cut).unwrap_err();
            let text = error.to_string();
            assert!(text.contains("was modified while it was read"), "{backend}: {text}");
            assert!(text.contains("model.safetensors") && text.contains("`x`"), "{text}");
            assert!(sink.done.into_inner().unwrap().is_empty());
        }
    }
}

/// The first error stops the execution, whichever thread it occurs in.
#[test]
fn errors_of_the_sink_stop_the_execution() {
    struct Refuses;

    impl Sink for Refuses {
        type Buffer = Vec<u8>;
        type Error = Error;

        fn buffer(&self, target: &Target) -> Result<Vec<u8>, Error> {
            Ok(vec![0; target.bytes as usize])
        }

        fn complete(&self, target: &Target, _: Vec<u8>) -> Result<(), Error> {
            Err(error!(Busy, "the sink refuses `{}`", target.name))
        }
    }

    let (_folder, folder, plan) = large();
    let sources = Sources::open(&folder, BackendChoice::Auto).unwrap();
    let error = execute(&plan, &sources, &Refuses, &|_| {}).unwrap_err();
    assert_eq!(error.kind(), Kind::Busy);
    assert!(error.to_string().starts_with("the sink refuses"), "{error}");
}

#[test]
fn memory_of_the_wrong_size_is_rejected() {
    let (_folder, folder, plan) = large();
    let sources = Sources::open(&folder, BackendChoice::Auto).unwrap();
    let (mut right, mut wrong) = (vec![0; 4 << 20], vec![0; 5]);
    let sink = Slices::new([&mut right[..], &mut wrong[..]]);
    let error = execute(&plan, &sources, &sink, &|_| {}).unwrap_err();
    assert!(error.to_string().contains("`transposed` has 4194304 bytes"), "{error}");

    let error = execute(&plan, &sources, &Slices::new([]), &|_| {}).unwrap_err();
    assert!(error.to_string().contains("but its memory has 0:"), "{error}");
}

/// A plan is valid only for the folder it was made for, and only while the folder's files are
/// unchanged.
#[test]
fn sources_of_another_folder_are_rejected() {
    let (place, folder, plan) = large();
    let sources = Sources::new([]);
    let error = execute(&plan, &sources, &Slices::new([]), &|_| {}).unwrap_err();
    assert!(error.to_string().contains("but the sources are"), "{error}");

    let path = folder.files()[0].path();
    std::fs::OpenOptions::new()
        .append(true)
        .open(path)
        .and_then(|mut file| std::io::Write::write_all(&mut file, b"x"))
        .unwrap();
    let sources = Sources::open(&folder, BackendChoice::Auto).unwrap();
    let error = execute(&plan, &sources, &Slices::new([]), &|_| {}).unwrap_err();
    assert!(
        error.to_string().contains("was modified while it was read, detected at offset"),
        "{error}"
    );
    drop(place);
}
