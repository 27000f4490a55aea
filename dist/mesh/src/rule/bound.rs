//! A rule bound to the shapes of one call: the identity and extent of every dim.

use meshgrad_error::{Error, Result, error};

use super::sharding_rule::{ShardingRule, Tensor, check_count, wrong_dims};
use crate::{DimSpec, Reduction};

/// Identifies a dim across tensors. It is sharded in all of them or in none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DimId {
    /// An index into the rule's names.
    Name(usize),
    /// An index into the leading dims.
    Leading(usize),
    /// A dim that broadcasts, counted from the last.
    Broadcast(usize),
}

/// A dim of a tensor.
#[derive(Debug, Clone, Copy)]
pub(super) struct BoundDim {
    /// `None` if it cannot be sharded.
    pub(super) id: Option<DimId>,
    /// The extent of a rank's shard under the axes handled so far; 1 if no operand determines it.
    pub(super) extent: usize,
    /// Whether an operand determines the extent.
    pub(super) is_known: bool,
}

/// The dims of a tensor.
pub(super) type BoundDims = Vec<BoundDim>;

#[derive(Clone)]
pub(super) struct Bound<'a> {
    pub(super) rule: &'a ShardingRule,
    pub(super) operands: Vec<BoundDims>,
    /// `None` if the signature declares the dims as `*`.
    pub(super) results: Vec<Option<BoundDims>>,
    /// The dims that an outer axis sharded unevenly.
    pub(super) uneven: Vec<DimId>,
    /// The operand that takes the partial values of its result.
    pub(super) open: Option<usize>,
    /// Whether the open operand has no shards of its own, and takes those of its result too.
    pub(super) open_has_no_shards: bool,
}

/// A dim that an axis shards, and whether its shards are equal.
#[derive(Debug, Clone, Copy)]
pub(super) struct ShardedDim {
    pub(super) id: DimId,
    pub(super) equal: bool,
}

impl<'a> Bound<'a> {
    /// At most one operand has no shape: it is modified in place and has the dims of its result.
    pub(super) fn new(rule: &'a ShardingRule, shapes: &[Option<&[usize]>]) -> Result<Bound<'a>> {
        let extents = Extents::of(rule, shapes)?;
        let operands = rule.operands.iter().zip(shapes);
        let operands = operands.map(|(operand, shape)| match shape {
            Some(shape) => extents.of_operand(operand, shape),
            None => extents.of_result(operand).unwrap_or_default(),
        });
        let results = rule.results.iter().map(|result| extents.of_result(result));
        Ok(Bound {
            rule,
            operands: operands.collect(),
            results: results.collect(),
            uneven: Vec::new(),
            open: shapes.iter().position(Option::is_none),
            open_has_no_shards: shapes.contains(&None),
        })
    }

    /// Records that an axis sharded a dim into `ranks` shards. If they are unequal, extents keep
    /// their proportions.
    pub(super) fn shard(&mut self, ShardedDim { id, equal }: ShardedDim, ranks: usize) {
        if !equal {
            self.uneven.push(id);
            return;
        }
        let rule = self.rule;
        let operands = rule.operands.iter().zip(&mut self.operands);
        let results = rule.results.iter().zip(&mut self.results);
        let results = results.filter_map(|(result, dims)| Some((result, dims.as_mut()?)));
        for (tensor, dims) in operands.chain(results) {
            let count = dims.len();
            for (at, dim) in dims.iter_mut().enumerate() {
                if dim.id == Some(id) {
                    dim.extent = dim.extent.div_ceil(ranks);
                    let is_one_group = dim.extent == 1 && rule.is_groups(tensor, count - at);
                    dim.id = dim.id.filter(|_| !is_one_group);
                }
            }
        }
    }

    /// The position and extent of a dim in a tensor.
    pub(super) fn position(dims: &BoundDims, id: DimId) -> Option<(usize, usize)> {
        let dim = dims.iter().position(|dim| dim.id == Some(id))?;
        Some((dim, dims[dim].extent))
    }

    /// All dims that can be sharded, in order of first appearance.
    pub(super) fn ids(&self) -> Vec<DimId> {
        let mut ids: Vec<DimId> = Vec::new();
        for id in self.operands.iter().flatten().filter_map(|dim| dim.id) {
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        ids
    }

    /// The reduction for the partial values of a result that lacks this dim.
    pub(super) fn reduction(&self, id: DimId) -> Reduction {
        match id {
            DimId::Name(name) => self.rule.names[name].reduction,
            DimId::Leading(_) | DimId::Broadcast(_) => Reduction::Sum,
        }
    }

    /// The name of the dim whose shards this dim's shards must be proportional to.
    pub(super) fn in_proportion_to(&self, id: DimId) -> Option<&'a str> {
        let DimId::Name(name) = id else {
            return None;
        };
        let names = &self.rule.names;
        names[name].groups.map(|other| names[other].text.as_str())
    }

    /// The name in the signature of dim `at` of an operand.
    pub(super) fn dim_name(&self, operand: usize, at: usize) -> Option<&'a str> {
        let rule = self.rule;
        let dims = &rule.operands[operand].dims;
        let from_the_back = self.operands[operand].len().checked_sub(at)?;
        match dims.len().checked_sub(from_the_back).map(|dim| dims[dim]) {
            Some(DimSpec::Named(name)) => Some(&rule.names[name].text),
            _ => None,
        }
    }
}

impl ShardingRule {
    /// Whether another dim is a multiple of this dim of `tensor`, which is counted from the back.
    fn is_groups(&self, tensor: &Tensor, from_the_back: usize) -> bool {
        let at = tensor.dims.len().checked_sub(from_the_back);
        match at.map(|at| tensor.dims[at]) {
            Some(DimSpec::Named(name)) => self.names.iter().any(|many| many.groups == Some(name)),
            _ => false,
        }
    }
}

/// The extents of named, leading and broadcast dims.
struct Extents<'a> {
    rule: &'a ShardingRule,
    /// The extent of each named dim, and the operand that determined it.
    names: Vec<Option<(usize, usize)>>,
    leading: Option<(&'a [usize], usize)>,
    broadcast: Vec<usize>,
}

impl<'a> Extents<'a> {
    fn of(rule: &'a ShardingRule, shapes: &[Option<&'a [usize]>]) -> Result<Extents<'a>> {
        check_count(&rule.op, "operands", &rule.operands, shapes.len())?;
        let mut extents = Extents {
            rule,
            names: rule.names.iter().map(|name| Some((name.extent?, 0))).collect(),
            leading: None,
            broadcast: Vec::new(),
        };
        for (at, shape) in shapes.iter().enumerate() {
            if let Some(shape) = shape {
                extents.bind(at, shape)?;
            }
        }
        Ok(extents)
    }

    fn bind(&mut self, at: usize, shape: &'a [usize]) -> Result<()> {
        let dims = &self.rule.operands[at].dims;
        match dims.first() {
            Some(DimSpec::Any) => return Ok(()),
            Some(DimSpec::Broadcast) => return self.bind_broadcast(at, shape),
            _ => {}
        }
        let named = match dims.first() {
            Some(DimSpec::Leading) => &dims[1..],
            _ => &dims[..],
        };
        let leading = shape.len().checked_sub(named.len());
        let leading = leading.filter(|count| *count == 0 || named.len() < dims.len());
        let Some(leading) = leading else {
            let rule = self.rule;
            return Err(wrong_dims(&rule.op, &rule.operands[at].name, named.len(), shape));
        };
        if named.len() < dims.len() {
            self.bind_leading(at, &shape[..leading])?;
        }
        for (dim, extent) in named.iter().zip(&shape[leading..]) {
            self.bind_dim(at, *dim, *extent)?;
        }
        Ok(())
    }

    fn bind_dim(&mut self, at: usize, dim: DimSpec, extent: usize) -> Result<()> {
        let (bound, from, name) = match dim {
            DimSpec::Fixed(fixed) => (fixed, at, fixed.to_string()),
            DimSpec::Named(name) => {
                let (bound, from) = *self.names[name].get_or_insert((extent, at));
                (bound, from, self.rule.names[name].text.clone())
            }
            DimSpec::Leading | DimSpec::Broadcast | DimSpec::Any => return Ok(()),
        };
        match bound == extent {
            true => Ok(()),
            false => Err(self.disagree(at, format!("{name} = {extent}"), from, bound.to_string())),
        }
    }

    fn bind_leading(&mut self, at: usize, dims: &'a [usize]) -> Result<()> {
        let (bound, from) = *self.leading.get_or_insert((dims, at));
        match bound == dims {
            true => Ok(()),
            false => {
                let (has, other) = (format!("leading dims {dims:?}"), format!("{bound:?}"));
                Err(self.disagree(at, has, from, other))
            }
        }
    }

    fn bind_broadcast(&mut self, at: usize, shape: &[usize]) -> Result<()> {
        for (from_last, extent) in shape.iter().rev().enumerate() {
            match self.broadcast.get_mut(from_last) {
                None => self.broadcast.push(*extent),
                Some(common) if *common == 1 => *common = *extent,
                Some(common) if *extent != 1 && *extent != *common => {
                    let common: Vec<usize> = self.broadcast.iter().rev().copied().collect();
                    let (has, other) = (format!("shape {shape:?}"), format!("{common:?}"));
                    return Err(self.disagree(at, has, 0, other));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn disagree(&self, at: usize, has: String, from: usize, other_has: String) -> Error {
        let [operand, other] = [at, from].map(|at| &self.rule.operands[at].name);
        error!(Invalid, "{}: `{operand}` has {has}, but `{other}` needs {other_has}", self.rule.op)
    }

    fn of_operand(&self, operand: &Tensor, shape: &[usize]) -> BoundDims {
        let ids = match operand.dims.first() {
            Some(DimSpec::Any) => vec![None; shape.len()],
            Some(DimSpec::Broadcast) => self.broadcasting(shape),
            _ => self.ids(operand),
        };
        let dims = ids.into_iter().zip(shape);
        dims.map(|(id, extent)| BoundDim { id, extent: *extent, is_known: true }).collect()
    }

    /// `None` if the signature declares the dims as `*`.
    fn of_result(&self, result: &Tensor) -> Option<BoundDims> {
        let ids = match result.dims.first() {
            Some(DimSpec::Any) => return None,
            Some(DimSpec::Broadcast) => {
                (0..self.broadcast.len()).rev().map(|at| Some(DimId::Broadcast(at))).collect()
            }
            _ => self.ids(result),
        };
        let extents = self.extents(result);
        let dims = ids.into_iter().zip(extents);
        let dims = dims.map(|(id, extent)| BoundDim {
            id,
            extent: extent.unwrap_or(1),
            is_known: extent.is_some(),
        });
        Some(dims.collect())
    }

    fn ids(&self, tensor: &Tensor) -> Vec<Option<DimId>> {
        let leading = self.leading.map_or(0, |(dims, _)| dims.len());
        let ids = tensor.dims.iter().flat_map(|dim| match dim {
            DimSpec::Leading => (0..leading).map(|at| Some(DimId::Leading(at))).collect(),
            DimSpec::Named(name) => vec![self.id_of(*name)],
            DimSpec::Fixed(_) | DimSpec::Broadcast | DimSpec::Any => vec![None],
        });
        ids.collect()
    }

    /// The extents of a result; `None` for one that no operand determines.
    fn extents(&self, result: &Tensor) -> Vec<Option<usize>> {
        let known = |dims: &[usize]| dims.iter().copied().map(Some).collect();
        let extents = result.dims.iter().flat_map(|dim| match dim {
            DimSpec::Leading => self.leading.map_or(Vec::new(), |(dims, _)| known(dims)),
            DimSpec::Broadcast => self.broadcast.iter().rev().copied().map(Some).collect(),
            DimSpec::Named(name) => vec![self.names[*name].map(|(extent, _)| extent)],
            DimSpec::Fixed(extent) => vec![Some(*extent)],
            DimSpec::Any => Vec::new(),
        });
        extents.collect()
    }

    fn id_of(&self, name: usize) -> Option<DimId> {
        let (extent, _) = self.names[name]?;
        let names = &self.rule.names;
        let id = match names.iter().position(|many| many.groups == Some(name)) {
            Some(_) if extent == 1 => return None,
            Some(many) => many,
            None => name,
        };
        let whole = names[name].whole || names[id].whole;
        (!whole).then_some(DimId::Name(id))
    }

    /// The dims of an operand with `~`. It cannot be sharded along a dim that it broadcasts.
    fn broadcasting(&self, shape: &[usize]) -> Vec<Option<DimId>> {
        let id = |dim: usize| {
            let from_last = shape.len() - 1 - dim;
            let is_common = self.broadcast.get(from_last) == Some(&shape[dim]);
            is_common.then_some(DimId::Broadcast(from_last))
        };
        (0..shape.len()).map(id).collect()
    }
}
