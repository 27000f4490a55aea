//! Layouts of ranks and their algebra.
//!
//! A [`RankLayout`] maps the indices `0..len` to ranks. Like the layout of a tensor it consists of
//! sizes and strides, the rightmost mode fastest: `(2, 2):(4, 1)` is the ranks 0, 1, 4, 5. Its
//! first rank is 0; callers add an offset. The cost of an operation depends on the number of modes,
//! not of ranks.
//!
//! Layouts are *separable*: each stride is a multiple of the span of all finer modes. So a mode is
//! a range of digits of the rank in some mixed radix, no rank occurs twice, and the
//! [complement](RankLayout::complement) of a layout is a layout. Slicing, flattening, splitting and
//! permuting a mesh preserve this.
//!
//! Layouts are *canonical*: modes of size 1 are dropped and contiguous modes are merged, so layouts
//! are equal exactly when they list the same ranks in the same order.

use std::fmt;

use meshgrad_error::{Result, ensure, error};
use smallvec::SmallVec;

/// One size and stride of a [`RankLayout`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mode {
    /// The number of steps.
    pub size: usize,
    /// The distance between steps, in ranks.
    pub stride: usize,
}

impl Mode {
    /// The stride of the next coarser digit.
    pub(crate) fn end(self) -> usize {
        self.size * self.stride
    }
}

/// An ordered list of ranks starting at 0, as sizes and strides.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct RankLayout {
    /// Canonical, slowest first.
    modes: SmallVec<[Mode; 3]>,
}

/// The most ranks of a mesh: larger than any cluster, and small enough that products do not
/// overflow.
pub const MAX_RANKS: usize = 1 << 24;

impl RankLayout {
    /// The layout that contains only rank 0.
    pub fn singleton() -> RankLayout {
        RankLayout::default()
    }

    /// The ranks `0..len`.
    ///
    /// # Errors
    /// For 0, and above [`MAX_RANKS`].
    pub fn contiguous(len: usize) -> Result<RankLayout> {
        RankLayout::new([(len, 1)])
    }

    /// A layout with these sizes and strides, slowest first.
    ///
    /// # Errors
    /// For a size of 0, more than [`MAX_RANKS`] ranks, and modes that are not separable.
    pub fn new(modes: impl IntoIterator<Item = (usize, usize)>) -> Result<RankLayout> {
        RankLayout::canonical(modes.into_iter().map(|(size, stride)| Mode { size, stride }))
    }

    /// One layout per size: the axes of a row-major mesh, the last one fastest.
    ///
    /// # Errors
    /// For a size of 0, and more than [`MAX_RANKS`] ranks.
    pub fn row_major(sizes: &[usize]) -> Result<Vec<RankLayout>> {
        let mut stride = 1;
        let mut layouts = Vec::with_capacity(sizes.len());
        for size in sizes.iter().rev() {
            layouts.push(RankLayout::new([(*size, stride)])?);
            stride = checked_ranks(stride, *size)?;
        }
        layouts.reverse();
        Ok(layouts)
    }

    fn canonical(modes: impl IntoIterator<Item = Mode>) -> Result<RankLayout> {
        let mut canonical: SmallVec<[Mode; 3]> = SmallVec::new();
        let mut len = 1;
        for mode in modes {
            len = checked_ranks(len, mode.size)?;
            if mode.size == 1 {
                continue;
            }
            checked_ranks(mode.size, mode.stride.max(1))?;
            match canonical.last_mut() {
                Some(slower) if slower.stride == mode.end() => {
                    slower.size *= mode.size;
                    slower.stride = mode.stride;
                }
                _ => canonical.push(mode),
            }
        }
        let layout = RankLayout { modes: canonical };
        layout.check_separable()?;
        Ok(layout)
    }

    fn check_separable(&self) -> Result<()> {
        let mut finer = Mode { size: 1, stride: 1 };
        for mode in self.by_stride() {
            let Mode { size, stride } = mode;
            ensure!(
                stride > 0 && stride.is_multiple_of(finer.end()),
                Invalid,
                "layout {self} is not separable: the stride {stride} of its mode {size}:{stride} must \
                 be a multiple of {}, the span of its finer mode {}:{}",
                finer.end(),
                finer.size,
                finer.stride
            );
            finer = mode;
        }
        Ok(())
    }

    /// The modes, finest first.
    fn by_stride(&self) -> SmallVec<[Mode; 3]> {
        let mut modes = self.modes.clone();
        modes.sort_unstable_by_key(|mode| mode.stride);
        modes
    }

    /// The modes, slowest first. None has size 1.
    pub fn modes(&self) -> &[Mode] {
        &self.modes
    }

    /// The number of ranks.
    pub fn len(&self) -> usize {
        self.modes.iter().map(|mode| mode.size).product()
    }

    /// Always false: a layout contains rank 0.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Whether it contains only rank 0.
    pub fn is_singleton(&self) -> bool {
        self.modes.is_empty()
    }

    /// The largest rank plus one.
    pub fn span(&self) -> usize {
        let largest: usize = self.modes.iter().map(|mode| (mode.size - 1) * mode.stride).sum();
        largest + 1
    }

    /// The rank at `index`.
    ///
    /// # Panics
    /// When `index` is not below [`RankLayout::len`].
    pub fn rank(&self, index: usize) -> usize {
        assert!(index < self.len(), "index {index} in a layout of {self}");
        let mut rest = index;
        let mut rank = 0;
        for mode in self.modes.iter().rev() {
            rank += rest % mode.size * mode.stride;
            rest /= mode.size;
        }
        rank
    }

    /// The index of a rank; `None` if the layout does not contain it.
    pub fn index_of(&self, rank: usize) -> Option<usize> {
        (self.counted(rank) == rank).then(|| self.coordinate(rank))
    }

    /// The contribution of this layout's digits to a rank. The digits of the
    /// [complement](RankLayout::complement) contribute the rest.
    pub fn counted(&self, rank: usize) -> usize {
        self.modes.iter().map(|mode| rank / mode.stride % mode.size * mode.stride).sum()
    }

    /// The index of a rank's digits in this layout, ignoring its other digits.
    pub fn coordinate(&self, rank: usize) -> usize {
        self.modes.iter().fold(0, |index, mode| index * mode.size + rank / mode.stride % mode.size)
    }

    /// The same ranks in ascending order.
    pub fn ascending(&self) -> RankLayout {
        let coarse_first = self.by_stride().into_iter().rev();
        RankLayout::canonical(coarse_first).expect("the modes of a layout")
    }

    /// The ranks, in order.
    pub fn ranks(&self) -> impl ExactSizeIterator<Item = usize> + Clone + '_ {
        (0..self.len()).map(|index| self.rank(index))
    }

    /// Concatenates layouts, the last one fastest: flattens axes, contiguous or not.
    ///
    /// # Errors
    /// When two of them share digits; for more than [`MAX_RANKS`] ranks.
    pub fn concat<'a>(layouts: impl IntoIterator<Item = &'a RankLayout>) -> Result<RankLayout> {
        let modes = layouts.into_iter().flat_map(|layout| layout.modes.iter().copied());
        RankLayout::canonical(modes)
    }

    /// Splits a layout into several, the last one fastest: the inverse of [`RankLayout::concat`].
    ///
    /// # Errors
    /// When the sizes do not multiply to [`RankLayout::len`] or do not divide the modes.
    pub fn split(&self, sizes: &[usize]) -> Result<Vec<RankLayout>> {
        let len = self.len();
        let wrong = || {
            error!(
                Invalid,
                "layout {self} of {len} ranks cannot be split into {sizes:?}: the sizes must multiply \
                 to {len} and divide its modes"
            )
        };
        let product = sizes.iter().try_fold(1, |product: usize, size| product.checked_mul(*size));
        product.filter(|product| *product == len).ok_or_else(wrong)?;

        let mut index_stride = 1;
        let mut parts = Vec::with_capacity(sizes.len());
        for size in sizes.iter().rev() {
            parts.push(self.part(*size, index_stride).ok_or_else(wrong)?);
            index_stride *= size;
        }
        parts.reverse();
        Ok(parts)
    }

    /// Composes two layouts: the ranks of `inner` are indices into this one.
    ///
    /// # Errors
    /// When an index is out of range, or a mode would be split unevenly.
    pub fn compose(&self, inner: &RankLayout) -> Result<RankLayout> {
        let wrong = || {
            error!(
                Invalid,
                "layout {self} cannot be composed with {inner}: an index is out of range, or a mode \
                 is split unevenly"
            )
        };
        if inner.span() > self.len() || self.carries(inner) {
            return Err(wrong());
        }
        let mut modes: SmallVec<[Mode; 3]> = SmallVec::new();
        for mode in &inner.modes {
            let part = self.part(mode.size, mode.stride).ok_or_else(wrong)?;
            modes.extend_from_slice(&part.modes);
        }
        RankLayout::canonical(modes)
    }

    /// Whether a sum of indices of `inner` carries from one mode of this layout into the next. If
    /// so, composing mode by mode would be wrong.
    fn carries(&self, inner: &RankLayout) -> bool {
        let mut index_stride = 1;
        self.modes.iter().rev().any(|mode| {
            let digit = |chosen: &Mode| (chosen.end() - chosen.stride) / index_stride % mode.size;
            let largest: usize = inner.modes.iter().map(digit).sum();
            index_stride *= mode.size;
            largest >= mode.size
        })
    }

    /// The ranks at indices 0, `stride`, 2 `stride`, ... (`size` of them); `None` if they are not a
    /// layout.
    fn part(&self, size: usize, stride: usize) -> Option<RankLayout> {
        let (mut skip, mut take) = (stride, size);
        let mut taken: SmallVec<[Mode; 3]> = SmallVec::new();

        for mode in self.modes.iter().rev() {
            if take == 1 {
                break;
            }
            if skip.is_multiple_of(mode.size) {
                skip /= mode.size;
                continue;
            }
            // Either all steps fit in this mode, or the rest comes from slower modes.
            let here = match (take - 1).checked_mul(skip)? < mode.size {
                true => take,
                false if mode.size.is_multiple_of(skip) => mode.size / skip,
                false => return None,
            };
            if !take.is_multiple_of(here) {
                return None;
            }
            taken.push(Mode { size: here, stride: mode.stride * skip });
            take /= here;
            skip = 1;
        }
        taken.reverse();
        let layout = RankLayout::canonical(taken).ok()?;
        (take == 1).then_some(layout)
    }

    /// The digits of `world` ranks that this layout lacks, as an ascending layout. Its ranks are
    /// the offsets of all groups with this layout.
    ///
    /// # Errors
    /// When `world` is not a multiple of the span.
    pub fn complement(&self, world: usize) -> Result<RankLayout> {
        let mut begin = 1;
        let mut modes: SmallVec<[Mode; 3]> = SmallVec::new();
        for mode in self.by_stride() {
            modes.push(Mode { size: mode.stride / begin, stride: begin });
            begin = mode.end();
        }
        ensure!(
            world > 0 && world.is_multiple_of(begin),
            Invalid,
            "groups of layout {self} do not fill {world} ranks: the world must be a multiple of {begin}"
        );
        modes.push(Mode { size: world / begin, stride: begin });
        modes.reverse();
        RankLayout::canonical(modes)
    }

    /// The ranks of all groups of a world with this layout, by ascending first rank.
    ///
    /// # Errors
    /// As [`RankLayout::complement`].
    pub fn groups(&self, world: usize) -> Result<impl ExactSizeIterator<Item = Vec<usize>> + '_> {
        let offsets: Vec<usize> = self.complement(world)?.ranks().collect();
        let group = |offset| self.ranks().map(|rank| offset + rank).collect();
        Ok(offsets.into_iter().map(group))
    }
}

/// The product, if it is at most [`MAX_RANKS`].
pub(crate) fn checked_ranks(product: usize, size: usize) -> Result<usize> {
    ensure!(size > 0, Invalid, "a size is 0, but a layout has at least one rank");
    let ranks = product.checked_mul(size).filter(|ranks| *ranks <= MAX_RANKS);
    ranks.ok_or_else(|| error!(Invalid, "{product} x {size} ranks exceed the limit of {MAX_RANKS}"))
}

/// `(2, 2):(4, 1)`, `8:1`, `1:0` for rank 0 alone.
impl fmt::Display for RankLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |of: fn(&Mode) -> usize| {
            let parts: Vec<String> = self.modes.iter().map(|mode| of(mode).to_string()).collect();
            parts.join(", ")
        };
        let (sizes, strides) = (list(|mode| mode.size), list(|mode| mode.stride));
        match self.modes.len() {
            0 => f.write_str("1:0"),
            1 => write!(f, "{sizes}:{strides}"),
            _ => write!(f, "({sizes}):({strides})"),
        }
    }
}

impl fmt::Debug for RankLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RankLayout({self})")
    }
}
