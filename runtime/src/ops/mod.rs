//! The ops: what tensors are computed with. A file is a family; in each, a signature, its op, and the ops for its
//! gradients stand together.
//!
//! An op checks its operands, takes memory for its results and its workspace, and then computes, unless its device
//! computes nothing. No op reads a value to decide a shape.

mod attention;
mod binary;
mod copy;
mod matmul;
mod reduce;
mod unary;

pub use attention::*;
pub use binary::*;
pub use copy::*;
pub use matmul::*;
pub use reduce::*;
pub use unary::*;

pub(crate) use binary::contiguous_range;

use crate::Signature;

/// The signatures of all ops, family by family.
pub fn signatures() -> impl Iterator<Item = &'static Signature> {
    let families = [
        unary::SIGNATURES,
        &binary::signatures(),
        attention::SIGNATURES,
        copy::SIGNATURES,
        reduce::SIGNATURES,
    ];
    families.concat().into_iter()
}
