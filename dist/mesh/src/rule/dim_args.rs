//! Rules of ops that take dims as arguments: each call has its own signature.

use meshgrad_error::{Result, ensure, error};

use super::sharding_rule::{LINEAR, PartialInputs, ShardingRule, Tensor};
use crate::Reduction;

impl ShardingRule {
    /// Reduces a tensor of `ndim` dims over `dims`, which the result lacks. With `by: None` the
    /// dims must be whole. A mean requires equal shards, because the mean of unequal shards' means
    /// is wrong.
    ///
    /// # Errors
    /// For a dim that is out of range or repeated.
    pub fn reduction(
        op: &str,
        ndim: usize,
        dims: &[usize],
        by: Option<Reduction>,
    ) -> Result<ShardingRule> {
        check_dims(op, ndim, dims)?;
        let whole = |dim| by.is_none() && dims.contains(&dim);
        let operand = written(0..ndim, whole);
        let result = written((0..ndim).filter(|dim| !dims.contains(dim)), |_| false);
        let mut rule = ShardingRule::new(op, &format!("x[{operand}] -> y[{result}]"))?;

        let Some(by) = by else {
            return Ok(rule);
        };
        for dim in dims {
            rule.names[*dim].reduction = by;
        }
        rule.partial_inputs.push(PartialInputs {
            operands: vec![0],
            reductions: match by {
                Reduction::Sum | Reduction::Avg => LINEAR,
                Reduction::Max => &[Reduction::Max],
            },
        });
        Ok(rule)
    }

    /// Concatenates `operands` tensors of `ndim` dims along `dim`, which must be whole.
    ///
    /// # Errors
    /// As [`ShardingRule::reduction`].
    pub fn concat(op: &str, operands: usize, ndim: usize, dim: usize) -> Result<ShardingRule> {
        check_dims(op, ndim, &[dim])?;
        let of = |tensor: &str| {
            let dims = (0..ndim).map(|at| match at == dim {
                true => format!("{tensor}!"),
                false => format!("d{at}"),
            });
            format!("{tensor}[{}]", dims.collect::<Vec<_>>().join(" "))
        };
        let names: Vec<String> = (0..operands).map(|at| format!("x{at}")).collect();
        let tensors: Vec<String> = names.iter().map(|name| of(name)).collect();
        let rule = ShardingRule::new(op, &format!("{} -> {}", tensors.join(", "), of("y")))?;
        rule.linear_in(&[&names.join(" + ")])
    }

    /// Stacks `operands` tensors of `ndim` dims: a new dim before dim `dim` has one index per
    /// operand.
    ///
    /// # Errors
    /// As [`ShardingRule::reduction`].
    pub fn stack(op: &str, operands: usize, ndim: usize, dim: usize) -> Result<ShardingRule> {
        check_dims(op, ndim, &[dim])?;
        let names: Vec<String> = (0..operands).map(|at| format!("x{at}")).collect();
        let dims = written(0..ndim, |_| false);
        let tensors: Vec<String> = names.iter().map(|name| format!("{name}[{dims}]")).collect();
        let mut stacked: Vec<&str> = dims.split_whitespace().collect();
        let count = operands.to_string();
        stacked.insert(dim, &count);
        let signature = format!("{} -> y[{}]", tensors.join(", "), stacked.join(" "));
        ShardingRule::new(op, &signature)?.linear_in(&[&names.join(" + ")])
    }

    /// Selects the indices `ids` of a tensor of `ndim` dims along `dim`. `ids` can be sharded, or
    /// else `dim`: then each rank selects the indices in its range, which gives a partial sum.
    ///
    /// # Errors
    /// As [`ShardingRule::reduction`].
    pub fn index_select(op: &str, ndim: usize, dim: usize) -> Result<ShardingRule> {
        check_dims(op, ndim, &[dim])?;
        let (from, to) = (written(0..ndim, |_| false), selected(ndim, dim));
        ShardingRule::new(op, &format!("x[{from}], ids[ids] -> y[{to}]"))?.linear_in(&["x"])
    }

    /// The gradient of [`ShardingRule::index_select`]: sums slices at the indices `ids`. The dim is
    /// whole in the result; sharded indices give a partial sum.
    ///
    /// # Errors
    /// As [`ShardingRule::reduction`].
    pub fn index_select_grad(op: &str, ndim: usize, dim: usize) -> Result<ShardingRule> {
        check_dims(op, ndim, &[dim])?;
        let (from, to) = (selected(ndim, dim), written(0..ndim, |_| false));
        ShardingRule::new(op, &format!("dy[{from}], ids[ids] -> dx[{to}]"))?.linear_in(&["dy"])
    }

    /// The same rule with a last operand `to`, which has the result's dims and shards. Dims that no
    /// other operand has can then be sharded.
    #[must_use]
    pub fn with_target(mut self) -> ShardingRule {
        if let Some(result) = self.results.first() {
            self.operands.push(Tensor { name: "to".to_owned(), dims: result.dims.clone() });
        }
        self
    }

    /// Gathers the elements of a tensor of shape `from` along `dim`, with an index of shape
    /// `index`. Dims with the same extent in both can be sharded together; `dim` can be sharded in
    /// the index, or else in the tensor, which gives a partial sum.
    ///
    /// # Errors
    /// As [`ShardingRule::reduction`].
    pub fn gather(op: &str, from: &[usize], index: &[usize], dim: usize) -> Result<ShardingRule> {
        let [x, ids] = indexed(op, from, index, dim)?;
        ShardingRule::new(op, &format!("x[{x}], index[{ids}] -> y[{ids}]"))?.linear_in(&["x"])
    }

    /// Adds the elements of a tensor to a tensor of shape `to` along `dim`, at an index of shape
    /// `index`. Dims with the same extent in both can be sharded together; a shard of `dim` gives a
    /// partial sum.
    ///
    /// # Errors
    /// As [`ShardingRule::reduction`].
    pub fn scatter_add(
        op: &str,
        to: &[usize],
        index: &[usize],
        dim: usize,
    ) -> Result<ShardingRule> {
        let [y, ids] = indexed(op, to, index, dim)?;
        let rule = ShardingRule::new(op, &format!("src[{ids}], index[{ids}] -> y[{y}]"))?;
        rule.linear_in(&["src"])
    }

    /// A range of `extent` indices of dim `dim` of a tensor of `ndim` dims, or the gradient of a
    /// range. The dim must be whole.
    ///
    /// # Errors
    /// As [`ShardingRule::reduction`].
    pub fn slice(op: &str, ndim: usize, dim: usize, extent: usize) -> Result<ShardingRule> {
        check_dims(op, ndim, &[dim])?;
        let from = written(0..ndim, |at| at == dim);
        let to = from.replace(&format!("d{dim}!"), "range!");
        let mut rule = ShardingRule::new(op, &format!("x[{from}] -> y[{to}]"))?;
        rule.set_extent("range", extent);
        rule.linear_in(&["x"])
    }

    /// Inserts a dim of extent 1 before dim `dim` of a tensor of `ndim` dims.
    ///
    /// # Errors
    /// For a dim above `ndim`.
    pub fn unsqueeze(op: &str, ndim: usize, dim: usize) -> Result<ShardingRule> {
        check_dims(op, ndim + 1, &[dim])?;
        let from = written(0..ndim, |_| false);
        let mut to: Vec<&str> = from.split_whitespace().collect();
        to.insert(dim, "1");
        let signature = format!("x[{from}] -> y[{}]", to.join(" "));
        ShardingRule::new(op, &signature)?.linear_in(&["x"])
    }

    /// Sets the extent of a dim that no operand has.
    fn set_extent(&mut self, name: &str, extent: usize) {
        if let Some(name) = self.names.iter_mut().find(|known| known.text == name) {
            name.extent = Some(extent);
        }
    }

    /// Broadcasts a tensor of shape `from` to shape `to`: adds dims in front, and repeats dims of
    /// extent 1. The other dims can be sharded.
    ///
    /// # Errors
    /// When `from` has more dims.
    pub fn broadcast(op: &str, from: &[usize], to: &[usize]) -> Result<ShardingRule> {
        let added = added_dims(op, from, to)?;
        let is_kept = |dim: usize| dim >= added && from[dim - added] == to[dim];
        let name = |dim: usize, other: &str| match is_kept(dim) {
            true => format!("d{dim}"),
            false => format!("{other}{dim}!"),
        };
        let x: Vec<String> = (added..to.len()).map(|dim| name(dim, "one")).collect();
        let y: Vec<String> = (0..to.len()).map(|dim| name(dim, "many")).collect();
        let signature = format!("x[{}] -> y[{}]", x.join(" "), y.join(" "));
        let mut rule = ShardingRule::new(op, &signature)?;
        for (dim, extent) in to.iter().enumerate() {
            rule.set_extent(&format!("many{dim}"), *extent);
        }
        rule.linear_in(&["x"])
    }

    /// Broadcasts a tensor of shape `from` to the shape `to` of a second operand, and shards the
    /// result like that operand. The operand's dims `repeated` have extent 1 in `from`.
    ///
    /// # Errors
    /// As [`ShardingRule::broadcast`].
    pub fn broadcast_like(
        op: &str,
        from: &[usize],
        to: &[usize],
        repeated: &[usize],
    ) -> Result<ShardingRule> {
        let added = added_dims(op, from, to)?;
        let of_x = |dim: usize| match repeated.contains(&dim) {
            true => "1".to_owned(),
            false => format!("d{dim}"),
        };
        let x: Vec<String> = (added..to.len()).map(of_x).collect();
        let y = written(0..to.len(), |_| false);
        let signature = format!("x[{}], like[{y}] -> y[{y}]", x.join(" "));
        ShardingRule::new(op, &signature)?.linear_in(&["x"])
    }

    /// Permutes dims: dim `order[i]` of the operand is dim i of the result.
    ///
    /// # Errors
    /// As [`ShardingRule::reduction`].
    pub fn permute(op: &str, order: &[usize]) -> Result<ShardingRule> {
        check_dims(op, order.len(), order)?;
        let (from, to) =
            (written(0..order.len(), |_| false), written(order.iter().copied(), |_| false));
        ShardingRule::new(op, &format!("x[{from}] -> y[{to}]"))?.linear_in(&["x"])
    }
}

/// The dims of a tensor that is indexed along `dim`, and those of the index.
fn indexed(op: &str, shape: &[usize], index: &[usize], dim: usize) -> Result<[String; 2]> {
    check_dims(op, shape.len(), &[dim])?;
    let is_shared = |at: usize| at != dim && index.get(at) == Some(&shape[at]);
    let name = |at: usize, other: String| match is_shared(at) {
        true => format!("d{at}"),
        false => other,
    };
    let of_index = |at: usize| match at == dim {
        true => "ids".to_owned(),
        false => format!("part{at}!"),
    };
    let whole = |at: usize| if at == dim { "" } else { "!" };
    let indexed: Vec<String> =
        (0..shape.len()).map(|at| name(at, format!("d{at}{}", whole(at)))).collect();
    let index: Vec<String> = (0..index.len())
        .map(|at| match at < shape.len() {
            true => name(at, of_index(at)),
            false => of_index(at),
        })
        .collect();
    Ok([indexed.join(" "), index.join(" ")])
}

/// The dims of a selection along `dim`: `d0 ids d2`.
fn selected(ndim: usize, dim: usize) -> String {
    let dims = (0..ndim).map(|at| match at == dim {
        true => "ids".to_owned(),
        false => format!("d{at}"),
    });
    dims.collect::<Vec<_>>().join(" ")
}

fn written(dims: impl Iterator<Item = usize>, whole: impl Fn(usize) -> bool) -> String {
    let dims = dims.map(|dim| format!("d{dim}{}", if whole(dim) { "!" } else { "" }));
    dims.collect::<Vec<_>>().join(" ")
}

/// The number of dims that a broadcast from shape `from` to shape `to` adds in front.
fn added_dims(op: &str, from: &[usize], to: &[usize]) -> Result<usize> {
    let added = to.len().checked_sub(from.len());
    let fits = |added: usize| {
        let mut pairs = from.iter().zip(&to[added..]);
        pairs.all(|(from, to)| from == to || *from == 1)
    };
    added.filter(|added| fits(*added)).ok_or_else(|| {
        error!(Invalid, "{op}: the global shape {from:?} does not broadcast to {to:?}")
    })
}

fn check_dims(op: &str, ndim: usize, dims: &[usize]) -> Result<()> {
    for (at, dim) in dims.iter().enumerate() {
        let is_new = !dims[..at].contains(dim);
        ensure!(is_new, Invalid, "{op}: dim {dim} is repeated in {dims:?}");
        ensure!(*dim < ndim, Invalid, "{op}: dim {dim} is out of range for {ndim} dims");
    }
    Ok(())
}
