//! The ranks of a state, grouped by host.

use std::collections::BTreeMap;

use meshgrad_error::{Result, bail};
use meshgrad_mesh::Hosts;

use super::members::ACROSS_HOSTS;

/// The ranks of each host, in the order of the state.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ByHost {
    hosts: Hosts,
    ranks: BTreeMap<Option<usize>, Vec<usize>>,
}

impl ByHost {
    pub(super) fn new(hosts: &Hosts, all: &[usize]) -> ByHost {
        let mut ranks = BTreeMap::<Option<usize>, Vec<usize>>::new();
        for rank in all {
            ranks.entry(hosts.host_of(*rank)).or_default().push(*rank);
        }
        ByHost { hosts: hosts.clone(), ranks }
    }

    /// The ranks on the same host as `rank`.
    pub(super) fn same_host(&self, rank: usize) -> &[usize] {
        self.ranks.get(&self.hosts.host_of(rank)).map_or(&[], Vec::as_slice)
    }

    /// For each host, the rank that has the same index there as `rank` has on its host.
    ///
    /// # Errors
    /// When hosts have different numbers of ranks.
    pub(super) fn across(&self, rank: usize) -> Result<Vec<usize>> {
        let mine = self.same_host(rank);
        let uneven = self.ranks.iter().find(|(_, ranks)| ranks.len() != mine.len());
        if let Some((host, ranks)) = uneven {
            bail!(
                Invalid,
                "host {} has {} ranks of the state and host {} has {}: `{ACROSS_HOSTS}` needs the \
                 same number on each host",
                self.hosts.host_of(rank).unwrap_or_default(),
                mine.len(),
                host.unwrap_or_default(),
                ranks.len()
            );
        }
        let index = mine.iter().position(|other| *other == rank);
        let at = |ranks: &Vec<usize>| index.map(|index| ranks[index]);
        Ok(self.ranks.values().filter_map(at).collect())
    }
}
