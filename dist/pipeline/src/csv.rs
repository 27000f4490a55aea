//! torch's CSV format: one row per rank, one cell per action, empty cells for idle steps.

use std::fmt::Write;

use meshgrad_error::{Result, ensure, error};

use crate::{Action, Compute, MAX_PAIRS, Op, Placement, Schedule, Shape};

impl Schedule {
    /// Reads a schedule of computations, such as `_PipelineScheduleRuntime._dump_csv` of torch writes
    /// with the format `compute_only`. The rank of a stage is that of its row.
    ///
    /// # Errors
    /// Names the row and the cell that is not a computation, or as [`Schedule::new`].
    pub fn from_csv(text: &str) -> Result<Schedule> {
        let rows = text.trim_end().lines().enumerate();
        let ranks = rows.map(|(row, cells)| parse_row(row + 1, cells));
        let ranks: Vec<Vec<Action>> = ranks.collect::<Result<_>>()?;

        let computes = || ranks.iter().flatten().flat_map(|action| action.computes());
        let stages = computes().map(|it| it.stage + 1).max().unwrap_or(0);
        let microbatches = computes().map(|it| it.microbatch + 1).max().unwrap_or(0);
        let shape = Shape::new(ranks.len(), stages, microbatches)?;
        let placement = placement_of(&ranks, shape)?;
        Schedule::new(placement, microbatches, ranks)
    }

    /// The schedule in torch's CSV format, without idle steps.
    pub fn to_csv(&self) -> String {
        let mut text = String::new();
        for actions in self.ranks() {
            let cells: Vec<String> = actions.iter().map(Action::to_string).collect();
            let _ = writeln!(text, "{}", cells.join(","));
        }
        text
    }
}

fn parse_row(row: usize, cells: &str) -> Result<Vec<Action>> {
    let cells = cells.split(',').map(str::trim).enumerate();
    let actions = cells.filter(|(_, text)| !text.is_empty());
    let actions = actions.map(|(cell, text)| {
        parse(text)
            .map_err(|problem| error!(Invalid, "row {row}, cell {}: `{text}` {problem}", cell + 1))
    });
    let actions: Vec<Action> = actions.collect::<Result<_>>()?;
    ensure!(
        !actions.is_empty(),
        Invalid,
        "row {row} has no actions: every row is a rank, which needs at least one stage"
    );
    Ok(actions)
}

/// The rank of every stage: the one that runs it first.
fn placement_of(ranks: &[Vec<Action>], shape: Shape) -> Result<Placement> {
    let mut rank_of = vec![None; shape.stages()];
    for (rank, actions) in ranks.iter().enumerate() {
        for compute in actions.iter().flat_map(|it| it.computes()) {
            rank_of[compute.stage].get_or_insert(rank);
        }
    }
    let stages = rank_of.into_iter().enumerate();
    let unused = |stage| error!(Invalid, "no rank runs stage {stage}, but later stages exist");
    let ranks = stages.map(|(stage, rank)| rank.ok_or_else(|| unused(stage)));
    let ranks: Result<Vec<usize>> = ranks.collect();
    Placement::new(shape.ranks(), ranks?)
}

fn parse(text: &str) -> Result<Action, String> {
    let Some(inner) = text.strip_prefix('(') else {
        return parse_compute(text).map(Action::Compute);
    };
    let pair = inner.strip_suffix(")OVERLAP_F_B");
    let Some((forward, backward)) = pair.and_then(|pair| pair.split_once(';')) else {
        return Err("is not an overlapped pair, such as (0F3;3B1)OVERLAP_F_B".to_string());
    };
    let (forward, backward) = (forward.trim(), backward.trim());
    Ok(Action::Overlapped(parse_compute(forward)?, parse_compute(backward)?))
}

fn parse_compute(text: &str) -> Result<Compute, String> {
    let at = text.find(|it: char| !it.is_ascii_digit());
    let (stage, rest) = text.split_at(at.unwrap_or(text.len()));
    let word = rest.trim_end_matches(|it: char| it.is_ascii_digit());
    let is_communication = ["SEND", "RECV", "SHARD", "REDUCE"];
    if is_communication.iter().any(|it| word.contains(it)) {
        return Err("is communication; leave it out, lowering adds it".to_string());
    }
    let microbatch = &rest[word.len()..];
    let expected = || "is not an action: expected STAGE, F, B, I or W, MICROBATCH, such as 3F0";
    let op = Op::ALL.into_iter().find(|op| word.chars().eq([op.letter()]));
    let op = op.ok_or_else(|| expected().to_string())?;
    Ok(Compute::new(op, number(stage)?, number(microbatch)?))
}

fn number(digits: &str) -> Result<usize, String> {
    if digits.is_empty() {
        return Err("lacks a number: a stage before the letter, a microbatch after it".to_string());
    }
    let number = digits.parse().ok().filter(|&it| it < MAX_PAIRS);
    number.ok_or_else(|| format!("has the number {digits}, but the limit is {}", MAX_PAIRS - 1))
}
