//! The registry of communicators, with all ranks of a world in one process.

mod agreement;
mod counts;
mod creating;
mod faults;
mod generators;
mod sharing;
mod world;
