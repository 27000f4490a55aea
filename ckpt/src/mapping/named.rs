//! Tensors by name, for lookup and iteration in order.

use std::ops::Range;
use std::sync::Arc;

use super::captures::{Captures, Value};
use super::template::Template;
use crate::graph::Expr;
use crate::name_list::NameList;

/// Names with their expressions, sorted.
#[derive(Clone, Debug, Default)]
pub(super) struct Named {
    names: NameList,
    exprs: Vec<Expr>,
}

impl Named {
    /// Sorts the names. Only the first of equal names is kept.
    pub(super) fn sorted(mut named: Vec<(Arc<str>, Expr)>) -> Named {
        // Long names with a common prefix are slow to compare, and they are usually sorted already.
        if !named.is_sorted_by(|a, b| a.0 < b.0) {
            named.sort_by(|a, b| a.0.cmp(&b.0));
            named.dedup_by(|a, b| a.0 == b.0);
        }
        let (names, exprs) = named.into_iter().unzip();
        Named { names: NameList::ascending(names), exprs }
    }

    pub(super) fn get(&self, name: &str) -> Option<Expr> {
        self.find(name, &mut 0)
    }

    /// Like [`Named::get`], but needs no hashing if names are looked up in order. `next` is the
    /// index to try first.
    pub(super) fn find(&self, name: &str, next: &mut usize) -> Option<Expr> {
        let index = self.names.find(name, next)?;
        Some(self.exprs[index])
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = (&Arc<str>, Expr)> {
        self.names.as_slice().iter().zip(self.exprs.iter().copied())
    }

    /// The names that match a template and agree with `captures`, each with its other captures.
    pub(super) fn matching<'n, 'c, 'k>(
        &'n self,
        template: &'n Template,
        captures: &'c Captures<'k>,
    ) -> Matching<'n, 'c, 'k> {
        // Known captures at the start of the template form a prefix, which matches in only one way.
        let mut prefix = String::new();
        let known = template.fill_into(captures, &mut prefix);
        let names = self.names.as_slice();
        let start = names.partition_point(|name| **name < *prefix);
        let count = names[start..].partition_point(|name| name.starts_with(&prefix));
        Matching {
            named: self,
            template,
            captures,
            known: (known, prefix.len()),
            remaining: start..start + count,
        }
    }
}

/// The matches of a template, in the order of names.
pub(super) struct Matching<'n, 'c, 'k> {
    named: &'n Named,
    template: &'n Template,
    captures: &'c Captures<'k>,
    /// The number of template parts that are known to match, and their length in the names.
    known: (usize, usize),
    /// The remaining names.
    remaining: Range<usize>,
}

impl Matching<'_, '_, '_> {
    /// Skips names that start with the template's text up to its first capture that has no value in
    /// `known`.
    pub(super) fn skip_like(&mut self, known: &Captures<'_>) {
        let mut prefix = String::new();
        self.template.fill_into(known, &mut prefix);
        let left = &self.named.names.as_slice()[self.remaining.clone()];
        self.remaining.start += left.partition_point(|name| name.starts_with(&prefix));
    }
}

impl<'n> Iterator for Matching<'n, '_, '_> {
    type Item = (Expr, Captures<'n>);

    fn next(&mut self) -> Option<(Expr, Captures<'n>)> {
        let agrees = |(capture, value): (&str, Value<'_>)| {
            let known = self.captures.get(capture);
            known.is_none_or(|known| known == value)
        };
        self.remaining.by_ref().find_map(|at| {
            let (parts, length) = self.known;
            let rest = &self.named.names.as_slice()[at][length..];
            let found = self.template.rest_matches(parts, rest)?;
            let agree = found.iter().all(agrees);
            agree.then(|| (self.named.exprs[at], found))
        })
    }
}
