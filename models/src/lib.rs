//! White-box models.

pub mod config;
