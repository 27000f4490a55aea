//! A parallel configuration placed on ranks.
//!
//! A [`ParallelState`] is a value. It creates no communicator and contacts no rank, so it can exist
//! before any trainer. A process can have several: actor, critic and rollout can use the same or
//! different ranks, each with its own degrees. Groups with the same ranks are equal values and
//! share a communicator.

use std::sync::Arc;

use meshgrad_error::{Error, Result, ensure, error};
use meshgrad_mesh::{Channel, Group, MAX_RANKS, Mesh, RankLayout};

use super::by_host::ByHost;
use super::config::ParallelConfig;
use super::members::{ACROSS_HOSTS, Membership, SAME_HOST};
use super::text;

/// A [`ParallelConfig`] placed on ranks. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParallelState {
    config: Arc<ParallelConfig>,
    /// All ranks by position, on one axis `world`.
    world: Mesh,
    /// The ranks by position.
    ranks: Arc<[usize]>,
    domains: Vec<(String, Mesh)>,
    by_host: Option<Arc<ByHost>>,
}

impl ParallelState {
    /// The state on ranks 0, 1, ...
    pub fn new(config: impl Into<Arc<ParallelConfig>>) -> ParallelState {
        let config = config.into();
        let flat = config.domains().iter().find(|(name, _)| name == super::domains::FLAT);
        let ranks: Vec<usize> = (0..config.world()).collect();
        ParallelState {
            by_host: by_host(&config, &ranks),
            world: flat.expect("world has it").1.clone(),
            ranks: ranks.into(),
            domains: config.domains().to_vec(),
            config,
        }
    }

    /// The state on consecutive ranks from `first`.
    ///
    /// # Errors
    /// For a rank that is not below [`MAX_RANKS`].
    pub fn starting_at(
        config: impl Into<Arc<ParallelConfig>>,
        first: usize,
    ) -> Result<ParallelState> {
        let config = config.into();
        check_rank(first)?;
        let ranks: Vec<usize> = (first..first + config.world()).collect();
        ParallelState::on_ranks(config, &ranks)
    }

    /// The state on these ranks, in this order.
    ///
    /// # Errors
    /// For a rank that is listed twice or is not below [`MAX_RANKS`], and for another number of
    /// ranks than the mesh needs.
    pub fn on_ranks(
        config: impl Into<Arc<ParallelConfig>>,
        ranks: &[usize],
    ) -> Result<ParallelState> {
        let config = config.into();
        ranks.iter().try_for_each(|rank| check_rank(*rank))?;
        let world = Mesh::from_ranks(ranks, &[config.world()], &["world"])?;
        let domains = config.domains().iter().map(|(name, mesh)| {
            let mapped: Vec<usize> = mesh.ranks().into_iter().map(|at| ranks[at]).collect();
            let names: Vec<&str> = mesh.axes().iter().map(|axis| axis.name()).collect();
            Ok((name.clone(), Mesh::from_ranks(&mapped, &mesh.shape(), &names)?))
        });
        Ok(ParallelState {
            domains: domains.collect::<Result<_>>()?,
            by_host: by_host(&config, ranks),
            world,
            ranks: ranks.into(),
            config,
        })
    }

    /// The configuration.
    pub fn config(&self) -> &ParallelConfig {
        &self.config
    }

    /// The ranks, by position.
    pub fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    /// Whether it contains a rank.
    pub fn contains(&self, rank: usize) -> bool {
        self.world.contains(rank)
    }

    /// The mesh of a domain.
    ///
    /// # Errors
    /// For an unknown domain.
    pub fn mesh(&self, domain: &str) -> Result<&Mesh> {
        let found = self.domains.iter().find(|(name, _)| name == domain);
        found.map(|(_, mesh)| mesh).ok_or_else(|| {
            let names: Vec<&str> = self.domains.iter().map(|(name, _)| &**name).collect();
            error!(Invalid, "unknown domain `{domain}`{}", text::nearest(domain, &names))
        })
    }

    /// The meshes by domain name, built-in domains first.
    pub fn meshes(&self) -> &[(String, Mesh)] {
        &self.domains
    }

    /// The names of all groups: axes, views and subgroups.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.config.names()
    }

    /// The axes of a domain, slowest first, whose product is a group. Axes of one rank are left out.
    ///
    /// # Errors
    /// For an unknown domain or group, and for a group that is no product of axes of the domain.
    pub fn axes(&self, domain: &str, group: &str) -> Result<Vec<&str>> {
        let (mesh, first) = (self.mesh(domain)?, self.ranks[0]);
        let whole = self.group(group, first)?;
        let whole = whole.as_ref().map_or(&[][..], Group::ranks);
        let (mut axes, mut size) = (Vec::new(), 1);
        for axis in mesh.axes().iter().filter(|axis| axis.size() > 1) {
            let along = mesh.group([axis.name()], first)?;
            if along.is_some_and(|it| it.ranks().iter().all(|rank| whole.contains(rank))) {
                axes.push(axis.name());
                size *= axis.size();
            }
        }
        ensure!(
            size == whole.len(),
            Invalid,
            "group `{group}` is no product of axes of domain `{domain}`"
        );
        Ok(axes)
    }

    /// The group with this name that contains a rank. `None` if there is none: inner stages, for
    /// example, have no group `embd`.
    ///
    /// # Errors
    /// For an unknown group, and for a group that depends on hosts when these are unknown or have
    /// different numbers of ranks.
    pub fn group(&self, name: &str, rank: usize) -> Result<Option<Group>> {
        let members = self.members(name)?;
        let Some(position) = self.position(rank) else {
            return Ok(None);
        };
        let ranks = match members {
            Membership::Along(layout) => Some(self.along(layout, position)),
            Membership::Subgroup { of, indices } => {
                let is_member = indices.contains(&of.coordinate(position));
                is_member.then(|| self.subgroup(of, indices, position))
            }
            Membership::SameHost => Some(self.by_host(name)?.same_host(rank).to_vec()),
            Membership::AcrossHosts => Some(self.by_host(name)?.across(rank)?),
        };
        ranks.map(|ranks| self.named(name, &ranks)).transpose()
    }

    /// [`ParallelState::group`] on another channel: its collectives can overlap with those of the
    /// main channel.
    ///
    /// # Errors
    /// As [`ParallelState::group`].
    pub fn group_on_channel(
        &self,
        name: &str,
        rank: usize,
        channel: Channel,
    ) -> Result<Option<Group>> {
        let group = self.group(name, rank)?;
        Ok(group.map(|group| group.with_channel(channel)))
    }

    /// All groups with this name, ordered by the lowest position of a member.
    ///
    /// # Errors
    /// As [`ParallelState::group`].
    pub fn groups(&self, name: &str) -> Result<Vec<Group>> {
        let mut seen = vec![false; self.ranks.len()];
        let mut groups = Vec::new();
        for position in 0..self.ranks.len() {
            if seen[position] {
                continue;
            }
            if let Some(group) = self.group(name, self.ranks[position])? {
                let positions = group.ranks().iter().filter_map(|rank| self.position(*rank));
                positions.for_each(|member| seen[member] = true);
                groups.push(group);
            }
        }
        Ok(groups)
    }

    /// All groups of a rank, by name. Omits `all_to_all_global` on uneven hosts.
    pub fn groups_of(&self, rank: usize) -> Vec<(&str, Group)> {
        let group = |name| Some((name, self.group(name, rank).ok()??));
        self.names().filter_map(group).collect()
    }

    fn members(&self, name: &str) -> Result<&Membership> {
        self.config.groups.get(name).ok_or_else(|| {
            if [SAME_HOST, ACROSS_HOSTS].contains(&name) {
                return no_hosts(name);
            }
            let names: Vec<&str> = self.config.names().collect();
            error!(Invalid, "unknown group `{name}`{}", text::nearest(name, &names))
        })
    }

    fn position(&self, rank: usize) -> Option<usize> {
        self.world.local_rank("world", rank).ok().flatten()
    }

    fn along(&self, layout: &RankLayout, position: usize) -> Vec<usize> {
        let first = position - layout.counted(position);
        layout.ranks().map(|at| self.ranks[first + at]).collect()
    }

    fn subgroup(&self, of: &RankLayout, indices: &[usize], position: usize) -> Vec<usize> {
        let first = position - of.counted(position);
        let rank = |index: &usize| self.ranks[first + of.rank(*index)];
        indices.iter().map(rank).collect()
    }

    fn by_host(&self, name: &str) -> Result<&ByHost> {
        self.by_host.as_deref().ok_or_else(|| no_hosts(name))
    }

    /// A group with the options set for its name.
    fn named(&self, name: &str, ranks: &[usize]) -> Result<Group> {
        let group = Group::new(ranks)?;
        Ok(match self.config.options.get(name) {
            Some(options) => group.with_options(options.clone()),
            None => group,
        })
    }
}

fn check_rank(rank: usize) -> Result<()> {
    ensure!(rank < MAX_RANKS, Invalid, "rank {rank} is not below the limit of {MAX_RANKS}");
    Ok(())
}

fn no_hosts(group: &str) -> Error {
    error!(Invalid, "group `{group}` depends on hosts: set ranks_per_host")
}

fn by_host(config: &ParallelConfig, ranks: &[usize]) -> Option<Arc<ByHost>> {
    let hosts = config.hosts()?;
    Some(Arc::new(ByHost::new(hosts, ranks)))
}
