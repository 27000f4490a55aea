//! The text of the kernels, what ptxas makes of it, and runs on the emulator with all its sanitizers.
//!
//! The modules of families assert what only a launch shows: the bytes that a kernel moves, whole
//! sectors, bank conflicts, and bits that must be equal. `coverage` runs every kernel in many orders
//! of its threads. The runtime's tests of ops compare the kernels' results with f64.

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
mod ptxas;
mod random;
mod reduce;
mod rope;
mod router;
mod row_map;
mod sample;
mod softmax;
mod swiglu;
mod text;
mod token_permute;
mod top_k;
mod traffic;
mod tree_reduce;
