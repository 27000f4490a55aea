//! The ops and their signatures. Each file has one family, with its gradient ops.
//!
//! An op checks its operands, allocates its results and workspaces, and runs its kernels, unless
//! the device is a meta device. No op reads a value to decide a shape.
//!
//! # Errors
//! All ops fail when their operands do not match the signature, are on several devices, or have
//! shardings that the op cannot combine; when no kernel of the device supports them; and when memory
//! runs out. The `# Errors` of an op are those that it adds.

pub(crate) mod accumulator;
mod arg_reduce;
pub(crate) mod async_read;
mod attention;
mod binary;
mod copy;
mod cross_entropy;
mod cumsum;
mod elementwise;
mod embedding;
mod grouped_matmul;
mod indexing;
mod into;
mod layer_norm;
mod matmul;
mod moe;
mod norm;
mod norm_rope;
mod operators;
mod optimizer;
mod random;
mod reduce;
mod rope;
pub(crate) mod row_blocks;
mod row_function;
mod softmax;
mod sort;
mod swiglu;
mod unary;
mod visible_keys;

pub use arg_reduce::*;
pub use attention::*;
pub use binary::*;
pub use copy::*;
pub use cross_entropy::*;
pub use cumsum::*;
pub use elementwise::map;
pub use embedding::*;
pub use grouped_matmul::*;
pub use indexing::*;
pub use layer_norm::*;
pub use matmul::*;
pub use moe::*;
pub use norm::*;
pub use norm_rope::*;
pub use optimizer::*;
pub use random::*;
pub use reduce::*;
pub use rope::*;
pub use row_function::{map_rows, sum_rows_into};
pub use softmax::*;
pub use sort::*;
pub use swiglu::*;
pub use unary::*;
pub use visible_keys::*;

pub(crate) use into::{dense_last, dense_rows, summed_in};

use crate::Signature;

/// The signatures of all ops, by family.
pub fn signatures() -> impl Iterator<Item = &'static Signature> {
    let families = [
        unary::SIGNATURES,
        &binary::signatures(),
        attention::SIGNATURES,
        arg_reduce::SIGNATURES,
        copy::SIGNATURES,
        cross_entropy::SIGNATURES,
        cumsum::SIGNATURES,
        embedding::SIGNATURES,
        matmul::SIGNATURES,
        norm::SIGNATURES,
        norm_rope::SIGNATURES,
        grouped_matmul::SIGNATURES,
        indexing::SIGNATURES,
        layer_norm::SIGNATURES,
        moe::SIGNATURES,
        optimizer::SIGNATURES,
        random::SIGNATURES,
        reduce::SIGNATURES,
        rope::SIGNATURES,
        softmax::SIGNATURES,
        sort::SIGNATURES,
        swiglu::SIGNATURES,
        visible_keys::SIGNATURES,
    ];
    families.concat().into_iter()
}
