//! Tests that cross crates, and tests of the program, in one process. `tests/training_on_gpu.rs` runs
//! on GPU machines by itself.

mod adapters;
mod any_model;
mod checkpoint_on_processes;
mod ckpt_tool;
mod cli;
mod comm_tool;
mod configs;
mod errors;
mod families;
mod finetune;
mod from_d9d;
mod mesh_tool;
mod meta;
mod on_disk;
mod parity;
mod pipeline_tool;
mod program;
mod sample;
#[cfg(target_os = "linux")]
mod terminal;
mod test_dir;
mod train_on_ranks;
mod transfer;
mod unused;
#[path = "../../ckpt/tests/all/torch/zips.rs"]
mod zips;
