//! The hosts of ranks: communication across hosts is slower than within one.

use std::collections::BTreeSet;

use meshgrad_error::Result;

use crate::layout::checked_ranks;

/// The host index of each rank.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Hosts {
    /// Each host has this many consecutive ranks. With 0, no rank's host is known.
    Uniform(usize),
    /// The host of rank 0, 1, ...
    Listed(Vec<usize>),
}

impl Hosts {
    /// Hosts of `ranks` ranks each.
    ///
    /// # Errors
    /// For 0.
    pub fn uniform(ranks: usize) -> Result<Hosts> {
        checked_ranks(1, ranks).map(Hosts::Uniform)
    }

    /// The host of a rank, if known.
    pub fn host_of(&self, rank: usize) -> Option<usize> {
        match self {
            Hosts::Uniform(ranks) => rank.checked_div(*ranks),
            Hosts::Listed(hosts) => hosts.get(rank).copied(),
        }
    }

    /// The number of hosts that these ranks span. Ranks on unknown hosts count as one host.
    pub fn spanned_by(&self, ranks: &[usize]) -> usize {
        let hosts: BTreeSet<Option<usize>> = ranks.iter().map(|rank| self.host_of(*rank)).collect();
        hosts.len()
    }
}
