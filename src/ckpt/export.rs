//! `meshgrad ckpt export`: a checkpoint of a run as a folder for the hub.

use std::path::PathBuf;

use anyhow::ensure;
use meshgrad::ckpt::mapping::{AllowedProblems, Mapping};

use super::arguments::mapping_errors;
use super::catalog::display_path;
use super::convert::Conversion;
use super::destination::FloatType;
use super::size::ByteSize;
use super::source::Source;
use super::stream::Limits;
use super::warn;
use crate::answer::Answer;

#[derive(clap::Args)]
pub(super) struct ExportArguments {
    /// A checkpoint, or a run: its newest checkpoint.
    checkpoint: PathBuf,
    /// The folder that is made, as transformers reads it; it must not exist.
    #[arg(long, value_name = "DESTINATION")]
    hf: PathBuf,
    /// The dtype of the weights, rounded to nearest even.
    #[arg(long, value_name = "DTYPE", ignore_case = true, default_value = "BF16")]
    dtype: FloatType,
    /// Memory for the tensors' data.
    #[arg(long, value_name = "SIZE", default_value = "2GiB")]
    budget: ByteSize,
    /// The most data in one file.
    #[arg(long, value_name = "SIZE", default_value = "5GB")]
    max_shard: ByteSize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn export(arguments: &ExportArguments, threads: usize) -> anyhow::Result<Answer> {
    let source = Source::open(&arguments.checkpoint)?;
    let folder = source.folder.path();
    ensure!(
        source.folder_path().is_some(),
        "{} is a file: give the folder that it is in, whose config.json says what its weights are; \
         `meshgrad ckpt convert` takes a file",
        display_path(folder)
    );
    ensure!(
        folder.join("config.json").is_file(),
        "{} has no config.json, so nothing could load what is exported; `meshgrad ckpt convert` \
         copies weights alone",
        display_path(folder)
    );
    // Weights of a checkpoint have the names of the hub already.
    let mapping = Mapping::identity();
    let conversion = Conversion {
        source: &source,
        mapping: &mapping,
        waivers: AllowedProblems::none(),
        dtype: Some(arguments.dtype),
        destination: &arguments.hf,
        max_shard: arguments.max_shard,
        limits: Limits {
            budget: arguments.budget,
            threads,
        },
    };
    let report = match mapping.bind(&source.specs(), None, &conversion.waivers) {
        Ok(bound) => conversion.run(&bound)?,
        Err(report) => return mapping_errors(folder, &None, &report, arguments.json),
    };
    if arguments.json {
        return Answer::json(&report, 0);
    }
    warn(&source.warnings);
    Ok(Answer::success(report.text()))
}
