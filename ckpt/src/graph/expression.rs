//! Expressions, with their shapes and dtypes checked when they are made.

use std::collections::BTreeSet;
use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};

use super::Short;
use super::compute::Computation;
use super::element_copy::Leaf;
use super::error::GraphError;
use super::expr_set::ExprSet;
use super::ids::{Expr, SourceId};
use super::scalar::{ElementOp, Scalar};
use crate::Dtype;
use crate::name_list::NameList;

/// Expressions over tensors that are read. The same expression made twice is one.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    nodes: Vec<Node>,
    /// Finds an expression that is no source again; never walked.
    known: HashTable<Expr>,
    hasher: DefaultHashBuilder,
    /// Name and expression of each source.
    names: NameList,
    made_of: Vec<Expr>,
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) op: Op,
    pub(super) shape: Short<u64>,
    dtype: Dtype,
    /// Operations on top of each other.
    depth: u32,
}

/// The most operations on top of each other: they are followed by recursion.
const MAX_DEPTH: u32 = 256;

/// Where the elements of an expression come from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Op {
    Source(SourceId),
    /// One element, everywhere.
    Fill {
        value: Scalar,
        shape: Vec<u64>,
    },
    /// Each element on its own.
    Each {
        of: Expr,
        step: ElementOp,
    },
    /// A tensor that is computed as a whole, or by rows.
    Computed {
        of: Short<Expr>,
        how: Computation,
    },
    /// Dim `i` of the result is dim `dims[i]` of the operand.
    Permute {
        of: Expr,
        dims: Vec<usize>,
    },
    Slice {
        of: Expr,
        dim: usize,
        start: u64,
        step: u64,
    },
    /// One coordinate of a dim that the result does not have.
    Select {
        of: Expr,
        dim: usize,
        index: u64,
    },
    Concat {
        of: Short<Expr>,
        dim: usize,
    },
    Stack {
        of: Short<Expr>,
        dim: usize,
    },
    /// Dim `dim` of the operand becomes two, the second of `columns` elements.
    Unflatten {
        of: Expr,
        dim: usize,
        columns: u64,
    },
    /// Dims `dim` and `dim + 1` of the operand become one; the second has `columns` elements.
    Flatten {
        of: Expr,
        dim: usize,
        columns: u64,
    },
}

impl Op {
    fn operands(&self) -> &[Expr] {
        match self {
            Op::Source(_) | Op::Fill { .. } => &[],
            Op::Each { of, .. }
            | Op::Permute { of, .. }
            | Op::Slice { of, .. }
            | Op::Select { of, .. }
            | Op::Unflatten { of, .. }
            | Op::Flatten { of, .. } => std::slice::from_ref(of),
            Op::Concat { of, .. } | Op::Stack { of, .. } | Op::Computed { of, .. } => of,
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Op::Source(_) => "source",
            Op::Fill { .. } => "fill",
            Op::Each { step, .. } => step.name(),
            Op::Computed { how, .. } => how.name(),
            Op::Permute { .. } => "permute",
            Op::Slice { .. } => "slice",
            Op::Select { .. } => "select",
            Op::Concat { .. } => "concat",
            Op::Stack { .. } => "stack",
            Op::Unflatten { .. } => "unflatten",
            Op::Flatten { .. } => "flatten",
        }
    }
}

impl Graph {
    /// A graph without expressions.
    pub fn new() -> Graph {
        Graph::default()
    }

    /// Room for so many tensors that are read, and as many expressions of them: memory that is not
    /// used costs nothing, but to move what has no more room does.
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
    /// [`GraphError::TooLarge`]; [`GraphError::Redefined`] for a name that is another tensor's.
    pub fn source(&mut self, name: &str, dtype: Dtype, shape: &[u64]) -> Result<Expr, GraphError> {
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
            Err(known) => {
                let known = self.made_of[known];
                match (self.dtype(known), self.shape(known)) == (dtype, shape) {
                    true => Ok(known),
                    false => Err(GraphError::Redefined {
                        name: name.to_owned(),
                        first: (self.dtype(known), self.shape(known).to_vec()),
                        second: (dtype, shape.to_vec()),
                    }),
                }
            }
        }
    }

    /// The tensors that are read, in the order in which they were named.
    pub fn sources(&self) -> impl ExactSizeIterator<Item = (&str, Expr)> {
        let sources = self.names.as_slice().iter().zip(&self.made_of);
        sources.map(|(name, expr)| (&**name, *expr))
    }

    /// As [`Graph::sources`], with the names themselves.
    pub(crate) fn shared_sources(&self) -> impl Iterator<Item = (Arc<str>, Expr)> {
        let names = self.names.as_slice().iter().cloned();
        names.zip(self.made_of.iter().copied())
    }

    /// The operand with its dims in another order: dim `i` of the result is dim `dims[i]`.
    ///
    /// # Errors
    /// [`GraphError::NoPermutation`].
    pub fn permute(&mut self, of: Expr, dims: &[usize]) -> Result<Expr, GraphError> {
        let shape = self.shape(of);
        let mut sorted = dims.to_vec();
        sorted.sort_unstable();
        if !sorted.iter().copied().eq(0..shape.len()) {
            return Err(GraphError::NoPermutation {
                dims: dims.to_vec(),
                shape: shape.to_vec(),
            });
        }
        let permuted = dims.iter().map(|dim| shape[*dim]).collect();
        let dims = dims.to_vec();
        self.add(Op::Permute { of, dims }, permuted, self.dtype(of))
    }

    /// Two dims exchanged.
    ///
    /// # Errors
    /// [`GraphError::NoSuchDim`].
    pub fn transpose(&mut self, of: Expr, a: usize, b: usize) -> Result<Expr, GraphError> {
        for dim in [a, b] {
            self.extent("transpose", of, dim)?;
        }
        let mut dims: Vec<usize> = (0..self.shape(of).len()).collect();
        dims.swap(a, b);
        self.permute(of, &dims)
    }

    /// `count` elements of a dim from `start` on, `step` apart.
    ///
    /// # Errors
    /// [`GraphError::NoSuchDim`], [`GraphError::OutsideSlice`].
    pub fn slice(
        &mut self,
        of: Expr,
        dim: usize,
        (start, count, step): (u64, u64, u64),
    ) -> Result<Expr, GraphError> {
        let extent = self.extent("slice", of, dim)?;
        let reach = count.saturating_sub(1).checked_mul(step);
        let last = reach
            .and_then(|reach| reach.checked_add(start))
            .and_then(|last| last.checked_add(count.min(1)));
        if step == 0 || last.is_none_or(|last| last > extent) {
            return Err(GraphError::OutsideSlice {
                dim,
                extent,
                start,
                count,
                step,
            });
        }
        let mut shape = Short::from_slice(self.shape(of));
        shape[dim] = count;
        let op = Op::Slice {
            of,
            dim,
            start,
            step,
        };
        self.add(op, shape, self.dtype(of))
    }

    /// One index of a dim, which the result does not have.
    ///
    /// # Errors
    /// [`GraphError::NoSuchDim`], [`GraphError::OutsideSlice`].
    pub fn select(&mut self, of: Expr, dim: usize, index: u64) -> Result<Expr, GraphError> {
        let extent = self.extent("select", of, dim)?;
        if index >= extent {
            return Err(GraphError::OutsideSlice {
                dim,
                extent,
                start: index,
                count: 1,
                step: 1,
            });
        }
        let mut shape = Short::from_slice(self.shape(of));
        shape.remove(dim);
        self.add(Op::Select { of, dim, index }, shape, self.dtype(of))
    }

    /// Operands one behind the other along a dim.
    ///
    /// # Errors
    /// [`GraphError::NoOperands`], [`GraphError::NoSuchDim`], [`GraphError::Shapes`],
    /// [`GraphError::Dtypes`].
    pub fn concat(&mut self, of: &[Expr], dim: usize) -> Result<Expr, GraphError> {
        let first = self.first_of("concat", of)?;
        self.extent("concat", first, dim)?;
        self.check_alike("concat", of, dim, Some(dim))?;
        let mut shape = Short::from_slice(self.shape(first));
        let mut extents = of.iter().map(|it| self.shape(*it)[dim]);
        let total = extents.try_fold(0u64, |sum, extent| sum.checked_add(extent));
        // More than fits is refused with the shape as far as it can be written.
        shape[dim] = total.unwrap_or(u64::MAX);
        let of = Short::from_slice(of);
        self.add(Op::Concat { of, dim }, shape, self.dtype(first))
    }

    /// Operands of one shape as the indices of a new dim.
    ///
    /// # Errors
    /// [`GraphError::NoOperands`], [`GraphError::NoSuchDim`], [`GraphError::Shapes`],
    /// [`GraphError::Dtypes`].
    pub fn stack(&mut self, of: &[Expr], dim: usize) -> Result<Expr, GraphError> {
        let first = self.first_of("stack", of)?;
        let mut shape = Short::from_slice(self.shape(first));
        if dim > shape.len() {
            let (op, shape) = ("stack", shape.to_vec());
            return Err(GraphError::NoSuchDim { op, dim, shape });
        }
        self.check_alike("stack", of, dim, None)?;
        shape.insert(dim, of.len() as u64);
        let of = Short::from_slice(of);
        self.add(Op::Stack { of, dim }, shape, self.dtype(first))
    }

    /// A dim as `rows` rows: two dims in its place.
    ///
    /// # Errors
    /// [`GraphError::NoSuchDim`], [`GraphError::Rows`].
    pub fn unflatten(&mut self, of: Expr, dim: usize, rows: u64) -> Result<Expr, GraphError> {
        let extent = self.extent("unflatten", of, dim)?;
        if rows == 0 || extent % rows != 0 {
            return Err(GraphError::Rows { dim, extent, rows });
        }
        let columns = extent / rows;
        let mut shape = Short::from_slice(self.shape(of));
        shape[dim] = columns;
        shape.insert(dim, rows);
        let op = Op::Unflatten { of, dim, columns };
        self.add(op, shape, self.dtype(of))
    }

    /// Dims `dim` and `dim + 1` as one.
    ///
    /// # Errors
    /// [`GraphError::NoSuchDim`].
    pub fn flatten(&mut self, of: Expr, dim: usize) -> Result<Expr, GraphError> {
        let columns = self.extent("flatten", of, dim + 1)?;
        let mut shape = Short::from_slice(self.shape(of));
        shape.remove(dim + 1);
        shape[dim] = shape[dim].saturating_mul(columns);
        let op = Op::Flatten { of, dim, columns };
        self.add(op, shape, self.dtype(of))
    }

    /// A dim of one element more, before dim `dim`.
    ///
    /// # Errors
    /// [`GraphError::NoSuchDim`].
    pub fn unsqueeze(&mut self, of: Expr, dim: usize) -> Result<Expr, GraphError> {
        self.stack(&[of], dim)
    }

    /// The operand without a dim of one element.
    ///
    /// # Errors
    /// [`GraphError::NoSuchDim`], [`GraphError::Squeeze`].
    pub fn squeeze(&mut self, of: Expr, dim: usize) -> Result<Expr, GraphError> {
        match self.extent("squeeze", of, dim)? {
            1 => self.select(of, dim, 0),
            extent => Err(GraphError::Squeeze { dim, extent }),
        }
    }

    /// Its extents.
    pub fn shape(&self, of: Expr) -> &[u64] {
        &self.node(of).shape
    }

    /// Its dtype.
    pub fn dtype(&self, of: Expr) -> Dtype {
        self.node(of).dtype
    }

    /// The name of a tensor that is read.
    pub fn name(&self, source: SourceId) -> &str {
        &self.names.as_slice()[source.index()]
    }

    pub(crate) fn shared_name(&self, source: SourceId) -> &Arc<str> {
        &self.names.as_slice()[source.index()]
    }

    /// The dtype of a tensor that is read.
    pub fn source_dtype(&self, source: SourceId) -> Dtype {
        self.dtype(self.expr_of(source))
    }

    /// The extents of a tensor that is read.
    pub fn source_shape(&self, source: SourceId) -> &[u64] {
        self.shape(self.expr_of(source))
    }

    /// The tensor that is read, if an expression is that alone.
    pub fn as_source(&self, of: Expr) -> Option<SourceId> {
        match self.node(of).op {
            Op::Source(source) => Some(source),
            _ => None,
        }
    }

    pub(crate) fn expr_of(&self, source: SourceId) -> Expr {
        self.made_of[source.index()]
    }

    /// The operands of an expression, if it has all elements of all of them.
    pub(crate) fn uses_all_of(&self, of: Expr) -> Option<&[Expr]> {
        match &self.node(of).op {
            Op::Slice { .. } | Op::Select { .. } => None,
            op => Some(op.operands()),
        }
    }

    /// What something computed is computed of, and how; `None` for anything else.
    pub fn computation(&self, of: Expr) -> Option<(&[Expr], &Computation)> {
        match &self.node(of).op {
            Op::Computed { of, how } => Some((of, how)),
            _ => None,
        }
    }

    /// The names of the tensors that an expression is made of.
    pub fn sources_of(&self, of: Expr) -> BTreeSet<&str> {
        let (mut names, mut seen, mut open) = (BTreeSet::new(), ExprSet::default(), vec![of]);
        while let Some(expr) = open.pop() {
            if !seen.insert(expr) {
                continue;
            }
            let op = &self.node(expr).op;
            if let Op::Source(source) = op {
                names.insert(self.name(*source));
            }
            open.extend(op.operands());
        }
        names
    }

    /// What messages call a leaf: a tensor's name, or the operation that makes it.
    pub fn leaf_name(&self, leaf: Leaf) -> &str {
        match leaf {
            Leaf::Source(source) => self.name(source),
            Leaf::Computed(expr) => self.node(expr).op.name(),
            Leaf::Fill(_) => "fill",
        }
    }

    pub(super) fn node(&self, of: Expr) -> &Node {
        &self.nodes[of.index()]
    }

    pub(super) fn extent(&self, op: &'static str, of: Expr, dim: usize) -> Result<u64, GraphError> {
        let shape = self.shape(of);
        shape
            .get(dim)
            .copied()
            .ok_or_else(|| GraphError::NoSuchDim {
                op,
                dim,
                shape: shape.to_vec(),
            })
    }

    fn first_of(&self, op: &'static str, of: &[Expr]) -> Result<Expr, GraphError> {
        of.first().copied().ok_or(GraphError::NoOperands { op })
    }

    /// That all operands have one dtype, and one shape but for the extent of `but`.
    fn check_alike(
        &self,
        op: &'static str,
        of: &[Expr],
        dim: usize,
        but: Option<usize>,
    ) -> Result<(), GraphError> {
        let first = of[0];
        for (at, other) in of.iter().enumerate() {
            let (a, b) = (self.shape(first), self.shape(*other));
            let differs = |(dim, (a, b)): (usize, (&u64, &u64))| a != b && Some(dim) != but;
            if a.len() != b.len() || a.iter().zip(b).enumerate().any(differs) {
                return Err(GraphError::Shapes {
                    op,
                    dim,
                    first: a.to_vec(),
                    at,
                    other: b.to_vec(),
                });
            }
            let (first, other) = (self.dtype(first), self.dtype(*other));
            if first != other {
                return Err(GraphError::Dtypes {
                    op,
                    first,
                    at,
                    other,
                });
            }
        }
        Ok(())
    }

    pub(super) fn add(
        &mut self,
        op: Op,
        shape: Short<u64>,
        dtype: Dtype,
    ) -> Result<Expr, GraphError> {
        let (nodes, hasher) = (&self.nodes, &self.hasher);
        let op_of = |expr: &Expr| &nodes[expr.index()].op;
        // Slices from one place on differ in nothing but their shapes.
        let is_it = |expr: &Expr| *op_of(expr) == op && nodes[expr.index()].shape == shape;
        let hash_again = |expr: &Expr| hasher.hash_one(op_of(expr));
        match self.known.entry(hasher.hash_one(&op), is_it, hash_again) {
            Entry::Occupied(known) => Ok(*known.get()),
            Entry::Vacant(free) => {
                check_size(op.name(), &shape)?;
                let depths = op.operands().iter().map(|of| nodes[of.index()].depth);
                let depth = depths.max().map_or(0, |depth| depth + 1);
                if depth > MAX_DEPTH {
                    let (op, limit) = (op.name(), MAX_DEPTH);
                    return Err(GraphError::TooDeep { op, limit });
                }
                free.insert(Expr(nodes.len() as u32));
                Ok(self.push(op, shape, dtype, depth))
            }
        }
    }

    fn push(&mut self, op: Op, shape: Short<u64>, dtype: Dtype, depth: u32) -> Expr {
        self.nodes.push(Node {
            op,
            shape,
            dtype,
            depth,
        });
        Expr(self.nodes.len() as u32 - 1)
    }
}

/// That a tensor's elements can be counted.
fn check_size(op: &'static str, shape: &[u64]) -> Result<(), GraphError> {
    let product = |a: u64, b: &u64| a.checked_mul((*b).max(1));
    let elements = shape.iter().try_fold(1, product);
    match elements.is_some_and(|elements| elements <= i64::MAX as u64) {
        true => Ok(()),
        false => Err(GraphError::TooLarge {
            op,
            shape: shape.to_vec(),
        }),
    }
}
