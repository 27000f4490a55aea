//! Every op on every device, compared with the CPU, one file per family. Other files test laws of
//! all ops: aliasing and streams, the reporting of invalid indices, and which calls block the host.

mod attention;
mod copies;
mod cross_entropy;
mod elementwise;
mod faults;
mod global_norm;
mod grouped_matmul;
mod indexing;
mod matmul;
mod moe;
mod norm;
mod norm_rope;
mod optimizer;
mod order;
mod random;
mod reduce;
mod rope;
mod sharing;
mod sleeping;
mod softmax;
mod swiglu;
mod top_k;
mod waiting;
