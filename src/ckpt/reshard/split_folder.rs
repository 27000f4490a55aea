//! A folder with the shards of all ranks, as a source of whole tensors.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{anyhow, bail, ensure};
use meshgrad::ckpt::layout::Layout;
use meshgrad::ckpt::mapping::TensorSpec;
use meshgrad::ckpt::source::Sources;
use meshgrad::ckpt::{Assembly, Folder, Links, Part, TensorFile};

use super::record::{LAYOUT_FILE, LayoutRecord, Regions, rank_file};
use crate::ckpt::source::{Source, intact_checkpoint};
use crate::ckpt::stream::{Limits, extents, file_shape};
use crate::table::display_path;

type Region = Vec<Range<u64>>;

pub(super) struct SplitFolder {
    /// The whole tensors.
    pub(super) source: Source,
    pub(super) layout: Layout,
    replicas: Vec<Replicas>,
}

/// The ranks that hold the same shard of a tensor.
struct Replicas {
    name: String,
    first: u64,
    others: Vec<u64>,
}

impl SplitFolder {
    /// Whether the folder has shards of ranks.
    pub(super) fn is_at(path: &Path) -> bool {
        path.join(LAYOUT_FILE).is_file()
    }

    /// Opens the files of all ranks and checks them against the layout; reads no data.
    pub(super) fn open(path: &Path, links: Links) -> anyhow::Result<SplitFolder> {
        let checkpoint = intact_checkpoint(path)?;
        if let Some(checkpoint) = &checkpoint {
            checkpoint.verify_file(LAYOUT_FILE)?;
        }
        let record = LayoutRecord::read(path)?;
        let (layout, specs) = record.layout()?;
        let files = open_files(path, links, &layout, &specs)?;
        let files = (0..).zip(files).map(|(rank, file)| (prefix(rank), file));
        let mut assembly = Assembly::new(Folder::of_files(path, files)?);
        let mut replicas = Vec::new();
        for spec in &specs {
            let parts = add(&mut assembly, &layout, spec)?;
            replicas.extend(parts.into_iter().filter(|it| !it.others.is_empty()));
        }
        Ok(SplitFolder {
            source: Source::assembled(assembly, checkpoint).with_links(links),
            layout,
            replicas,
        })
    }

    /// Compares the replicas of each shard with the first, which `source` reads. Returns the bytes
    /// read.
    pub(super) fn check_replicas(&self, limits: &Limits) -> anyhow::Result<u64> {
        let mut comparison = Comparison {
            folder: self.source.stored(),
            sources: &self.source.files()?,
            limits,
            read_bytes: 0,
        };
        for replicas in &self.replicas {
            for other in &replicas.others {
                comparison.compare(&replicas.name, replicas.first, *other)?;
            }
        }
        Ok(comparison.read_bytes)
    }
}

/// The prefix of the names of all tensors in a rank's file.
fn prefix(rank: u64) -> String {
    rank.to_string()
}

fn stored_name(rank: u64, name: &str) -> String {
    format!("{}/{name}", prefix(rank))
}

/// Adds a tensor, assembled from its distinct shards. Returns the ranks that hold each shard.
fn add(
    assembly: &mut Assembly,
    layout: &Layout,
    spec: &TensorSpec,
) -> anyhow::Result<Vec<Replicas>> {
    let mut known: BTreeMap<Vec<u64>, usize> = BTreeMap::new();
    let (mut parts, mut replicas): (Vec<Part>, Vec<Replicas>) = (Vec::new(), Vec::new());
    for rank in 0..layout.ranks() {
        let region = layout.region(&spec.name, &spec.shape, rank)?;
        if is_empty_shard(&region, &spec.shape) {
            continue;
        }
        let start: Vec<u64> = region.iter().map(|range| range.start).collect();
        match known.get(&start) {
            Some(&at) => replicas[at].others.push(rank),
            None => {
                known.insert(start, parts.len());
                let stored = stored_name(rank, &spec.name);
                parts.push(Part::stored(assembly, &stored, spec.dtype, region)?);
                replicas.push(Replicas {
                    name: spec.name.clone(),
                    first: rank,
                    others: Vec::new(),
                });
            }
        }
    }
    assembly.add(&spec.name, &spec.shape, parts)?;
    Ok(replicas)
}

/// Whether a region is empty in a dim that has elements.
fn is_empty_shard(region: &Region, shape: &[u64]) -> bool {
    let dims = region.iter().zip(shape);
    let mut empty = dims.filter(|(range, extent)| range.is_empty() && **extent > 0);
    empty.next().is_some()
}

/// Fails if a rank's file or its folder is a link, unless links are followed.
fn check_links(file: &Path, links: Links) -> anyhow::Result<()> {
    for path in [Some(file), file.parent()].into_iter().flatten() {
        let is_link = fs::symlink_metadata(path).is_ok_and(|it| it.is_symlink());
        ensure!(
            links == Links::Follow || !is_link,
            "{} is a link: replace it with a copy, or follow links with --follow-links",
            display_path(path)
        );
    }
    Ok(())
}

/// Opens the files of all ranks and checks them against the layout.
fn open_files(
    folder: &Path,
    links: Links,
    layout: &Layout,
    specs: &[TensorSpec],
) -> anyhow::Result<Vec<TensorFile>> {
    let mut files = Vec::new();
    for rank in 0..layout.ranks() {
        let path = folder.join(rank_file(rank));
        check_links(&path, links)?;
        let file = TensorFile::open(path)?;
        let regions = Regions::of(layout, specs, rank)?;
        regions.check(specs, &file)?;
        for (spec, (name, region)) in specs.iter().zip(&regions.0) {
            let path = display_path(file.path());
            let Some(found) = file.get(name) else {
                bail!("{path} lacks `{name}`");
            };
            let shape = file_shape(&extents(region));
            ensure!(
                (found.dtype, &found.shape) == (spec.dtype, &shape),
                "{path}: `{name}` is {} {:?}, but the layout requires {} {shape:?}",
                found.dtype,
                found.shape,
                spec.dtype
            );
        }
        let (found, required) = (file.tensors().len(), specs.len());
        let path = display_path(file.path());
        ensure!(
            found == required,
            "{path} has {found} tensors, but the layout requires {required}"
        );
        files.push(file);
    }
    Ok(files)
}

/// Bytes of a replica that are compared at once.
const COMPARED_BYTES: u64 = 256 << 10;

struct Comparison<'a> {
    folder: &'a Folder,
    /// The open files of `folder`.
    sources: &'a Sources,
    limits: &'a Limits,
    read_bytes: u64,
}

impl Comparison<'_> {
    fn compare(&mut self, name: &str, first: u64, other: u64) -> anyhow::Result<()> {
        let bytes = self.tensor(first, name)?.end - self.tensor(first, name)?.start;
        let window = COMPARED_BYTES.min(self.limits.target_bytes() / 2).max(1);
        let mut windows = [Vec::new(), Vec::new()];
        for start in (0..bytes).step_by(window as usize) {
            self.limits.interrupt.check()?;
            let count = window.min(bytes - start);
            for (bytes, rank) in windows.iter_mut().zip([first, other]) {
                bytes.resize(count as usize, 0);
                self.read(rank, name, start, bytes)?;
            }
            let [a, b] = &windows;
            let differ = a.iter().zip(b).position(|(a, b)| a != b);
            if let Some(at) = differ {
                let path = |rank: u64| display_path(self.folder.files()[rank as usize].path());
                bail!(
                    "{} and {} hold the same part of `{name}`, but differ at byte {} of it: copy the file \
                     that is right over the other one, and remove manifest.json",
                    path(first),
                    path(other),
                    start + at as u64
                );
            }
        }
        Ok(())
    }

    /// The bytes of a rank's shard in its file.
    fn tensor(&self, rank: u64, name: &str) -> anyhow::Result<Range<u64>> {
        let tensor = self.folder.get(&stored_name(rank, name));
        let tensor = tensor.ok_or_else(|| anyhow!("`{name}` is not in the layout"))?;
        Ok(tensor.range.clone())
    }

    fn read(&mut self, rank: u64, name: &str, at: u64, bytes: &mut [u8]) -> anyhow::Result<()> {
        let start = self.tensor(rank, name)?.start;
        let source = &self.sources.files()[rank as usize].source;
        source.read_at(start + at, bytes)?;
        self.read_bytes += bytes.len() as u64;
        Ok(())
    }
}
