//! Lowering: a schedule becomes a program, with communication.
//!
//! Messages are inserted by running all ranks in one total order. A message that a computation
//! produces is appended to the lists of sender and receiver at the same moment. So every action has
//! a position in the total order, and the lists of two ranks agree on the order of their messages.
//! The first action of this order that has not run can always run, even if a send waits for its
//! receive: the program cannot deadlock.

use meshgrad_error::Result;

use crate::arrived::Arrived;
use crate::deadlock::{Wait, check_progress};
use crate::parameters::{insert_gathers, insert_reductions};
use crate::total_order::run_in_total_order;
use crate::{Action, Message, Placement, Program, Schedule};

/// What lowering inserts in addition to messages. By default nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lowering {
    /// For sharded parameters: gathers those of a stage before it runs and releases them when other
    /// stages need the space. At most this many stages of a rank are gathered at a time; two or more
    /// allow a gather to overlap with computations.
    pub resident: Option<usize>,
    /// For replicated parameters: reduces the gradients of a stage after its last backward pass.
    pub reduce: bool,
}

impl Schedule {
    /// Inserts communication.
    ///
    /// # Errors
    /// When ranks wait for each other, and when an overlapped pair needs more stages than may be
    /// gathered.
    pub fn lower(&self, lowering: &Lowering) -> Result<Program> {
        let mut ranks = self.ranks().to_vec();
        if lowering.reduce {
            ranks = ranks.into_iter().map(insert_reductions).collect();
        }
        if let Some(resident) = lowering.resident {
            let inserted = ranks.iter().map(|list| insert_gathers(list, resident));
            ranks = inserted.collect::<Result<_>>()?;
        }
        let ranks = insert_messages(self.placement(), self.microbatches(), &ranks)?;
        Ok(Program::proven(self.placement().clone(), self.microbatches(), ranks))
    }
}

fn insert_messages(
    placement: &Placement,
    microbatches: usize,
    lists: &[Vec<Action>],
) -> Result<Vec<Vec<Action>>> {
    let stages = placement.stages();
    let mut arrived = Arrived::new(placement, microbatches);
    let mut next = vec![0; lists.len()];
    let mut lowered = vec![Vec::new(); lists.len()];

    run_in_total_order(lists.len(), |rank, woken| {
        let Some(&action) = lists[rank].get(next[rank]) else {
            return false;
        };
        if missing_input(action, stages, &arrived).is_some() {
            return false;
        }
        next[rank] += 1;
        lowered[rank].push(action);
        for message in action.computes().filter_map(|it| it.output(stages)) {
            let peer = placement.rank_of(message.to());
            if peer != rank {
                lowered[rank].push(Action::Send(message));
                lowered[peer].push(Action::Receive(message));
                woken.push(peer);
            }
            arrived.insert(message);
        }
        true
    });

    let mut waits = Vec::new();
    for (rank, list) in lists.iter().enumerate() {
        let Some(&action) = list.get(next[rank]) else {
            continue;
        };
        if let Some(message) = missing_input(action, stages, &arrived) {
            waits.push(Wait {
                rank,
                action,
                needs: Action::Send(message),
                peer: placement.rank_of(message.from()),
            });
        }
    }
    check_progress(&waits)?;
    Ok(lowered)
}

fn missing_input(action: Action, stages: usize, arrived: &Arrived) -> Option<Message> {
    let mut inputs = action.computes().filter_map(|it| it.input(stages));
    inputs.find(|&message| !arrived.contains(message))
}
