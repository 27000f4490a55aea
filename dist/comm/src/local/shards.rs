//! The work of a large collective on several threads.
//!
//! The division depends only on sizes, and each element is computed as on one thread, so the bits
//! are the same for any number of threads.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::part::{Move, Part};
use crate::reduce::CHUNK;

/// Elements per task. A copy or sum of that many takes about as long as waking a thread.
const SHARD: usize = 32 * CHUNK;

/// Whether writing this many elements is worth more than one thread.
pub(super) fn is_large(elements: usize) -> bool {
    elements >= 4 * SHARD
}

/// Divides the parts of all members into shards of reductions. A shard has the elements that one
/// task reduces, and the outputs of the members that get them. `ranges` are adjacent and start at
/// 0; each comes with the members that get it. `None` if a member has input and output in one
/// slice.
pub(super) fn of_reductions<'a, T: Copy>(
    parts: &mut [Part<'a, T>],
    ranges: &[(Range<usize>, Range<usize>)],
) -> Option<Vec<Vec<Part<'a, T>>>> {
    if parts.iter().any(|part| matches!(part, Part::Shared { .. })) {
        return None;
    }
    let mut shards = Vec::new();
    for (range, into) in ranges {
        for start in range.clone().step_by(SHARD) {
            let count = SHARD.min(range.end - start);
            let fronts = parts.iter_mut().enumerate().map(|(member, part)| {
                let gets = into.contains(&member);
                let output = gets.then(|| part.take_output(count)).flatten();
                let input = part.take_input(count);
                Part::Apart { input, output }
            });
            shards.push(fronts.collect());
        }
    }
    Some(shards)
}

/// Pieces of moves: where from and where to.
type Copies<'a, T> = Vec<(&'a [T], &'a mut [T])>;

/// Divides moves into copies. Moves to one receiver must be adjacent and in the order of its
/// output. `None` if a sender works in place, or a member has input and output in one slice.
pub(super) fn of_moves<'a, T: Copy>(
    parts: &mut [Part<'a, T>],
    moves: &[Move],
) -> Option<Copies<'a, T>> {
    if parts.iter().any(|part| matches!(part, Part::Shared { .. })) {
        return None;
    }
    let input = |member: usize| match &parts[member] {
        Part::Apart { input, .. } => *input,
        Part::Shared { .. } => None,
    };
    let sources: Option<Vec<&'a [T]>> =
        moves.iter().map(|one| Some(&input(one.sender)?[one.from.clone()])).collect();
    let sources = sources?;
    let mut copies = Copies::new();
    for (one, source) in moves.iter().zip(sources) {
        if let Some(front) = parts[one.receiver].take_output(source.len()) {
            copies.extend(source.chunks(SHARD).zip(front.chunks_mut(SHARD)));
        }
    }
    Some(copies)
}

/// Runs tasks on up to `threads` threads, of which one is the calling thread.
pub(super) fn run<T: Send>(tasks: Vec<T>, threads: usize, work: impl Fn(T) + Sync) {
    let others = threads.min(tasks.len()).saturating_sub(1);
    let tasks = Mutex::new(tasks.into_iter());
    let next = || tasks.lock().unwrap_or_else(PoisonError::into_inner).next();
    let all = || {
        while let Some(task) = next() {
            work(task);
        }
    };
    thread::scope(|scope| {
        for _ in 0..others {
            let thread = thread::Builder::new().name("collective".to_owned());
            if thread.spawn_scoped(scope, all).is_err() {
                break; // the other threads do its share
            }
        }
        all();
    });
}
