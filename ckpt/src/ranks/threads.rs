//! Ranks that are threads of one process.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::{Cause, Ranks};

/// [`Ranks`] in one process, each on its own thread. A rank that is dropped has exited: the others
/// stop waiting for it.
///
/// ```
/// use meshgrad_ckpt::ranks::{Ranks, ThreadRanks};
///
/// std::thread::scope(|scope| {
///     for mut rank in ThreadRanks::all(3) {
///         scope.spawn(move || {
///             let number = [rank.rank() as u8];
///             assert_eq!(rank.all_gather(&number).unwrap(), [[0], [1], [2]]);
///         });
///     }
/// });
/// ```
#[derive(Debug)]
pub struct ThreadRanks {
    rank: usize,
    world: Arc<World>,
}

#[derive(Debug)]
struct World {
    size: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The messages of the current exchange, by rank.
    messages: Vec<Option<Vec<u8>>>,
    /// The number of finished exchanges.
    rounds: u64,
    /// The messages of the last exchange.
    gathered: Arc<Vec<Vec<u8>>>,
    /// The first rank that exited.
    exited: Option<usize>,
}

impl ThreadRanks {
    /// Creates `world_size` ranks.
    pub fn all(world_size: usize) -> Vec<ThreadRanks> {
        let state = State {
            messages: vec![None; world_size],
            ..State::default()
        };
        let world = Arc::new(World {
            size: world_size,
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let rank = |rank| ThreadRanks {
            rank,
            world: world.clone(),
        };
        (0..world_size).map(rank).collect()
    }
}

impl World {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ranks for ThreadRanks {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world.size
    }

    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Cause> {
        let mut state = self.world.lock();
        let round = state.rounds;
        state.messages[self.rank] = Some(mine.to_vec());
        if state.messages.iter().all(Option::is_some) {
            let messages = state.messages.iter_mut().filter_map(Option::take);
            state.gathered = Arc::new(messages.collect());
            state.rounds += 1;
            self.world.changed.notify_all();
        }
        while state.rounds == round {
            if let Some(rank) = state.exited {
                return Err(format!("rank {rank} has exited").into());
            }
            let waited = self.world.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        Ok(state.gathered.to_vec())
    }
}

impl Drop for ThreadRanks {
    fn drop(&mut self) {
        self.world.lock().exited.get_or_insert(self.rank);
        self.world.changed.notify_all();
    }
}
