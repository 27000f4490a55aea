//! What an op does with places: which placements of its operands it computes on as they are, and
//! how its results lie then.
//!
//! Ops never communicate by themselves. So along one axis of a mesh there are three things that an
//! op can do, each rank for itself, and all of them follow from its signature:
//!
//! - **Cut.** A dim that is cut in the same way in all operands that have it is cut in the results.
//!   A result without the dim is a sum over it: every rank has a part of it, `partial(sum)`.
//! - **Pass parts on.** If the op is linear in an operand, parts of that operand's sum give parts
//!   of the results' sums. `a b` is linear in `a` and in `b`, `a + b` in both together.
//! - **Repeat.** All ranks have all of everything.
//!
//! A linear layer `x[.. i], w[o i] -> y[.. o]` that is linear in x and in w so has, on each axis,
//! all that is known as data parallel (`..` is cut), column parallel (`o`) and row parallel (`i`),
//! and nobody has written that down. What an op cannot do is an error that says why, and which
//! transitions lead to something that it can do.
//!
//! Along several axes the rules hold for each; [`Rule::places`] puts them together.
//!
//! Arguments beside the operands that say where something is (the region of random values, the
//! first class of a vocabulary's part) are those of the rank's part.

mod axis;
mod bound;
mod error;
mod given;
mod parse;
mod remedy;
mod several;
mod ways;

pub use error::{Misplaced, Problem, RuleError};
pub use remedy::{Change, Remedy};

use bound::Bound;

use crate::{Placement, Reduction};

/// How the operands of an op may lie on a mesh, and how its results lie then.
///
/// ```
/// use meshgrad_mesh::{Placement, Rule};
///
/// # fn main() -> Result<(), meshgrad_mesh::RuleError> {
/// let linear = Rule::new("linear", "x[.. i], w[o i] -> y[.. o]")?.linear_in(&["x", "w"])?;
/// let infer = |x, w| linear.infer("tp", 2, &[(&[64, 8], x), (&[32, 8], w)]);
///
/// let column = infer(Placement::Replicate, Placement::shard(0))?;
/// assert_eq!(column[0], Placement::shard(1));
/// let row = infer(Placement::shard(1), Placement::shard(1))?;
/// assert_eq!(row[0].to_string(), "partial(sum)");
///
/// let error = infer(Placement::shard(1), Placement::Replicate).unwrap_err().to_string();
/// assert!(error.contains("`x` is shard(1) (`i`), so `w` must be shard(1), but is replicate"));
/// assert!(error.contains("all_gather `x` along dim 1"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    op: String,
    operands: Vec<Written>,
    results: Vec<Written>,
    names: Vec<Name>,
    passes: Vec<Pass>,
}

/// An operand or result, as written.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Written {
    name: String,
    dims: Vec<Dim>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dim {
    /// An index into the rule's names.
    Name(usize),
    Fixed(usize),
    Leading,
    Broadcast,
    Anything,
}

/// A dim that has a name.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Name {
    text: String,
    /// It cannot be cut.
    whole: bool,
    /// What makes one of the parts that ranks have of a result without it.
    reduction: Reduction,
    /// It is cut where this other name is, since each of that one's indices owns a block of its.
    groups: Option<usize>,
    /// Its extent, where no operand has it.
    extent: Option<usize>,
}

/// Operands that may be parts, all of them at once, and what the results then are parts of.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pass {
    operands: Vec<usize>,
    reductions: &'static [Reduction],
}

/// Sums and means of parts pass through what is linear.
const LINEAR: &[Reduction] = &[Reduction::Sum, Reduction::Avg];

impl Rule {
    /// The rule of an op called `op` with a signature like `x: F[.. i], w: F[o i] -> y: F[.. o]`;
    /// dtypes may be left out and do not matter.
    ///
    /// | written | along one axis |
    /// |---|---|
    /// | `i` | may be cut, in all operands that have it; a result without it is a sum over it |
    /// | `i!`, `2` | must be whole; `!` anywhere counts everywhere |
    /// | `..` | leading dims: each may be cut |
    /// | `~` | broadcast: dims may be cut, but in an operand that has one element there |
    /// | `*` | related to nothing: must be whole, and nothing else can be cut with such a result |
    ///
    /// An operand with the name of a result is changed in place, so it must lie as the result does.
    ///
    /// # Errors
    /// [`RuleError::Text`].
    pub fn new(op: &str, signature: &str) -> Result<Rule, RuleError> {
        parse::rule(op, signature)
    }

    /// The same rule of an op that is linear in these operands, each with the others held fixed; in
    /// several together where they are written as a sum: `["a", "b"]` for a product, `["a + b"]`
    /// for a sum. All results must be linear in them.
    ///
    /// # Errors
    /// [`RuleError::UnknownOperand`].
    pub fn linear_in(mut self, operands: &[&str]) -> Result<Rule, RuleError> {
        for together in operands {
            let together = together.split('+').map(|name| self.operand(name.trim()));
            let operands = together.collect::<Result<_, _>>()?;
            self.passes.push(Pass {
                operands,
                reductions: LINEAR,
            });
        }
        Ok(self)
    }

    /// The same rule where dim `many` is a multiple of dim `groups`, and each index of `groups`
    /// owns a block of `many`, as query heads share key heads: both are cut together, or `many`
    /// alone where there is one group.
    ///
    /// # Errors
    /// [`RuleError::UnknownDim`].
    pub fn grouped(mut self, many: &str, groups: &str) -> Result<Rule, RuleError> {
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

    /// How the results lie along an axis of `ranks` ranks, from shape and placement of each
    /// operand.
    ///
    /// # Errors
    /// [`RuleError::Misplaced`], with what would help; [`RuleError::Count`], [`RuleError::Dims`],
    /// [`RuleError::Extents`] for operands that are not the op's.
    pub fn infer(
        &self,
        axis: &str,
        ranks: usize,
        operands: &[(&[usize], Placement)],
    ) -> Result<Vec<Placement>, RuleError> {
        let shapes: Vec<&[usize]> = operands.iter().map(|(shape, _)| *shape).collect();
        let placements: Vec<Placement> = operands.iter().map(|(_, at)| at.clone()).collect();
        let bound = Bound::new(self, &shapes)?;
        Ok(axis::infer(&bound, axis, ranks, &placements)?.results)
    }

    fn operand(&self, name: &str) -> Result<usize, RuleError> {
        let found = self.operands.iter().position(|known| known.name == name);
        found.ok_or_else(|| RuleError::UnknownOperand {
            op: self.op.clone(),
            name: name.to_owned(),
            operands: self.operand_names(),
        })
    }

    fn dim(&self, name: &str) -> Result<usize, RuleError> {
        let found = self.names.iter().position(|known| known.text == name);
        found.ok_or_else(|| RuleError::UnknownDim {
            op: self.op.clone(),
            name: name.to_owned(),
            dims: self.names.iter().map(|name| name.text.clone()).collect(),
        })
    }

    fn operand_names(&self) -> Vec<String> {
        self.operands().map(str::to_owned).collect()
    }

    /// The result that operand `at` becomes, if it is changed in place.
    fn in_place(&self, at: usize) -> Option<usize> {
        let name = &self.operands[at].name;
        self.results.iter().position(|result| result.name == *name)
    }
}
