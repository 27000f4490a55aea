//! The check of an op's shardings: every op and every view passes it.

use std::sync::Arc;

use meshgrad_error::{bail, error};
use meshgrad_mesh::ShardingRule;

use super::memo::{Key, ResultTag, Results};
use super::tag::Tag;
use crate::Result;

/// A call whose shardings are to be checked.
pub(crate) struct Gate<'a> {
    pub(crate) op: &'static str,
    /// Identifies the op: the address of a static that only this op has.
    pub(crate) id: usize,
    pub(crate) operands: &'a [Option<&'a Tag>],
    /// The name of an operand, for errors.
    pub(crate) name: &'a dyn Fn(usize) -> String,
    /// Whether the last operand takes the partial values of its result, and its shards too if it
    /// has no sharding.
    pub(crate) last_is_open: bool,
    /// The arguments, other than the operands' shardings, that the op's rule depends on.
    pub(crate) arguments: &'a [usize],
}

impl Gate<'_> {
    /// The shardings of the results; `None` if no operand has one. `rule` is called only if the
    /// thread does not remember an equal call.
    ///
    /// # Errors
    /// When the shardings do not fit.
    pub(crate) fn results(
        &self,
        rule: &dyn Fn() -> Result<ShardingRule>,
    ) -> Result<Option<Arc<Results>>> {
        let Some(first) = self.operands.iter().position(Option::is_some) else {
            return Ok(None);
        };
        self.check_all(first)?;
        let key = Key { op: self.id, operands: self.operands, arguments: self.arguments };
        let results = key.results(&|| {
            let rank = self.one_rank(first)?;
            let rule = rule()?;
            self.derive(&rule, rank)
        });
        results.map(Some)
    }

    /// Checks that every operand has a sharding, except the last one if it is open.
    fn check_all(&self, first: usize) -> Result<()> {
        let needed = self.operands.len() - usize::from(self.last_is_open);
        let Some(without) = self.operands[..needed].iter().position(Option::is_none) else {
            return Ok(());
        };
        bail!(
            Invalid,
            "{}: `{}` is sharded ({}), but `{}` has no sharding; state it with \
             Tensor::with_sharding, or create the tensor inside with_mesh",
            self.op,
            (self.name)(first),
            self.operands[first].map(|tag| tag.sharding().to_string()).unwrap_or_default(),
            (self.name)(without)
        )
    }

    /// The rank of the operands.
    ///
    /// # Errors
    /// When they have different ranks.
    fn one_rank(&self, first: usize) -> Result<usize> {
        let rank_of = |at: usize| self.operands[at].map(Tag::rank);
        let rank = rank_of(first).unwrap_or(0);
        let is_other = |at: &usize| rank_of(*at).is_some_and(|other| other != rank);
        match (0..self.operands.len()).find(is_other) {
            None => Ok(rank),
            Some(other) => Err(error!(
                Invalid,
                "{}: `{}` belongs to rank {rank}, but `{}` to rank {}",
                self.op,
                (self.name)(first),
                (self.name)(other),
                rank_of(other).unwrap_or(0)
            )),
        }
    }

    fn derive(&self, rule: &ShardingRule, rank: usize) -> Result<Results> {
        let shardings: Vec<_> = self.operands.iter().map(|tag| tag.map(Tag::sharding)).collect();
        let results = match self.last_is_open {
            true => rule.derive_into(&shardings),
            false => rule.derive(&shardings),
        };
        let results = results?;
        let results = results.into_iter().map(|result| match result.shape() {
            Some(shape) => {
                let sharding = result.sharding(&shape)?;
                Ok(ResultTag::Known(Tag::new(sharding, rank)?))
            }
            None => Ok(ResultTag::Open(Box::new(result))),
        });
        Ok(Results { rank, results: results.collect::<Result<_>>()? })
    }
}
