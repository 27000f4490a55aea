//! Weights and optimizer state saved by the ranks of one mesh and loaded by those of another.

mod folder;

use std::collections::BTreeMap;

use meshgrad_ckpt::exec::{Slices, execute};
use meshgrad_ckpt::graph::Graph;
use meshgrad_ckpt::layout::Layout;
use meshgrad_ckpt::plan::{Catalog, LoadPlan, LoadRequest, Options};
use meshgrad_ckpt::source::{BackendChoice, Sources};
use meshgrad_ckpt::{Committed, Dtype, FileWriter, Folder, Staging, Writer, write_region};

const FILE: &str = "model.safetensors";

/// Parameters of a small mixture of experts; no dim is divisible by all meshes.
const PARAMETERS: [(&str, Dtype, &[usize]); 5] = [
    ("embed.weight", Dtype::F32, &[13, 6]),
    ("layers.0.attention.weight", Dtype::F32, &[9, 10]),
    ("layers.0.experts.down", Dtype::F32, &[6, 5, 7]),
    ("layers.0.norm.weight", Dtype::F32, &[10]),
    ("layers.0.router.bias", Dtype::BF16, &[6]),
];

/// The saved state of each parameter: the parameter, AdamW's first and second moment, and the f32
/// master weight.
const STATES: [&str; 4] = ["", "mean.", "square.", "master."];

/// Meshes of 1 to 8 ranks, and the dims that they split.
const MESHES: [(&str, &str); 12] = [
    ("", ""),
    ("dp=4", ""),
    ("fsdp=3", "{all:path} = fsdp:0"),
    ("fsdp=8", "{all:path} = fsdp:0"),
    ("dp=2,fsdp=2", "{all:path} = fsdp:0"),
    ("tp=2", "{s:path}attention.weight = tp:1\n{s:path}down = tp:2\n{s:path}embed.weight = tp:0"),
    ("tp=4", "{s:path}attention.weight = tp:0\n{s:path}down = tp:1\n{s:path}embed.weight = tp:1"),
    ("ep=3", "{s:path}down = ep:0"),
    ("ep=2,tp=2", "{s:path}down = ep:0 tp:2\n{s:path}attention.weight = tp:1"),
    ("fsdp=2,tp=2", "{s:path}attention.weight = tp:0 fsdp:0\n{s:path}down = fsdp:1 tp:2"),
    ("fsdp=2,tp=3", "{s:path}attention.weight = tp:1 fsdp:0\n{s:path}embed.weight = fsdp:0 tp:0"),
    ("dp=2,ep=2,tp=2", "{s:path}down = ep:0 tp:1\n{s:path}embed.weight = tp:0"),
];

/// Name, dtype and shape of all saved tensors.
fn tensors() -> Vec<(String, Dtype, Vec<u64>)> {
    let states = STATES.iter().flat_map(|state| {
        let of = |(name, dtype, shape): &(&str, Dtype, &[usize])| {
            let shape = shape.iter().map(|extent| *extent as u64).collect();
            (format!("{state}{name}"), *dtype, shape)
        };
        PARAMETERS.iter().map(of).collect::<Vec<_>>()
    });
    states.collect()
}

/// The bytes of an element, which depend only on its tensor and index.
fn element(name: &str, index: u64, size: usize) -> Vec<u8> {
    let seed = name.bytes().fold(17u64, |seed, byte| seed.wrapping_mul(31) + u64::from(byte));
    let bits = (seed ^ index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits.to_le_bytes()[8 - size..].to_vec()
}

/// A rank's region of a tensor.
fn held(
    layout: &Layout,
    rank: u64,
    (name, dtype, shape): &(String, Dtype, Vec<u64>),
) -> (Vec<std::ops::Range<u64>>, Vec<u8>) {
    let region = layout.region(name, shape, rank).unwrap();
    let mut indices = vec![0];
    for (range, extent) in region.iter().zip(shape) {
        let next = indices.iter().flat_map(|at| range.clone().map(move |it| at * extent + it));
        indices = next.collect();
    }
    let size = dtype.bits() / 8;
    let bytes = indices.into_iter().flat_map(|at| element(name, at, size));
    (region, bytes.collect())
}

/// Each rank writes the regions of which it is the primary replica, in parallel, to the final file.
fn save(run: &std::path::Path, step: u64, layout: &Layout) -> Committed {
    let mut file = FileWriter::new();
    for (name, dtype, shape) in tensors() {
        let shape: Vec<usize> = shape.iter().map(|extent| *extent as usize).collect();
        file.add(&name, dtype, &shape).unwrap();
    }
    let plan = file.plan().unwrap();
    let mut staging = Staging::new(run, &meshgrad_ckpt::step_name(step)).unwrap();
    let shared = staging.create(FILE, plan.bytes).unwrap();
    shared.write_at(0, &plan.start).unwrap();

    let folder = staging.folder().to_owned();
    let reports = std::thread::scope(|scope| {
        let ranks = (0..layout.ranks()).map(|rank| {
            let (folder, plan) = (&folder, &plan);
            scope.spawn(move || {
                let mut writer = Writer::join(folder, &format!("rank {rank}")).unwrap();
                let file = writer.file(FILE).unwrap();
                for tensor in tensors().iter().filter(|it| layout.is_primary_replica(&it.0, rank)) {
                    let (region, bytes) = held(layout, rank, tensor);
                    let place = plan.tensors.iter().find(|it| it.name == tensor.0).unwrap();
                    write_region(&file, place, &region, &bytes).unwrap();
                }
                writer.finish().unwrap()
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
    });
    for report in reports {
        staging.accept(report).unwrap();
    }
    staging.commit().unwrap()
}

/// Loads the regions of a rank of `layout`.
fn load(checkpoint: &Committed, layout: &Layout, rank: u64) -> BTreeMap<String, Vec<u8>> {
    let folder = Folder::open(checkpoint.path()).unwrap();
    let mut graph = Graph::new();
    let requests = tensors().into_iter().map(|(name, dtype, shape)| {
        let expr = graph.source(&name, dtype, &shape).unwrap();
        let region = layout.region(&name, &shape, rank).unwrap();
        LoadRequest::new(name, expr, region)
    });
    let requests: Vec<LoadRequest> = requests.collect();
    let options = Options { threads: 1, ..Options::default() };
    let plan = LoadPlan::new(&graph, &Catalog::of(&folder), &requests, &options).unwrap();
    let targets = plan.targets().iter();
    let mut loaded: Vec<Vec<u8>> = targets.map(|it| vec![0; it.bytes as usize]).collect();
    let slices = Slices::new(loaded.iter_mut().map(|it| &mut it[..]));
    let sources = Sources::open(&folder, BackendChoice::Auto).unwrap();
    execute(&plan, &sources, &slices, &|_| {}).unwrap();
    requests.into_iter().map(|request| request.target.to_string()).zip(loaded).collect()
}

/// Checkpoints of each of 12 meshes can be loaded by each of them. Weights, both AdamW moments and
/// master weights are bit-identical on every rank.
#[test]
fn every_mesh_loads_checkpoints_of_every_mesh() {
    let layouts = MESHES.map(|(axes, places)| Layout::parse(axes, places).unwrap());
    let run = tempfile::tempdir().unwrap();
    for (saved, step) in layouts.iter().zip(1..) {
        let checkpoint = save(run.path(), step, saved);
        checkpoint.verify().unwrap();
        for layout in &layouts {
            for rank in 0..layout.ranks() {
                let loaded = load(&checkpoint, layout, rank);
                for tensor in tensors() {
                    let (_, expected) = held(layout, rank, &tensor);
                    assert_eq!(loaded[&tensor.0], expected, "{saved} to {layout}: {rank}");
                }
            }
        }
    }
}

/// For any number of ranks, a checkpoint has the same bytes.
#[test]
fn files_do_not_depend_on_the_mesh() {
    let run = tempfile::tempdir().unwrap();
    let files = MESHES.iter().zip(1..).map(|((axes, places), step)| {
        let layout = Layout::parse(axes, places).unwrap();
        let checkpoint = save(run.path(), step, &layout);
        std::fs::read(checkpoint.path().join(FILE)).unwrap()
    });
    let files: Vec<Vec<u8>> = files.collect();
    assert!(files.iter().all(|file| *file == files[0]));
}
