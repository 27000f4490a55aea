//! Which ranks are neighbours: the order string of Megatron-LM.
//!
//! `tp-cp-ep-dp-pp` says that ranks which follow each other differ in tp first, and that pp changes
//! last. That is a mesh read backwards: its axes are (pp, dp, cp, tp), the last fastest. One string
//! orders two meshes, that of experts with `ep` and without `cp` and `sp`, and the other without
//! `ep`.

use std::fmt;

/// What an order is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Token {
    /// Tensor parallelism; of experts, theirs.
    Tp,
    /// Pipeline stages.
    Pp,
    /// Data parallelism, replicated and sharded; of experts, their replicas.
    Dp,
    /// Experts apart. 1 wherever there are no experts.
    Ep,
    /// Context parallelism, sharded and replicated. 1 for experts.
    Cp,
    /// Sequence parallelism (Ulysses). 1 for experts.
    Sp,
}

impl Token {
    /// All of them, in the order in which Megatron-LM adds those that an order lacks.
    pub const ALL: [Token; 6] = [
        Token::Tp,
        Token::Pp,
        Token::Dp,
        Token::Ep,
        Token::Cp,
        Token::Sp,
    ];

    /// As it is written in an order.
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

    /// The one that is written so.
    pub fn from_name(name: &str) -> Option<Token> {
        Token::ALL.into_iter().find(|token| token.name() == name)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An order of all tokens, the fastest first.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Order {
    /// Each token once.
    tokens: Vec<Token>,
    /// How many of them were given; the others were added.
    given: usize,
}

/// What is wrong with an order string.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// A token that there is not.
    #[error("`{0}` is none of tp, cp, sp, ep, dp and pp, joined by `-`, the fastest first")]
    Unknown(String),
    /// A token that was written twice.
    #[error("`{0}` stands in it twice: write it once")]
    Twice(Token),
}

impl Order {
    /// The order when none is given: as in Megatron-LM, with sp between tp and cp.
    pub const DEFAULT: &'static str = "tp-sp-cp-ep-dp-pp";
    /// The order of Megatron-LM when none is given.
    pub const MEGATRON: &'static str = "tp-cp-ep-dp-pp";
    /// The order of DeepSpeed's parallel state when none is given.
    pub const DEEPSPEED: &'static str = "tp-ep-dp-pp";

    /// Reads an order: tokens joined by `-`, the fastest first, in either case. Tokens that it
    /// lacks are added at the end, as Megatron-LM does; their degrees must be 1.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn parse(text: &str) -> Result<Order, Vec<OrderError>> {
        let (mut tokens, mut errors) = (Vec::new(), Vec::new());
        let lower = text.trim().to_lowercase();
        for name in lower.split('-').filter(|_| !lower.is_empty()) {
            let error = match Token::from_name(name) {
                None => OrderError::Unknown(name.to_owned()),
                Some(token) if tokens.contains(&token) => OrderError::Twice(token),
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
        let added = Token::ALL
            .into_iter()
            .filter(|token| !tokens.contains(token));
        let added: Vec<Token> = added.collect();
        tokens.extend(added);
        Ok(Order { tokens, given })
    }

    /// All tokens, the fastest first.
    pub fn fastest_first(&self) -> &[Token] {
        &self.tokens
    }

    /// All tokens, the slowest first: as the axes of a mesh stand.
    pub fn slowest_first(&self) -> impl Iterator<Item = Token> + '_ {
        self.tokens.iter().rev().copied()
    }

    /// The tokens that the string lacked.
    pub fn added(&self) -> &[Token] {
        &self.tokens[self.given..]
    }
}

impl Default for Order {
    fn default() -> Order {
        Order::parse(Order::DEFAULT).expect("a valid order")
    }
}

/// All tokens, the fastest first.
impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.tokens.iter().map(|token| token.name()).collect();
        f.write_str(&names.join("-"))
    }
}
