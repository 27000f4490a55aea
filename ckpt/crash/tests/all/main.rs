//! All tests of the crate, in one process.

mod crash;
mod replace_file;
