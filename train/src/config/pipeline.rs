//! `[pipeline]`: how a model is cut into stages.

use std::path::PathBuf;

use meshgrad_error::{Result, bail};
use meshgrad_pipeline::Named;
use serde::{Deserialize, Serialize};

/// `[pipeline]`: how a model is cut into stages on `parallel.pp` ranks. Nothing here changes what is
/// trained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PipelineTable {
    /// The order of the passes of a step: a name of `meshgrad pipeline`, `auto`, or a `.csv` file.
    pub schedule: String,
    /// The stages of each rank; 0 for as many as `schedule` needs.
    pub stages_per_rank: usize,
    /// The layers of each stage. Empty: as `balance` says.
    pub split: Vec<usize>,
    /// What stages have about equally many of.
    pub balance: Balance,
    /// Whether `fsdp` frees gathered parameters of a stage between its passes, as
    /// `parallel.reshard_after_forward` says. Otherwise they stay from its first pass of a step to the
    /// last.
    pub reshard: bool,
}

/// `pipeline.balance`: what the stages of a model have about equally many of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Balance {
    /// Floating-point operations of a forward pass.
    Flops,
    /// Layers.
    Layers,
}

impl Default for PipelineTable {
    fn default() -> PipelineTable {
        let schedule = Named::OneFOneB.name().to_owned();
        PipelineTable {
            schedule,
            stages_per_rank: 0,
            split: Vec::new(),
            balance: Balance::Flops,
            reshard: false,
        }
    }
}

/// What `pipeline.schedule` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ScheduleChoice {
    Named(Named),
    /// The fastest by FLOPs that [`Auto`](meshgrad_pipeline::Auto) finds.
    Auto,
    /// In torch's CSV format.
    File(PathBuf),
}

impl PipelineTable {
    /// The schedule.
    ///
    /// # Errors
    /// For an unknown name, and one without backward passes.
    pub(crate) fn choice(&self) -> Result<ScheduleChoice> {
        let mut all = Named::ALL.into_iter().filter(|named| *named != Named::Inference);
        let name = self.schedule.as_str();
        match all.clone().find(|named| named.name() == name) {
            Some(named) => Ok(ScheduleChoice::Named(named)),
            None if name == "auto" => Ok(ScheduleChoice::Auto),
            None if name.ends_with(".csv") => Ok(ScheduleChoice::File(name.into())),
            None => {
                let names = all.by_ref().map(Named::name).collect::<Vec<_>>().join(", ");
                bail!(
                    Invalid,
                    "`{name}` is no schedule of training; use {names}, auto, or a .csv file"
                )
            }
        }
    }

    /// The stages of each rank.
    pub(crate) fn stages_of_rank(&self, schedule: &ScheduleChoice) -> usize {
        match (self.stages_per_rank, schedule) {
            (0, ScheduleChoice::Named(Named::Zbv | Named::DualPipeV)) => 2,
            (0, _) => 1,
            (stages, _) => stages,
        }
    }
}
