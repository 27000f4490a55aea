//! Lowering for sharded and replicated parameters: gathers, releases and reductions.

use meshgrad_error::{Result, ensure};

use crate::{Action, Op};

/// Inserts gathers and releases, such that at most `resident` stages are gathered at a time.
///
/// The stages that run next are kept or gathered ahead; all others are released. This is Belady's
/// rule: no other choice gathers less often.
pub(crate) fn insert_gathers(list: &[Action], resident: usize) -> Result<Vec<Action>> {
    let upcoming = upcoming_stages(list, resident);
    let mut gathered: Vec<usize> = Vec::new();
    let mut inserted = Vec::new();
    for (&action, next) in list.iter().zip(upcoming) {
        let needed = stages_of(action).len();
        ensure!(
            needed <= resident,
            Invalid,
            "{action} needs the parameters of {needed} stages, but at most {resident} may be \
             gathered"
        );
        let (kept, released) = gathered.iter().partition(|stage| next.contains(stage));
        gathered = kept;
        inserted.extend(Vec::into_iter(released).map(Action::Release));
        for stage in next {
            if !gathered.contains(&stage) {
                gathered.push(stage);
                inserted.push(Action::Gather(stage));
            }
        }
        inserted.push(action);
    }
    inserted.extend(gathered.into_iter().map(Action::Release));
    Ok(inserted)
}

/// For each action, the next `count` different stages from there on.
fn upcoming_stages(list: &[Action], count: usize) -> Vec<Vec<usize>> {
    let mut by_next_use: Vec<usize> = Vec::new();
    let mut upcoming = Vec::with_capacity(list.len());
    for &action in list.iter().rev() {
        for stage in stages_of(action).into_iter().rev() {
            by_next_use.retain(|&it| it != stage);
            by_next_use.insert(0, stage);
        }
        upcoming.push(by_next_use.iter().take(count).copied().collect());
    }
    upcoming.reverse();
    upcoming
}

/// The different stages of an action, in order.
fn stages_of(action: Action) -> Vec<usize> {
    let mut stages: Vec<usize> = action.computes().map(|it| it.stage).collect();
    stages.dedup();
    stages
}

/// Inserts a reduction of a stage's gradients after its last weight gradient.
pub(crate) fn insert_reductions(list: Vec<Action>) -> Vec<Action> {
    let mut reduced = Vec::new();
    let mut reversed = Vec::with_capacity(list.len());
    for action in list.into_iter().rev() {
        for compute in action.computes() {
            let has_gradient = matches!(compute.op, Op::Backward | Op::BackwardWeight);
            if has_gradient && !reduced.contains(&compute.stage) {
                reduced.push(compute.stage);
                reversed.push(Action::Reduce(compute.stage));
            }
        }
        reversed.push(action);
    }
    reversed.reverse();
    reversed
}
