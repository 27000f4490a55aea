//! What instructions compute, lane by lane: pure functions of bits.
