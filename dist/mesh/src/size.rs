//! The sizes of axes, and of the parts of a split axis, one of which may be inferred.

use meshgrad_error::{Result, bail, ensure};
use smallvec::SmallVec;

use crate::layout::checked_ranks;

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

pub(crate) fn check_size(axis: &str, size: usize) -> Result<()> {
    ensure!(size > 0, Invalid, "axis `{axis}` has size 0: use at least 1, or leave the axis out");
    Ok(())
}

/// Resolves the sizes of the parts of an axis.
pub(crate) fn part_sizes(
    axis: &str,
    ranks: usize,
    parts: &[(&str, Size)],
) -> Result<SmallVec<[usize; 4]>> {
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
            Size::Ranks(size) => {
                check_size(name, *size)?;
                product = checked_ranks(product, *size)?;
            }
        }
    }
    ensure!(
        autos <= 1,
        Invalid,
        "axis `{axis}` is split into {}: only one size can be `auto`; give the others a number",
        text()
    );
    let divides = ranks.is_multiple_of(product);
    if !divides || (autos == 0 && product != ranks) {
        let hint = match divides {
            true => format!("a part of size {} is missing", ranks / product),
            false => format!("{product} does not divide {ranks}"),
        };
        bail!(
            Invalid,
            "axis `{axis}` has size {ranks} but its parts {} multiply to {product}; {hint}",
            text()
        );
    }
    let size_of = |(_, size): &(&str, Size)| match size {
        Size::Ranks(size) => *size,
        Size::Auto => ranks / product,
    };
    Ok(parts.iter().map(size_of).collect())
}
