//! Ctrl-C sets a flag that samples poll, so that temporary files are removed before the program
//! exits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, ensure};
use signal_hook::consts::{SIGINT, SIGTERM};

/// Whether the user requested that the program stop.
#[derive(Default)]
pub(super) struct Interrupt {
    requested: Arc<AtomicBool>,
}

impl Interrupt {
    /// Handles SIGINT and SIGTERM of this process from now on.
    pub(super) fn listen() -> anyhow::Result<Interrupt> {
        let interrupt = Interrupt::default();
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&interrupt.requested))
                .context("cannot handle Ctrl-C")?;
        }
        Ok(interrupt)
    }

    /// Fails after a signal.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let requested = self.requested.load(Ordering::Relaxed);
        ensure!(!requested, "interrupted; nothing was left behind");
        Ok(())
    }
}
