//! Ctrl-C: a flag that long work looks at, so that what was written is removed before the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, ensure};
use signal_hook::consts::{SIGINT, SIGTERM};

/// Whether the user wants an end.
#[derive(Default)]
pub(super) struct Interrupt {
    requested: Arc<AtomicBool>,
}

impl Interrupt {
    /// Listens to the signals of this process from now on.
    pub(super) fn listen() -> anyhow::Result<Interrupt> {
        let interrupt = Interrupt::default();
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&interrupt.requested))
                .context("cannot watch for Ctrl-C")?;
        }
        Ok(interrupt)
    }

    /// An error when the end is wanted.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let requested = self.requested.load(Ordering::Relaxed);
        ensure!(!requested, "interrupted; nothing was left behind");
        Ok(())
    }
}
