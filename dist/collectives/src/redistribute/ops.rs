//! The only op that changes a sharding, and the scope in which it communicates.

use std::sync::Arc;

use meshgrad_error::error;
use meshgrad_mesh::{Chunks, Group, Mesh, Placement, Reduction, Sharding};
use meshgrad_runtime::{Error, Pending, RankScope, Result, Tensor, ops};

use crate::communicator::Communicator;

/// What a rank's ops communicate through. All ranks of the mesh make the same calls.
pub trait Redistribute: Send + Sync {
    /// This rank's part of `x` with the sharding `to`, of the same mesh and global shape.
    ///
    /// # Errors
    /// If `x` has no sharding, or none that can become `to`; errors of the communication.
    fn redistribute(&self, x: &Tensor, to: &Sharding) -> Result<Tensor>;

    /// Starts [`Redistribute::redistribute`] and does not wait for other ranks. All ranks make the
    /// same calls in the same order, and wait for the results in the same order or drop them. The
    /// default waits.
    ///
    /// # Errors
    /// As [`Redistribute::redistribute`]; errors of the communication are those of
    /// [`Pending::wait`].
    fn start(&self, x: &Tensor, to: &Sharding) -> Result<Pending<Tensor>> {
        let result = self.redistribute(x, to)?;
        Ok(Pending::by_host(move || Ok(result)))
    }

    /// Starts the redistribution of one chunk of a tensor, as [`Redistribute::start`]. `x` is what
    /// this rank has of the chunk, as a tensor without sharding, and so is the result. Reductions
    /// add in the order in which [`Redistribute::redistribute`] adds for the whole tensor.
    ///
    /// # Errors
    /// As [`Redistribute::start`].
    fn start_chunk(
        &self,
        x: &Tensor,
        redistribution: [&Sharding; 2],
        chunks: &Chunks,
        chunk: usize,
    ) -> Result<Pending<Tensor>>;

    /// The number of this rank in the world.
    fn rank(&self) -> usize;

    /// The communicator of a group of which this rank is a member.
    ///
    /// # Errors
    /// When the rank is not a member, and errors of the transport.
    fn connect(&self, group: &Group) -> Result<Arc<dyn Communicator>>;

    /// Whether [`check_replicas`] checks anything.
    fn is_strict(&self) -> bool {
        false
    }

    /// Checks that the ranks that have the same part of `x` have the same values. `name` identifies
    /// the tensor in errors. The default checks nothing.
    ///
    /// # Errors
    /// When the values differ between ranks; errors of the communication.
    fn check_replicas(&self, name: &str, x: &Tensor) -> Result<()> {
        let _ = (name, x);
        Ok(())
    }
}

/// The entry of a [`RankScope`].
struct Through(Arc<dyn Redistribute>);

/// Calls `body`, in which [`redistribute`] communicates through `redistribution`.
pub fn with_redistribution<T>(
    redistribution: Arc<dyn Redistribute>,
    body: impl FnOnce() -> T,
) -> T {
    RankScope::current().through(Arc::new(Through(redistribution))).run(body)
}

/// What the innermost scope of this thread communicates through.
fn current() -> Option<Arc<dyn Redistribute>> {
    let through = RankScope::current().collectives::<Through>()?;
    Some(through.0.clone())
}

/// What the innermost [`with_redistribution`] of this thread communicates through.
///
/// # Errors
/// Outside of [`with_redistribution`].
pub fn current_redistribution() -> Result<Arc<dyn Redistribute>> {
    current().ok_or_else(|| no_ranks("redistribute"))
}

/// The communicator of this rank along axes of `mesh`, inside of [`with_redistribution`]. For bodies
/// that communicate themselves, such as the dispatch of tokens to experts.
///
/// # Errors
/// Outside of [`with_redistribution`]; when the rank is not in the mesh or the mesh lacks an axis;
/// errors of the transport.
pub fn communicator<S: AsRef<str>>(
    mesh: &Mesh,
    axes: impl AsRef<[S]>,
) -> Result<Arc<dyn Communicator>> {
    let current = current().ok_or_else(|| no_ranks("communicator"))?;
    let rank = current.rank();
    let group = mesh.group(axes, rank)?;
    let group = group.ok_or_else(|| error!(Invalid, "rank {rank} is not in mesh {mesh}"))?;
    current.connect(&group)
}

/// Whether this thread is inside of [`with_redistribution`].
pub fn in_redistribution() -> bool {
    current().is_some()
}

fn no_ranks(op: &str) -> Error {
    error!(Invalid, "{op}: no ranks to communicate with; call it inside of with_redistribution")
}

/// Checks, in the strict mode of the innermost [`with_redistribution`], that the ranks that have the
/// same part of `x` have the same values. The tape calls it for roots, parameters and gradients. All
/// ranks of the mesh make the same calls.
///
/// # Errors
/// As [`Redistribute::check_replicas`].
pub fn check_replicas(name: impl FnOnce() -> String, x: &Tensor) -> Result<()> {
    match current().filter(|current| x.sharding().is_some() && current.is_strict()) {
        Some(current) => current.check_replicas(&name(), x),
        None => Ok(()),
    }
}

/// `x` with these placements on the named axes of its mesh, and its own on all others. The only op
/// that changes a sharding. Outside of [`with_redistribution`], as on a single rank, a tensor without a
/// sharding is returned as it is.
///
/// An axis that starts to shard a dim becomes its innermost axis, in the order of the list. The
/// result can share memory with `x`.
///
/// # Errors
/// For placements that are invalid or that the tensor cannot be brought to, for a tensor without a
/// sharding inside of [`with_redistribution`], and for one with a sharding outside of it; errors of
/// the communication.
pub fn redistribute<S: AsRef<str>>(
    x: &Tensor,
    placements: impl AsRef<[(S, Placement)]>,
) -> Result<Tensor> {
    match target(x, placements.as_ref())? {
        Some((current, to)) => current.redistribute(x, &to),
        None => Ok(x.clone()),
    }
}

/// [`redistribute`] to the placements of `like`, such as a gradient to those of its parameter.
///
/// # Errors
/// As [`redistribute`].
pub fn redistribute_like(x: &Tensor, like: &Tensor) -> Result<Tensor> {
    let placements = like.sharding().map(Sharding::placements);
    redistribute(x, placements.unwrap_or_default())
}

/// The whole of `x`, on all ranks of its mesh.
///
/// # Errors
/// As [`redistribute`].
pub fn full_tensor(x: &Tensor) -> Result<Tensor> {
    if x.sharding().is_some_and(Sharding::is_replicated) {
        return Ok(x.clone());
    }
    let axes = x.sharding().map_or(&[][..], |sharding| sharding.mesh().axes());
    let replicated = axes.iter().map(|axis| (axis.name(), Placement::Replicate));
    redistribute(x, replicated.collect::<Vec<_>>())
}

/// All elements of `values`, of one dtype, on all ranks of their mesh: \[n\]. Partial sums are
/// reduced in one collective; each value with shards or another reduction takes one more.
///
/// # Errors
/// As [`redistribute`]; for values on different meshes.
pub fn full_concat(values: &[&Tensor]) -> Result<Tensor> {
    let whole: Vec<Tensor> =
        values.iter().map(|value| summed_or_whole(value)).collect::<Result<_>>()?;
    let partials = partial_sums(&whole);
    let flat = whole.iter().map(|value| {
        // What is no partial sum yet becomes one in which a single rank counts.
        let value = match value.sharding() {
            Some(_) if !partials.is_empty() => redistribute(value, &partials)?,
            _ => value.clone(),
        };
        ops::reshape(&value, &[value.elements()])
    });
    let flat: Vec<Tensor> = flat.collect::<Result<_>>()?;
    full_tensor(&ops::concat(&flat.iter().collect::<Vec<_>>(), 0)?)
}

/// `x` as a partial sum along the axes along which it is one, and replicated along the others.
fn summed_or_whole(x: &Tensor) -> Result<Tensor> {
    let placements = x.sharding().map(Sharding::placements).unwrap_or_default();
    let is_sum = |at: &Placement| *at == Placement::Partial(Reduction::Sum);
    let others =
        placements.into_iter().filter(|(_, at)| *at != Placement::Replicate && !is_sum(at));
    let replicated: Vec<_> = others.map(|(axis, _)| (axis, Placement::Replicate)).collect();
    match replicated.is_empty() {
        true => Ok(x.clone()),
        false => redistribute(x, &replicated),
    }
}

/// The axes along which some value is a partial sum.
fn partial_sums(values: &[Tensor]) -> Vec<(String, Placement)> {
    let mut axes: Vec<(String, Placement)> = Vec::new();
    for (axis, by) in values.iter().filter_map(Tensor::sharding).flat_map(Sharding::partials) {
        if by == Reduction::Sum && axes.iter().all(|(known, _)| known != axis) {
            axes.push((axis.to_owned(), Placement::Partial(by)));
        }
    }
    axes
}

/// [`redistribute`] that does not wait for other ranks: the communication runs while the rank does
/// other work, until [`Pending::wait`]. Not tracked by a tape.
///
/// # Errors
/// As [`redistribute`]; errors of the communication are those of [`Pending::wait`].
pub fn start_redistribute<S: AsRef<str>>(
    x: &Tensor,
    placements: impl AsRef<[(S, Placement)]>,
) -> Result<Pending<Tensor>> {
    match target(x, placements.as_ref())? {
        Some((current, to)) => current.start(x, &to),
        None => {
            let x = x.clone();
            Ok(Pending::by_host(move || Ok(x)))
        }
    }
}

/// What `x` is redistributed with, and to; `None` on a single rank.
fn target<S: AsRef<str>>(
    x: &Tensor,
    placements: &[(S, Placement)],
) -> Result<Option<(Arc<dyn Redistribute>, Sharding)>> {
    match (x.sharding(), current()) {
        (Some(from), Some(current)) => Ok(Some((current, with_placements(from, placements)?))),
        (None, None) => Ok(None),
        (Some(_), None) => Err(no_ranks("redistribute")),
        (None, Some(_)) => x.expect_sharding("redistribute").map(|_| None),
    }
}

/// `from` with these placements on the named axes: what [`redistribute`] gives a tensor.
///
/// # Errors
/// For placements that are invalid.
pub fn with_placements<S: AsRef<str>>(
    from: &Sharding,
    placements: &[(S, Placement)],
) -> Result<Sharding> {
    let own = from.placements();
    // An axis that already has the placement stays inside or outside of others, unless the list
    // gives an order by naming several axes of one dim.
    let stays = |(axis, at): &(&str, Placement)| {
        let shares_dim = |(other, placement): &(S, Placement)| {
            other.as_ref() != *axis && at.dim().is_some() && placement.dim() == at.dim()
        };
        own.contains(&(*axis, at.clone())) && !placements.iter().any(shares_dim)
    };
    let changes = placements.iter().map(|(axis, at)| (axis.as_ref(), at.clone()));
    let changes: Vec<_> = changes.filter(|change| !stays(change)).collect();
    let is_kept = |axis: &str| changes.iter().all(|(changed, _)| *changed != axis);
    let mut all: Vec<_> = own.iter().filter(|(axis, _)| is_kept(axis)).cloned().collect();
    all.extend(changes);
    Sharding::new(from.mesh(), all, from.shape())
}
