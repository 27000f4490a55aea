//! A configuration on ranks: which group a rank is in.
//!
//! A [`ParallelState`] is a value. Making one makes no communicator and asks no rank, so it can be
//! there before any trainer is, and as many as there are models: actor, critic and rollout may lie
//! on the same ranks or on others, each with its own degrees. Where their groups are the same
//! ranks, they are equal values, and share what they communicate through.

use std::sync::Arc;

use meshgrad_mesh::{Group, Lane, Mesh, MeshError, RankLayout};

use super::config::ParallelConfig;
use super::members::{ACROSS_HOSTS, Members, SAME_HOST};
use super::mpu::Mpu;
use super::text;

/// A [`ParallelConfig`] on ranks. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParallelState {
    config: Arc<ParallelConfig>,
    /// All ranks by position: one axis, `world`.
    everybody: Mesh,
    /// The ranks by position.
    ranks: Arc<[usize]>,
    domains: Vec<(String, Mesh)>,
}

/// What can be wrong with a state, or with a question to it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// A name that no group has.
    #[error("there is no group `{name}`{hint}")]
    UnknownGroup {
        /// The name.
        name: String,
        /// Near names, or all.
        hint: String,
    },

    /// A name that no domain has.
    #[error("there is no domain `{name}`{hint}")]
    UnknownDomain {
        /// The name.
        name: String,
        /// Near names, or all.
        hint: String,
    },

    /// A group by host where nobody said which rank is where.
    #[error("group `{name}` needs to know the hosts: set ranks_per_host")]
    NoHosts {
        /// The group.
        name: String,
    },

    /// Hosts that have not the same number of ranks of a state.
    #[error(
        "host {first} has {first_ranks} ranks of the state and host {second} has {second_ranks}: \
         `{ACROSS_HOSTS}` takes one rank of each host, so put as many on each"
    )]
    UnevenHosts {
        /// A host.
        first: usize,
        /// Its ranks.
        first_ranks: usize,
        /// Another host.
        second: usize,
        /// Its ranks.
        second_ranks: usize,
    },

    /// A rank that a state does not have.
    #[error("rank {rank} is not in the state, which has ranks {}", text::ranks(.ranks))]
    NotAMember {
        /// The rank.
        rank: usize,
        /// Those it has.
        ranks: Vec<usize>,
    },

    /// Ranks that are not as many as the configuration says, or not distinct.
    #[error(transparent)]
    Mesh(#[from] MeshError),
}

impl ParallelState {
    /// On ranks 0, 1, ...
    pub fn new(config: impl Into<Arc<ParallelConfig>>) -> ParallelState {
        let config = config.into();
        let flat = config
            .domains()
            .iter()
            .find(|(name, _)| name == super::domains::FLAT);
        ParallelState {
            everybody: flat.expect("everybody has it").1.clone(),
            ranks: (0..config.world()).collect(),
            domains: config.domains().to_vec(),
            config,
        }
    }

    /// On consecutive ranks from `first`.
    ///
    /// # Errors
    /// [`MeshError`] when there are too many.
    pub fn at(
        config: impl Into<Arc<ParallelConfig>>,
        first: usize,
    ) -> Result<ParallelState, StateError> {
        let config = config.into();
        let too_many = MeshError::TooManyRanks {
            product: first,
            size: config.world(),
        };
        let end = first.checked_add(config.world());
        let end = end
            .filter(|end| *end <= meshgrad_mesh::MAX_RANKS)
            .ok_or(too_many)?;
        let ranks: Vec<usize> = (first..end).collect();
        ParallelState::on(config, &ranks)
    }

    /// On these ranks, in this order.
    ///
    /// # Errors
    /// [`MeshError::WrongRankCount`], [`MeshError::DuplicateRank`].
    pub fn on(
        config: impl Into<Arc<ParallelConfig>>,
        ranks: &[usize],
    ) -> Result<ParallelState, StateError> {
        let config = config.into();
        let everybody = Mesh::of_ranks(ranks, &[config.world()], &["world"])?;
        let domains = config.domains().iter().map(|(name, mesh)| {
            let placed: Vec<usize> = mesh.ranks().into_iter().map(|at| ranks[at]).collect();
            let names: Vec<&str> = mesh.axes().iter().map(|axis| axis.name()).collect();
            Ok((
                name.clone(),
                Mesh::of_ranks(&placed, &mesh.shape(), &names)?,
            ))
        });
        Ok(ParallelState {
            domains: domains.collect::<Result<_, MeshError>>()?,
            everybody,
            ranks: ranks.into(),
            config,
        })
    }

    /// What it was made from.
    pub fn config(&self) -> &ParallelConfig {
        &self.config
    }

    /// Its ranks, by position.
    pub fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    /// Whether it has a rank.
    pub fn contains(&self, rank: usize) -> bool {
        self.everybody.contains(rank)
    }

    /// The mesh of a domain.
    ///
    /// # Errors
    /// [`StateError::UnknownDomain`].
    pub fn mesh(&self, domain: &str) -> Result<&Mesh, StateError> {
        let found = self.domains.iter().find(|(name, _)| name == domain);
        found.map(|(_, mesh)| mesh).ok_or_else(|| {
            let names: Vec<&str> = self.domains.iter().map(|(name, _)| &**name).collect();
            StateError::UnknownDomain {
                name: domain.to_owned(),
                hint: text::nearest(domain, &names),
            }
        })
    }

    /// Domains by name, those that everybody has first.
    pub fn meshes(&self) -> &[(String, Mesh)] {
        &self.domains
    }

    /// The names of all groups: axes, views, picks.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.config.names()
    }

    /// The group of this name that a rank is in; none when it is in none, as inner stages in
    /// `embd`.
    ///
    /// # Errors
    /// [`StateError::UnknownGroup`], [`StateError::NoHosts`], [`StateError::UnevenHosts`].
    pub fn group(&self, name: &str, rank: usize) -> Result<Option<Group>, StateError> {
        let members = self.members(name)?;
        let Some(position) = self.position(rank) else {
            return Ok(None);
        };
        let ranks = match members {
            Members::Along(layout) => Some(self.along(layout, position)),
            Members::Picked { of, indices } => {
                let picks = indices.contains(&of.coordinate(position));
                picks.then(|| self.picked(of, indices, position))
            }
            Members::SameHost => Some(self.same_host(rank)),
            Members::AcrossHosts => Some(self.across_hosts(rank)?),
        };
        ranks.map(|ranks| self.named(name, &ranks)).transpose()
    }

    /// The same on another lane: beside what runs on the main one.
    ///
    /// # Errors
    /// As [`ParallelState::group`].
    pub fn group_on(
        &self,
        name: &str,
        rank: usize,
        lane: Lane,
    ) -> Result<Option<Group>, StateError> {
        let group = self.group(name, rank)?;
        Ok(group.map(|group| group.on(lane)))
    }

    /// All groups of this name, by the position of their first ranks.
    ///
    /// # Errors
    /// As [`ParallelState::group`].
    pub fn groups(&self, name: &str) -> Result<Vec<Group>, StateError> {
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

    /// Every group that a rank is in, by name.
    pub fn groups_of(&self, rank: usize) -> Vec<(&str, Group)> {
        let group = |name| Some((name, self.group(name, rank).ok()??));
        self.names().filter_map(group).collect()
    }

    /// Getters under the names of Megatron-LM's and DeepSpeed's `mpu`, for code that has them.
    ///
    /// # Errors
    /// [`StateError::NotAMember`].
    pub fn mpu(&self, rank: usize) -> Result<Mpu, StateError> {
        match self.contains(rank) {
            true => Ok(Mpu::new(self.clone(), rank)),
            false => Err(StateError::NotAMember {
                rank,
                ranks: self.ranks.to_vec(),
            }),
        }
    }

    fn members(&self, name: &str) -> Result<&Members, StateError> {
        self.config.groups.get(name).ok_or_else(|| {
            let name = name.to_owned();
            if [SAME_HOST, ACROSS_HOSTS].contains(&&*name) {
                return StateError::NoHosts { name };
            }
            let names: Vec<&str> = self.config.names().collect();
            let hint = text::nearest(&name, &names);
            StateError::UnknownGroup { name, hint }
        })
    }

    fn position(&self, rank: usize) -> Option<usize> {
        self.everybody.local_rank("world", rank).ok().flatten()
    }

    fn along(&self, layout: &RankLayout, position: usize) -> Vec<usize> {
        let first = position - layout.counted(position);
        layout.ranks().map(|at| self.ranks[first + at]).collect()
    }

    fn picked(&self, of: &RankLayout, indices: &[usize], position: usize) -> Vec<usize> {
        let first = position - of.counted(position);
        let rank = |index: &usize| self.ranks[first + of.rank(*index)];
        indices.iter().map(rank).collect()
    }

    fn host(&self, rank: usize) -> usize {
        let hosts = self.config.hosts().and_then(|hosts| hosts.of(rank));
        hosts.expect("every rank has a host where they have a number of ranks")
    }

    fn same_host(&self, rank: usize) -> Vec<usize> {
        let host = self.host(rank);
        let ranks = self.ranks.iter().copied();
        ranks.filter(|other| self.host(*other) == host).collect()
    }

    /// The ranks that stand on their hosts where this one does on its own, by host.
    fn across_hosts(&self, rank: usize) -> Result<Vec<usize>, StateError> {
        let mut hosts = std::collections::BTreeMap::<usize, Vec<usize>>::new();
        for other in self.ranks.iter() {
            hosts.entry(self.host(*other)).or_default().push(*other);
        }
        let mine = &hosts[&self.host(rank)];
        let index = mine.iter().position(|other| *other == rank);

        for (host, ranks) in &hosts {
            if ranks.len() != mine.len() {
                return Err(StateError::UnevenHosts {
                    first: self.host(rank),
                    first_ranks: mine.len(),
                    second: *host,
                    second_ranks: ranks.len(),
                });
            }
        }
        Ok(hosts
            .values()
            .filter_map(|ranks| index.map(|at| ranks[at]))
            .collect())
    }

    /// A group with the options of its name.
    fn named(&self, name: &str, ranks: &[usize]) -> Result<Group, StateError> {
        let mesh = Mesh::of_ranks(ranks, &[ranks.len()], &[name])?;
        let group = mesh
            .group([name], ranks[0])?
            .ok_or(StateError::NotAMember {
                rank: ranks[0],
                ranks: ranks.to_vec(),
            })?;
        Ok(match self.config.options.get(name) {
            Some(options) => group.with(options.clone()),
            None => group,
        })
    }
}
