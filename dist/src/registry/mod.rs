//! Which communicators exist, and when they are made.
