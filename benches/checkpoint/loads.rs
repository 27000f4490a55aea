//! Loads into a reused arena: ours, and plain reads as the baseline.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread::ScopedJoinHandle;

use anyhow::ensure;
use memmap2::{Mmap, MmapMut};
use meshgrad::ckpt::Folder;
use meshgrad::ckpt::exec::{Slices, execute, gather};
use meshgrad::ckpt::graph::Graph;
use meshgrad::ckpt::mapping::{AllowedProblems, Bound, Mapping, TensorSpec};
use meshgrad::ckpt::plan::{Catalog, LoadPlan, Options};
use meshgrad::ckpt::source::{Backend, BackendChoice, Sources};
use meshgrad::ckpt::{Dtype, TensorFile};
use meshgrad_harness::{PAGE, map_touched, open_direct, timed};
use twox_hash::XxHash3_64;

use super::rounds::Contestant;

/// Bytes per plain read.
const BLOCK: usize = 8 << 20;

/// Bytes per chunk; a chunk stays in the caches of a core after it was read.
const CHUNK: usize = 256 << 10;

pub(super) const CHUNKED: &str = "plain pread by 256 KiB, 2 threads";
pub(super) const DIGESTED: &str = "the same, each chunk digested (xxh3-64)";

/// Threads of every contestant whose number of threads can be set.
pub(super) const THREADS: usize = 2;

pub(super) const IDENTITY: &str = "{r:path} = {r:path}";

/// The maps that are applied to the blocks.
const GRAPHS: [(&str, &str); 4] = [
    ("identity", IDENTITY),
    ("rename", "model.layers.{b}.experts.{p}.weight = blocks.{b}.parts.{p}.weight"),
    ("stack 10 to 1", "blocks.{b} = stack(blocks.{b}.parts.{p}.weight, each=p)"),
    ("concat 10 to 1", "blocks.{b} = concat(blocks.{b}.parts.{p}.weight, each=p)"),
];

const TRANSPOSE: &str =
    "blocks.{b}.parts.{p}.weight = transpose(blocks.{b}.parts.{p}.weight, 0, 1)";

pub(super) const TRANSPOSE_IN_MEMORY: &str =
    "meshgrad transpose of half as much, in memory, 1 thread";

/// Memory that is allocated once and reused by all loads.
pub(super) type Arena = RefCell<MmapMut>;

/// Allocates and touches `bytes`, in huge pages if the system has them.
pub(super) fn arena(bytes: u64) -> anyhow::Result<Arena> {
    Ok(RefCell::new(map_touched(bytes as usize)?))
}

pub(super) fn bind(folder: &Folder, map: &str) -> anyhow::Result<Bound> {
    let there: Vec<TensorSpec> = folder.tensors().map(TensorSpec::from).collect();
    let bound = Mapping::parse(map)?.bind(&there, None, &AllowedProblems::none());
    bound.map_err(|report| anyhow::anyhow!("{report}"))
}

pub(super) fn options(backend: Backend, threads: usize) -> Options {
    match backend {
        // Threads of direct I/O mostly wait, so this backend has its own default number.
        Backend::Direct => Options::direct(),
        _ => Options { threads, ..Options::default() },
    }
}

/// Opens a checkpoint, binds a map to it, plans, and loads into `arena`.
pub(super) fn load(
    folder: &Path,
    map: &str,
    backend: Backend,
    threads: usize,
    arena: &mut [u8],
) -> anyhow::Result<()> {
    let folder = Folder::open(folder)?;
    let bound = bind(&folder, map)?;
    let plan = LoadPlan::new(
        bound.graph(),
        &Catalog::of(&folder),
        &bound.requests(),
        &options(backend, threads),
    )?;
    let sources = Sources::open(&folder, BackendChoice::Only(backend))?;
    if let Some(refused) = &sources.files()[0].fallback_reason {
        anyhow::bail!("{refused}");
    }
    execute(&plan, &sources, &targets_in(&plan, arena), &|_| {})?;
    Ok(())
}

/// Splits the arena into the targets of a plan.
pub(super) fn targets_in<'a>(plan: &LoadPlan, mut arena: &'a mut [u8]) -> Slices<'a> {
    let mut slices = Vec::new();
    for target in plan.targets() {
        let (slice, rest) = arena.split_at_mut(target.bytes as usize);
        slices.push(slice);
        arena = rest;
    }
    Slices::new(slices)
}

/// The contestants that load the blocks in this process.
pub(super) fn contestants<'a>(folder: &'a Path, arena: &'a Arena) -> Vec<Contestant<'a>> {
    let file = folder.join("model.safetensors");
    let ours = |name: String, map: &'static str, backend, threads| {
        contestant(name, &file, move || {
            load(folder, map, backend, threads, &mut arena.borrow_mut())
        })
    };
    let mut all = Vec::new();
    for (name, map) in GRAPHS {
        all.push(ours(format!("meshgrad {name}"), map, Backend::Pread, THREADS));
    }
    for backend in [Backend::Direct, Backend::Mapped] {
        let name = format!("meshgrad identity, {backend}");
        all.push(ours(name, IDENTITY, backend, THREADS));
    }
    let name = "meshgrad transpose, 1 thread";
    all.push(ours(name.to_owned(), TRANSPOSE, Backend::Pread, 1));

    let floor = |name: &str, read: fn(&Path, &mut [u8]) -> anyhow::Result<()>| {
        let path = file.clone();
        contestant(name.to_owned(), &file, move || read(&path, &mut arena.borrow_mut()))
    };
    all.push(floor("plain pread, 2 threads", plain_pread));
    all.push(floor(CHUNKED, |path, arena| in_chunks(path, arena, |_| {})));
    all.push(floor(DIGESTED, |path, arena| {
        in_chunks(path, arena, |chunk| {
            std::hint::black_box(XxHash3_64::oneshot(chunk));
        })
    }));
    all.push(floor("plain O_DIRECT, 2 threads", plain_direct));
    let mut like_dd = floor("O_DIRECT as dd reads, 1 thread", like_dd);
    like_dd.destination = "reused 8 MiB";
    all.push(like_dd);
    all.push(floor("safetensors crate (mmap) + copy", safetensors_crate));
    all
}

fn contestant<'a>(
    name: String,
    file: &Path,
    mut load: impl FnMut() -> anyhow::Result<()> + 'a,
) -> Contestant<'a> {
    let files: Vec<PathBuf> = vec![file.to_owned()];
    Contestant {
        name,
        destination: "reused arena",
        files,
        before: Box::new(|| Ok(())),
        sample: Box::new(move || timed(&mut load)),
    }
}

/// Transposes tensors in memory on one thread.
pub(super) fn transpose_in_memory<'a>(shape: [usize; 2], arena: &'a Arena) -> Contestant<'a> {
    let bytes = shape[0] * shape[1] * 2;
    let turn = move || -> anyhow::Result<()> {
        let mut graph = Graph::new();
        let x = graph.source("x", Dtype::BF16, &shape.map(|extent| extent as u64))?;
        let transposed = graph.transpose(x, 0, 1)?;
        let region = [0..shape[1] as u64, 0..shape[0] as u64];

        let mut arena = arena.borrow_mut();
        let half = arena.len() / 2;
        let (from, to) = arena.split_at_mut(half);
        for (from, to) in from.chunks_exact(bytes).zip(to.chunks_exact_mut(bytes)) {
            gather(&graph, transposed, &region, &|_| Some(from), to)?;
        }
        Ok(())
    };
    let mut contestant = contestant(TRANSPOSE_IN_MEMORY.to_owned(), Path::new(""), turn);
    contestant.files.clear();
    contestant
}

fn plain_pread(path: &Path, arena: &mut [u8]) -> anyhow::Result<()> {
    let (file, start) = open_data(path)?;
    in_blocks(arena, |offset, block| Ok(file.read_exact_at(block, start + offset)?))
}

/// Calls `look` on each chunk right after it was read.
fn in_chunks(path: &Path, arena: &mut [u8], look: impl Fn(&[u8]) + Sync) -> anyhow::Result<()> {
    let (file, start) = open_data(path)?;
    in_blocks(arena, |offset, block| {
        for (chunk, at) in block.chunks_mut(CHUNK).zip((0..).step_by(CHUNK)) {
            file.read_exact_at(chunk, start + offset + at)?;
            look(chunk);
        }
        Ok(())
    })
}

/// Opens a file; returns it with the offset of its data.
fn open_data(path: &Path) -> anyhow::Result<(File, u64)> {
    let opened = TensorFile::open(path)?;
    let starts = opened.tensors().iter().map(|tensor| tensor.range.start);
    Ok((File::open(path)?, starts.min().unwrap_or(0)))
}

/// Fills the arena from the beginning of the file, in whole pages.
fn plain_direct(path: &Path, arena: &mut [u8]) -> anyhow::Result<()> {
    let file = open_direct(OpenOptions::new().read(true), path)?;
    in_blocks(arena, |offset, block| {
        let whole = block.len() / PAGE * PAGE;
        Ok(file.read_exact_at(&mut block[..whole], offset)?)
    })
}

fn like_dd(path: &Path, arena: &mut [u8]) -> anyhow::Result<()> {
    let file = open_direct(OpenOptions::new().read(true), path)?;
    let size = file.metadata()?.len();
    let block = BLOCK.min(arena.len() / PAGE * PAGE);
    let mut offset = 0;
    while offset < size {
        let read = file.read_at(&mut arena[..block], offset)?;
        ensure!(read > 0, "{} was truncated during the read", path.display());
        offset += read as u64;
    }
    Ok(())
}

/// Splits the arena into blocks, which threads process in order.
pub(super) fn in_blocks(
    arena: &mut [u8],
    act: impl Fn(u64, &mut [u8]) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<()> {
    let blocks = Mutex::new((0..).step_by(BLOCK).zip(arena.chunks_mut(BLOCK)));
    let next = || blocks.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || -> anyhow::Result<()> {
        while let Some((offset, block)) = next() {
            act(offset, block)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        let done = |thread: ScopedJoinHandle<'_, _>| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        threads.into_iter().try_for_each(done)
    })
}

/// The safetensors crate as it is commonly used: maps the file and copies each tensor.
fn safetensors_crate(path: &Path, arena: &mut [u8]) -> anyhow::Result<()> {
    let file = File::open(path)?;
    // SAFETY: the file is private to this bench, which does not write to it while it is mapped.
    let bytes = unsafe { Mmap::map(&file) }?;
    let mut rest = arena;
    for (_, tensor) in safetensors::SafeTensors::deserialize(&bytes)?.iter() {
        let (place, behind) = rest.split_at_mut(tensor.data().len());
        place.copy_from_slice(tensor.data());
        rest = behind;
    }
    Ok(())
}
