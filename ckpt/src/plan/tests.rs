//! Guarantees of plans (bytes, memory bounds, digests), and rejected requests.

use std::ops::Range;

use tempfile::TempDir;

use super::*;
use crate::graph::{Expr, Graph};
use crate::{Dtype, Folder, Result};

/// A folder with these tensors, all zeros, in a sparse file.
fn folder(tensors: &[(&str, Dtype, &[usize])]) -> (TempDir, Folder) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("model.safetensors");
    let mut names = serde_json::Map::new();
    let mut end = 0;
    for (name, dtype, shape) in tensors {
        let begin = end;
        end += shape.iter().product::<usize>() * dtype.bits() / 8;
        let entry = serde_json::json!({
            "dtype": dtype.name(), "shape": shape, "data_offsets": [begin, end],
        });
        names.insert((*name).to_owned(), entry);
    }
    let mut header = serde_json::to_vec(&names).unwrap();
    header.resize(header.len().next_multiple_of(8), b' ');
    let length = (header.len() as u64).to_le_bytes();
    std::fs::write(&path, [&length[..], &header].concat()).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len((8 + header.len() + end) as u64).unwrap();
    let folder = Folder::open(place.path()).unwrap();
    (place, folder)
}

fn plan(
    folder: &Folder,
    graph: &Graph,
    requests: &[LoadRequest],
    options: &Options,
) -> Result<LoadPlan> {
    LoadPlan::new(graph, &Catalog::of(folder), requests, options)
}

/// A matrix of 64 MiB, in rows of 16 KiB.
fn matrix() -> (TempDir, Folder, Graph, Expr) {
    let (place, folder) = folder(&[("w", Dtype::BF16, &[4096, 8192])]);
    let mut graph = Graph::new();
    let w = graph.source("w", Dtype::BF16, &[4096, 8192]).unwrap();
    (place, folder, graph, w)
}

/// A shard of rows reads only the needed bytes. A shard of columns reads whole rows, or only its
/// columns if `gap` is smaller than the distance between them.
#[test]
fn shards_read_only_what_they_need() {
    let (_place, folder, graph, w) = matrix();
    for options in [Options::default(), Options::direct()] {
        for rank in 0..16 {
            let rows = LoadRequest::new("w", w, [rank * 256..(rank + 1) * 256, 0..8192]);
            let plan = plan(&folder, &graph, &[rows], &options).unwrap();
            assert_eq!(plan.needed_bytes(), 4 << 20);
            assert!(plan.amplification() <= 1.02, "{}", plan.amplification());
            let Reads { extents, files, .. } = plan.reads();
            assert_eq!((extents, files), (1, 1));
        }
    }

    let columns = |gap: u64| {
        let request = LoadRequest::new("w", w, [0..4096, 512..1024]);
        let options = Options { gap, ..Options::default() };
        plan(&folder, &graph, &[request], &options).unwrap()
    };
    // A sixteenth of each row: 1 KiB needed, 15 KiB between.
    let coalesced = columns(256 << 10);
    assert!(coalesced.read_bytes() <= 64 << 20);
    assert_eq!(coalesced.reads().extents, 1);
    assert!(coalesced.memory().plan < 4096, "{:?}", coalesced.memory());
    let apart = columns(8 << 10);
    assert_eq!((apart.amplification(), apart.reads().extents), (1.0, 4096));
}

/// A tensor that two targets depend on is read once, and the plan counts its memory.
#[test]
fn shared_sources_are_read_once() {
    let (_place, folder, mut graph, w) = matrix();
    let transposed = graph.transpose(w, 0, 1).unwrap();
    let requests = [
        LoadRequest::all("embed", &graph, w),
        LoadRequest::all("head", &graph, w),
        LoadRequest::all("transposed", &graph, transposed),
    ];
    let plan = plan(&folder, &graph, &requests, &Options::default()).unwrap();
    assert_eq!(plan.needed_bytes(), 3 << 26);
    assert_eq!(plan.read_bytes(), 1 << 26);
    assert_eq!(plan.memory().targets, 3 << 26);
}

/// The digest of a plan for half of the layers of a model, some transposed, some stacked, built and
/// requested in an order drawn from a seed.
fn shuffled(seed: u64, threads: usize) -> Digest {
    let shape = [64, 96];
    let names: Vec<String> = (0..40).map(|at| format!("layer.{at}")).collect();
    let tensors: Vec<(&str, Dtype, &[usize])> =
        names.iter().map(|name| (name.as_str(), Dtype::F32, &shape[..])).collect();
    let (_place, folder) = folder(&tensors);

    let mut order: Vec<usize> = (0..20).collect();
    let mut state = seed;
    for at in 1..order.len() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        order.swap(at, (state >> 33) as usize % (at + 1));
    }
    let (mut graph, mut requests) = (Graph::new(), Vec::new());
    for at in order {
        let pair = [2 * at, 2 * at + 1];
        let pair = pair.map(|at| graph.source(&names[at], Dtype::F32, &[64, 96]).unwrap());
        let transposed = graph.transpose(pair[0], 0, 1).unwrap();
        requests.push(LoadRequest::all(format!("transposed.{at}"), &graph, transposed));
        let stacked = graph.stack(&pair, 0).unwrap();
        requests.push(LoadRequest::new(format!("stacked.{at}"), stacked, [0..2, 0..32, 0..96]));
    }
    let options = Options { window: 1000, threads, ..Options::default() };
    plan(&folder, &graph, &requests, &options).unwrap().digest()
}

#[test]
fn a_digest_depends_only_on_the_work() {
    let first = shuffled(0, 1);
    for seed in 1..32 {
        assert_eq!(shuffled(seed, 1 + seed as usize % 4), first);
    }
    assert_eq!(first.to_string().len(), 32);

    let (_place, folder, graph, w) = matrix();
    let digest = |request: LoadRequest, window: u64| {
        let options = Options { window, ..Options::default() };
        plan(&folder, &graph, &[request], &options).unwrap().digest()
    };
    let all = [
        digest(LoadRequest::all("w", &graph, w), 1 << 20),
        digest(LoadRequest::all("w", &graph, w), 1 << 21),
        digest(LoadRequest::all("v", &graph, w), 1 << 20),
        digest(LoadRequest::new("w", w, [0..4096, 0..8191]), 1 << 20),
        digest(LoadRequest::new("w", w, [0..4096, 1..8192]), 1 << 20),
    ];
    let different: std::collections::HashSet<Digest> = all.into_iter().collect();
    assert_eq!(different.len(), all.len());
}

/// Windows shrink for a budget, the bound is correct, and an impossible budget is an error before
/// any read.
#[test]
fn budgets_are_respected_or_rejected() {
    let (_place, folder, mut graph, w) = matrix();
    let transposed = graph.transpose(w, 0, 1).unwrap();
    let with = |targets: Targets, budget: u64| {
        let options = Options { budget: Some(budget), targets, ..Options::default() };
        plan(&folder, &graph, &[LoadRequest::all("transposed", &graph, transposed)], &options)
    };
    for (budget, windows) in [(1 << 30, 4 * (8 << 20)), ((64 << 20) + (3 << 20), 4 * (512 << 10))] {
        let memory = with(Targets::Retained, budget).unwrap().memory();
        assert!(memory.total() <= budget, "{memory:?}");
        assert_eq!(memory.windows, windows);
        assert_eq!(memory.targets, 64 << 20);
    }

    let error = with(Targets::Retained, 64 << 20).unwrap_err();
    let Infeasible { need, have, targets } = *error.details().expect("details");
    assert_eq!((have, targets), (64 << 20, 64 << 20));
    assert!(with(Targets::Retained, need).is_ok());
    assert!(with(Targets::Retained, need - 1).is_err());
}

/// Released targets count only while they are filled.
#[test]
fn released_targets_free_their_memory() {
    let names: Vec<String> = (0..64).map(|at| format!("w.{at:02}")).collect();
    let tensors: Vec<(&str, Dtype, &[usize])> =
        names.iter().map(|name| (name.as_str(), Dtype::F32, &[512usize, 512][..])).collect();
    let (_place, folder) = folder(&tensors);
    let mut graph = Graph::new();
    let requests: Vec<LoadRequest> = names
        .iter()
        .map(|name| {
            let one = graph.source(name, Dtype::F32, &[512, 512]).unwrap();
            LoadRequest::all(name.as_str(), &graph, one)
        })
        .collect();
    let memory = |targets: Targets, threads: usize, budget: Option<u64>| {
        let options = Options { targets, threads, budget, ..Options::default() };
        plan(&folder, &graph, &requests, &options).unwrap().memory()
    };
    assert_eq!(memory(Targets::Retained, 4, None).targets, 64 << 20);
    // Each target is read as one chunk of 1 MiB.
    assert_eq!(memory(Targets::Released, 4, None).targets, 4 << 20);
    assert_eq!(memory(Targets::Released, 1, None).targets, 1 << 20);
    let plan = memory(Targets::Released, 4, None).plan;
    assert_eq!(memory(Targets::Released, 4, Some(plan + (2 << 20))).targets, 2 << 20);
}

/// Elements of 4 and 6 bits are copied as whole bytes or not at all.
#[test]
fn splitting_bytes_is_rejected() {
    let tensors: [(&str, Dtype, &[usize]); 2] =
        [("four", Dtype::F4, &[6, 10]), ("six", Dtype::F6E2M3, &[8, 4])];
    let (_place, folder) = folder(&tensors);
    let mut graph = Graph::new();
    let four = graph.source("four", Dtype::F4, &[6, 10]).unwrap();
    let six = graph.source("six", Dtype::F6E2M3, &[8, 4]).unwrap();
    let needed = |expr: Expr, region: [Range<u64>; 2], graph: &Graph| {
        let request = LoadRequest::new("out", expr, region);
        let plan = plan(&folder, graph, &[request], &Options::default());
        plan.map(|plan| plan.needed_bytes())
    };
    assert_eq!(needed(four, [1..5, 0..10], &graph), Ok(20));
    assert_eq!(needed(four, [1..5, 2..8], &graph), Ok(12));
    assert_eq!(needed(six, [3..5, 0..4], &graph), Ok(6));

    let transposed = graph.transpose(four, 0, 1).unwrap();
    let rejected = [
        needed(four, [1..5, 1..9], &graph),
        needed(four, [1..2, 0..3], &graph),
        needed(six, [3..5, 0..2], &graph),
        needed(transposed, [0..10, 0..6], &graph),
    ];
    for found in rejected {
        let text = found.unwrap_err().to_string();
        assert!(text.starts_with("target `out` would split or join bytes of F"), "{text}");
    }
}

#[test]
fn invalid_requests_are_rejected() {
    let (_place, folder, mut graph, w) = matrix();
    let absent = ["b", "a"].map(|name| graph.source(name, Dtype::F32, &[2]).unwrap());
    let both = graph.stack(&absent, 0).unwrap();
    let rejected = |requests: &[LoadRequest]| {
        let error = plan(&folder, &graph, requests, &Options::default()).unwrap_err();
        error.to_string()
    };
    assert_eq!(
        rejected(&[LoadRequest::all("w", &graph, w), LoadRequest::all("w", &graph, both)]),
        "target `w` is requested twice: give each region its own name"
    );
    assert_eq!(
        rejected(&[LoadRequest::all("both", &graph, both), LoadRequest::all("w", &graph, w)]),
        "the files lack `a`, `b`"
    );
    assert_eq!(
        rejected(&[LoadRequest::new("w", w, [0..4097, 0..1])]),
        "target `w`: [0..4097, 0..1] is not a region of shape [4096, 8192]: pass a range inside each \
         dim"
    );
    for (dtype, shape) in [(Dtype::F16, [4096, 8192]), (Dtype::BF16, [8192, 4096])] {
        let mut graph = Graph::new();
        let w = graph.source("w", dtype, &shape).unwrap();
        let request = LoadRequest::new("w", w, [0..1, 0..1]);
        let error = plan(&folder, &graph, &[request], &Options::default()).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("tensor `w` is BF16 [4096, 8192] in the file"), "{text}");
    }
    // An empty request gives a plan without reads.
    for requests in [Vec::new(), vec![LoadRequest::new("w", w, [7..7, 0..8192])]] {
        let plan = plan(&folder, &graph, &requests, &Options::default()).unwrap();
        assert_eq!((plan.read_bytes(), plan.amplification()), (0, 1.0));
        assert_eq!(plan.memory().windows, 0);
    }
}

/// Fuses the experts of Qwen3-30B-A3B, which are separate tensors in the files. Each of 8
/// expert-parallel x 2 tensor-parallel ranks needs one sixteenth of the bytes, in 2,304 copies.
#[test]
fn a_rank_of_experts_reads_a_sixteenth() {
    const LAYERS: usize = 48;
    const EXPERTS: usize = 128;
    let shapes: [(&str, [usize; 2]); 3] =
        [("gate", [768, 2048]), ("up", [768, 2048]), ("down", [2048, 768])];
    let mut names = Vec::new();
    for layer in 0..LAYERS {
        for expert in 0..EXPERTS {
            let name = |(half, shape)| (format!("layers.{layer}.experts.{expert}.{half}"), shape);
            names.extend(shapes.map(name));
        }
    }
    let tensors: Vec<(&str, Dtype, &[usize])> =
        names.iter().map(|(name, shape)| (name.as_str(), Dtype::BF16, &shape[..])).collect();
    let (_place, folder) = folder(&tensors);

    let (mut graph, mut requests) = (Graph::new(), Vec::new());
    for layer in names.chunks(3 * EXPERTS) {
        let (mut gates_and_ups, mut downs) = (Vec::new(), Vec::new());
        for expert in layer.chunks(3) {
            let source = |graph: &mut Graph, (name, shape): &(String, [usize; 2])| {
                let shape = shape.map(|extent| extent as u64);
                graph.source(name, Dtype::BF16, &shape).unwrap()
            };
            let halves = [&expert[0], &expert[1]].map(|it| source(&mut graph, it));
            gates_and_ups.push(graph.stack(&halves, 0).unwrap());
            downs.push(source(&mut graph, &expert[2]));
        }
        let number = requests.len();
        let fused = graph.stack(&gates_and_ups, 0).unwrap();
        let region = [0..16, 0..2, 0..384, 0..2048];
        requests.push(LoadRequest::new(format!("w13.{number:02}"), fused, region));
        let down = graph.stack(&downs, 0).unwrap();
        // [experts, hidden, features]: a shard of columns, half of each row.
        requests.push(LoadRequest::new(format!("w2.{number:02}"), down, [0..16, 0..2048, 0..384]));
    }

    let whole = plan(&folder, &graph, &requests, &Options::default()).unwrap();
    assert_eq!(whole.copies.len(), 2304);
    let all: usize = folder.tensors().map(|tensor| tensor.byte_len()).sum();
    assert_eq!(whole.needed_bytes() * 16, all as u64);
    // For `w2`, the other half of each row (768 bytes) is also read, except in the last row of each
    // expert. This is cheaper than 1.5 million reads.
    assert_eq!(whole.read_bytes() * 3, whole.needed_bytes() * 4 - 768 * 16 * 48 * 3);
    assert!(whole.reads().extents <= 2304);

    requests.retain(|request| request.target.starts_with("w13"));
    let rows = plan(&folder, &graph, &requests, &Options::default()).unwrap();
    assert_eq!(rows.amplification(), 1.0);
}
