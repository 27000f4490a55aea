//! Rank order: the order string of Megatron-LM.
//!
//! In `tp-cp-ep-dp-pp`, tp varies fastest over consecutive ranks and pp slowest: the axes of the
//! mesh are (pp, dp, cp, tp). One string orders two meshes: the mesh of experts, which has `ep` but
//! neither `cp` nor `sp`, and the mesh of all other parameters, which has no `ep`.

use std::fmt;

use meshgrad_error::{Error, Result, error};

/// A token of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Token {
    /// Tensor parallelism; for experts, expert tensor parallelism.
    Tp,
    /// Pipeline stages.
    Pp,
    /// Data parallelism, replicated and sharded; for experts, the expert replicas.
    Dp,
    /// Expert parallelism. Its size is 1 outside experts.
    Ep,
    /// Context parallelism, sharded and replicated. Its size is 1 for experts.
    Cp,
    /// Sequence parallelism (Ulysses). Its size is 1 for experts.
    Sp,
}

impl Token {
    /// All tokens, in the order in which Megatron-LM appends those missing from an order.
    pub const ALL: [Token; 6] = [Token::Tp, Token::Pp, Token::Dp, Token::Ep, Token::Cp, Token::Sp];

    /// The name in an order string.
    pub fn name(self) -> &'static str {
        match self {
            Token::Tp => "tp",
            Token::Pp => "pp",
            Token::Dp => "dp",
            Token::Ep => "ep",
            Token::Cp => "cp",
            Token::Sp => "sp",
        }
    }

    /// The token with this name.
    pub fn from_name(name: &str) -> Option<Token> {
        Token::ALL.into_iter().find(|token| token.name() == name)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An order of all tokens, fastest first.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Order {
    /// Each token once.
    tokens: Vec<Token>,
    /// The number of tokens in the string; the others were appended.
    given: usize,
}

impl Order {
    /// The default: as in Megatron-LM, with sp between tp and cp.
    pub const DEFAULT: &'static str = "tp-sp-cp-ep-dp-pp";
    /// The default of Megatron-LM.
    pub const MEGATRON: &'static str = "tp-cp-ep-dp-pp";
    /// The default of DeepSpeed's parallel state.
    pub const DEEPSPEED: &'static str = "tp-ep-dp-pp";

    /// Parses an order: tokens joined by `-`, fastest first, case-insensitive. Missing tokens are
    /// appended, as in Megatron-LM; their degrees must be 1.
    ///
    /// # Errors
    /// All errors in the string.
    pub fn parse(text: &str) -> Result<Order, Vec<Error>> {
        let (mut tokens, mut errors) = (Vec::new(), Vec::new());
        let lower = text.trim().to_lowercase();
        for name in lower.split('-').filter(|_| !lower.is_empty()) {
            let error = match Token::from_name(name) {
                None => unknown_token(name),
                Some(token) if tokens.contains(&token) => {
                    error!(Invalid, "token `{token}` occurs twice")
                }
                Some(token) => {
                    tokens.push(token);
                    continue;
                }
            };
            if !errors.contains(&error) {
                errors.push(error);
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }

        let given = tokens.len();
        let added = Token::ALL.into_iter().filter(|token| !tokens.contains(token));
        let added: Vec<Token> = added.collect();
        tokens.extend(added);
        Ok(Order { tokens, given })
    }

    /// All tokens, slowest first: the order of mesh axes.
    pub fn slowest_first(&self) -> impl Iterator<Item = Token> + '_ {
        self.tokens.iter().rev().copied()
    }

    /// The tokens missing from the string.
    pub fn added(&self) -> &[Token] {
        &self.tokens[self.given..]
    }
}

impl Default for Order {
    fn default() -> Order {
        Order::parse(Order::DEFAULT).expect("a valid order")
    }
}

/// All tokens, fastest first.
impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.tokens.iter().map(|token| token.name()).collect();
        f.write_str(&names.join("-"))
    }
}

pub(super) fn unknown_token(name: &str) -> Error {
    error!(
        Invalid,
        "unknown token `{name}`: use tp, cp, sp, ep, dp and pp, joined by `-`, fastest first"
    )
}
