//! GPU kernels: a PTX macro-assembler in Rust, and the kernels written with it. The output is text;
//! this crate depends neither on a driver nor on tensors.
//!
//! [`assembler`] turns Rust functions into PTX. Each family of kernels has a struct that identifies
//! one kernel (its [`Variant`]), functions that compute a [`Launch`] from extents, and a struct of
//! its parameters ([`params!`]). A loader needs only the text, the launch and the bytes of the
//! arguments.

pub mod adamw;
pub mod add_rms_norm;
pub mod arg_reduce;
pub mod argsort;
pub mod assembler;
pub mod attention;
pub mod column_sums;
mod columns;
pub mod copies;
pub mod cross_entropy;
pub mod cumsum;
pub mod dtype;
pub mod elementary;
pub mod elementwise;
pub mod expert_order;
pub mod expression;
pub mod faults;
pub mod gemm;
pub mod global_norm;
pub mod indexing;
mod lane_group;
pub mod norm_rope;
pub mod philox;
pub mod random;
pub mod reduce;
pub mod reduce_op;
mod rms_norm;
pub mod rope;
pub mod router;
pub mod row;
pub mod row_map;
pub mod softmax;
pub mod sort;
mod sort_key;
pub mod swiglu;
pub mod token_permute;
pub mod top_k;
pub mod tree_reduce;

pub use assembler::{Arguments, In, Launch, Out, Parameter, ParameterKind, Ptx, Target, Variant};
pub use dtype::Dtype;
pub use meshgrad_error::{Error, Kind, Result};

/// Doctests compile and run the code of docs/kernels.md.
#[cfg(doctest)]
#[doc = include_str!("../../docs/kernels.md")]
struct Guide;
