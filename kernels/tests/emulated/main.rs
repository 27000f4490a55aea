//! Runs the kernels on the emulator with all its sanitizers, and compares them with f64 on the
//! host.
//!
//! Most tests run under several orders of warps, CTAs and asynchronous copies ([`Device::all`]). A
//! race, a missing barrier or an uninitialized read fails the test. So do bank conflicts and bytes
//! moved twice, if a kernel promises none.

mod adamw;
mod add_rms_norm;
mod argsort;
mod attention;
mod barrier;
mod column_sums;
mod copies;
mod coverage;
mod cross_entropy;
mod cumsum;
mod device;
mod elementwise;
mod expert_order;
mod far;
mod gemm;
mod global_norm;
mod grouped;
mod indexing;
mod norm_rope;
mod philox;
mod random;
mod reduce;
mod rope;
mod router;
mod row_map;
mod softmax;
mod swiglu;
mod token_permute;
mod top_k;
mod traffic;
mod tree_reduce;
