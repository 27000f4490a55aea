//! Rules of ops whose dims are arguments, which no signature can say: written as a signature for
//! the dims that are given.

use super::{LINEAR, Pass, Rule, RuleError};
use crate::Reduction;

impl Rule {
    /// A reduction of a tensor of `rank` dims over `dims`, which the result does not have: the sum,
    /// mean or maximum, or with none of these something that needs the dims whole. A mean of parts'
    /// means is right for equal parts only, so others are refused.
    ///
    /// # Errors
    /// [`RuleError::Text`] for a dim that is not below `rank`.
    pub fn reduction(
        op: &str,
        rank: usize,
        dims: &[usize],
        by: Option<Reduction>,
    ) -> Result<Rule, RuleError> {
        check_dims(op, rank, dims)?;
        let whole = |dim| by.is_none() && dims.contains(&dim);
        let operand = written(0..rank, whole);
        let result = written((0..rank).filter(|dim| !dims.contains(dim)), |_| false);
        let mut rule = Rule::new(op, &format!("x[{operand}] -> y[{result}]"))?;

        let Some(by) = by else {
            return Ok(rule);
        };
        for dim in dims {
            rule.names[*dim].reduction = by;
        }
        rule.passes.push(Pass {
            operands: vec![0],
            reductions: match by {
                Reduction::Sum | Reduction::Avg => LINEAR,
                Reduction::Max => &[Reduction::Max],
            },
        });
        Ok(rule)
    }

    /// `operands` tensors of `rank` dims one after the other along `dim`, which must be whole.
    ///
    /// # Errors
    /// As [`Rule::reduction`].
    pub fn concat(op: &str, operands: usize, rank: usize, dim: usize) -> Result<Rule, RuleError> {
        check_dims(op, rank, &[dim])?;
        let of = |tensor: &str| {
            let dims = (0..rank).map(|at| match at == dim {
                true => format!("{tensor}!"),
                false => format!("d{at}"),
            });
            format!("{tensor}[{}]", dims.collect::<Vec<_>>().join(" "))
        };
        let names: Vec<String> = (0..operands).map(|at| format!("x{at}")).collect();
        let tensors: Vec<String> = names.iter().map(|name| of(name)).collect();
        let rule = Rule::new(op, &format!("{} -> {}", tensors.join(", "), of("y")))?;
        rule.linear_in(&[&names.join(" + ")])
    }

    /// The parts of a tensor of `rank` dims at `ids` along `dim`, which must be whole; `ids` may be
    /// cut.
    ///
    /// # Errors
    /// As [`Rule::reduction`].
    pub fn index_select(op: &str, rank: usize, dim: usize) -> Result<Rule, RuleError> {
        check_dims(op, rank, &[dim])?;
        let from = written(0..rank, |at| at == dim);
        let to = from.replace(&format!("d{dim}!"), "ids");
        Rule::new(op, &format!("x[{from}], ids[ids] -> y[{to}]"))?.linear_in(&["x"])
    }

    /// The dims in another order: dim `order[i]` of the operand is dim i of the result.
    ///
    /// # Errors
    /// As [`Rule::reduction`], also for an order that lacks a dim.
    pub fn permute(op: &str, order: &[usize]) -> Result<Rule, RuleError> {
        check_dims(op, order.len(), order)?;
        let (from, to) = (
            written(0..order.len(), |_| false),
            written(order.iter().copied(), |_| false),
        );
        Rule::new(op, &format!("x[{from}] -> y[{to}]"))?.linear_in(&["x"])
    }

    /// The same elements in the same order under other extents. Where dims become one, or one
    /// several, the first of them can be cut, into parts that are such on both sides.
    ///
    /// # Errors
    /// [`RuleError::Text`] for shapes of other numbers of elements.
    pub fn reshape(op: &str, from: &[usize], to: &[usize]) -> Result<Rule, RuleError> {
        let fits = elements(from).is_some_and(|count| elements(to) == Some(count));
        if !fits {
            return Err(RuleError::Text {
                text: format!("{op} {from:?} -> {to:?}"),
                problem: "the numbers of elements differ, or are too large".to_owned(),
            });
        }
        let (x, y) = (whole_dims("x", from.len()), whole_dims("y", to.len()));
        let mut rule = Rule::new(op, &format!("x[{x}] -> y[{y}]"))?.linear_in(&["x"])?;

        let (of_from, of_to) = rule.names.split_at_mut(from.len());
        for (name, extent) in of_to.iter_mut().zip(to) {
            name.extent = Some(*extent);
        }
        for (first, becomes) in firsts(from, to) {
            of_from[first].whole = false;
            of_to[becomes].whole = false;
            // Cut together, in proportion.
            of_to[becomes].groups = Some(first);
        }
        Ok(rule)
    }
}

/// None where nothing could count them.
fn elements(shape: &[usize]) -> Option<usize> {
    let product = |product: usize, extent: &usize| product.checked_mul(*extent);
    match shape.contains(&0) {
        true => Some(0),
        false => shape.iter().try_fold(1, product),
    }
}

/// `x0! x1!`.
fn whole_dims(tensor: &str, rank: usize) -> String {
    let dims = (0..rank).map(|dim| format!("{tensor}{dim}!"));
    dims.collect::<Vec<_>>().join(" ")
}

/// Where runs of dims of equal products begin on both sides. Dims of one element belong to nothing.
fn firsts(from: &[usize], to: &[usize]) -> Vec<(usize, usize)> {
    let mut pairs = Vec::new();
    if from.contains(&0) {
        return pairs;
    }
    let larger = |shape: &[usize], at: usize| (at..shape.len()).find(|dim| shape[*dim] != 1);
    let (mut left, mut right) = (larger(from, 0), larger(to, 0));
    while let (Some(first), Some(becomes)) = (left, right) {
        pairs.push((first, becomes));
        let (mut a, mut b) = (from[first], to[becomes]);
        let (mut i, mut j) = (first + 1, becomes + 1);
        while a != b {
            if a < b {
                a *= from[i];
                i += 1;
            } else {
                b *= to[j];
                j += 1;
            }
        }
        (left, right) = (larger(from, i), larger(to, j));
    }
    pairs
}

fn written(dims: impl Iterator<Item = usize>, whole: impl Fn(usize) -> bool) -> String {
    let dims = dims.map(|dim| format!("d{dim}{}", if whole(dim) { "!" } else { "" }));
    dims.collect::<Vec<_>>().join(" ")
}

fn check_dims(op: &str, rank: usize, dims: &[usize]) -> Result<(), RuleError> {
    for (at, dim) in dims.iter().enumerate() {
        let problem = match dims[..at].contains(dim) {
            true => format!("dim {dim} is named twice"),
            false if *dim >= rank => format!("there is no dim {dim} among {rank}"),
            false => continue,
        };
        return Err(RuleError::Text {
            text: format!("{op} over {dims:?}"),
            problem,
        });
    }
    Ok(())
}
