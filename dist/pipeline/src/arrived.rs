//! Sets of messages.

use crate::{Message, Placement};

/// Which messages are where they are needed.
pub(crate) struct Arrived {
    microbatches: usize,
    flags: Vec<bool>,
}

impl Arrived {
    pub(crate) fn new(placement: &Placement, microbatches: usize) -> Arrived {
        Arrived { microbatches, flags: vec![false; 2 * placement.stages() * microbatches] }
    }

    pub(crate) fn insert(&mut self, message: Message) {
        self.flags[message.index(self.microbatches)] = true;
    }

    pub(crate) fn contains(&self, message: Message) -> bool {
        self.flags[message.index(self.microbatches)]
    }
}
