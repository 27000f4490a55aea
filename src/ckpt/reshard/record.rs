//! The metadata of a resharded folder: `layout.json`, and in each file the offsets of its shards.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, anyhow, bail, ensure};
use meshgrad::ckpt::layout::Layout;
use meshgrad::ckpt::mapping::TensorSpec;
use serde::{Deserialize, Serialize};

use crate::ckpt::arguments::parse_mesh;
use crate::ckpt::source::REGION_KEY;
use crate::table::display_path;

pub(super) const LAYOUT_FILE: &str = "layout.json";

const VERSION: u32 = 1;

/// The path of a rank's file in the folder.
pub(super) fn rank_file(rank: u64) -> String {
    format!("rank-{rank:05}/model.safetensors")
}

/// `layout.json`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LayoutRecord {
    version: u32,
    mesh: String,
    placements: Vec<String>,
    ranks: u64,
    tensors: BTreeMap<String, TensorRecord>,
}

/// A tensor before it was split.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TensorRecord {
    dtype: String,
    shape: Vec<u64>,
}

impl LayoutRecord {
    pub(super) fn new(
        mesh: &str,
        placements: &str,
        layout: &Layout,
        specs: &[TensorSpec],
    ) -> LayoutRecord {
        let whole = |spec: &TensorSpec| {
            let dtype = spec.dtype.name().to_owned();
            let shape = spec.shape.clone();
            (spec.name.clone(), TensorRecord { dtype, shape })
        };
        LayoutRecord {
            version: VERSION,
            mesh: mesh.to_owned(),
            placements: placements.lines().map(str::to_owned).collect(),
            ranks: layout.ranks(),
            tensors: specs.iter().map(whole).collect(),
        }
    }

    pub(super) fn to_json(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    pub(super) fn read(folder: &Path) -> anyhow::Result<LayoutRecord> {
        let path = folder.join(LAYOUT_FILE);
        let text = fs::read_to_string(&path).with_context(|| {
            format!("cannot read {}, which `meshgrad ckpt reshard` writes", display_path(&path))
        })?;
        let record: LayoutRecord = serde_json::from_str(&text)
            .with_context(|| format!("{} is not a valid layout", display_path(&path)))?;
        let version = record.version;
        ensure!(
            version == VERSION,
            "{} has version {version}, but this program reads {VERSION}",
            display_path(&path)
        );
        Ok(record)
    }

    /// The layout, and the tensors by name.
    pub(super) fn layout(&self) -> anyhow::Result<(Layout, Vec<TensorSpec>)> {
        parse_mesh(&self.mesh).map_err(|problem| anyhow!("{LAYOUT_FILE}: {problem}"))?;
        let layout = Layout::parse(&self.mesh, &self.placements.join("\n"));
        let layout = layout.map_err(|error| anyhow!("{LAYOUT_FILE}: {error}"))?;
        let (ranks, recorded) = (layout.ranks(), self.ranks);
        ensure!(ranks == recorded, "{LAYOUT_FILE} has {recorded} ranks, but its mesh has {ranks}");
        let mut specs = Vec::with_capacity(self.tensors.len());
        for (name, whole) in &self.tensors {
            let dtype = whole.dtype.parse().with_context(|| format!("{LAYOUT_FILE}: `{name}`"))?;
            specs.push(TensorSpec::new(name, dtype, &whole.shape));
        }
        Ok((layout, specs))
    }
}

/// The region of each tensor that a rank holds, in the order of the tensors.
#[derive(PartialEq, Eq)]
pub(super) struct Regions(pub(super) Vec<(String, Vec<Range<u64>>)>);

/// A region in the metadata of a file: its offset in the full tensor, and the full tensor's shape.
/// The region's extents are the shape of the tensor in the file.
#[derive(Serialize, Deserialize, PartialEq, Eq)]
struct RegionRecord {
    offset: Vec<u64>,
    shape: Vec<u64>,
}

impl Regions {
    pub(super) fn of(layout: &Layout, specs: &[TensorSpec], rank: u64) -> anyhow::Result<Regions> {
        let region = |spec: &TensorSpec| {
            let region = layout.region(&spec.name, &spec.shape, rank)?;
            Ok((spec.name.clone(), region))
        };
        let regions: anyhow::Result<Vec<_>> = specs.iter().map(region).collect();
        Ok(Regions(regions?))
    }

    fn records(&self, specs: &[TensorSpec]) -> BTreeMap<String, RegionRecord> {
        let record = |(spec, (name, region)): (&TensorSpec, &(String, Vec<Range<u64>>))| {
            let offset = region.iter().map(|range| range.start).collect();
            let shape = spec.shape.clone();
            (name.clone(), RegionRecord { offset, shape })
        };
        specs.iter().zip(&self.0).map(record).collect()
    }

    pub(super) fn to_json(&self, specs: &[TensorSpec]) -> anyhow::Result<String> {
        Ok(serde_json::to_string(&self.records(specs))?)
    }

    /// Checks that a file has these regions.
    pub(super) fn check(
        &self,
        specs: &[TensorSpec],
        file: &meshgrad::ckpt::TensorFile,
    ) -> anyhow::Result<()> {
        let path = display_path(file.path());
        let Some(json) = file.metadata().get(REGION_KEY) else {
            bail!("{path} has no `{REGION_KEY}` in its metadata");
        };
        let found: BTreeMap<String, RegionRecord> = serde_json::from_str(json)
            .with_context(|| format!("{path}: cannot parse `{REGION_KEY}`"))?;
        for (name, record) in self.records(specs) {
            let Some(found) = found.get(&name) else {
                bail!("{path}: `{REGION_KEY}` lacks `{name}`");
            };
            ensure!(
                *found == record,
                "{path}: `{name}` has offset {:?} in shape {:?}, but {LAYOUT_FILE} requires offset \
                 {:?} in shape {:?}",
                found.offset,
                found.shape,
                record.offset,
                record.shape
            );
        }
        Ok(())
    }
}
