//! The ops on every device, against f64 on the CPU: a file for each family. Then what they promise
//! together: who may write what others use, what is told of wrong indices, when the host waits.

#[path = "../devices/mod.rs"]
mod devices;

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
mod random;
mod rank;
mod reduce;
mod rope;
mod sharing;
mod softmax;
mod swiglu;
mod waiting;
