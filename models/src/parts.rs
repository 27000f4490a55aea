//! What a family builds a decoder of.

use meshgrad_autograd::{Init, ModulePath, Param, Seam};

use crate::attention::Rotary;
use crate::ends::{Embedding, Head};
use crate::layer::Layer;
use crate::layers::RmsNorm;

/// The blocks of a whole decoder.
pub struct Parts {
    /// Of ids.
    pub embedding: Embedding,
    /// In order.
    pub layers: Vec<Layer>,
    /// Predicts the next token.
    pub head: Head,
    /// The rotation of queries and keys.
    pub rotary: Rotary,
}

/// The sizes of an embedding and a head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ends {
    /// v.
    pub vocab_size: usize,
    /// d.
    pub hidden_size: usize,
    /// Added to the mean square in the last norm.
    pub norm_eps: f64,
    /// Whether both have one weight.
    pub is_tied: bool,
    /// The id of padding.
    pub padding: Option<usize>,
    /// Of the weights.
    pub init: Init,
}

impl Parts {
    /// The parts of a model at the path `at`, with ends of these sizes.
    pub fn new(at: &ModulePath, ends: &Ends, layers: Vec<Layer>, rotary: Rotary) -> Parts {
        let (v, d) = (ends.vocab_size, ends.hidden_size);
        let table = Param::new(at.sub("embed_tokens.weight"), [v, d], ends.init);
        let head = Head {
            norm: RmsNorm::new(at.sub("norm"), d, ends.norm_eps),
            input: Seam::new("lm_head.input"),
            weight: match ends.is_tied {
                true => table.clone(),
                false => Param::new("lm_head.weight", [v, d], ends.init),
            },
        };
        let embedding = Embedding {
            input: Seam::new(at.sub("embed_tokens.input")),
            weight: table,
            output: Seam::new(at.sub("embed_tokens.output")),
            padding: ends.padding,
        };
        Parts { embedding, layers, head, rotary }
    }
}
