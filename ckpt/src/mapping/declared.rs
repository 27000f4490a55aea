//! Arguments that only the inverse of an operation needs (`shares=`, `rows=`, `from=`), checked
//! against the operands that exist.
//!
//! Without this check a wrong argument goes unnoticed until the inverse produces other tensors.

use meshgrad_error::{Result, bail};

use super::term::{Action, dim_of};
use crate::graph::{Expr, Graph};

/// Checks what `action` declares about its operands.
pub(super) fn check_declared(graph: &Graph, action: &Action, of: &[Expr]) -> Result<()> {
    let extent = |expr: &Expr, dim: i64| {
        let shape = graph.shape(*expr);
        shape.get(dim_of(dim, shape.len())).copied()
    };
    let message = match action {
        Action::Concat { dim, shares: Some(shares) } => {
            let extents: Option<Vec<u64>> = of.iter().map(|it| extent(it, *dim)).collect();
            extents.and_then(|extents| wrong_shares(shares, &extents, *dim))
        }
        Action::Flatten { dim, rows: Some(rows) } => {
            wrong_extent("rows", *rows, of.first().and_then(|it| extent(it, *dim)), *dim)
        }
        Action::Pad { dim, from: Some(from), .. } => {
            wrong_extent("from", *from, of.first().and_then(|it| extent(it, *dim)), *dim)
        }
        _ => None,
    };
    if let Some(message) = message {
        bail!(Invalid, "{}: {message}", action.name());
    }
    Ok(())
}

fn wrong_extent(argument: &str, declared: u64, found: Option<u64>, dim: i64) -> Option<String> {
    let found = found.filter(|found| *found != declared)?;
    Some(format!(
        "{argument}={declared} contradicts the operand, which has {found} elements of dim {dim}: \
         write {argument}={found}"
    ))
}

/// A message if the shares do not have the ratio of the extents.
fn wrong_shares(shares: &[u64], extents: &[u64], dim: i64) -> Option<String> {
    let total = |of: &[u64]| of.iter().map(|it| u128::from(*it)).sum::<u128>();
    let (shared, whole) = (total(shares), total(extents));
    let is_right =
        |(share, extent): (&u64, &u64)| u128::from(*share) * whole == u128::from(*extent) * shared;
    if shares.len() == extents.len() && shares.iter().zip(extents).all(is_right) {
        return None;
    }
    let unit = extents.iter().copied().fold(0, greatest_common_divisor);
    let way_out = match extents.contains(&0) {
        true => "remove shares=".to_owned(),
        false => {
            let ratio: Vec<u64> = extents.iter().map(|extent| extent / unit).collect();
            format!("write shares={}", listed(&ratio, ":"))
        }
    };
    Some(format!(
        "shares={} contradicts the operands, which have {} elements of dim {dim}: {way_out}",
        listed(shares, ":"),
        listed(extents, ", ")
    ))
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    match b {
        0 => a,
        _ => greatest_common_divisor(b, a % b),
    }
}

/// Numbers for a message; equal ones are counted if there are many.
fn listed(numbers: &[u64], separator: &str) -> String {
    const SHOWN: usize = 8;
    match numbers {
        [first, rest @ ..] if rest.len() >= SHOWN && rest.iter().all(|it| it == first) => {
            format!("{first}{separator}.. ({} of them)", numbers.len())
        }
        _ => {
            let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
            numbers.join(separator)
        }
    }
}
