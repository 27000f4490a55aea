//! A simulated schedule, as text and as JSON.

use meshgrad::pipeline::{Action, Peak, Placement, Program, Schedule, Simulation};
use serde::Serialize;

use crate::table::{Side, Table};

/// What is shown.
pub(crate) struct Shown {
    /// The value of `--schedule`.
    pub(crate) name: String,
    /// For `auto`, what the search found.
    pub(crate) found: Option<&'static str>,
    pub(crate) schedule: Schedule,
    pub(crate) program: Program,
    pub(crate) simulation: Simulation,
}

impl Shown {
    /// The name and the shape.
    pub(crate) fn title(&self) -> String {
        let placement = self.program.placement();
        let found = self.found.map(|found| format!(" ({found})"));
        format!(
            "{}{}: {}, {}, {}",
            self.name,
            found.unwrap_or_default(),
            counted(placement.ranks(), "rank", "ranks"),
            counted(placement.stages(), "stage", "stages"),
            counted(self.program.microbatches(), "microbatch", "microbatches")
        )
    }

    pub(crate) fn text(&self) -> String {
        let simulation = &self.simulation;
        let mut summary = Table::new([Side::Left, Side::Left]).indented(2);
        let idle = percent(simulation.idle_share());
        summary.row(["idle".into(), format!("{idle} of the time of all ranks")]);
        summary.row(["makespan".into(), decimal(simulation.makespan())]);
        summary.row(["peak memory".into(), decimal(simulation.peak_memory())]);

        let mut ranks = Table::new([Side::Right; 6]).indented(2);
        let header = ["rank", "stages", "idle", "live", "pending", "peak"];
        ranks.row(header.map(String::from));
        let placement = self.program.placement();
        for rank in 0..placement.ranks() {
            let peak = simulation.peak(rank);
            ranks.row([
                rank.to_string(),
                stages(placement, rank),
                percent(simulation.idle_share_of(rank)),
                decimal(peak.live),
                decimal(peak.pending),
                decimal(peak.total),
            ]);
        }
        format!("{}\n{summary}\n{ranks}", self.title())
    }

    pub(crate) fn json(&self) -> Json {
        let (program, simulation) = (&self.program, &self.simulation);
        let placement = program.placement();
        let rank = |rank: usize| {
            let Peak { live, pending, total } = simulation.peak(rank);
            let spans = simulation.spans(rank).iter();
            JsonRank {
                rank,
                stages: placement.stages_of(rank).to_vec(),
                idle_share: simulation.idle_share_of(rank),
                peak: JsonPeak { live, pending, total },
                actions: program.ranks()[rank].iter().map(Action::to_string).collect(),
                times: spans.map(|span| [span.start, span.end]).collect(),
            }
        };
        Json {
            schedule: self.name.clone(),
            found: self.found,
            stages: placement.stages(),
            microbatches: program.microbatches(),
            idle_share: simulation.idle_share(),
            makespan: simulation.makespan(),
            peak_memory: simulation.peak_memory(),
            ranks: (0..placement.ranks()).map(rank).collect(),
        }
    }
}

fn counted(count: usize, one: &str, several: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        _ => format!("{count} {several}"),
    }
}

fn stages(placement: &Placement, rank: usize) -> String {
    let stages = placement.stages_of(rank).iter().map(usize::to_string);
    stages.collect::<Vec<_>>().join(" ")
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// A number with at most three decimals.
fn decimal(number: f64) -> String {
    let text = format!("{number:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

#[derive(Serialize)]
pub(crate) struct Json {
    schedule: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    found: Option<&'static str>,
    stages: usize,
    microbatches: usize,
    idle_share: f64,
    makespan: f64,
    peak_memory: f64,
    ranks: Vec<JsonRank>,
}

#[derive(Serialize)]
struct JsonRank {
    rank: usize,
    stages: Vec<usize>,
    idle_share: f64,
    peak: JsonPeak,
    actions: Vec<String>,
    /// Start and end of every action.
    times: Vec<[f64; 2]>,
}

#[derive(Serialize)]
struct JsonPeak {
    live: f64,
    pending: f64,
    total: f64,
}
