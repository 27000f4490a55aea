//! The time of a world's ranks: the machine's, or simulated.
//!
//! - `mod.rs`: the clock of one rank, real or simulated.
//! - `timer.rs`: real time, with a thread that completes work later.
//! - `simulation.rs`: simulated time, and which rank runs.

mod simulation;
mod timer;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use meshgrad_runtime::{Completion, Result};

use simulation::Simulation;
use timer::Timer;

/// The clock of a rank. Clones are the same clock.
///
/// Simulated time stands still while a rank runs. When all ranks wait or sleep, it jumps to the
/// next event.
#[derive(Clone)]
pub struct Clock {
    time: Time,
    /// The rank whose clock it is.
    rank: usize,
}

#[derive(Clone)]
enum Time {
    Real(Arc<Timer>),
    Simulated(Arc<Simulation>),
}

impl Clock {
    /// A clock in real time, starting at zero now.
    pub fn real() -> Clock {
        Clock { time: Time::Real(Arc::default()), rank: 0 }
    }

    /// The clock of rank 0 of `ranks` in simulated time. Ranks run one at a time, in an order that
    /// depends on `seed`; each calls [`Clock::enter`] first and [`Clock::leave`] last.
    pub fn simulated(ranks: usize, seed: u64) -> Clock {
        Clock { time: Time::Simulated(Arc::new(Simulation::new(ranks, seed))), rank: 0 }
    }

    /// The clock of another rank of the same world.
    pub fn of_rank(&self, rank: usize) -> Clock {
        Clock { time: self.time.clone(), rank }
    }

    /// The time since the clock started.
    pub fn now(&self) -> Duration {
        match &self.time {
            Time::Real(timer) => timer.now(),
            Time::Simulated(simulation) => simulation.now(),
        }
    }

    /// Blocks the rank for some time, as work on another device would.
    pub fn sleep(&self, time: Duration) {
        match &self.time {
            Time::Real(_) => std::thread::sleep(time),
            Time::Simulated(simulation) => {
                let until = simulation.now().checked_add(time);
                simulation.wait(self.rank, None, until);
            }
        }
    }

    /// Blocks until `completion` is set or the time `until` is reached; returns `None` if it is not
    /// set by then.
    pub fn wait(&self, completion: &Completion, until: Option<Duration>) -> Option<Result<()>> {
        match &self.time {
            Time::Real(timer) => match until.and_then(|until| timer.instant(until)) {
                Some(deadline) => completion.wait_until(deadline),
                None => Some(completion.wait()),
            },
            Time::Simulated(simulation) => {
                simulation.wait(self.rank, Some(completion), until);
                completion.is_complete().then(|| completion.wait())
            }
        }
    }

    /// Sets `completion` at a time. This occupies no rank's thread.
    pub fn complete_at(&self, time: Duration, completion: Completion, result: Result<()>) {
        match &self.time {
            Time::Real(timer) => timer.complete_at(time, completion, result),
            Time::Simulated(simulation) => simulation.complete_at(time, completion, result),
        }
    }

    /// The first call of a rank's thread.
    pub fn enter(&self) {
        if let Time::Simulated(simulation) = &self.time {
            simulation.enter(self.rank);
        }
    }

    /// The last call of a rank's thread.
    pub fn leave(&self) {
        if let Time::Simulated(simulation) = &self.time {
            simulation.leave(self.rank);
        }
    }

    /// Lets another rank run, in simulated time.
    pub fn yield_now(&self) {
        if let Time::Simulated(simulation) = &self.time {
            simulation.yield_now(self.rank);
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.time {
            Time::Real(_) => "real",
            Time::Simulated(_) => "simulated",
        };
        write!(f, "Clock({kind}, {:?}, rank {})", self.now(), self.rank)
    }
}
