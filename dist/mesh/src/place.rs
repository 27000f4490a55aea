//! Where a tensor is: a mesh, a placement for each of its axes, and the global shape.
//!
//! Placements are in *explicit order*: where several axes cut one dim, the first named cuts it
//! first, and the next cuts what that leaves. `[("tp", shard(0)), ("dp", shard(0))]` gives tp the
//! large pieces, whatever the order of the axes in the mesh. Where axes cut different dims their
//! order does not matter, and places that differ only there are equal.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::arrangement::{Arrangement, Cut, Frame, Misfit};
use crate::{Axis, Division, Mesh, PlaceError, Placement, Reduction};

/// Most elements of a tensor, so that counts of bits cannot overflow.
const MAX_ELEMENTS: usize = 1 << 56;

/// The place of a tensor.
///
/// A place has one normal form: an axis of one rank is replicated whatever it was placed as, and
/// ragged sizes that are the even ones are even. Equal places have the same boxes on all ranks.
///
/// ```
/// use meshgrad_mesh::{Mesh, Place, Placement};
///
/// let mesh = Mesh::new(&[2, 2], &["dp", "tp"])?;
/// let rows = Placement::shard(0);
/// let weight = Place::new(&mesh, [("tp", rows.clone()), ("dp", rows)], &[10, 4])?;
/// assert_eq!(weight.to_string(), "tp: shard(0), dp: shard(0)");
/// assert_eq!(weight.region(1), Some(vec![5..8, 0..4]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Place {
    mesh: Mesh,
    shape: Arc<[usize]>,
    /// The sizes of the mesh's axes.
    sizes: Arc<[usize]>,
    arrangement: Arrangement,
}

impl Place {
    /// A tensor of this global shape on a mesh, with the placements of its axes in explicit order,
    /// the outermost cut first. Axes that are not named replicate.
    ///
    /// # Errors
    /// [`PlaceError::Mesh`] for an axis that the mesh does not have, [`PlaceError::PlacedTwice`],
    /// [`PlaceError::NoSuchDim`], [`PlaceError::RaggedCount`], [`PlaceError::RaggedSum`],
    /// [`PlaceError::RaggedPieces`], [`PlaceError::MixedReductions`],
    /// [`PlaceError::TooManyElements`].
    pub fn new<S: AsRef<str>>(
        mesh: &Mesh,
        placements: impl AsRef<[(S, Placement)]>,
        shape: &[usize],
    ) -> Result<Place, PlaceError> {
        let mut place = Place::replicated(mesh, shape)?;
        let placements = placements.as_ref();
        for (at, (name, placement)) in placements.iter().enumerate() {
            let name = name.as_ref();
            mesh.axis(name)?;
            let before = placements[..at]
                .iter()
                .find(|(other, _)| other.as_ref() == name);
            if let Some((_, first)) = before {
                return Err(PlaceError::PlacedTwice {
                    axis: name.to_owned(),
                    first: first.clone(),
                    second: placement.clone(),
                });
            }
            place.put(name, placement)?;
        }
        Ok(place)
    }

    /// A tensor that every rank of a mesh has all of.
    ///
    /// # Errors
    /// [`PlaceError::TooManyElements`].
    pub fn replicated(mesh: &Mesh, shape: &[usize]) -> Result<Place, PlaceError> {
        let elements = shape.iter().try_fold(1usize, |product, extent| {
            product.checked_mul((*extent).max(1))
        });
        if elements.is_none_or(|elements| elements > MAX_ELEMENTS) {
            return Err(PlaceError::TooManyElements {
                shape: shape.to_vec(),
            });
        }
        Ok(Place {
            mesh: mesh.clone(),
            shape: shape.into(),
            sizes: mesh.shape().into(),
            arrangement: Arrangement::default(),
        })
    }

    fn put(&mut self, name: &str, placement: &Placement) -> Result<(), PlaceError> {
        let axis = self.axis_index(name)?;
        match placement {
            Placement::Replicate => Ok(()),
            Placement::Partial(reduction) => self.put_partial(axis, *reduction),
            Placement::Shard(dim, _) if *dim >= self.shape.len() => Err(PlaceError::NoSuchDim {
                axis: name.to_owned(),
                dim: *dim,
                shape: self.shape.to_vec(),
            }),
            Placement::Shard(dim, division) => self.put_cut(Cut {
                dim: *dim,
                axis,
                division: division.clone(),
            }),
        }
    }

    fn put_partial(&mut self, axis: usize, reduction: Reduction) -> Result<(), PlaceError> {
        let frame = Frame {
            shape: &self.shape,
            sizes: &self.sizes,
        };
        let conflict = self.arrangement.conflict(reduction);
        match conflict.filter(|_| frame.sizes[axis] > 1) {
            Some((other, first)) => Err(PlaceError::MixedReductions {
                first_axis: self.axis_name(other).to_owned(),
                first,
                second_axis: self.axis_name(axis).to_owned(),
                second: reduction,
            }),
            None => {
                self.arrangement.make_partial(axis, reduction, frame);
                Ok(())
            }
        }
    }

    fn put_cut(&mut self, cut: Cut) -> Result<(), PlaceError> {
        let frame = Frame {
            shape: &self.shape,
            sizes: &self.sizes,
        };
        let pushed = self.arrangement.push(cut.clone(), frame);
        pushed.map_err(|misfit| self.misfit(cut, misfit))
    }

    fn misfit(&self, cut: Cut, misfit: Misfit) -> PlaceError {
        let Cut {
            dim,
            axis,
            division,
        } = cut;
        let sizes = match division {
            Division::Even => Vec::new(),
            Division::Ragged(sizes) => sizes.to_vec(),
        };
        let outer = self.arrangement.cuts_of(dim).iter();
        let outer = outer
            .map(|cut| self.axis_name(cut.axis).to_owned())
            .collect();
        let pieces = self.arrangement.pieces(dim, self.frame());
        let ranks = self.sizes[axis];
        let axis = self.axis_name(axis).to_owned();
        match misfit {
            Misfit::Count => PlaceError::RaggedCount {
                axis,
                ranks,
                dim,
                sizes,
            },
            Misfit::Sum => PlaceError::RaggedSum {
                axis,
                dim,
                sizes,
                extent: pieces.into_iter().sum(),
                outer,
            },
            Misfit::Pieces => PlaceError::RaggedPieces {
                axis,
                dim,
                sizes,
                outer,
                extents: pieces.into_iter().collect(),
            },
        }
    }

    /// Its mesh.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// The global shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// How the tensor lies along an axis.
    ///
    /// # Errors
    /// [`PlaceError::Mesh`] for an axis that the mesh does not have.
    pub fn placement(&self, axis: &str) -> Result<Placement, PlaceError> {
        Ok(self.arrangement.placement(self.axis_index(axis)?))
    }

    /// The placements of all axes in explicit order: that of the mesh, but for axes that cut one
    /// dim, which stand as they cut it.
    pub fn placements(&self) -> Vec<(&str, Placement)> {
        let order = self.arrangement.order(self.sizes.len());
        let placed = |axis| (self.axis_name(axis), self.arrangement.placement(axis));
        order.into_iter().map(placed).collect()
    }

    /// The axes that cut a dim, the outermost first.
    pub fn cuts(&self, dim: usize) -> Vec<&str> {
        let cuts = self.arrangement.cuts_of(dim).iter();
        cuts.map(|cut| self.axis_name(cut.axis)).collect()
    }

    /// The axes along which ranks hold parts of a value, with what makes one of them.
    pub fn partials(&self) -> Vec<(&str, Reduction)> {
        let partials = self.arrangement.partials().iter();
        partials
            .map(|(axis, reduction)| (self.axis_name(*axis), *reduction))
            .collect()
    }

    /// Whether every rank has all of the value.
    pub fn is_replicated(&self) -> bool {
        self.arrangement == Arrangement::default()
    }

    /// The box of the global tensor that a rank has, or has a part of the value of; none when the
    /// rank is not in the mesh. Where a dim leaves nothing for the rank, the range begins and ends
    /// at the dim's end.
    pub fn region(&self, rank: usize) -> Option<Vec<Range<u64>>> {
        let coordinate = self.mesh.coordinate(rank)?;
        let range = |dim| {
            let range = self.arrangement.range(dim, &coordinate, self.frame());
            range.start as u64..range.end as u64
        };
        Some((0..self.shape.len()).map(range).collect())
    }

    /// The shape of what a rank has; none when the rank is not in the mesh.
    pub fn local_shape(&self, rank: usize) -> Option<Vec<usize>> {
        let coordinate = self.mesh.coordinate(rank)?;
        let extent = |dim| self.arrangement.range(dim, &coordinate, self.frame()).len();
        Some((0..self.shape.len()).map(extent).collect())
    }

    /// The largest extents that a rank has: what others are padded to where all must be equal.
    pub fn largest_local_shape(&self) -> Vec<usize> {
        let dims = 0..self.shape.len();
        dims.map(|dim| self.arrangement.largest(dim, self.frame()))
            .collect()
    }

    pub(crate) fn frame(&self) -> Frame<'_> {
        Frame {
            shape: &self.shape,
            sizes: &self.sizes,
        }
    }

    pub(crate) fn arrangement(&self) -> &Arrangement {
        &self.arrangement
    }

    /// The same tensor on the same mesh, arranged otherwise.
    pub(crate) fn arranged(&self, arrangement: Arrangement) -> Place {
        Place {
            arrangement,
            ..self.clone()
        }
    }

    pub(crate) fn axis_name(&self, axis: usize) -> &str {
        self.mesh.axes()[axis].name()
    }

    fn axis_index(&self, name: &str) -> Result<usize, PlaceError> {
        self.mesh.axis(name)?;
        let before = self
            .mesh
            .axes()
            .iter()
            .map(Axis::name)
            .take_while(|axis| *axis != name);
        Ok(before.count())
    }
}

/// `dp: shard(0), tp: replicate`, in explicit order.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let placements = self.placements();
        let texts: Vec<String> = placements
            .iter()
            .map(|(axis, placement)| format!("{axis}: {placement}"))
            .collect();
        match texts.is_empty() {
            true => f.write_str("on one rank"),
            false => f.write_str(&texts.join(", ")),
        }
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Place({self} of {:?} on {})", self.shape, self.mesh)
    }
}
