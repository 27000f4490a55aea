//! The groups along sets of tokens, as in Megatron-LM's `RankGenerator`.
//!
//! Its `get_ranks("tp-dp")` enumerates masks; here the tokens form a layout, and the lists are the
//! layout's groups. Contents and order are equal: ranks ascend within a group, whatever the order
//! of the tokens, and groups ascend by first rank.

use std::collections::BTreeMap;

use meshgrad_error::Result;
use meshgrad_mesh::RankLayout;

use super::order::{Order, Token, unknown_token};

/// The layouts of tokens with given sizes in an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankGenerator {
    layouts: BTreeMap<Token, RankLayout>,
    world: usize,
}

impl RankGenerator {
    /// A generator for this order. Tokens without a size have size 1.
    ///
    /// # Errors
    /// For a size of 0, and more than [`MAX_RANKS`](meshgrad_mesh::MAX_RANKS) ranks.
    pub fn new(order: &Order, sizes: &BTreeMap<Token, usize>) -> Result<RankGenerator> {
        let tokens: Vec<Token> = order.slowest_first().collect();
        let size = |token: &Token| sizes.get(token).copied().unwrap_or(1);
        let shape: Vec<usize> = tokens.iter().map(size).collect();

        let layouts = RankLayout::row_major(&shape)?;
        Ok(RankGenerator {
            layouts: tokens.into_iter().zip(layouts).collect(),
            world: shape.iter().product(),
        })
    }

    /// The number of ranks.
    pub fn world(&self) -> usize {
        self.world
    }

    /// The layout of tokens joined by `-`, ascending.
    ///
    /// # Errors
    /// For an unknown token.
    pub fn layout(&self, tokens: &str) -> Result<RankLayout> {
        let token = |name| Token::from_name(name).ok_or_else(|| unknown_token(name));
        let tokens: Result<Vec<Token>> = tokens.split('-').map(token).collect();
        Ok(self.of(&tokens?))
    }

    /// All groups of tokens joined by `-`.
    ///
    /// # Errors
    /// For an unknown token.
    pub fn ranks(&self, tokens: &str) -> Result<Vec<Vec<usize>>> {
        Ok(lists(&self.layout(tokens)?, self.world))
    }

    /// The layout of some tokens, ascending.
    pub(super) fn of(&self, tokens: &[Token]) -> RankLayout {
        let chosen = |(token, _): &(&Token, &RankLayout)| tokens.contains(token);
        let layouts = self.layouts.iter().filter(chosen);
        let flat = RankLayout::concat(layouts.map(|(_, layout)| layout));
        flat.expect("tokens of one order").ascending()
    }
}

/// All groups of a layout that divides the world.
pub(super) fn lists(layout: &RankLayout, world: usize) -> Vec<Vec<usize>> {
    layout.groups(world).expect("a layout of the world").collect()
}
