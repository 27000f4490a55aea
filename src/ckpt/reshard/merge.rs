//! Merges the shards of all ranks into one model.

use std::time::Instant;

use meshgrad::ckpt::mapping::{AllowedProblems, Mapping};

use super::split_folder::SplitFolder;
use super::{Report, ReshardArguments};
use crate::ckpt::destination::{ConfigChange, Sidecars, folder_writer, stage};
use crate::ckpt::source::Summary;
use crate::ckpt::stream::{Limits, Stream};
use crate::ckpt::values::progress_bar;

pub(super) fn merge(arguments: &ReshardArguments, limits: &Limits) -> anyhow::Result<Report> {
    let start = Instant::now();
    let split = SplitFolder::open(&arguments.source, arguments.links.links())?;
    let (source, layout) = (&split.source, &split.layout);
    let compared = split.check_replicas(limits)?;

    let identity = Mapping::identity().bind(&source.specs(), None, &AllowedProblems::none())?;
    let (metadata, mut warnings) = source.metadata();
    let made: Vec<_> = identity.outputs().collect();
    let writer = folder_writer(&made, &metadata, arguments.max_shard.0)?;
    let bytes = writer.data_len();
    let mut staging = stage(&arguments.destination)?;
    let copied = Sidecars::of(source).copy(&mut staging, &ConfigChange::default())?;
    warnings.extend(copied.warnings());
    let progress = progress_bar(bytes);
    let (graph, wants) = (identity.graph(), identity.requests());
    let mut stream = Stream::new(graph, source, wants, limits, &progress)?;
    writer.write(&mut staging, "", |tensor, data| stream.write_tensor(tensor, data))?;
    let read_bytes = compared + stream.read_bytes();
    let checkpoint = staging.commit()?;
    progress.finish_and_clear();

    let is_data = |path: &str| path.ends_with(".safetensors");
    Ok(Report {
        source: source.stored_summary(),
        mesh: layout.to_string(),
        ranks: layout.ranks(),
        destination: Summary {
            path: arguments.destination.clone(),
            tensors: made.len() as u64,
            files: checkpoint.files().filter(|(path, _)| is_data(path)).count() as u64,
            bytes,
        },
        copied: copied.names,
        warnings,
        read_bytes,
        rank_bytes: Vec::new(),
        seconds: start.elapsed().as_secs_f64(),
    })
}
