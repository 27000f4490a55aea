//! Named axes over ranks.
//!
//! A mesh is a value and the same on every rank: it has no current rank. Creating, slicing and
//! comparing meshes needs no communication. Queries take a rank as an argument, so one process can
//! test the view of every rank.
//!
//! Selecting axes keeps *all* parallel instances: `mesh.select(["tp"])` of 2 x 4 ranks is two rows
//! of four, and [`Mesh::group`] returns the row of a given rank.

use std::fmt;
use std::sync::Arc;

use meshgrad_error::{Result, bail, ensure, error};
use smallvec::SmallVec;

use crate::rank_map::RankMap;
use crate::size::{check_size, part_sizes};
use crate::{Group, RankLayout, Size, text};

/// An axis: a name and the layout of its ranks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Axis {
    name: Arc<str>,
    layout: RankLayout,
}

impl Axis {
    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The positions of its ranks in the mesh, relative to the first one.
    pub fn layout(&self) -> &RankLayout {
        &self.layout
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.layout.len()
    }
}

/// A grid of ranks with named axes, or several parallel instances of such a grid. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Mesh {
    ranks: RankMap,
    axes: SmallVec<[Axis; 6]>,
    /// The first position of each instance, relative to `base`: the axes that [`Mesh::select`] left
    /// out.
    instances: RankLayout,
    /// The offset of the coordinates that [`Mesh::at`] has fixed.
    base: usize,
}

impl Mesh {
    /// A mesh over ranks 0, 1, ... in row-major order: the last axis varies fastest.
    ///
    /// # Errors
    /// When an axis has no size, no name or the name of another; above [`MAX_RANKS`](crate::MAX_RANKS) ranks.
    pub fn new(shape: &[usize], names: &[&str]) -> Result<Mesh> {
        let axes = named_axes(shape, names)?;
        let len = axes.iter().map(Axis::size).product();
        Ok(Mesh::whole(RankMap::Identity { len }, axes))
    }

    /// A mesh over these ranks in row-major order.
    ///
    /// # Errors
    /// As [`Mesh::new`]; for a rank that is listed twice, and when the sizes do not multiply to the
    /// number of ranks.
    pub fn from_ranks(ranks: &[usize], shape: &[usize], names: &[&str]) -> Result<Mesh> {
        let axes = named_axes(shape, names)?;
        let product: usize = axes.iter().map(Axis::size).product();
        let (needed, given) = (axes_text(&axes), ranks.len());
        ensure!(product == given, Invalid, "mesh {needed} needs {product} ranks, got {given}");
        Ok(Mesh::whole(RankMap::listed(ranks)?, axes))
    }

    fn whole(ranks: RankMap, axes: SmallVec<[Axis; 6]>) -> Mesh {
        Mesh { ranks, axes, instances: RankLayout::singleton(), base: 0 }
    }

    /// The axes of one instance, slowest first.
    pub fn axes(&self) -> &[Axis] {
        &self.axes
    }

    /// The axis with this name.
    ///
    /// # Errors
    /// When there is none.
    pub fn axis(&self, name: &str) -> Result<&Axis> {
        self.axis_at(name).map(|at| &self.axes[at])
    }

    fn axis_at(&self, name: &str) -> Result<usize> {
        let found = self.axes.iter().position(|axis| axis.name() == name);
        found.ok_or_else(|| {
            let nearest = text::nearest_name(name, self.axes.iter().map(Axis::name));
            let hint = nearest.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
            let axes = axes_text(&self.axes);
            error!(Missing, "axis `{name}` is not in the mesh (axes: {axes}){hint}")
        })
    }

    /// The size of an axis.
    ///
    /// # Errors
    /// When the mesh does not have the axis.
    pub fn size(&self, name: &str) -> Result<usize> {
        self.axis(name).map(Axis::size)
    }

    /// The sizes of all axes.
    pub fn shape(&self) -> Vec<usize> {
        self.axes.iter().map(Axis::size).collect()
    }

    /// The number of ranks per instance.
    pub fn len(&self) -> usize {
        self.axes.iter().map(Axis::size).product()
    }

    /// Always false: a mesh has at least one rank.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The number of parallel instances.
    pub fn instances(&self) -> usize {
        self.instances.len()
    }

    /// All ranks, instance by instance.
    pub fn ranks(&self) -> Vec<usize> {
        let group = self.layout();
        let mut ranks = Vec::with_capacity(self.len() * self.instances());
        for instance in self.instances.ranks() {
            let position = |at| self.ranks.rank(self.base + instance + at);
            ranks.extend(group.ranks().map(position));
        }
        ranks
    }

    /// The positions of one instance, relative to its first position.
    fn layout(&self) -> RankLayout {
        flattened(&self.axes)
    }

    /// Whether a rank is in one of the instances.
    pub fn contains(&self, rank: usize) -> bool {
        self.position(rank).is_some()
    }

    fn position(&self, rank: usize) -> Option<usize> {
        let position = self.ranks.position(rank)?;
        let counted: usize = self.axes.iter().map(|axis| axis.layout.counted(position)).sum();
        let rest = position - counted - self.instances.counted(position);
        (rest == self.base).then_some(position)
    }

    /// The coordinates of a rank on all axes; `None` if it is not in the mesh.
    pub fn coordinate(&self, rank: usize) -> Option<Vec<usize>> {
        let position = self.position(rank)?;
        let along = |axis: &Axis| axis.layout.coordinate(position);
        Some(self.axes.iter().map(along).collect())
    }

    /// The coordinate of a rank on one axis; `None` if it is not in the mesh.
    ///
    /// # Errors
    /// When the mesh does not have the axis.
    pub fn local_rank(&self, name: &str, rank: usize) -> Result<Option<usize>> {
        let axis = self.axis(name)?;
        Ok(self.position(rank).map(|at| axis.layout.coordinate(at)))
    }

    /// The rank with coordinate `index` on an axis and the other coordinates of `rank`; `None` if
    /// `rank` is not in the mesh.
    ///
    /// # Errors
    /// For an axis that the mesh does not have, and an index that is not below its size.
    pub fn peer(&self, rank: usize, name: &str, index: usize) -> Result<Option<usize>> {
        let axis = self.axis(name)?;
        let along = offset(axis, index)?;
        let peer = |at: usize| self.ranks.rank(at - axis.layout.counted(at) + along);
        Ok(self.position(rank).map(peer))
    }

    /// Keeps some axes, in any order. The other axes become parallel instances.
    ///
    /// # Errors
    /// For an axis that the mesh does not have, or that is named twice.
    pub fn select<S: AsRef<str>>(&self, names: impl AsRef<[S]>) -> Result<Mesh> {
        let chosen = self.chosen(names.as_ref())?;
        let left_out = (0..self.axes.len()).filter(|at| !chosen.contains(at));
        let left_out = left_out.map(|at| &self.axes[at].layout);
        let instances = RankLayout::concat(left_out.chain([&self.instances]))?;

        Ok(Mesh {
            ranks: self.ranks.clone(),
            axes: chosen.iter().map(|at| self.axes[*at].clone()).collect(),
            instances: instances.ascending(),
            base: self.base,
        })
    }

    /// Flattens some axes, adjacent or not, into one axis; the last one named varies fastest. The
    /// new axis takes the position of the first of them.
    ///
    /// # Errors
    /// For an axis that the mesh does not have or that is named twice; when another axis has the
    /// name.
    pub fn flatten<S: AsRef<str>>(&self, names: impl AsRef<[S]>, name: &str) -> Result<Mesh> {
        let chosen = self.chosen(names.as_ref())?;
        let parts: SmallVec<[Axis; 6]> = chosen.iter().map(|at| self.axes[*at].clone()).collect();
        let flat = Axis { name: name.into(), layout: flattened(&parts) };

        let first = chosen.iter().min().copied().unwrap_or(self.axes.len());
        let kept = |range: std::ops::Range<usize>| {
            let kept = range.filter(|at| !chosen.contains(at));
            kept.map(|at| self.axes[at].clone())
        };
        let axes = kept(0..first).chain([flat]).chain(kept(first..self.axes.len()));
        self.with_axes(axes.collect())
    }

    /// Splits an axis into several; the last one varies fastest.
    ///
    /// # Errors
    /// For an axis that the mesh does not have; for sizes that do not multiply to its size, more
    /// than one [`Size::Auto`], names that are taken, and a flattened axis that cannot be split so.
    pub fn split(&self, name: &str, parts: &[(&str, Size)]) -> Result<Mesh> {
        let at = self.axis_at(name)?;
        let axis = &self.axes[at];
        let sizes = part_sizes(name, axis.size(), parts)?;
        let layouts = axis.layout.split(&sizes)?;

        let parts = parts
            .iter()
            .zip(layouts)
            .map(|((name, _), layout)| Axis { name: (*name).into(), layout });
        let axes = self.axes[..at].iter().cloned().chain(parts);
        self.with_axes(axes.chain(self.axes[at + 1..].iter().cloned()).collect())
    }

    /// Fixes the coordinate on an axis at `index` and drops the axis.
    ///
    /// # Errors
    /// For an axis that the mesh does not have, and an index that is not below its size.
    pub fn at(&self, name: &str, index: usize) -> Result<Mesh> {
        let at = self.axis_at(name)?;
        let mut mesh = self.clone();
        let axis = mesh.axes.remove(at);
        mesh.base += offset(&axis, index)?;
        Ok(mesh)
    }

    /// The group of a rank along some axes; the last one named varies fastest. `None` if the rank
    /// is not in the mesh.
    ///
    /// # Errors
    /// For an axis that the mesh does not have, or that is named twice.
    pub fn group<S: AsRef<str>>(
        &self,
        names: impl AsRef<[S]>,
        rank: usize,
    ) -> Result<Option<Group>> {
        let layout = self.along(names.as_ref())?;
        let group = |position: usize| self.group_at(&layout, position - layout.counted(position));
        Ok(self.position(rank).map(group))
    }

    /// All groups along some axes, in the order of their first members.
    ///
    /// # Errors
    /// For an axis that the mesh does not have, or that is named twice.
    pub fn groups<S: AsRef<str>>(&self, names: impl AsRef<[S]>) -> Result<Vec<Group>> {
        let layout = self.along(names.as_ref())?;
        let others = self.select(names)?.instances;
        let group = |offset| self.group_at(&layout, self.base + offset);
        Ok(others.ranks().map(group).collect())
    }

    /// The layout of some axes flattened.
    fn along<S: AsRef<str>>(&self, names: &[S]) -> Result<RankLayout> {
        let chosen = self.chosen(names)?;
        let axes: SmallVec<[Axis; 6]> = chosen.iter().map(|at| self.axes[*at].clone()).collect();
        Ok(flattened(&axes))
    }

    fn group_at(&self, layout: &RankLayout, first: usize) -> Group {
        let ranks: Vec<usize> = layout.ranks().map(|at| self.ranks.rank(first + at)).collect();
        Group::from_distinct(ranks)
    }

    /// Checks that the mesh has exactly the ranks `0..world`.
    ///
    /// # Errors
    /// When it has others, with the missing ranks.
    pub fn covers(&self, world: usize) -> Result<()> {
        let len = self.len() * self.instances();
        let is_world = len == world && self.ranks == RankMap::Identity { len };
        if is_world {
            return Ok(());
        }
        let missing: Vec<usize> =
            (0..world.min(crate::MAX_RANKS)).filter(|rank| !self.contains(*rank)).collect();
        let outside: Vec<usize> = self.ranks().into_iter().filter(|at| *at >= world).collect();
        if missing.is_empty() && outside.is_empty() {
            return Ok(());
        }
        let missing = (!missing.is_empty())
            .then(|| format!("ranks {} are not in the mesh", text::ranks(&missing)));
        let outside = (!outside.is_empty())
            .then(|| format!("ranks {} of the mesh are not in the world", text::ranks(&outside)));
        let differences: Vec<String> = missing.into_iter().chain(outside).collect();
        bail!(
            Invalid,
            "mesh {} has {len} ranks but the world has {world}: {}; change a size so that the \
             product is {world}, or list the ranks with from_ranks",
            axes_text(&self.axes),
            differences.join(", ")
        )
    }

    /// The indices of the named axes.
    fn chosen<S: AsRef<str>>(&self, names: &[S]) -> Result<SmallVec<[usize; 6]>> {
        let mut chosen = SmallVec::new();
        for name in names {
            let name = name.as_ref();
            let at = self.axis_at(name)?;
            if chosen.contains(&at) {
                let given: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
                bail!(Invalid, "axis `{name}` is named twice in {given:?}: name it once");
            }
            chosen.push(at);
        }
        Ok(chosen)
    }

    fn with_axes(&self, axes: SmallVec<[Axis; 6]>) -> Result<Mesh> {
        check_names(&axes)?;
        Ok(Mesh { axes, ..self.clone() })
    }

    pub(crate) fn rank_map(&self) -> &RankMap {
        &self.ranks
    }

    pub(crate) fn base(&self) -> usize {
        self.base
    }

    /// The positions of all instances, relative to `base`.
    pub(crate) fn all(&self) -> RankLayout {
        let axes = self.axes.iter().map(Axis::layout);
        RankLayout::concat(axes.chain([&self.instances])).expect("axes of one mesh")
    }
}

fn named_axes(shape: &[usize], names: &[&str]) -> Result<SmallVec<[Axis; 6]>> {
    ensure!(
        shape.len() == names.len(),
        Invalid,
        "got {} sizes {shape:?} but {} names {names:?}: each axis needs one of each",
        shape.len(),
        names.len()
    );
    for (name, size) in names.iter().zip(shape) {
        check_size(name, *size)?;
    }
    let layouts = RankLayout::row_major(shape)?;
    let axes =
        names.iter().zip(layouts).map(|(name, layout)| Axis { name: (*name).into(), layout });
    let axes: SmallVec<[Axis; 6]> = axes.collect();
    check_names(&axes)?;
    Ok(axes)
}

fn check_names(axes: &[Axis]) -> Result<()> {
    for (at, axis) in axes.iter().enumerate() {
        let (name, all) = (axis.name(), || axes_text(axes));
        ensure!(
            !name.is_empty(),
            Invalid,
            "an axis of {} has an empty name: use at least one character",
            all()
        );
        let is_new = axes[..at].iter().all(|other| other.name() != name);
        ensure!(
            is_new,
            Invalid,
            "two axes are named `{name}` (axes: {}): rename one of them",
            all()
        );
    }
    Ok(())
}

/// The axes as one layout. Axes of one mesh never overlap.
fn flattened(axes: &[Axis]) -> RankLayout {
    RankLayout::concat(axes.iter().map(Axis::layout)).expect("axes of one mesh")
}

fn offset(axis: &Axis, index: usize) -> Result<usize> {
    let (name, size) = (axis.name(), axis.size());
    ensure!(
        index < size,
        Invalid,
        "coordinate {index} is out of range for axis `{name}` of size {size}"
    );
    Ok(axis.layout.rank(index))
}

fn axes_text(axes: &[Axis]) -> String {
    text::sizes(axes.iter().map(|axis| (axis.name(), axis.size())))
}

/// `dp 2 x tp 4`, with the number of instances if there are several.
impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&axes_text(&self.axes))?;
        match self.instances() {
            1 => Ok(()),
            instances => write!(f, " ({instances} instances)"),
        }
    }
}

impl fmt::Debug for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mesh({self})")
    }
}
