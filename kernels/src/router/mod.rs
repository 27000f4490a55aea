//! Top-k routing: choosing the experts of each token.
//!
//! Legend: N tokens, E experts, K chosen experts per token.
//!
//! ```text
//! indices_n  = the K experts with the largest p_ne [+ bias_e], in descending order
//! w_nj       = p_n,indices_nj [/ s_n]          s_n = sum_j p_n,indices_nj, in the order of j
//! dp_ne      = (dw_nj - mean_n) / s_n          where e = indices_nj; mean_n = sum_j dw_nj w_nj
//! ```
//!
//! Among equal scores the lowest index wins; NaN ranks first. A few lanes share a token, with at
//! most sixteen experts each. Scores stay in registers as order-preserving integers. With more than
//! 512 experts they are reloaded for each choice. Results equal the CPU kernels' bit for bit.

mod grad;
mod scores;
mod top_k;

pub use grad::{RouterTopKGrad, RouterTopKGradArguments};
pub use top_k::{RouterTopK, RouterTopKArguments};

/// The part of a kernel's name that marks weights divided by their sum.
fn renormalized_name(renormalize: bool) -> &'static str {
    match renormalize {
        true => "_renormalized",
        false => "",
    }
}
