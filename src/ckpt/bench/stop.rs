//! Ctrl-C: a flag that long work looks at, so that what was written is removed before the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, ensure};
use signal_hook::consts::{SIGINT, SIGTERM};

/// Whether the user wants an end.
#[derive(Default)]
pub(super) struct Stop {
    is_wanted: Arc<AtomicBool>,
}

impl Stop {
    /// Listens to the signals of this process from now on.
    pub(super) fn listen() -> anyhow::Result<Stop> {
        let stop = Stop::default();
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&stop.is_wanted))
                .context("cannot watch for Ctrl-C")?;
        }
        Ok(stop)
    }

    /// An error when the end is wanted.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let is_wanted = self.is_wanted.load(Ordering::Relaxed);
        ensure!(!is_wanted, "interrupted; nothing was left behind");
        Ok(())
    }
}
