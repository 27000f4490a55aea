//! Parameters of ops that CPU kernels and GPU launches take too.

pub(crate) mod attention;
pub(crate) mod cross_entropy;
pub(crate) mod matmul;
pub(crate) mod optimizer;
pub(crate) mod rope;
