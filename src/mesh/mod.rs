//! `meshgrad mesh`: checks and shows a parallel configuration.

mod view;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::ensure;
use meshgrad::dist::parallel::{
    ParallelConfig, ParallelState, Parallelism, Settings, Source, Violations, import,
};
use serde::Serialize;

use crate::answer::{self, Answer};
use crate::table::printable;

/// Degrees are numbers; one may be `auto`. They default to 1, and dp-shard is inferred.
#[derive(clap::Args)]
pub(crate) struct MeshArguments {
    /// Number of ranks [default: the product of the degrees].
    #[arg(long, value_name = "RANKS")]
    world: Option<usize>,
    /// Pipeline stages.
    #[arg(long, value_name = "N")]
    pp: Option<String>,
    /// Replicas of the parameters.
    #[arg(long, value_name = "N")]
    dp_replicate: Option<String>,
    /// Shards of the parameters.
    #[arg(long, value_name = "N")]
    dp_shard: Option<String>,
    /// Context parallelism whose ranks also shard the parameters.
    #[arg(long, value_name = "N")]
    cp_shard: Option<String>,
    /// Context parallelism whose ranks replicate the parameters.
    #[arg(long, value_name = "N")]
    cp_replicate: Option<String>,
    /// Sequence parallelism by exchanging sequence shards and attention heads (Ulysses).
    #[arg(long, value_name = "N")]
    sp: Option<String>,
    /// Tensor parallelism: shards of each matrix.
    #[arg(long, value_name = "N")]
    tp: Option<String>,
    /// Expert parallelism: shards of the set of experts.
    #[arg(long, value_name = "N")]
    ep: Option<String>,
    /// Shards of each expert's matrices.
    #[arg(long, value_name = "N")]
    etp: Option<String>,
    /// Rank order, fastest first, such as tp-cp-ep-dp-pp.
    #[arg(long, value_name = "ORDER")]
    order: Option<String>,
    /// Number of ranks per host.
    #[arg(long, value_name = "RANKS")]
    ranks_per_host: Option<usize>,
    /// Settings file: TOML (meshgrad, torchtitan), JSON (DeepSpeed), YAML (Megatron's NCCL
    /// options); may be repeated. Conflicting values are errors.
    #[arg(long, value_name = "FILE")]
    config: Vec<PathBuf>,
    /// Rank whose groups to show.
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    rank: usize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// After `--`: arguments of Megatron-LM.
    #[arg(last = true, value_name = "MEGATRON ARGUMENTS")]
    megatron: Vec<String>,
}

impl MeshArguments {
    fn settings(&self) -> Settings {
        let mut settings = Settings::new();
        for (kind, given) in [
            (Parallelism::Pp, &self.pp),
            (Parallelism::DpReplicate, &self.dp_replicate),
            (Parallelism::DpShard, &self.dp_shard),
            (Parallelism::CpShard, &self.cp_shard),
            (Parallelism::CpReplicate, &self.cp_replicate),
            (Parallelism::Sp, &self.sp),
            (Parallelism::Tp, &self.tp),
            (Parallelism::Ep, &self.ep),
            (Parallelism::Etp, &self.etp),
        ] {
            if let Some(text) = given {
                let flag = format!("--{}", kind.name().replace('_', "-"));
                settings.set_text(kind, text, Source::flag(flag));
            }
        }
        if let Some(world) = self.world {
            settings.world(world, Source::flag("--world"));
        }
        if let Some(order) = &self.order {
            settings.order(order, Source::flag("--order"));
        }
        if let Some(ranks) = self.ranks_per_host {
            settings.ranks_per_host(ranks, Source::flag("--ranks-per-host"));
        }
        for path in &self.config {
            settings.merge(import::file(path));
        }
        if !self.megatron.is_empty() {
            settings.merge(import::megatron_arguments(&self.megatron));
        }
        settings
    }
}

/// Violations, as JSON.
#[derive(Serialize)]
struct Refused {
    violations: Vec<String>,
}

pub(crate) fn mesh(arguments: &MeshArguments) -> ExitCode {
    answer::print(answer(arguments), 1)
}

fn answer(arguments: &MeshArguments) -> anyhow::Result<Answer> {
    let config = match ParallelConfig::new(&arguments.settings()) {
        Ok(config) => config,
        Err(violations) => return refused(&violations, arguments.json),
    };
    let world = config.world();
    ensure!(
        arguments.rank < world,
        "--rank {} is out of range: the ranks are 0 to {}",
        arguments.rank,
        world - 1
    );
    let state = ParallelState::new(config);
    let view = view::View::new(&state, arguments.rank)?;
    match arguments.json {
        true => Answer::json(&view, 0),
        false => Ok(Answer::success(view.to_string())),
    }
}

fn refused(violations: &Violations, json: bool) -> anyhow::Result<Answer> {
    let texts = violations.all().iter().map(|it| printable(&it.to_string()));
    let texts: Vec<String> = texts.collect();
    if json {
        return Answer::json(&Refused { violations: texts }, 1);
    }
    for text in texts {
        eprintln!("error: {text}");
    }
    Ok(Answer { text: String::new(), code: 1 })
}
