//! `meshgrad ckpt merge` and `unmerge`: an adapter is added to the weights that it updates, or subtracted.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use meshgrad::ckpt::mapping::{AllowedProblems, Mapping};
use meshgrad::ckpt::{Committed, Links};
use meshgrad::models::hf;
use meshgrad::models::lora::LoraConfig;
use meshgrad::train::checkpoint;

use super::arguments::LinkArguments;
use super::convert::Conversion;
use super::destination::FloatType;
use super::interrupt::Interrupt;
use super::size::ByteSize;
use super::source::{Source, intact_checkpoint};
use super::stream::Limits;
use crate::answer::Answer;
use crate::table::display_path;

#[derive(clap::Args)]
pub(super) struct MergeArguments {
    /// A folder of PEFT, a checkpoint with an adapter, or a run that trains one: its newest checkpoint.
    adapter: PathBuf,
    /// The folder to create; it must not exist.
    destination: PathBuf,
    /// The folder with the weights [default: the one that the adapter names].
    #[arg(long, value_name = "FOLDER")]
    base: Option<PathBuf>,
    /// Merge the adapter that training continues from, where a run also averages it.
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    output: OutputArguments,
}

#[derive(clap::Args)]
pub(super) struct UnmergeArguments {
    /// The folder that `merge` has written.
    merged: PathBuf,
    /// The adapter that was merged.
    adapter: PathBuf,
    /// The folder to create; it must not exist.
    destination: PathBuf,
    /// Subtract the adapter that training continues from, where a run also averages it.
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    output: OutputArguments,
}

#[derive(clap::Args)]
struct OutputArguments {
    /// The dtype of the weights; rounds to nearest even [default: that of each weight].
    #[arg(long, value_name = "DTYPE", ignore_case = true)]
    dtype: Option<FloatType>,
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

pub(super) fn merge(arguments: &MergeArguments, threads: usize) -> anyhow::Result<Answer> {
    let adapter = Adapter::open(&arguments.adapter, arguments.output.links.links())?;
    let base = adapter.base(arguments.base.as_deref())?;
    add(&adapter, &base, 1.0, arguments.raw, &arguments.destination, &arguments.output, threads)
}

pub(super) fn unmerge(arguments: &UnmergeArguments, threads: usize) -> anyhow::Result<Answer> {
    let UnmergeArguments { merged, adapter, destination, raw, output } = arguments;
    let adapter = Adapter::open(adapter, output.links.links())?;
    add(&adapter, merged, -1.0, *raw, destination, output, threads)
}

/// Writes the weights in `base` plus `sign` times the adapter.
fn add(
    adapter: &Adapter,
    base: &Path,
    sign: f64,
    raw: bool,
    destination: &PathBuf,
    output: &OutputArguments,
    threads: usize,
) -> anyhow::Result<Answer> {
    let is_averaged = checkpoint::has_averages(&adapter.folder) && !raw;
    let source = adapter.over(base, is_averaged, output.links.links())?;
    let mapping = adapter.mapping(&source, sign, output.dtype)?;
    let conversion = Conversion {
        source: &source,
        mapping: &mapping,
        allowed_problems: AllowedProblems::none(),
        dtype: output.dtype,
        left_out: Some(hf::ADAPTER_CONFIG),
        destination,
        max_shard: output.max_shard,
        limits: Limits { interrupt: Interrupt::listen()?, budget: output.budget, threads },
    };
    let mut report = match mapping.bind(&source.specs(), None, &conversion.allowed_problems) {
        Ok(bound) => conversion.run(&bound)?,
        Err(report) => bail!(
            "the adapter in {} does not fit the weights in {}: {report}",
            display_path(&adapter.folder),
            display_path(base)
        ),
    };
    report.merged = Some(adapter.count(&source));
    if output.json {
        return Answer::json(&report, 0);
    }
    Ok(report.answer())
}

/// An adapter in a folder.
pub(super) struct Adapter {
    folder: PathBuf,
    config: LoraConfig,
}

impl Adapter {
    /// The adapter of `folder`, if it has one.
    pub(super) fn of(folder: &Path) -> anyhow::Result<Option<Adapter>> {
        let config = hf::read_adapter(folder)?;
        Ok(config.map(|config| Adapter { folder: folder.to_owned(), config }))
    }

    fn open(path: &Path, links: Links) -> anyhow::Result<Adapter> {
        let source = Source::open_intact(path, links)?;
        source.checkpoint().map_or(Ok(()), check)?;
        let adapter = Adapter::of(source.path())?;
        adapter.with_context(|| {
            format!(
                "{} has no {}; pass the folder of an adapter",
                display_path(source.path()),
                hf::ADAPTER_CONFIG
            )
        })
    }

    /// The folder of the weights: `given`, or the one that the adapter names.
    pub(super) fn base(&self, given: Option<&Path>) -> anyhow::Result<PathBuf> {
        match given {
            Some(given) => Ok(given.to_owned()),
            None => Ok(hf::base_folder(&self.folder)?),
        }
    }

    /// The weights in `base`, with the adapter, or with its averages.
    pub(super) fn over(
        &self,
        base: &Path,
        is_averaged: bool,
        links: Links,
    ) -> anyhow::Result<Source> {
        // Reads of the adapter's own folder are compared with its manifest.
        let other = if base == self.folder { None } else { intact_checkpoint(base)? };
        other.as_ref().map_or(Ok(()), check)?;
        let weights = Source::open_intact(base, links)?;
        weights.with_adapter(&self.folder, is_averaged.then_some(checkpoint::AVERAGES))
    }

    /// The map that adds `sign` times each update to its weight, and keeps all other tensors.
    /// They are computed in f64 and rounded to `dtype` if that is F32, otherwise to the weight's dtype.
    pub(super) fn mapping(
        &self,
        source: &Source,
        sign: f64,
        dtype: Option<FloatType>,
    ) -> anyhow::Result<Mapping> {
        let scale = sign * self.config.scale();
        let widens = dtype == Some(FloatType::F32);
        let rule = |path: &String| {
            let [weight, a, b] = ["weight", "lora_A.weight", "lora_B.weight"]
                .map(|name| format!("\"{path}.{name}\""));
            let own = if widens { format!("cast({weight}, F32)") } else { weight.clone() };
            format!("{weight} = lora({own}, {a}, {b}, scale={scale:?})\n")
        };
        let paths = self.paths(source);
        if paths.is_empty() {
            bail!("the adapter in {} has no updates", display_path(&self.folder));
        }
        let rules: String = paths.iter().map(rule).collect();
        Ok(Mapping::parse(&(rules + "{rest:path} = {rest:path}"))?)
    }

    /// The number of its updates.
    pub(super) fn count(&self, source: &Source) -> u64 {
        self.paths(source).len() as u64
    }

    /// The paths of the projections that it updates.
    fn paths(&self, source: &Source) -> BTreeSet<String> {
        let names = source.specs().into_iter().map(|spec| spec.name);
        names.filter_map(|name| name.strip_suffix(".lora_A.weight").map(str::to_owned)).collect()
    }
}

/// Checks the contents of a checkpoint. Its copy would get a new manifest, which would hide damage.
fn check(checkpoint: &Committed) -> anyhow::Result<()> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    match checkpoint.find_damage(threads, |_| ())?.first() {
        None => Ok(()),
        Some(problem) => bail!("{} is damaged: {problem}", display_path(checkpoint.path())),
    }
}
