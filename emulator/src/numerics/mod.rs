//! What instructions compute, lane by lane: pure functions of bits.
pub(crate) mod approximate;
pub(crate) mod compare;
pub(crate) mod convert;
pub(crate) mod double;
pub(crate) mod exact;
pub(crate) mod half_precision;
pub(crate) mod integer;
pub(crate) mod rounding;
pub(crate) mod tensor_core;
pub use approximate::Approximation;
