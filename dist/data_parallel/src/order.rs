//! The order in which units are used, learnt while they are used.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use meshgrad_autograd::is_recording;
use meshgrad_runtime::Result;

/// Predicts the next units, from the two that were used last. A model uses them in the same order
/// in each pass, so what followed before is expected to follow again. All ranks learn the same.
pub(crate) struct Order {
    /// The number of units to gather ahead.
    prefetch: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    units: Vec<Weak<dyn Gathers>>,
    before: Use,
    current: Use,
    /// By the use before and the current one.
    next: HashMap<(Use, Use), Use>,
}

/// A unit whose values are gathered.
pub(crate) trait Gathers: Send + Sync {
    /// Starts to gather it, unless it is gathered.
    fn start(&self) -> Result<()>;

    /// Another unit is used.
    fn leave(&self);

    /// A pass has ended.
    fn end_use(&self);
}

/// The unit that is used, and whether a tape records; `None` between two passes. A forward pass that
/// is not recorded has an order of its own, because no backward follows it.
type Use = Option<(usize, bool)>;

/// A unit that is used within this number of changes stays gathered.
const KEPT_AHEAD: usize = 2;

impl Order {
    pub(crate) fn new(prefetch: usize) -> Order {
        Order { prefetch, state: Mutex::default() }
    }

    /// Adds a unit and returns its number.
    pub(crate) fn add(&self, unit: Weak<dyn Gathers>) -> usize {
        let mut state = self.state();
        state.units.push(unit);
        state.units.len() - 1
    }

    /// Notes that `unit` is used. If another was used before, frees the units that are not expected
    /// soon, and starts to gather this one and those that are expected next.
    pub(crate) fn enter(&self, unit: usize) -> Result<()> {
        let (others, first) = {
            let mut state = self.state();
            if state.current.is_some_and(|(current, _)| current == unit) {
                return Ok(());
            }
            state.advance(Some((unit, is_recording())));
            let ahead = state.expected(self.prefetch.max(KEPT_AHEAD));
            let units = state.units.iter().enumerate();
            let is_expected = |at: usize| at == unit || ahead.contains(&at);
            let others = units.filter(|(at, _)| !is_expected(*at));
            let others: Vec<_> = others.filter_map(|(_, unit)| unit.upgrade()).collect();
            let first = [unit].into_iter().chain(ahead.into_iter().take(self.prefetch));
            let first: Vec<Arc<dyn Gathers>> =
                first.filter_map(|at| state.units[at].upgrade()).collect();
            (others, first)
        };
        others.iter().for_each(|unit| unit.leave());
        first.iter().try_for_each(|unit| unit.start())
    }

    /// Notes that a pass has ended, and frees units, also those without gradients. None is gathered
    /// ahead of the next pass, because its rows may get new values before.
    pub(crate) fn end_pass(&self) {
        let units: Vec<Arc<dyn Gathers>> = {
            let mut state = self.state();
            if state.current.is_none() {
                return;
            }
            state.advance(None);
            state.units.iter().filter_map(Weak::upgrade).collect()
        };
        units.iter().for_each(|unit| unit.end_use());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn advance(&mut self, to: Use) {
        self.next.insert((self.before, self.current), to);
        (self.before, self.current) = (self.current, to);
    }

    /// The next units of this pass, at most `count`.
    fn expected(&self, count: usize) -> Vec<usize> {
        let (mut before, mut current) = (self.before, self.current);
        let mut expected = Vec::with_capacity(count);
        while expected.len() < count
            && let Some(Some(next)) = self.next.get(&(before, current))
        {
            expected.push(next.0);
            (before, current) = (current, Some(*next));
        }
        expected
    }
}
