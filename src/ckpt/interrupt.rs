//! Ctrl-C sets a flag that long loops poll, so that temporary files are removed before the program
//! exits. A second Ctrl-C ends the program at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, ensure};
use signal_hook::consts::{SIGINT, SIGTERM};

/// Whether the user requested that the program stop.
#[derive(Clone, Default)]
pub(super) struct Interrupt {
    requested: Arc<AtomicBool>,
}

impl Interrupt {
    /// Handles SIGINT and SIGTERM of this process from now on.
    pub(super) fn listen() -> anyhow::Result<Interrupt> {
        let interrupt = Interrupt::default();
        for signal in [SIGINT, SIGTERM] {
            // Registered first, so the first signal finds the flag unset.
            let requested = Arc::clone(&interrupt.requested);
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, requested)
                .context("cannot handle Ctrl-C")?;
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
