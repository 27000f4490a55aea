//! What `meshgrad bench`, `meshgrad ckpt bench` and the benches share: interleaved rounds, spreads,
//! the report with machine and versions, files and memory without surprises, the Python peer.

mod files;
mod machine;
mod peer;
mod report;
mod spread;

pub use files::{PAGE, drop_pages, map_new, map_touched, open_direct};
pub use machine::{Machine, proc_bytes, proc_field};
pub use peer::{Peer, PeerOptions, numbers, scripts};
pub use report::{Options, finish};
pub use spread::{Spread, cell, interleave, seconds, timed};
