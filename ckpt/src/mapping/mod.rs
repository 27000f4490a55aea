//! Maps between the tensor names of two layouts.
//!
//! A map is a short text. Each rule is an equation between two sides: our names on the left, the
//! names in the source on the right. Names have captures, and operations apply to them:
//!
//! ```
//! use meshgrad_ckpt::Dtype;
//! use meshgrad_ckpt::mapping::{Mapping, TensorSpec, AllowedProblems};
//!
//! let map = Mapping::parse("
//!     embed.weight                = model.embed_tokens.weight
//!     lm_head.weight              = tied(lm_head.weight, model.embed_tokens.weight)
//!     [layers.{l}. = model.layers.{l}.]
//!     attention.qkv.weight        = concat(self_attn.q_proj.weight, self_attn.k_proj.weight,
//!                                          self_attn.v_proj.weight, shares=8:1:1)
//!     experts.down                = stack(mlp.experts.{e}.down_proj.weight, each=e)
//! ")?;
//!
//! let tensor = |name: &str, shape: &[u64]| TensorSpec::new(name, Dtype::BF16, shape);
//! let sources = [
//!     tensor("model.embed_tokens.weight", &[1000, 64]),
//!     tensor("model.layers.0.self_attn.q_proj.weight", &[128, 64]),
//!     tensor("model.layers.0.self_attn.k_proj.weight", &[16, 64]),
//!     tensor("model.layers.0.self_attn.v_proj.weight", &[16, 64]),
//!     tensor("model.layers.0.mlp.experts.0.down_proj.weight", &[64, 32]),
//!     tensor("model.layers.0.mlp.experts.1.down_proj.weight", &[64, 32]),
//! ];
//! let bound = map.bind(&sources, None, &AllowedProblems::none())?;
//! let outputs: Vec<_> = bound.outputs().map(|it| (it.name, it.shape)).collect();
//! assert_eq!(outputs[1], ("layers.0.attention.qkv.weight".into(), vec![160, 64]));
//! assert_eq!(outputs[2], ("layers.0.experts.down".into(), vec![2, 64, 32]));
//! assert_eq!(outputs.len(), 4);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! An equation can be solved for either side, so the inverse need not be written:
//! [`Bound::inverse`] derives it and checks it element by element.

mod arguments;
mod bind;
mod bound;
mod captures;
mod computations;
mod coverage;
mod declared;
mod evaluate;
mod named;
mod numbering;
mod parse;
mod report;
mod solve;
mod template;
mod term;
#[cfg(test)]
mod tests;
mod text;
mod unmatched;

pub use bound::{Bound, RoundTrip};
pub use captures::{Captures, Value};
pub use report::{AllowedProblems, Problem, ProblemKind, Report};
pub use template::{Kind, Template};

use meshgrad_error::Result;
use serde::{Deserialize, Serialize};

use crate::{Dtype, TensorInfo};
use term::Term;

/// Rules between two layouts of names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mapping {
    rules: Vec<Rule>,
}

/// An equation: both terms are the same tensor.
#[derive(Clone, Debug, PartialEq)]
struct Rule {
    left: Term,
    right: Term,
    line: usize,
    /// Written with `?=`: it may match no tensor.
    optional: bool,
}

/// A tensor's name, dtype and shape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorSpec {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub dtype: Dtype,
    /// Its extents, row-major.
    pub shape: Vec<u64>,
}

impl From<&TensorInfo> for TensorSpec {
    fn from(tensor: &TensorInfo) -> TensorSpec {
        TensorSpec {
            name: tensor.name.clone(),
            dtype: tensor.dtype,
            shape: tensor.shape.iter().map(|extent| *extent as u64).collect(),
        }
    }
}

impl TensorSpec {
    /// A tensor of this name, dtype and shape.
    pub fn new(name: &str, dtype: Dtype, shape: &[u64]) -> TensorSpec {
        TensorSpec { name: name.to_owned(), dtype, shape: shape.to_vec() }
    }
}

impl Mapping {
    /// Parses a map.
    ///
    /// # Errors
    /// When the text is not a map; the message begins with line and column.
    pub fn parse(map: &str) -> Result<Mapping> {
        let rules = parse::rules(map)?;
        Ok(Mapping { rules })
    }

    /// The map that keeps every name and tensor.
    pub fn identity() -> Mapping {
        let name = Template::whole("name");
        Mapping {
            rules: vec![Rule {
                left: Term::Name(name.clone()),
                right: Term::Name(name),
                line: 1,
                optional: false,
            }],
        }
    }

    /// Swaps the two sides of each equation. Binding checks that they can be solved in that
    /// direction.
    pub fn reversed(&self) -> Mapping {
        let reversed = |rule: &Rule| Rule {
            left: rule.right.clone(),
            right: rule.left.clone(),
            line: rule.line,
            optional: rule.optional,
        };
        let rules = self.rules.iter().map(reversed).collect();
        Mapping { rules }
    }
}
