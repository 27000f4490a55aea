//! Shardings: a mesh, a placement per mesh axis, and the global shape of a tensor.
//!
//! Placements are in *explicit order*: if several axes shard one dim, the first one named is the
//! outermost. `[("tp", shard(0)), ("dp", shard(0))]` shards the dim over tp, and each of these
//! shards over dp, whatever the order of the axes in the mesh. The order of axes that shard
//! different dims does not matter, and shardings that differ only there are equal.

use std::fmt;
use std::sync::Arc;

use meshgrad_error::{Error, Result, bail, ensure, error};

use crate::division::DivisionError;
use crate::placements::{AxisShard, Geometry, Placements};
use crate::{Axis, Division, IndexSet, Mesh, Placement, Reduction, Region};

/// The most elements of a tensor, so that its size in bits does not overflow.
const MAX_ELEMENTS: usize = 1 << 56;

/// How a tensor is distributed over a mesh.
///
/// Shardings are stored in canonical form: an axis of one rank is always replicated, and a division
/// that equals a simpler one is that one. Equal shardings have the same regions on all ranks.
///
/// ```
/// use meshgrad_mesh::{Mesh, Placement, Sharding};
///
/// let mesh = Mesh::new(&[2, 2], &["dp", "tp"])?;
/// let rows = Placement::shard(0);
/// let weight = Sharding::new(&mesh, [("tp", rows.clone()), ("dp", rows)], &[10, 4])?;
/// assert_eq!(weight.to_string(), "tp: shard(0), dp: shard(0)");
/// assert_eq!(weight.region(1).unwrap().as_box(), Some(vec![5..8, 0..4]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Sharding {
    mesh: Mesh,
    shape: Arc<[usize]>,
    /// The sizes of the mesh's axes.
    axis_sizes: Arc<[usize]>,
    placements: Placements,
}

impl Sharding {
    /// A sharding with the placements in explicit order, the outermost first. Axes that are not
    /// named replicate.
    ///
    /// # Errors
    /// For an axis that the mesh does not have or that has two placements; for a dim that the tensor
    /// does not have; for a division that does not fit; for partial reductions that do not commute;
    /// for more than 2^56 elements.
    pub fn new<S: AsRef<str>>(
        mesh: &Mesh,
        placements: impl AsRef<[(S, Placement)]>,
        shape: &[usize],
    ) -> Result<Sharding> {
        let mut sharding = Sharding::replicated(mesh, shape)?;
        let placements = placements.as_ref();
        for (at, (name, placement)) in placements.iter().enumerate() {
            let name = name.as_ref();
            mesh.axis(name)?;
            let before = placements[..at].iter().find(|(other, _)| other.as_ref() == name);
            if let Some((_, first)) = before {
                bail!(
                    Invalid,
                    "axis `{name}` has two placements, {first} and {placement}: state one"
                );
            }
            sharding.put(name, placement)?;
        }
        Ok(sharding)
    }

    /// A sharding that replicates the tensor on every rank.
    ///
    /// # Errors
    /// For more than 2^56 elements.
    pub fn replicated(mesh: &Mesh, shape: &[usize]) -> Result<Sharding> {
        let elements =
            shape.iter().try_fold(1usize, |product, extent| product.checked_mul((*extent).max(1)));
        ensure!(
            elements.is_some_and(|elements| elements <= MAX_ELEMENTS),
            Invalid,
            "tensor {shape:?} has more than 2^56 elements"
        );
        Ok(Sharding {
            mesh: mesh.clone(),
            shape: shape.into(),
            axis_sizes: mesh.shape().into(),
            placements: Placements::default(),
        })
    }

    fn put(&mut self, name: &str, placement: &Placement) -> Result<()> {
        let axis = self.axis_index(name)?;
        match placement {
            Placement::Replicate => Ok(()),
            Placement::Partial(reduction) => self.put_partial(axis, *reduction),
            Placement::Shard(dim, division) => {
                let has = match self.shape.len() {
                    0 => "no dims: replicate it".to_owned(),
                    1 => "only dim 0".to_owned(),
                    dims => format!("dims 0 to {}", dims - 1),
                };
                ensure!(
                    *dim < self.shape.len(),
                    Invalid,
                    "axis `{name}` shards dim {dim}, but the tensor {:?} has {has}",
                    self.shape
                );
                self.put_shard(AxisShard { dim: *dim, axis, division: division.clone() })
            }
        }
    }

    fn put_partial(&mut self, axis: usize, reduction: Reduction) -> Result<()> {
        let geometry = Geometry { shape: &self.shape, axis_sizes: &self.axis_sizes };
        let conflict = self.placements.conflict(reduction);
        if let Some((other, first)) = conflict.filter(|_| geometry.axis_sizes[axis] > 1) {
            bail!(
                Invalid,
                "axis `{}` is partial({first}) and axis `{}` is partial({reduction}), which do not \
                 commute: reduce one of them first",
                self.axis_name(other),
                self.axis_name(axis)
            );
        }
        self.placements.make_partial(axis, reduction, geometry);
        Ok(())
    }

    fn put_shard(&mut self, shard: AxisShard) -> Result<()> {
        let geometry = Geometry { shape: &self.shape, axis_sizes: &self.axis_sizes };
        let pushed = self.placements.push(shard.clone(), geometry);
        pushed.map_err(|error| self.error(shard, error))
    }

    fn error(&self, shard: AxisShard, error: DivisionError) -> Error {
        let AxisShard { dim, axis, division } = shard;
        let sizes = division.ragged();
        let outer = self.placements.shards_of(dim).iter();
        let outer: Vec<String> =
            outer.map(|shard| format!("`{}`", self.axis_name(shard.axis))).collect();
        let outer = outer.join(", ");
        let inside = match outer.is_empty() {
            true => String::new(),
            false => format!(" inside the shards of {outer}"),
        };
        let extents = self.placements.shard_extents(dim, self.geometry());
        let (ranks, axis) = (self.axis_sizes[axis], self.axis_name(axis));
        match error {
            DivisionError::Count => error!(
                Invalid,
                "axis `{axis}` has {ranks} ranks but shards dim {dim} into {} sizes {sizes:?}: give \
                 one size per rank, 0 for an empty shard",
                sizes.len()
            ),
            DivisionError::Sum => {
                let sum: u128 = sizes.iter().map(|size| *size as u128).sum();
                let extent = match division {
                    Division::InBlocks { length, .. } => length,
                    _ => extents.into_iter().sum(),
                };
                error!(
                    Invalid,
                    "axis `{axis}` shards dim {dim} into sizes {sizes:?}, which add up to {sum}, but \
                     the extent is {extent}{inside}"
                )
            }
            DivisionError::BlockLength => {
                let extents: Vec<String> = extents.iter().map(usize::to_string).collect();
                error!(
                    Invalid,
                    "axis `{axis}` shards dim {dim} {division}{inside}, but the extent is {}: the \
                     length of a block must be at least 1 and divide it into at most 2^20 blocks",
                    extents.join(" or ")
                )
            }
            DivisionError::UnequalShards => {
                let extents: Vec<usize> = extents.into_iter().collect();
                error!(
                    Invalid,
                    "axis `{axis}` shards dim {dim} into sizes {sizes:?}{inside}, which have \
                     different extents {extents:?}: place `{axis}` before {outer}, or shard evenly"
                )
            }
        }
    }

    /// The mesh.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// The global shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The placement on an axis.
    ///
    /// # Errors
    /// When the mesh does not have the axis.
    pub fn placement(&self, axis: &str) -> Result<Placement> {
        Ok(self.placements.placement(self.axis_index(axis)?))
    }

    /// The placements on all axes in explicit order: axes that shard the same dim are ordered from
    /// the outermost to the innermost, other axes as in the mesh.
    pub fn placements(&self) -> Vec<(&str, Placement)> {
        let order = self.placements.order(self.axis_sizes.len());
        let placement = |axis| (self.axis_name(axis), self.placements.placement(axis));
        order.into_iter().map(placement).collect()
    }

    /// The axes that shard a dim, outermost first.
    pub fn axes_of_dim(&self, dim: usize) -> Vec<&str> {
        let shards = self.placements.shards_of(dim).iter();
        shards.map(|shard| self.axis_name(shard.axis)).collect()
    }

    /// Whether every rank has one range of a dim, as its divisions say.
    pub fn has_one_range(&self, dim: usize) -> bool {
        let divisions = self.placements.shards_of(dim).iter();
        let mut divisions = divisions.map(|shard| &shard.division);
        divisions.all(Division::is_one_range)
    }

    /// The axes with partial values, and their reductions.
    pub fn partials(&self) -> Vec<(&str, Reduction)> {
        let partials = self.placements.partials().iter();
        partials.map(|(axis, reduction)| (self.axis_name(*axis), *reduction)).collect()
    }

    /// The same shards; axes with partial values replicate instead.
    pub fn without_partials(&self) -> Sharding {
        self.with_placements(self.placements.without_partials())
    }

    /// Whether every rank holds the whole tensor.
    pub fn is_replicated(&self) -> bool {
        self.placements == Placements::default()
    }

    /// The region of the global tensor that a rank holds, whole or partial; `None` if the rank is
    /// not in the mesh. An empty shard is the empty range at the end of its dim.
    pub fn region(&self, rank: usize) -> Option<Region> {
        let coordinate = self.mesh.coordinate(rank)?;
        let indices = |dim| self.placements.indices(dim, &coordinate, self.geometry());
        Some(Region::new((0..self.shape.len()).map(indices)))
    }

    /// The shape of a rank's local tensor; `None` if the rank is not in the mesh.
    pub fn local_shape(&self, rank: usize) -> Option<Vec<usize>> {
        Some(self.region(rank)?.extents())
    }

    /// The largest local extents: the shape that padding to equal shards requires.
    pub fn largest_local_shape(&self) -> Vec<usize> {
        let dims = 0..self.shape.len();
        dims.map(|dim| self.placements.largest(dim, self.geometry())).collect()
    }

    /// The indices of a dim that some rank has, one set for each shard of it.
    pub(crate) fn parts(&self, dim: usize) -> Vec<IndexSet> {
        self.placements.parts(dim, self.geometry())
    }

    pub(crate) fn geometry(&self) -> Geometry<'_> {
        Geometry { shape: &self.shape, axis_sizes: &self.axis_sizes }
    }

    pub(crate) fn canonical(&self) -> &Placements {
        &self.placements
    }

    /// The same mesh and shape with other placements.
    pub(crate) fn with_placements(&self, placements: Placements) -> Sharding {
        Sharding { placements, ..self.clone() }
    }

    pub(crate) fn axis_name(&self, axis: usize) -> &str {
        self.mesh.axes()[axis].name()
    }

    fn axis_index(&self, name: &str) -> Result<usize> {
        self.mesh.axis(name)?;
        let before = self.mesh.axes().iter().map(Axis::name).take_while(|axis| *axis != name);
        Ok(before.count())
    }
}

/// `dp: shard(0), tp: replicate`, in explicit order.
impl fmt::Display for Sharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let placements = self.placements();
        let texts: Vec<String> =
            placements.iter().map(|(axis, placement)| format!("{axis}: {placement}")).collect();
        match texts.is_empty() {
            true => f.write_str("on one rank"),
            false => f.write_str(&texts.join(", ")),
        }
    }
}

impl fmt::Debug for Sharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sharding({self}; shape {:?}, mesh {})", self.shape, self.mesh)
    }
}
