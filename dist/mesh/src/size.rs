//! The sizes of the parts of a split axis, one of which may be inferred.

use smallvec::SmallVec;

use crate::layout::checked_ranks;
use crate::{Axis, MeshError, Result};

/// A size that is given or inferred from the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Size {
    /// This many ranks.
    Ranks(usize),
    /// The remaining factor.
    Auto,
}

impl From<usize> for Size {
    fn from(ranks: usize) -> Size {
        Size::Ranks(ranks)
    }
}

/// Resolves the sizes of the parts of an axis.
pub(crate) fn part_sizes(axis: &Axis, parts: &[(&str, Size)]) -> Result<SmallVec<[usize; 4]>> {
    let text = || {
        let part = |(name, size): &(&str, Size)| match size {
            Size::Ranks(size) => format!("{name} {size}"),
            Size::Auto => format!("{name} auto"),
        };
        parts.iter().map(part).collect::<Vec<_>>().join(" x ")
    };
    let (mut product, mut autos) = (1, 0);
    for (name, size) in parts {
        match size {
            Size::Auto => autos += 1,
            Size::Ranks(0) => {
                return Err(MeshError::EmptyAxis { axis: (*name).to_owned() });
            }
            Size::Ranks(size) => product = checked_ranks(product, *size)?,
        }
    }
    if autos > 1 {
        return Err(MeshError::TwoAutos { axis: axis.name().to_owned(), parts: text() });
    }
    let fits = axis.size().is_multiple_of(product) && (autos == 1 || product == axis.size());
    if !fits {
        return Err(MeshError::WrongParts {
            axis: axis.name().to_owned(),
            size: axis.size(),
            parts: text(),
            product,
        });
    }
    let size_of = |(_, size): &(&str, Size)| match size {
        Size::Ranks(size) => *size,
        Size::Auto => axis.size() / product,
    };
    Ok(parts.iter().map(size_of).collect())
}
