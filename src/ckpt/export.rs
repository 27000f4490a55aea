//! `meshgrad ckpt export`: exports a checkpoint of a run as a Hugging Face folder.

use std::path::PathBuf;

use anyhow::ensure;
use meshgrad::ckpt::mapping::{AllowedProblems, Mapping};
use meshgrad::models::hf;
use meshgrad::train::checkpoint;

use super::arguments::{LinkArguments, mapping_errors};
use super::convert::Conversion;
use super::destination::FloatType;
use super::interrupt::Interrupt;
use super::merge::Adapter;
use super::size::ByteSize;
use super::source::Source;
use super::stream::Limits;
use crate::answer::Answer;
use crate::table::display_path;

#[derive(clap::Args)]
pub(super) struct ExportArguments {
    /// A checkpoint, or a run: its newest checkpoint.
    checkpoint: PathBuf,
    /// The folder to create, in the format of transformers; it must not exist.
    #[arg(long, value_name = "DESTINATION")]
    hf: PathBuf,
    /// Export the weights that training continues from, where a run also averages them.
    #[arg(long)]
    raw: bool,
    /// The dtype of the weights; rounds to nearest even.
    #[arg(long, value_name = "DTYPE", ignore_case = true, default_value = "BF16")]
    dtype: FloatType,
    /// Memory for tensor data.
    #[arg(long, value_name = "SIZE", default_value = "2GiB")]
    budget: ByteSize,
    #[command(flatten)]
    links: LinkArguments,
    /// Maximum data per file.
    #[arg(long, value_name = "SIZE", default_value = "5GB")]
    max_shard: ByteSize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn export(arguments: &ExportArguments, threads: usize) -> anyhow::Result<Answer> {
    let mut source = Source::open_intact(&arguments.checkpoint, arguments.links.links())?;
    let folder = &source.path().to_owned();
    ensure!(
        source.folder_path().is_some(),
        "{} is a file; give its folder, which must contain config.json, or convert the file with \
         `meshgrad ckpt convert`",
        display_path(folder)
    );
    let adapter = Adapter::of(folder)?;
    ensure!(
        adapter.is_some() || folder.join("config.json").is_file(),
        "{} has no config.json, so the export could not be loaded; to copy only the weights, use \
         `meshgrad ckpt convert`",
        display_path(folder)
    );
    let is_averaged = checkpoint::has_averages(folder) && !arguments.raw;
    let weights = match (checkpoint::has_averages(folder), arguments.raw) {
        (false, _) => None,
        (true, false) => {
            if adapter.is_none() {
                source = source.overlaid(checkpoint::AVERAGES)?;
            }
            Some("averages of the run; --raw exports those that training continues from")
        }
        (true, true) => Some("those that training continues from, not their averages"),
    };
    if checkpoint::has_buffers(folder) {
        source.warnings.push(format!(
            "left out of {}: router biases, for which the format has no place",
            display_path(folder)
        ));
    }
    let links = arguments.links.links();
    let (mut mapping, mut merged) = (Mapping::identity(), None);
    if let Some(adapter) = &adapter {
        let warnings = std::mem::take(&mut source.warnings);
        source = adapter.over(&adapter.base(None)?, is_averaged, links)?;
        source.warnings.extend(warnings);
        mapping = adapter.mapping(&source, 1.0, Some(arguments.dtype))?;
        merged = Some(adapter.count(&source));
    }
    let conversion = Conversion {
        source: &source,
        mapping: &mapping,
        allowed_problems: AllowedProblems::none(),
        dtype: Some(arguments.dtype),
        left_out: adapter.is_some().then_some(hf::ADAPTER_CONFIG),
        destination: &arguments.hf,
        max_shard: arguments.max_shard,
        limits: Limits { interrupt: Interrupt::listen()?, budget: arguments.budget, threads },
    };
    let mut report = match mapping.bind(&source.specs(), None, &conversion.allowed_problems) {
        Ok(bound) => conversion.run(&bound)?,
        Err(report) => return mapping_errors(folder, &None, &report, arguments.json),
    };
    report.weights = weights.map(str::to_owned);
    report.merged = merged;
    if arguments.json {
        return Answer::json(&report, 0);
    }
    Ok(report.answer())
}
