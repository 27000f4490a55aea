//! Tensors by name: found at once, and walked in order.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::graph::Expr;

/// Names and what they stand for. Sorted once, since tens of thousands of long names that begin
/// alike are slow to compare; found by hash.
#[derive(Clone, Debug, Default)]
pub(super) struct Named {
    sorted: Vec<(Arc<str>, Expr)>,
    found: HashMap<Arc<str>, Expr>,
}

impl Named {
    pub(super) fn get(&self, name: &str) -> Option<Expr> {
        self.found.get(name).copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, Expr)> {
        self.sorted.iter().map(|(name, expr)| (name, *expr))
    }

    /// Those whose names begin so.
    pub(super) fn beginning_with<'n>(
        &'n self,
        prefix: &str,
    ) -> impl Iterator<Item = (&'n str, Expr)> + use<'n> {
        let start = self.sorted.partition_point(|(name, _)| **name < *prefix);
        let rest = &self.sorted[start..];
        let end = rest.partition_point(|(name, _)| name.starts_with(prefix));
        rest[..end].iter().map(|(name, expr)| (&**name, *expr))
    }
}

impl FromIterator<(Arc<str>, Expr)> for Named {
    /// Of several of one name the first counts.
    fn from_iter<I: IntoIterator<Item = (Arc<str>, Expr)>>(named: I) -> Named {
        let mut sorted: Vec<(Arc<str>, Expr)> = named.into_iter().collect();
        sorted.sort_by(|a, b| a.0.cmp(&b.0));
        sorted.dedup_by(|a, b| a.0 == b.0);
        let found = sorted.iter().cloned().collect();
        Named { sorted, found }
    }
}
