//! Choosing the experts of each token.
//!
//! Legend: N tokens, E experts, K of them for each token.
//!
//! ```text
//! indices_n  = the K experts with the largest p_ne [+ bias_e], in descending order
//! w_nj       = p_n,indices_nj [/ s_n]          s_n = sum_j p_n,indices_nj, in the order of j
//! dp_ne      = (dw_nj - mean_n) / s_n          where e = indices_nj; mean_n = sum_j dw_nj w_nj
//! ```
//!
//! Equals go to the lower index; NaN ranks first. A token belongs to a few lanes, at most sixteen
//! experts to each, whose scores stay in registers as integers that sort as they do; more experts
//! than 512 are read anew for each choice. All that is rounded is rounded as on the CPU: the same
//! bits.

mod grad;
mod scores;
mod top_k;

pub use grad::{RouterTopKGrad, RouterTopKGradArguments};
pub use top_k::{RouterTopK, RouterTopKArguments};

/// What a kernel's name says of whether weights are divided by their sum.
fn renormalised_name(renormalise: bool) -> &'static str {
    match renormalise {
        true => "_renormalised",
        false => "",
    }
}
