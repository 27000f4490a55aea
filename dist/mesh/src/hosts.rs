//! Which host a rank runs on: what crosses hosts is slower than what does not.

use std::collections::BTreeSet;

use crate::{MeshError, Result};

/// The host of each rank, by number.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Hosts {
    /// Every host has this many ranks, in their order; of 0 a host, no rank's host is known.
    Uniform(usize),
    /// The host of rank 0, 1, ...
    Listed(Vec<usize>),
}

impl Hosts {
    /// Hosts of `ranks` ranks each.
    ///
    /// # Errors
    /// [`MeshError::NoRanks`] for 0.
    pub fn uniform(ranks: usize) -> Result<Hosts> {
        match ranks {
            0 => Err(MeshError::NoRanks),
            _ => Ok(Hosts::Uniform(ranks)),
        }
    }

    /// The host of a rank, if it is known.
    pub fn host_of(&self, rank: usize) -> Option<usize> {
        match self {
            Hosts::Uniform(ranks) => rank.checked_div(*ranks),
            Hosts::Listed(hosts) => hosts.get(rank).copied(),
        }
    }

    /// How many hosts these ranks are on; those whose host is unknown count as one host.
    pub fn spanned_by(&self, ranks: &[usize]) -> usize {
        let hosts: BTreeSet<Option<usize>> = ranks.iter().map(|rank| self.host_of(*rank)).collect();
        hosts.len()
    }
}
