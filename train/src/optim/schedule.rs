//! The factor of the learning rate at each step.

use crate::schedule::Phases;

/// A factor of the learning rate for each step: a pure function, so resuming needs no state.
///
/// [`Phases`] has the usual ones; a closure is one too.
///
/// ```
/// use meshgrad_train::optim::Schedule;
///
/// let inverse_root = |step: u64| 1.0 / (step as f64).sqrt();
/// assert_eq!(inverse_root.factor(4), 0.5);
/// ```
pub trait Schedule: Send + Sync {
    /// The factor at `step`, from 1.
    fn factor(&self, step: u64) -> f64;
}

impl Schedule for Phases {
    fn factor(&self, step: u64) -> f64 {
        Phases::factor(self, step)
    }
}

impl<F: Fn(u64) -> f64 + Send + Sync> Schedule for F {
    fn factor(&self, step: u64) -> f64 {
        self(step)
    }
}
