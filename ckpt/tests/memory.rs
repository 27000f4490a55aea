//! Execution of a plan allocates what the plan reports. A counting allocator measures the peak.
//! Only windows are mapped separately, with exactly their planned size.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use meshgrad_ckpt::exec::{Sink, Slices, execute};
use meshgrad_ckpt::graph::Graph;
use meshgrad_ckpt::plan::{Catalog, LoadPlan, LoadRequest, Options, Target, Targets};
use meshgrad_ckpt::source::{Backend, BackendChoice, Sources};
use meshgrad_ckpt::{Dtype, Error, FileWriter, Folder};

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: delegates to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::SeqCst) + layout.size();
        PEAK.fetch_max(now, Ordering::SeqCst);
        // SAFETY: the caller fulfills the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::SeqCst);
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The peak of allocations above the current ones.
fn peak(work: impl FnOnce()) -> usize {
    let before = NOW.load(Ordering::SeqCst);
    PEAK.store(before, Ordering::SeqCst);
    work();
    PEAK.load(Ordering::SeqCst) - before
}

/// Frees every complete target immediately.
struct Discard;

impl Sink for Discard {
    type Buffer = Vec<u8>;
    type Error = Error;

    fn buffer(&self, target: &Target) -> Result<Vec<u8>, Error> {
        Ok(vec![0; target.bytes as usize])
    }

    fn complete(&self, _: &Target, _: Vec<u8>) -> Result<(), Error> {
        Ok(())
    }
}

/// 32 matrices of 1 MiB, requested unchanged, transposed, and concatenated in pairs.
fn graph() -> (Graph, Vec<LoadRequest>) {
    let (mut graph, mut requests) = (Graph::new(), Vec::new());
    for pair in 0..16 {
        let pair = [2 * pair, 2 * pair + 1].map(|number| {
            let name = format!("w.{number:02}");
            let one = graph.source(&name, Dtype::F32, &[512, 512]).unwrap();
            requests.push(LoadRequest::all(&*name, &graph, one));
            let transposed = graph.transpose(one, 0, 1).unwrap();
            requests.push(LoadRequest::all(format!("{name}.transposed"), &graph, transposed));
            one
        });
        let joined = graph.concat(&pair, 1).unwrap();
        requests.push(LoadRequest::all(format!("joined.{}", requests.len()), &graph, joined));
    }
    (graph, requests)
}

/// Allowance for threads, names in errors and similar allocations.
const REST: usize = 256 << 10;

// A single test: the allocator counts for the whole process.
#[test]
fn peak_memory_matches_the_plan() {
    let place = tempfile::tempdir().unwrap();
    let mut file = FileWriter::new();
    for number in 0..32 {
        file.add(&format!("w.{number:02}"), Dtype::F32, &[512, 512]).unwrap();
    }
    let zeros = vec![0; 1 << 20];
    let path = place.path().join("model.safetensors");
    file.save::<Error>(path, |_, data| data.append(&zeros)).unwrap();
    drop(zeros);

    let folder = Folder::open(place.path()).unwrap();
    let (graph, requests) = graph();
    for backend in [Backend::Pread, Backend::Direct, Backend::Mapped] {
        for threads in [1, 4] {
            let options = Options {
                window: 300_000,
                threads,
                ..match backend {
                    Backend::Direct => Options::direct(),
                    _ => Options::default(),
                }
            };
            let plan = LoadPlan::new(&graph, &Catalog::of(&folder), &requests, &options).unwrap();
            let bytes = plan.targets().iter().map(|target| target.bytes as usize);
            let mut targets: Vec<Vec<u8>> = bytes.map(|bytes| vec![0; bytes]).collect();
            let sources = Sources::open(&folder, BackendChoice::Only(backend)).unwrap();

            // Loading into existing memory allocates no further memory.
            let peak_in_place = peak(|| {
                let slices = Slices::new(targets.iter_mut().map(|target| &mut target[..]));
                execute(&plan, &sources, &slices, &|_| {}).unwrap();
            });
            assert!(peak_in_place <= REST, "{backend} {threads}: {peak_in_place}");
            drop(targets);

            // If the sink frees complete targets, only incomplete targets take memory.
            let options = Options { targets: Targets::Released, ..options };
            let plan = LoadPlan::new(&graph, &Catalog::of(&folder), &requests, &options).unwrap();
            let memory = plan.memory();
            assert!(memory.targets < 20 << 20, "{memory:?}");
            let peak_in_all = peak(|| {
                execute(&plan, &sources, &Discard, &|_| {}).unwrap();
            });
            assert!(
                peak_in_all <= memory.targets as usize + REST,
                "{backend} {threads}: {peak_in_all}"
            );

            // The reported size of the plan itself is correct.
            let copied = peak(|| drop(plan.clone()));
            assert!(copied as u64 <= memory.plan + 1024, "{copied} {memory:?}");
        }
    }
}
