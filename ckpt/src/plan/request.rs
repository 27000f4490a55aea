//! Requests, and the targets that they become.

use std::ops::Range;
use std::sync::Arc;

use crate::dtype::Dtype;
use crate::graph::{Expr, Graph};

/// A named region of an expression.
#[derive(Clone, Debug)]
pub struct LoadRequest {
    /// The target's name, unique in a plan.
    pub target: Arc<str>,
    /// The expression.
    pub expr: Expr,
    /// The region: a range per dim.
    pub region: Vec<Range<u64>>,
}

impl LoadRequest {
    /// A named region.
    pub fn new(
        target: impl Into<Arc<str>>,
        expr: Expr,
        region: impl IntoIterator<Item = Range<u64>>,
    ) -> LoadRequest {
        LoadRequest { target: target.into(), expr, region: region.into_iter().collect() }
    }

    /// A whole expression.
    pub fn all(target: impl Into<Arc<str>>, graph: &Graph, expr: Expr) -> LoadRequest {
        let region = graph.shape(expr).iter().map(|extent| 0..*extent);
        LoadRequest::new(target, expr, region)
    }
}

/// A dense row-major tensor that a plan fills.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its name.
    pub name: Arc<str>,
    /// The index of its request.
    pub index: usize,
    /// Its dtype.
    pub dtype: Dtype,
    /// The extents of the region.
    pub shape: Vec<u64>,
    /// Its size in bytes.
    pub bytes: u64,
}
