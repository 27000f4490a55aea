//! The harness of `meshgrad bench`, `meshgrad ckpt bench` and the benches: interleaved rounds,
//! spreads, reports with machine and versions, cold files, touched memory, contestants that
//! train in turns, and the Python process that benches compare with.
//!
//! It is independent of ops, models and checkpoints.

mod contestants;
mod files;
mod machine;
mod peer;
mod report;
mod spread;

pub use contestants::{
    Contestant, Inbox, OtherRanks, Ranks, Step, Turn, TurnOptions, loss_difference,
};
pub use files::{PAGE, drop_pages, map_new, map_touched, open_direct};
pub use machine::{Machine, proc_bytes, proc_field};
pub use peer::{Peer, PeerOptions, numbers, scripts};
pub use report::{Options, finish};
pub use spread::{Spread, cell, interleave, seconds, timed};
