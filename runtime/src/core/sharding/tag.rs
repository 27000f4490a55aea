//! Tags: the sharding of a tensor and the rank whose part it is. Equal tags of a process share one
//! allocation, so two tags are equal if their addresses are.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use meshgrad_error::{bail, error};
use meshgrad_mesh::{Mesh, Region, Sharding};

use super::ranges;
use crate::{Error, Result, Shape};

/// The sharding of a tensor, and the rank whose part the tensor is.
#[derive(Clone, Debug)]
pub(crate) struct Tag(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    sharding: Sharding,
    rank: usize,
    region: Region,
    local: Shape,
    /// Computed when it is first needed.
    is_regular: OnceLock<bool>,
    /// The tag with the same shards and without partial values, if this one has partial values.
    shards: Option<Tag>,
}

/// The error for a rank that has no part.
pub(super) fn not_in_mesh(rank: usize, mesh: &Mesh) -> Error {
    error!(Invalid, "rank {rank} is not in the mesh {mesh}")
}

impl PartialEq for Tag {
    fn eq(&self, other: &Tag) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Tag {
    /// # Errors
    /// When the rank is not in the mesh; for too many dims.
    pub(crate) fn new(sharding: Sharding, rank: usize) -> Result<Tag> {
        let key = (sharding, rank);
        if let Some(known) = tags().known(&key) {
            return Ok(known);
        }
        let Some(region) = key.0.region(rank) else {
            return Err(not_in_mesh(rank, key.0.mesh()));
        };
        let shards = match key.0.partials().is_empty() {
            true => None,
            false => Some(Tag::new(key.0.without_partials(), rank)?),
        };
        let tag = Arc::new(Inner {
            sharding: key.0.clone(),
            rank,
            local: Shape::new(&region.extents())?,
            region,
            is_regular: OnceLock::new(),
            shards,
        });
        Ok(tags().insert(key, tag))
    }

    /// The tag with the same shards; axes with partial values replicate instead.
    pub(super) fn shards(&self) -> &Tag {
        self.0.shards.as_ref().unwrap_or(self)
    }

    pub(crate) fn sharding(&self) -> &Sharding {
        &self.0.sharding
    }

    pub(crate) fn rank(&self) -> usize {
        self.0.rank
    }

    /// The elements of the rank's part.
    pub(crate) fn region(&self) -> &Region {
        &self.0.region
    }

    /// Whether the ranges of each dim are equally long and equally far apart on every rank.
    pub(super) fn is_regular(&self) -> bool {
        let is_regular = || ranges::is_regular(self.sharding());
        *self.0.is_regular.get_or_init(is_regular)
    }

    /// The shape of the rank's part.
    pub(crate) fn local(&self) -> &Shape {
        &self.0.local
    }

    /// An id that differs from that of every other live tag.
    pub(super) fn id(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    /// Checks that a tensor of `shape` can carry this tag.
    pub(crate) fn check(&self, op: &'static str, shape: &Shape) -> Result<()> {
        if shape == self.local() {
            return Ok(());
        }
        bail!(
            Invalid,
            "{op}: the shape is {shape:?}, but the part of rank {} in {:?} ({}) has shape {:?}",
            self.rank(),
            self.sharding().shape(),
            self.sharding(),
            self.local()
        )
    }
}

static TAGS: LazyLock<Mutex<Tags>> = LazyLock::new(Mutex::default);

fn tags() -> MutexGuard<'static, Tags> {
    TAGS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All live tags, and dead ones until the next sweep.
#[derive(Default)]
struct Tags {
    by_value: HashMap<(Sharding, usize), Weak<Inner>>,
    sweep_at: usize,
}

/// Dead tags are not removed below this number of tags.
const FEW: usize = 256;

impl Tags {
    fn known(&self, key: &(Sharding, usize)) -> Option<Tag> {
        self.by_value.get(key).and_then(Weak::upgrade).map(Tag)
    }

    /// Adds `tag`, unless another thread has added an equal one; returns the one that is known.
    ///
    /// Decoding creates new shapes for each token, so dead tags are removed before they outnumber
    /// the live ones.
    fn insert(&mut self, key: (Sharding, usize), tag: Arc<Inner>) -> Tag {
        if let Some(known) = self.known(&key) {
            return known;
        }
        if self.by_value.len() >= self.sweep_at.max(FEW) {
            self.by_value.retain(|_, tag| tag.strong_count() > 0);
            self.sweep_at = 2 * self.by_value.len();
        }
        self.by_value.insert(key, Arc::downgrade(&tag));
        Tag(tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshgrad_mesh::{Mesh, Placement};

    fn tag(extent: usize, rank: usize) -> Tag {
        let mesh = Mesh::new(&[2], &["tp"]).unwrap();
        let sharding = Sharding::new(&mesh, [("tp", Placement::shard(0))], &[extent]).unwrap();
        Tag::new(sharding, rank).unwrap()
    }

    #[test]
    fn equal_shardings_of_a_rank_are_one_allocation() {
        assert_eq!(tag(5, 0), tag(5, 0));
        assert_ne!(tag(5, 0), tag(5, 1));
        assert_ne!(tag(5, 0), tag(6, 0));
        assert_eq!(tag(5, 1).local().to_vec(), [2]);
        let mesh = Mesh::new(&[2], &["tp"]).unwrap();
        assert!(Tag::new(Sharding::replicated(&mesh, &[4]).unwrap(), 2).is_err());
    }

    #[test]
    fn dead_tags_are_removed() {
        let kept = tag(1_000_000, 0);
        (0..10 * FEW).for_each(|extent| drop(tag(extent, 1)));
        let known = TAGS.lock().unwrap().by_value.len();
        assert!(known < 4 * FEW, "{known} tags are known, of which few live");
        assert_eq!(kept, tag(1_000_000, 0));
    }
}
