//! All tests of the crate, in one process.

mod domains;
mod guide;
mod import;
mod imports;
mod megatron;
mod settings;
mod state;
mod table;
