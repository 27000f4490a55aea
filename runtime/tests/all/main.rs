//! The tests of the crate that compute on the CPU only. `tests/any_device` has those that also run on
//! a GPU, and `tests/allocations.rs` replaces the allocator.

mod op_trace;
mod sharding;
