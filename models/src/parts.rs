//! What a family builds a decoder of.

use meshgrad_autograd::{Init, ModulePath, Param, Seam};

use crate::attention::Rotary;
use crate::ends::{Embedding, Head};
use crate::layer::Layer;
use crate::norms::Norm;

/// The blocks of a whole decoder.
pub struct Parts {
    /// Of ids.
    pub embedding: Embedding,
    /// In order.
    pub layers: Vec<Layer>,
    /// Predicts the next token.
    pub head: Head,
    /// The rotations of queries and keys, of which each layer names one.
    pub rotations: Vec<Rotary>,
}

/// The sizes of an embedding and a head.
#[derive(Clone)]
pub struct Ends {
    /// v.
    pub vocab_size: usize,
    /// d.
    pub hidden_size: usize,
    /// The norm after the last layer.
    pub norm: Norm,
    /// Whether both have one weight.
    pub is_tied: bool,
    /// The id of padding.
    pub padding: Option<usize>,
    /// The factor of embeddings.
    pub scale: f64,
    /// The number of learned positions; 0 without.
    pub positions: usize,
    /// Of the weights.
    pub init: Init,
}

impl Parts {
    /// The parts of a model at the path `at`, with ends of these sizes.
    pub fn new(at: &ModulePath, ends: Ends, layers: Vec<Layer>, rotations: Vec<Rotary>) -> Parts {
        let (v, d) = (ends.vocab_size, ends.hidden_size);
        let positions =
            || Param::new(at.sub("embed_positions.weight"), [ends.positions, d], ends.init);
        let table = Param::new(at.sub("embed_tokens.weight"), [v, d], ends.init);
        let head = Head {
            norm: ends.norm,
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
            scale: ends.scale,
            positions: (ends.positions > 0).then(positions),
        };
        Parts { embedding, layers, head, rotations }
    }
}
