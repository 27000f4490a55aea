//! The check of control channels.

use std::time::Duration;

use meshgrad_collectives::{Collectives, Rank, Reduction};
use meshgrad_error::{Result, ensure};
use meshgrad_runtime::{Pending, Tensor};

/// How long a message may take.
const LIMIT: Duration = Duration::from_secs(60);
/// How long a message waits for a rank that waits in a collective.
const SOON: Duration = Duration::from_millis(200);

/// Checks the control channel of a rank: its messages arrive while a collective of tensors waits,
/// and on a GPU nothing is allocated. All ranks of a world of at least two call it.
///
/// # Errors
/// When a message differs; errors of the communication.
pub fn check_control(rank: &dyn Rank) -> Result<()> {
    let (own, count) = (rank.rank(), rank.world_size());
    let control = rank.control(9, LIMIT)?;
    let world = rank.world()?;
    let x = Tensor::scalar(rank.device(), own as f32)?;
    let live = rank.device().memory_stats().live;
    let start = || world.all_reduce(&x, Reduction::Sum);
    // The others wait for the last rank, which starts when all messages have arrived.
    let waiting = (own + 1 < count).then(start).transpose()?;

    let length = |rank: usize| [3, 0, 1, 2000][rank % 4];
    let expected: Vec<Vec<u8>> = (0..count).map(|rank| vec![rank as u8; length(rank)]).collect();
    expect("all_gather", &control.all_gather(&expected[own])?, &expected)?;
    let word = [own as u8, 7];
    expect("broadcast", &control.broadcast(1, &word)?, &vec![1, 7])?;
    let flags = control.any([own == 1, own + 1 == count, false])?;
    expect("any", &flags.wait()?, &[true, true, false])?;
    control.barrier()?;
    if rank.device().is_gpu() && waiting.is_none() {
        expect("live memory", &rank.device().memory_stats().live, &live)?;
    }

    let sum = waiting.map_or_else(start, Ok).and_then(Pending::wait)?;
    expect("all_reduce", &sum.item::<f32>()?, &((count * (count - 1) / 2) as f32))
}

/// Checks that messages arrive when ranks wait for each other: the last rank sends a message instead
/// of starting a collective that the others wait in. That one fails, and they receive the message.
/// All ranks of a world of at least two call it, on a world of its own.
///
/// # Errors
/// When the collective does not fail; errors of the communication.
pub fn check_control_after_failure(rank: &dyn Rank) -> Result<()> {
    let (own, count) = (rank.rank(), rank.world_size());
    let control = rank.control(9, SOON)?;
    if own + 1 < count {
        let x = Tensor::scalar(rank.device(), own as f32)?;
        let sum = rank.world()?.all_reduce(&x, Reduction::Sum).and_then(Pending::wait);
        let sum = sum.and_then(|sum| sum.item::<f32>());
        ensure!(sum.is_err(), Invalid, "control: a collective without rank {} passed", count - 1);
    }
    let words = control.all_gather(&[own as u8])?;
    expect("all_gather", &words, &(0..count).map(|rank| vec![rank as u8]).collect())?;
    control.barrier()
}

fn expect<T: PartialEq + std::fmt::Debug>(of: &str, actual: &T, expected: &T) -> Result<()> {
    ensure!(actual == expected, Invalid, "control: {of} is {actual:?}, not {expected:?}");
    Ok(())
}
