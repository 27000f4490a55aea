//! All tests of the crate, in one process.

mod balancing;
mod bigram;
mod collectives;
mod damage;
mod dispatch_overlap;
mod exact;
mod gpu;
mod homes;
mod matrix;
mod memory;
mod mesh_of_one;
mod on_disk;
mod optim;
mod own_tables;
mod packing;
#[cfg(feature = "parquet")]
mod parquet;
mod pipeline;
mod ranks;
mod resume;
mod ring_overlap;
mod sampling;
mod sleep;
mod slots;
#[path = "../../../models/tests/all/small.rs"]
mod small;
mod small_moe;
mod start_from;
mod states;
mod together;
mod trainer;
