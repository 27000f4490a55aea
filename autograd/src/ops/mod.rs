//! Ops on [`Var`](crate::Var)s, which are recorded on the tape, and on
//! [`Tensor`](meshgrad_runtime::Tensor)s, which are not.
//!
//! Ops with a gradient are listed below by name. Each computes with [`meshgrad_runtime::ops`] and
//! declares what it saves for backward. All other ops of the runtime are re-exported: those without
//! a gradient, and those that compute gradients.

mod attention;
mod attention_scores;
mod collectives;
mod cross_entropy;
mod dropout;
mod elementwise;
mod embedding;
mod exchange;
mod global_norm;
mod grouped_matmul;
mod indexing;
mod matmul;
mod moe;
mod norm;
mod order;
mod overlap;
mod redistribute;
mod reduce;
mod ring_attention;
mod rope;
mod shape;
mod softmax;
mod swiglu;
mod triangle;
mod unary;

use unary::export;

pub use attention::{attention, attention_with_lse};
pub use attention_scores::attention_with_scores;
pub use collectives::{
    all_gather_rows, all_gather_rows_of, all_to_all_rows, all_to_all_slots, reduce_scatter_rows,
    send_recv,
};
pub use cross_entropy::{cross_entropy, linear_cross_entropy};
pub use dropout::dropout;
pub use elementwise::{add, affine, clamp, div, maximum, minimum, mul, neg, sub, where_};
pub use embedding::{embedding, embedding_with_padding};
pub use global_norm::global_norm;
pub use grouped_matmul::grouped_matmul;
pub use indexing::{concat, gather, index_select, reorder, scatter_add, split};
pub use matmul::{linear, matmul};
pub use moe::{add_rows, permute_tokens, router_top_k, unpermute_tokens};
pub use norm::{add_rms_norm, layer_norm, residual_rms_norm, rms_norm};
pub use order::{cumsum, sort};
pub use overlap::{linear_redistribute, redistribute_linear};
pub use redistribute::{add_bias, redistribute};
pub use reduce::{logsumexp, max, mean, min, sum};
pub use ring_attention::{Ring, RingPart, ring_attention};
pub use rope::{rms_norm_rope, rope};
pub use shape::{
    broadcast_to, cast, chunk, contiguous, merge_first, merge_last, merge_leading, permute,
    reshape, slice, split_last, transpose,
};
pub use softmax::{log_softmax, softmax};
pub use swiglu::swiglu;
pub use triangle::{tril, triu};
meshgrad_runtime::unary_ops!(export);

#[doc(no_inline)]
pub use meshgrad_runtime::ops::*;
