//! The definition of a rule: an op's signature and further properties, such as linearity.

use std::ops::Range;

use meshgrad_error::{Error, Result, bail, error};

use crate::{DimSpec, ParsedSignature, Reduction, TensorSpec};

/// Derives the shardings of an op's results from those of its operands.
///
/// ```
/// use meshgrad_mesh::{Placement, ShardingRule};
///
/// # fn main() -> Result<(), meshgrad_mesh::Error> {
/// let linear = ShardingRule::new("linear", "x[.. i], w[o i] -> y[.. o]")?;
/// let linear = linear.linear_in(&["x", "w"])?;
/// let propagate = |x, w| linear.propagate_axis("tp", 2, &[(&[64, 8], x), (&[32, 8], w)]);
///
/// let column = propagate(Placement::Replicate, Placement::shard(0))?;
/// assert_eq!(column[0], Placement::shard(1));
/// let row = propagate(Placement::shard(1), Placement::shard(1))?;
/// assert_eq!(row[0].to_string(), "partial(sum)");
///
/// let error = propagate(Placement::shard(1), Placement::Replicate).unwrap_err().to_string();
/// assert!(error.contains("`x` is shard(1) (`i`), so `w` must be shard(1), but is replicate"));
/// assert!(error.contains("all_gather `x` along dim 1"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardingRule {
    pub(super) op: String,
    pub(super) operands: Vec<Tensor>,
    pub(super) results: Vec<Tensor>,
    pub(super) names: Vec<Name>,
    pub(super) partial_inputs: Vec<PartialInputs>,
    /// The merged and split dims of a reshape; empty for other ops.
    pub(super) runs: Vec<Run>,
}

/// An operand or result of the signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tensor {
    pub(super) name: String,
    /// [`DimSpec::Named`] is an index into the rule's names.
    pub(super) dims: Vec<DimSpec>,
}

impl Tensor {
    fn new(spec: &TensorSpec) -> Tensor {
        Tensor { name: spec.name.to_owned(), dims: spec.dims.clone() }
    }
}

/// A named dim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) text: String,
    /// It cannot be sharded.
    pub(super) whole: bool,
    /// The reduction that combines the partial values of a result that lacks this dim.
    pub(super) reduction: Reduction,
    /// The dim that this one is sharded together with: each index of that dim owns a block of this
    /// one.
    pub(super) groups: Option<usize>,
    /// The extent, for a dim that no operand has.
    pub(super) extent: Option<usize>,
}

/// Operands that may be partial if all of them are, and the reductions that the op commutes with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PartialInputs {
    pub(super) operands: Vec<usize>,
    pub(super) reductions: &'static [Reduction],
}

/// Adjacent dims of the operand that become adjacent dims of the result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) from: Range<usize>,
    pub(super) to: Range<usize>,
}

/// Linear ops commute with sums and means.
pub(super) const LINEAR: &[Reduction] = &[Reduction::Sum, Reduction::Avg];

impl ShardingRule {
    /// The rule of an op with a signature like `x: F[.. i], w: F[o i] -> y: F[.. o]`. Dtypes are
    /// optional and ignored.
    ///
    /// | written | along one axis |
    /// |---|---|
    /// | `i` | can be sharded, in all operands that have it; a result without it is a sum over it |
    /// | `i!`, `2` | must be whole; one `!` applies to every `i` |
    /// | `..` | leading dims: each can be sharded |
    /// | `~` | broadcast: can be sharded, except in an operand whose extent there is 1 |
    /// | `*` | any dims: must be whole; if a result has `*`, no dim can be sharded |
    ///
    /// An operand with the name of a result is modified in place, so both have one placement.
    ///
    /// # Errors
    /// For text that is not a signature.
    pub fn new(op: &str, signature: &str) -> Result<ShardingRule> {
        Ok(ShardingRule::from_signature(op, &ParsedSignature::parse(signature)?))
    }

    /// The rule of an op with a parsed signature; see [`ShardingRule::new`].
    pub fn from_signature(op: &str, signature: &ParsedSignature) -> ShardingRule {
        let tensors = || signature.operands.iter().chain(&signature.results);
        // A dim that one tensor has twice, such as a diagonal, cannot be sharded.
        let repeated = |dim: DimSpec| {
            tensors().any(|tensor| tensor.dims.iter().filter(|other| **other == dim).count() > 1)
        };
        let named = signature.dims.iter().enumerate();
        let names = named.map(|(at, dim)| Name {
            text: dim.name.to_owned(),
            whole: dim.whole || repeated(DimSpec::Named(at)),
            reduction: Reduction::Sum,
            groups: None,
            extent: None,
        });
        ShardingRule {
            op: op.to_owned(),
            operands: signature.operands.iter().map(Tensor::new).collect(),
            results: signature.results.iter().map(Tensor::new).collect(),
            names: names.collect(),
            partial_inputs: Vec::new(),
            runs: Vec::new(),
        }
    }

    /// Declares the op linear in each of these operands, with the others held fixed. Operands
    /// joined by `+` are linear together: `["a", "b"]` for a product, `["a + b"]` for a sum. All
    /// results must be linear in them.
    ///
    /// # Errors
    /// For a name that no operand has.
    pub fn linear_in(mut self, operands: &[&str]) -> Result<ShardingRule> {
        for together in operands {
            let together = together.split('+').map(|name| self.operand(name.trim()));
            let operands = together.collect::<Result<_, _>>()?;
            self.partial_inputs.push(PartialInputs { operands, reductions: LINEAR });
        }
        Ok(self)
    }

    /// Declares dim `many` a multiple of dim `groups`: each index of `groups` owns a block of
    /// `many`, as key heads own blocks of query heads. Both are sharded together, or `many` alone
    /// when the extent of `groups` is 1, or when outer axes have sharded it evenly to 1.
    ///
    /// # Errors
    /// For a name that no dim has.
    pub fn grouped(mut self, many: &str, groups: &str) -> Result<ShardingRule> {
        let (many, groups) = (self.dim(many)?, self.dim(groups)?);
        self.names[many].groups = Some(groups);
        Ok(self)
    }

    /// The op's name.
    pub fn op(&self) -> &str {
        &self.op
    }

    /// The operands' names.
    pub fn operands(&self) -> impl Iterator<Item = &str> {
        self.operands.iter().map(|operand| operand.name.as_str())
    }

    /// The results' names.
    pub fn results(&self) -> impl Iterator<Item = &str> {
        self.results.iter().map(|result| result.name.as_str())
    }

    fn operand(&self, name: &str) -> Result<usize> {
        let found = self.operands.iter().position(|known| known.name == name);
        found.ok_or_else(|| {
            let operands: Vec<&str> = self.operands().collect();
            let (op, operands) = (&self.op, operands.join(", "));
            error!(Invalid, "{op}: unknown operand `{name}` (operands: {operands})")
        })
    }

    fn dim(&self, name: &str) -> Result<usize> {
        let found = self.names.iter().position(|known| known.text == name);
        found.ok_or_else(|| {
            let dims: Vec<&str> = self.names.iter().map(|name| name.text.as_str()).collect();
            error!(Invalid, "{}: unknown dim `{name}` (dims: {})", self.op, dims.join(", "))
        })
    }

    /// The result that operand `at` becomes, if it is modified in place.
    pub(super) fn in_place(&self, at: usize) -> Option<usize> {
        let name = &self.operands[at].name;
        self.results.iter().position(|result| result.name == *name)
    }
}

pub(super) fn check_count(op: &str, what: &str, tensors: &[Tensor], given: usize) -> Result<()> {
    let count = tensors.len();
    if count != given {
        let names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        bail!(Invalid, "{op}: expected {count} {what} ({}), got {given}", names.join(", "));
    }
    Ok(())
}

pub(super) fn wrong_dims(op: &str, tensor: &str, needed: usize, shape: &[usize]) -> Error {
    error!(Invalid, "{op}: `{tensor}` needs {needed} dims, but its shape is {shape:?}")
}
