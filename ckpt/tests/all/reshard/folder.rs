//! A Hugging Face folder that ranks write together equals the one that one process writes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::{env, fs};

use meshgrad_ckpt::{
    Error, FolderLayout, FolderWriter, Result, TensorInfo, TensorSink, WriteReport, step_name,
};
use safetensors::SafeTensors;
use serde::{Deserialize, Serialize};

use super::*;

/// The files of a folder, by name.
type Files = BTreeMap<String, Vec<u8>>;

/// Limits that give one file, a few files, and one file per tensor.
const MAX_SHARD_BYTES: [u64; 3] = [u64::MAX, 1000, 1];

fn model(max_shard_bytes: u64) -> FolderWriter {
    let mut model = FolderWriter::new().max_shard_bytes(max_shard_bytes);
    for (name, dtype, shape) in tensors() {
        let shape: Vec<usize> = shape.iter().map(|extent| *extent as usize).collect();
        model.add(&name, dtype, &shape).unwrap();
    }
    // No rank writes a tensor without elements.
    model.add("nothing", Dtype::F32, &[0, 3]).unwrap();
    model
}

fn layout_of(max_shard_bytes: u64) -> FolderLayout {
    model(max_shard_bytes).layout("model").unwrap()
}

fn mesh(number: usize) -> Layout {
    let (axes, places) = MESHES[number];
    Layout::parse(axes, places).unwrap()
}

fn names(mesh: &Layout) -> impl Iterator<Item = String> {
    (0..mesh.ranks()).map(|rank| format!("rank {rank}"))
}

/// Writes the regions of which the rank is the primary replica.
fn write_rank(staged: &Path, layout: &FolderLayout, mesh: &Layout, rank: u64) -> WriteReport {
    let mut writer = Writer::join(staged, &format!("rank {rank}")).unwrap();
    for tensor in tensors() {
        if mesh.is_primary_replica(&tensor.0, rank) {
            let (region, bytes) = held(mesh, rank, &tensor);
            layout.write_region(&mut writer, &tensor.0, &region, &bytes).unwrap();
        }
    }
    writer.finish().unwrap()
}

/// The files of the model, without the manifest.
fn files_of(checkpoint: &Committed) -> Files {
    checkpoint.verify().unwrap();
    let files = checkpoint.files().map(|(name, _)| {
        let bytes = fs::read(checkpoint.path().join(name)).unwrap();
        (name.to_owned(), bytes)
    });
    files.collect()
}

fn by_one_process(run: &Path, step: u64, max_shard_bytes: u64) -> Files {
    let all: BTreeMap<_, _> = tensors()
        .into_iter()
        .map(|tensor| (tensor.0.clone(), held(&Layout::single(), 0, &tensor).1))
        .collect();
    let mut staging = Staging::new(run, &step_name(step)).unwrap();
    let give = |tensor: &TensorInfo, data: &mut TensorSink<'_>| -> Result<()> {
        all.get(&tensor.name).map_or(Ok(()), |it| data.append(it))
    };
    model(max_shard_bytes).write(&mut staging, "model", give).unwrap();
    files_of(&staging.commit().unwrap())
}

fn begin(run: &Path, step: u64, layout: &FolderLayout, mesh: &Layout) -> Staging {
    let mut staging = Staging::new(run, &step_name(step)).unwrap();
    layout.create(&mut staging).unwrap();
    staging.expect_writers(names(mesh));
    staging
}

fn by_threads(run: &Path, step: u64, max_shard_bytes: u64, mesh: &Layout) -> Files {
    let mut staging = begin(run, step, &layout_of(max_shard_bytes), mesh);
    let folder = staging.folder().to_owned();
    let reports = std::thread::scope(|scope| {
        let rank = |rank| {
            let folder = &folder;
            scope.spawn(move || write_rank(folder, &layout_of(max_shard_bytes), mesh, rank))
        };
        let ranks: Vec<_> = (0..mesh.ranks()).map(rank).collect();
        let reports = ranks.into_iter().map(|rank| rank.join().unwrap());
        reports.collect::<Vec<_>>()
    });
    for report in reports {
        staging.accept(report).unwrap();
    }
    files_of(&staging.commit().unwrap())
}

/// No byte of any file depends on the number of ranks or their split.
#[test]
fn ranks_write_what_one_process_writes() {
    for (max_shard_bytes, shards) in MAX_SHARD_BYTES.into_iter().zip([1, 8, 21]) {
        let run = tempfile::tempdir().unwrap();
        let alone = by_one_process(run.path(), 0, max_shard_bytes);
        assert_eq!(alone.len(), shards + usize::from(shards > 1));

        for (number, step) in (0..MESHES.len()).zip(1..) {
            let together = by_threads(run.path(), step, max_shard_bytes, &mesh(number));
            assert!(together == alone, "{} in {shards} files", mesh(number));
        }
    }
}

/// The reference crate parses each file, and each tensor is in the file that the layout names.
#[test]
fn the_reference_reads_each_file() {
    for max_shard_bytes in MAX_SHARD_BYTES {
        let run = tempfile::tempdir().unwrap();
        let mesh = mesh(10);
        let files = by_threads(run.path(), 1, max_shard_bytes, &mesh);
        let layout = layout_of(max_shard_bytes);
        assert_eq!(layout.bytes(), files.values().map(|it| it.len() as u64).sum::<u64>());

        for tensor in tensors() {
            let (path, info) = layout.location(&tensor.0).unwrap();
            let theirs = SafeTensors::deserialize(&files[path]).unwrap();
            let view = theirs.tensor(&tensor.0).unwrap();
            assert_eq!(view.shape(), info.shape);
            let (_, expected) = held(&Layout::single(), 0, &tensor);
            assert_eq!(view.data(), expected, "{}", tensor.0);
        }
        let folder = Folder::open(run.path().join("step-000001/model")).unwrap();
        assert_eq!(folder.tensors().len(), tensors().len() + 1);
    }
}

const JOB: &str = "MESHGRAD_CKPT_RANK_JOB";

/// The input of a process that acts as a rank.
#[derive(Serialize, Deserialize)]
struct Job {
    folder: String,
    max_shard_bytes: u64,
    mesh: usize,
    rank: u64,
}

/// Runs as a child process of the next test. Returns immediately if there is no job.
#[test]
fn child_writes_its_rank() {
    if let Ok(job) = env::var(JOB) {
        let job: Job = serde_json::from_str(&job).unwrap();
        let layout = layout_of(job.max_shard_bytes);
        let report = write_rank(Path::new(&job.folder), &layout, &mesh(job.mesh), job.rank);
        println!("\n{REPORT}{}", serde_json::to_string(&report).unwrap());
    }
}

const REPORT: &str = "report ";

fn spawn(job: &Job) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["--exact", "reshard::folder::child_writes_its_rank", "--nocapture"])
        .env(JOB, serde_json::to_string(job).unwrap())
        .stdout(Stdio::piped());
    command.spawn().unwrap()
}

/// Like `ranks_write_what_one_process_writes`, with one process per rank. They share only the
/// folder.
#[test]
fn processes_write_what_one_process_writes() {
    let run = tempfile::tempdir().unwrap();
    let max_shard_bytes = 1000;
    let alone = by_one_process(run.path(), 0, max_shard_bytes);

    for (number, step) in [(3, 1), (8, 2), (10, 3)] {
        let mesh = mesh(number);
        let mut staging = begin(run.path(), step, &layout_of(max_shard_bytes), &mesh);
        let ranks = (0..mesh.ranks()).map(|rank| {
            spawn(&Job {
                folder: staging.folder().to_str().unwrap().to_owned(),
                max_shard_bytes,
                mesh: number,
                rank,
            })
        });
        for rank in ranks.collect::<Vec<_>>() {
            let said = String::from_utf8(rank.wait_with_output().unwrap().stdout).unwrap();
            let report = said.lines().find_map(|line| line.strip_prefix(REPORT));
            let report = report.unwrap_or_else(|| panic!("{said}"));
            staging.accept(serde_json::from_str(report).unwrap()).unwrap();
        }
        assert!(files_of(&staging.commit().unwrap()) == alone, "{mesh}");
    }
}

type Regions<'a> = &'a [(&'a str, [Range<u64>; 2])];

/// The commit's error after one rank has written these regions of three tensors, and `more`.
fn error_of(regions: Regions<'_>, more: impl FnOnce(&mut Writer)) -> Error {
    let run = tempfile::tempdir().unwrap();
    let mut model = FolderWriter::new();
    for name in ["a", "b", "c"] {
        model.add(name, Dtype::U8, &[4, 4]).unwrap();
    }
    let layout = model.layout("").unwrap();
    let mut staging = begin(run.path(), 1, &layout, &Layout::single());
    let mut writer = Writer::join(staging.folder(), "rank 0").unwrap();
    for (tensor, region) in regions {
        let elements: u64 = region.iter().map(|it| it.end - it.start).product();
        layout.write_region(&mut writer, tensor, region, &vec![1; elements as usize]).unwrap();
    }
    more(&mut writer);
    staging.accept(writer.finish().unwrap()).unwrap();

    let error = staging.commit().unwrap_err();
    assert!(error.to_string().contains(" is not complete: "), "{error}");
    assert_eq!(fs::read_dir(run.path()).unwrap().count(), 0);
    error
}

/// Missing and duplicate bytes are reported with the names of tensors.
#[test]
fn gaps_and_overlaps_name_tensors() {
    let (a, b, c) = (("a", [0..4, 0..4]), ("b", [0..4, 0..4]), ("c", [0..4, 0..4]));
    let text = |regions: Regions<'_>| error_of(regions, |_| {}).to_string();

    let gap = text(&[a.clone(), ("b", [0..4, 0..3]), c.clone()]);
    assert!(gap.contains("were not written"), "{gap}");
    assert!(gap.ends_with("they belong to tensor `b`"), "{gap}");

    let gap = text(std::slice::from_ref(&c));
    assert!(gap.contains("writer before: `coordinator`"), "{gap}");
    assert!(gap.ends_with("they belong to tensors `a`, `b`"), "{gap}");

    let all = [a, b, c];
    let overlap = text(&[&all[..], &[("c", [1..2, 2..4])]].concat());
    assert!(overlap.contains("written twice"), "{overlap}");
    assert!(overlap.ends_with("they belong to tensor `c`"), "{overlap}");

    // Writing over the header is an overlap, too.
    let over_header = error_of(&all, |writer| {
        let file = writer.file("model.safetensors").unwrap();
        file.write_at(3, &[0; 2]).unwrap();
    });
    let overlap = over_header.to_string();
    let who = "bytes 3..5 were written twice, by `coordinator` and by `rank 0`";
    assert!(overlap.ends_with(who), "{overlap}");
}

/// Thousands of small parts of ranks give a manifest of few blocks, which still detects damage.
/// Parts that were modified before the commit are not sealed.
#[test]
fn column_shards_keep_the_manifest_small() {
    const ROWS: u64 = 3000;
    let run = tempfile::tempdir().unwrap();
    let staged = |step| {
        let mut model = FolderWriter::new();
        model.add("w", Dtype::U8, &[ROWS as usize, 4]).unwrap();
        let layout = model.layout("").unwrap();
        let mut staging = Staging::new(run.path(), &step_name(step)).unwrap();
        layout.create(&mut staging).unwrap();
        for rank in 0..2 {
            let mut writer = Writer::join(staging.folder(), &format!("rank {rank}")).unwrap();
            let region = [0..ROWS, 2 * rank..2 * rank + 2];
            let bytes: Vec<u8> = (0..2 * ROWS).map(|at| (at / 7 + rank) as u8).collect();
            layout.write_region(&mut writer, "w", &region, &bytes).unwrap();
            let report = writer.finish().unwrap();
            assert_eq!(report.parts["model.safetensors"].len() as u64, ROWS);
            staging.accept(report).unwrap();
        }
        staging
    };

    let committed = staged(1).commit().unwrap();
    committed.verify().unwrap();
    let manifest = fs::metadata(committed.path().join("manifest.json")).unwrap();
    assert!(manifest.len() < 1000, "{}", manifest.len());

    let staging = staged(2);
    let file = staging.folder().join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(file, bytes).unwrap();
    let error = staging.commit().unwrap_err();
    assert!(
        error.to_string().contains("was written; another program modified the file"),
        "{error}"
    );
}

/// A rank with another layout cannot write.
#[test]
fn ranks_with_another_layout_are_rejected() {
    let layout = |extent| {
        let mut model = FolderWriter::new();
        model.add("weight", Dtype::U8, &[extent, 2]).unwrap();
        model.layout("").unwrap()
    };
    let run = tempfile::tempdir().unwrap();
    let staging = begin(run.path(), 1, &layout(8), &Layout::single());
    let mut writer = Writer::join(staging.folder(), "rank 0").unwrap();

    let other = layout(16);
    assert_ne!(other.digest(), layout(8).digest());
    assert_eq!(other.digest(), layout(16).digest());
    let error = other.write_region(&mut writer, "weight", &[0..16, 0..2], &[1; 32]).unwrap_err();
    assert!(error.to_string().contains("but this rank's layout has"), "{error}");

    let error = layout(8).write_region(&mut writer, "weigh", &[0..8, 0..2], &[1; 16]).unwrap_err();
    assert!(error.to_string().ends_with("did you mean `weight`?"), "{error}");
    let error = layout(8).write_region(&mut writer, "weight", &[0..8, 0..2], &[1; 15]).unwrap_err();
    assert!(error.to_string().contains(" as region "), "{error}");
}
