//! All tests of the crate, in one process.

mod registry;
