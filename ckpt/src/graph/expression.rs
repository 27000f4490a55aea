//! Expressions, whose shapes and dtypes are checked on construction.

use std::collections::BTreeSet;
use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};
use meshgrad_error::{Error, Result, ensure, error};

use super::Short;
use super::compute::Computation;
use super::element_copy::Leaf;
use super::expr_set::ExprSet;
use super::ids::{Expr, SourceId};
use super::op::Op;
use crate::Dtype;
use crate::name_list::NameList;

/// Expressions over tensors that are read. Building the same expression twice returns the same
/// [`Expr`].
#[derive(Clone, Debug, Default)]
pub struct Graph {
    nodes: Vec<Node>,
    /// Deduplicates expressions that are not sources; never iterated.
    known: HashTable<Expr>,
    hasher: DefaultHashBuilder,
    /// The name of each source; its expression is in `made_of`.
    names: NameList,
    made_of: Vec<Expr>,
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) op: Op,
    pub(super) shape: Short<u64>,
    dtype: Dtype,
    /// The number of nested operations.
    depth: u32,
}

/// The maximum number of nested operations. It bounds the recursion of tracing.
const MAX_DEPTH: u32 = 256;

impl Graph {
    /// A graph without expressions.
    pub fn new() -> Graph {
        Graph::default()
    }

    /// Reserves room for this many sources and as many expressions: unused memory costs nothing,
    /// but growing copies everything.
    pub(crate) fn with_room_for(sources: usize) -> Graph {
        Graph {
            nodes: Vec::with_capacity(2 * sources),
            names: NameList::ascending(Vec::with_capacity(sources)),
            made_of: Vec::with_capacity(sources),
            ..Graph::default()
        }
    }

    /// A tensor that is read, row-major.
    ///
    /// # Errors
    /// For too many elements, and when the name already belongs to another tensor.
    pub fn source(&mut self, name: &str, dtype: Dtype, shape: &[u64]) -> Result<Expr> {
        if let Err(too_large) = check_size("source", shape)
            && self.names.find(name, &mut 0).is_none()
        {
            return Err(too_large);
        }
        match self.names.add(name, || name.into()) {
            Ok(new) => {
                let op = Op::Source(SourceId(new as u32));
                let made = self.push(op, Short::from_slice(shape), dtype, 0);
                self.made_of.push(made);
                Ok(made)
            }
            Err(known) => self.check_type(name, self.made_of[known], dtype, shape),
        }
    }

    /// Returns `known`, which has the name, if it is of this dtype and shape.
    pub(super) fn check_type(
        &self,
        name: &str,
        known: Expr,
        dtype: Dtype,
        shape: &[u64],
    ) -> Result<Expr> {
        let (first, first_shape) = (self.dtype(known), self.shape(known));
        ensure!(
            (first, first_shape) == (dtype, shape),
            Invalid,
            "`{}` is {first} {first_shape:?} in one place and {dtype} {shape:?} in another: use a \
             name for one tensor only",
            name.escape_debug()
        );
        Ok(known)
    }

    /// A strided view of a source: index `i` of dim `d` is `i * strides[d]` elements after
    /// `offset`.
    ///
    /// # Errors
    /// When the view leaves the source or visits an element twice, or `of` is not a source.
    pub fn view(&mut self, of: Expr, offset: u64, shape: &[u64], strides: &[u64]) -> Result<Expr> {
        let elements: u64 = self.shape(of).iter().product();
        let invalid = || {
            error!(
                Invalid,
                "view: shape {shape:?} with strides {strides:?} from element {offset} is not \
                 inside a tensor of {elements} elements, or visits an element twice: store a \
                 contiguous copy of it"
            )
        };
        let &Op::Source(source) = &self.node(of).op else {
            return Err(invalid());
        };
        if shape.len() != strides.len() {
            return Err(invalid());
        }
        if !shape.contains(&0) {
            let span = span_of_view(shape, strides).ok_or_else(invalid)?;
            let last = offset.checked_add(span).ok_or_else(invalid)?;
            (last < elements).then_some(()).ok_or_else(invalid)?;
        }
        let op = Op::View { of: source, offset, strides: Short::from_slice(strides) };
        self.add(op, Short::from_slice(shape), self.dtype(of))
    }

    /// The tensors that are read, in the order of their definition.
    pub fn sources(&self) -> impl ExactSizeIterator<Item = (&str, Expr)> {
        let sources = self.names.as_slice().iter().zip(&self.made_of);
        sources.map(|(name, expr)| (&**name, *expr))
    }

    /// As [`Graph::sources`], with shared names.
    pub(crate) fn shared_sources(&self) -> impl Iterator<Item = (Arc<str>, Expr)> {
        let names = self.names.as_slice().iter().cloned();
        names.zip(self.made_of.iter().copied())
    }

    /// The operand with permuted dims: dim `i` of the result is dim `dims[i]`.
    ///
    /// # Errors
    /// Unless `dims` names each dim once.
    pub fn permute(&mut self, of: Expr, dims: &[usize]) -> Result<Expr> {
        let shape = self.shape(of);
        let mut sorted = dims.to_vec();
        sorted.sort_unstable();
        ensure!(
            sorted.iter().copied().eq(0..shape.len()),
            Invalid,
            "permute: {dims:?} is not an order of the dims of shape {shape:?}: name each dim once"
        );
        let permuted = dims.iter().map(|dim| shape[*dim]).collect();
        let dims = dims.to_vec();
        self.add(Op::Permute { of, dims }, permuted, self.dtype(of))
    }

    /// Swaps two dims.
    ///
    /// # Errors
    /// For a dim that does not exist.
    pub fn transpose(&mut self, of: Expr, a: usize, b: usize) -> Result<Expr> {
        for dim in [a, b] {
            self.extent("transpose", of, dim)?;
        }
        let mut dims: Vec<usize> = (0..self.shape(of).len()).collect();
        dims.swap(a, b);
        self.permute(of, &dims)
    }

    /// `count` elements of a dim, starting at `start` with step `step`.
    ///
    /// # Errors
    /// For a dim that does not exist, and elements outside of it.
    pub fn slice(
        &mut self,
        of: Expr,
        dim: usize,
        (start, count, step): (u64, u64, u64),
    ) -> Result<Expr> {
        let extent = self.extent("slice", of, dim)?;
        let reach = count.saturating_sub(1).checked_mul(step);
        let last = reach
            .and_then(|reach| reach.checked_add(start))
            .and_then(|last| last.checked_add(count.min(1)));
        if step == 0 || last.is_none_or(|last| last > extent) {
            return Err(outside_slice(dim, extent, (start, count, step)));
        }
        let mut shape = Short::from_slice(self.shape(of));
        shape[dim] = count;
        let op = Op::Slice { of, dim, start, step };
        self.add(op, shape, self.dtype(of))
    }

    /// One index of a dim; the result lacks the dim.
    ///
    /// # Errors
    /// For a dim that does not exist, and elements outside of it.
    pub fn select(&mut self, of: Expr, dim: usize, index: u64) -> Result<Expr> {
        let extent = self.extent("select", of, dim)?;
        if index >= extent {
            return Err(outside_slice(dim, extent, (index, 1, 1)));
        }
        let mut shape = Short::from_slice(self.shape(of));
        shape.remove(dim);
        self.add(Op::Select { of, dim, index }, shape, self.dtype(of))
    }

    /// Concatenates operands along a dim.
    ///
    /// # Errors
    /// For no operands, a dim that does not exist, and operands of other shapes or dtypes.
    pub fn concat(&mut self, of: &[Expr], dim: usize) -> Result<Expr> {
        let first = self.first_of("concat", of)?;
        self.extent("concat", first, dim)?;
        self.check_alike("concat", of, dim, Some(dim))?;
        let mut shape = Short::from_slice(self.shape(first));
        let mut extents = of.iter().map(|it| self.shape(*it)[dim]);
        let total = extents.try_fold(0u64, |sum, extent| sum.checked_add(extent));
        // An overflow is reported as an extent of `u64::MAX`.
        shape[dim] = total.unwrap_or(u64::MAX);
        let of = Short::from_slice(of);
        self.add(Op::Concat { of, dim }, shape, self.dtype(first))
    }

    /// Stacks operands of one shape along a new dim.
    ///
    /// # Errors
    /// For no operands, a dim that does not exist, and operands of other shapes or dtypes.
    pub fn stack(&mut self, of: &[Expr], dim: usize) -> Result<Expr> {
        let first = self.first_of("stack", of)?;
        let mut shape = Short::from_slice(self.shape(first));
        ensure!(
            dim <= shape.len(),
            Invalid,
            "stack: dim {dim} is out of range for shape {shape:?}"
        );
        self.check_alike("stack", of, dim, None)?;
        shape.insert(dim, of.len() as u64);
        let of = Short::from_slice(of);
        self.add(Op::Stack { of, dim }, shape, self.dtype(first))
    }

    /// Splits a dim into two. The first has `rows` elements.
    ///
    /// # Errors
    /// For a dim that does not exist, and rows that do not divide it.
    pub fn unflatten(&mut self, of: Expr, dim: usize, rows: u64) -> Result<Expr> {
        let extent = self.extent("unflatten", of, dim)?;
        ensure!(
            rows > 0 && extent.is_multiple_of(rows),
            Invalid,
            "unflatten: {extent} elements of dim {dim} cannot be split into {rows} rows"
        );
        let columns = extent / rows;
        let mut shape = Short::from_slice(self.shape(of));
        shape[dim] = columns;
        shape.insert(dim, rows);
        let op = Op::Unflatten { of, dim, columns };
        self.add(op, shape, self.dtype(of))
    }

    /// Merges dims `dim` and `dim + 1`.
    ///
    /// # Errors
    /// For a dim that does not exist.
    pub fn flatten(&mut self, of: Expr, dim: usize) -> Result<Expr> {
        let columns = self.extent("flatten", of, dim + 1)?;
        let mut shape = Short::from_slice(self.shape(of));
        shape.remove(dim + 1);
        shape[dim] = shape[dim].saturating_mul(columns);
        let op = Op::Flatten { of, dim, columns };
        self.add(op, shape, self.dtype(of))
    }

    /// Inserts a dim of one element before dim `dim`.
    ///
    /// # Errors
    /// For a dim that does not exist.
    pub fn unsqueeze(&mut self, of: Expr, dim: usize) -> Result<Expr> {
        self.stack(&[of], dim)
    }

    /// Removes a dim of one element.
    ///
    /// # Errors
    /// For a dim that does not exist, or has another number of elements than 1.
    pub fn squeeze(&mut self, of: Expr, dim: usize) -> Result<Expr> {
        let extent = self.extent("squeeze", of, dim)?;
        ensure!(extent == 1, Invalid, "squeeze: dim {dim} has {extent} elements, not 1");
        self.select(of, dim, 0)
    }

    /// The extents of an expression.
    pub fn shape(&self, of: Expr) -> &[u64] {
        &self.node(of).shape
    }

    /// The dtype of an expression.
    pub fn dtype(&self, of: Expr) -> Dtype {
        self.node(of).dtype
    }

    /// The name of a source.
    pub fn name(&self, source: SourceId) -> &str {
        &self.names.as_slice()[source.index()]
    }

    pub(crate) fn shared_name(&self, source: SourceId) -> &Arc<str> {
        &self.names.as_slice()[source.index()]
    }

    /// The dtype of a source.
    pub fn source_dtype(&self, source: SourceId) -> Dtype {
        self.dtype(self.expr_of(source))
    }

    /// The extents of a source.
    pub fn source_shape(&self, source: SourceId) -> &[u64] {
        self.shape(self.expr_of(source))
    }

    pub(crate) fn expr_of(&self, source: SourceId) -> Expr {
        self.made_of[source.index()]
    }

    /// The operands, if the expression contains all elements of all of them.
    pub(crate) fn uses_all_of(&self, of: Expr) -> Option<&[Expr]> {
        match &self.node(of).op {
            Op::Slice { .. } | Op::Select { .. } => None,
            op => Some(op.operands()),
        }
    }

    /// The operands and the computation of a computed tensor; `None` for any other expression.
    pub fn computation(&self, of: Expr) -> Option<(&[Expr], &Computation)> {
        match &self.node(of).op {
            Op::Computed { of, how } => Some((of, how)),
            _ => None,
        }
    }

    /// The names of the tensors that an expression depends on.
    pub fn sources_of(&self, of: Expr) -> BTreeSet<&str> {
        let (mut names, mut seen, mut open) = (BTreeSet::new(), ExprSet::default(), vec![of]);
        while let Some(expr) = open.pop() {
            if !seen.insert(expr) {
                continue;
            }
            let op = &self.node(expr).op;
            if let Op::Source(source) | Op::View { of: source, .. } = op {
                names.insert(self.name(*source));
            }
            open.extend(op.operands());
        }
        names
    }

    /// The name of a leaf in messages: a tensor's name, or the operation that produces it.
    pub fn leaf_name(&self, leaf: Leaf) -> &str {
        match leaf {
            Leaf::Source(source) => self.name(source),
            Leaf::Computed(expr) => self.node(expr).op.name(),
            Leaf::Fill(_) => "fill",
        }
    }

    /// All expressions; the operands of each come before it.
    pub(super) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub(super) fn node(&self, of: Expr) -> &Node {
        &self.nodes[of.index()]
    }

    pub(super) fn extent(&self, op: &'static str, of: Expr, dim: usize) -> Result<u64> {
        let shape = self.shape(of);
        let extent = shape.get(dim).copied();
        extent.ok_or_else(|| error!(Invalid, "{op}: dim {dim} is out of range for shape {shape:?}"))
    }

    fn first_of(&self, op: &'static str, of: &[Expr]) -> Result<Expr> {
        let first = of.first().copied();
        first.ok_or_else(|| error!(Invalid, "{op}: no operands: pass at least one"))
    }

    /// Checks that all operands have the same dtype and, except in dim `but`, the same shape.
    fn check_alike(
        &self,
        op: &'static str,
        of: &[Expr],
        dim: usize,
        but: Option<usize>,
    ) -> Result<()> {
        let first = of[0];
        for (at, other) in of.iter().enumerate() {
            let (a, b) = (self.shape(first), self.shape(*other));
            let differs = |(dim, (a, b)): (usize, (&u64, &u64))| a != b && Some(dim) != but;
            ensure!(
                a.len() == b.len() && !a.iter().zip(b).enumerate().any(differs),
                Invalid,
                "{op} along dim {dim}: operand 0 has shape {a:?} and operand {at} has {b:?}"
            );
            let (first, other) = (self.dtype(first), self.dtype(*other));
            ensure!(
                first == other,
                Invalid,
                "{op}: operand 0 is {first} and operand {at} is {other}: cast one of them"
            );
        }
        Ok(())
    }

    pub(super) fn add(&mut self, op: Op, shape: Short<u64>, dtype: Dtype) -> Result<Expr> {
        let (nodes, hasher) = (&self.nodes, &self.hasher);
        let op_of = |expr: &Expr| &nodes[expr.index()].op;
        // Slices from the same start differ only in their shapes.
        let is_it = |expr: &Expr| *op_of(expr) == op && nodes[expr.index()].shape == shape;
        let hash_again = |expr: &Expr| hasher.hash_one(op_of(expr));
        match self.known.entry(hasher.hash_one(&op), is_it, hash_again) {
            Entry::Occupied(known) => Ok(*known.get()),
            Entry::Vacant(free) => {
                check_size(op.name(), &shape)?;
                let depths = op.operands().iter().map(|of| nodes[of.index()].depth);
                let depth = depths.max().map_or(0, |depth| depth + 1);
                ensure!(
                    depth <= MAX_DEPTH,
                    Unsupported,
                    "{}: the operand already has {MAX_DEPTH} nested operations; load it first and \
                     continue from the result",
                    op.name()
                );
                free.insert(Expr(nodes.len() as u32));
                Ok(self.push(op, shape, dtype, depth))
            }
        }
    }

    fn push(&mut self, op: Op, shape: Short<u64>, dtype: Dtype, depth: u32) -> Expr {
        self.nodes.push(Node { op, shape, dtype, depth });
        Expr(self.nodes.len() as u32 - 1)
    }
}

/// The distance from the first to the last element of a view without empty dims; `None` if two
/// indices may be the same element, or a number overflows.
pub(crate) fn span_of_view(shape: &[u64], strides: &[u64]) -> Option<u64> {
    let dims = shape.iter().zip(strides);
    let mut dims: Short<(u64, u64)> = dims
        .filter(|(extent, _)| **extent > 1)
        .map(|(extent, stride)| (*stride, *extent))
        .collect();
    dims.sort_unstable();
    dims.into_iter().try_fold(0u64, |span, (stride, extent)| {
        (stride > span).then_some(())?;
        stride.checked_mul(extent - 1)?.checked_add(span)
    })
}

/// Checks that the number of elements does not overflow.
fn check_size(op: &'static str, shape: &[u64]) -> Result<()> {
    let product = |a: u64, b: &u64| a.checked_mul((*b).max(1));
    let elements = shape.iter().try_fold(1, product);
    ensure!(
        elements.is_some_and(|elements| elements <= i64::MAX as u64),
        Invalid,
        "{op}: a tensor of shape {shape:?} has more elements than fit into 63 bits"
    );
    Ok(())
}

fn outside_slice(dim: usize, extent: u64, (start, count, step): (u64, u64, u64)) -> Error {
    error!(
        Invalid,
        "slice: {count} elements from index {start} with step {step} exceed dim {dim} of extent \
         {extent}: the step must be at least 1 and the last element inside"
    )
}
