//! The check of an op's shardings: every op and every view passes it.

use std::sync::Arc;

use meshgrad_mesh::{RuleError, ShardingRule};

use super::error::ShardedTensorError;
use super::memo::{Key, MOST_OPERANDS, ResultTag, Results};
use super::tag::Tag;
use crate::{Result, Signature, Tensor};

/// A call whose shardings are to be checked.
pub(crate) struct Gate<'a> {
    pub(crate) signature: &'static Signature,
    pub(crate) operands: &'a [&'a Tensor],
    /// Whether the last operand takes the sharding of its result.
    pub(crate) last_is_open: bool,
    /// What the rule depends on besides the signature.
    pub(crate) arguments: &'a [usize],
}

impl Gate<'_> {
    /// The shardings of the results; `None` without shardings. `rule` is called for calls that have
    /// not been seen before.
    ///
    /// # Errors
    /// [`ShardedTensorError`].
    pub(crate) fn results(
        &self,
        rule: impl FnOnce() -> Result<ShardingRule, RuleError>,
    ) -> Result<Option<Arc<Results>>> {
        if self.operands.iter().all(|x| x.tag().is_none()) {
            return Ok(None);
        }
        let mut tags = [None; MOST_OPERANDS];
        assert!(self.operands.len() <= MOST_OPERANDS, "{}", self.name());
        for (tag, operand) in tags.iter_mut().zip(self.operands) {
            *tag = operand.tag();
        }
        let tags = &tags[..self.operands.len()];
        self.check_all(tags)?;
        let key = Key {
            signature: std::ptr::from_ref(self.signature) as usize,
            operands: tags,
            arguments: self.arguments,
        };
        let results = key.results(|| {
            let rank = self.one_rank(tags)?;
            let rule = rule().map_err(ShardedTensorError::from)?;
            derive(&rule, tags, rank)
        });
        results.map(Some)
    }

    /// Checks that all operands have a sharding, except one that takes that of its result.
    fn check_all(&self, tags: &[Option<&Tag>]) -> Result<()> {
        let needed = &tags[..tags.len() - usize::from(self.last_is_open)];
        let (Some(without), Some((first, tag))) =
            (needed.iter().position(Option::is_none), first(tags))
        else {
            return Ok(());
        };
        Err(ShardedTensorError::Mixed {
            op: self.name(),
            sharded: self.operand(first),
            sharding: tag.sharding().to_string(),
            unsharded: self.operand(without),
        }
        .into())
    }

    /// The rank of all operands.
    fn one_rank(&self, tags: &[Option<&Tag>]) -> Result<usize> {
        let Some((first, tag)) = first(tags) else {
            return Ok(0); // the gate returns before
        };
        let is_other = |other: &Option<&Tag>| other.is_some_and(|it| it.rank() != tag.rank());
        match tags.iter().position(is_other) {
            None => Ok(tag.rank()),
            Some(other) => Err(ShardedTensorError::Ranks {
                op: self.name(),
                first: self.operand(first),
                first_rank: tag.rank(),
                other: self.operand(other),
                other_rank: tags[other].map_or(0, Tag::rank),
            }
            .into()),
        }
    }

    fn name(&self) -> &'static str {
        self.signature.name()
    }

    fn operand(&self, at: usize) -> String {
        self.signature
            .operand_names()
            .nth(at)
            .unwrap_or_default()
            .to_owned()
    }
}

/// The first operand with a sharding.
fn first<'a>(tags: &[Option<&'a Tag>]) -> Option<(usize, &'a Tag)> {
    let mut with_tag = tags.iter().enumerate();
    with_tag.find_map(|(at, tag)| Some((at, (*tag)?)))
}

fn derive(rule: &ShardingRule, tags: &[Option<&Tag>], rank: usize) -> Result<Results> {
    let shardings: Vec<_> = tags.iter().map(|tag| tag.map(Tag::sharding)).collect();
    let results = rule.derive(&shardings).map_err(ShardedTensorError::from)?;
    let results = results.into_iter().map(|result| match result.shape() {
        Some(shape) => {
            let sharding = result.sharding(&shape).map_err(ShardedTensorError::from)?;
            Ok(ResultTag::Known(Tag::new(sharding, rank)?))
        }
        None => Ok(ResultTag::Open(result)),
    });
    Ok(Results {
        rank,
        results: results.collect::<Result<_>>()?,
    })
}
