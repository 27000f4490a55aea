//! `[pipeline]`: how a model is cut into stages.

use meshgrad_error::{Result, error};
use meshgrad_pipeline::Named;
use serde::{Deserialize, Serialize};

/// `[pipeline]`: how a model is cut into stages on `parallel.pp` ranks. Nothing here changes what is
/// trained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PipelineTable {
    /// The order of the passes of a step: a name of `meshgrad pipeline`.
    pub schedule: String,
    /// The stages of each rank; 0 for as many as `schedule` needs.
    pub stages_per_rank: usize,
    /// The layers of each stage. Empty: stages of about equally many FLOPs.
    pub split: Vec<usize>,
}

impl Default for PipelineTable {
    fn default() -> PipelineTable {
        let schedule = Named::OneFOneB.name().to_owned();
        PipelineTable { schedule, stages_per_rank: 0, split: Vec::new() }
    }
}

impl PipelineTable {
    /// The schedule.
    ///
    /// # Errors
    /// For an unknown name, and one without backward passes.
    pub fn named(&self) -> Result<Named> {
        let mut all = Named::ALL.into_iter().filter(|named| *named != Named::Inference);
        let found = all.clone().find(|named| named.name() == self.schedule);
        found.ok_or_else(|| {
            let last = all.next_back().map_or("", Named::name);
            let others = all.map(Named::name).collect::<Vec<_>>().join(", ");
            error!(
                Invalid,
                "`{}` is no schedule of training; use {others} or {last}", self.schedule
            )
        })
    }

    /// The stages of each rank.
    pub fn stages_of_rank(&self, schedule: Named) -> usize {
        match (self.stages_per_rank, schedule) {
            (0, Named::Zbv | Named::DualPipeV) => 2,
            (0, _) => 1,
            (stages, _) => stages,
        }
    }
}
