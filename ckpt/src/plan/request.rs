//! What is to be loaded, and the targets that it becomes.

use std::ops::Range;
use std::sync::Arc;

use crate::dtype::Dtype;
use crate::graph::{Expr, Graph};

/// A region of an expression, under a name.
#[derive(Clone, Debug)]
pub struct LoadRequest {
    /// What it is called: unique in a plan.
    pub target: Arc<str>,
    /// What it is a part of.
    pub expr: Expr,
    /// Which part: a range for each dim.
    pub region: Vec<Range<u64>>,
}

impl LoadRequest {
    /// A region under a name.
    pub fn new(
        target: impl Into<Arc<str>>,
        expr: Expr,
        region: impl IntoIterator<Item = Range<u64>>,
    ) -> LoadRequest {
        LoadRequest {
            target: target.into(),
            expr,
            region: region.into_iter().collect(),
        }
    }

    /// All of an expression.
    pub fn all(target: impl Into<Arc<str>>, graph: &Graph, expr: Expr) -> LoadRequest {
        let region = graph.shape(expr).iter().map(|extent| 0..*extent);
        LoadRequest::new(target, expr, region)
    }
}

/// A dense row-major tensor that a plan fills.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// What it is called.
    pub name: Arc<str>,
    /// Its place among the wants.
    pub index: usize,
    /// Its dtype.
    pub dtype: Dtype,
    /// Its extents: those of the region.
    pub shape: Vec<u64>,
    /// Its size.
    pub bytes: u64,
}
