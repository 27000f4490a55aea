//! All tests of the crate that may share a process. `tests/memory.rs` and `tests/allocations.rs`
//! replace its allocator.

mod damage;
mod files;
mod folder;
mod headers;
mod indexes;
mod on_disk;
mod publish;
mod reshard;
mod saver;
mod sharded;
mod small_disk;
mod torch;
mod write;
mod writers;
