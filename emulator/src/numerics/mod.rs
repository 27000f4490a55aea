//! What instructions compute, lane by lane: pure functions of bits.
pub(crate) mod approximate;
pub(crate) mod double;
pub(crate) mod exact;
pub(crate) mod integer;
pub(crate) mod packed;
pub(crate) mod rounding;
pub(crate) mod tensor_core;
pub use approximate::Approximation;
