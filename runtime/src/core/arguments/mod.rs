//! Types of op parameters that CPU kernels and GPU launches share.

pub(crate) mod attention;
pub(crate) mod cross_entropy;
pub(crate) mod indexed;
pub(crate) mod optimizer;
pub(crate) mod rope;
