//! Requests to stop: Ctrl-C, SIGTERM, and SIGHUP when a terminal closes.

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// What signals have requested.
pub(crate) struct Stop {
    /// Whether to stop.
    pub(crate) is_requested: Arc<AtomicBool>,
    /// Whether there is something to finish first. Until then a signal ends the program.
    pub(crate) has_started: Arc<AtomicBool>,
}

/// What the program prints about a signal; nothing on ranks for which another one speaks.
#[derive(Clone, Copy, Default)]
pub(crate) struct Messages {
    /// When it is asked to stop.
    pub(crate) stopping: &'static str,
    /// When a second signal ends it.
    pub(crate) ended: &'static str,
}

impl Stop {
    /// Handles the signals of this process from now on, in a thread of its own. The first one after
    /// the start asks the program to stop, and the second one ends it with the exit code of shells.
    pub(crate) fn listen(messages: Messages) -> anyhow::Result<Stop> {
        let failed = "cannot install a handler for Ctrl-C";
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context(failed)?;
        let (is_requested, has_started) = (Arc::default(), Arc::default());
        let stop = Stop { is_requested, has_started };
        let (is_requested, has_started) = (stop.is_requested.clone(), stop.has_started.clone());
        let handle = move || {
            for signal in signals.forever() {
                let is_first = !is_requested.swap(true, Ordering::Relaxed);
                match (has_started.load(Ordering::Relaxed), is_first) {
                    (true, true) => say(messages.stopping),
                    (true, false) => end(signal, messages.ended),
                    (false, _) => end(signal, ""),
                }
            }
        };
        thread::Builder::new().name("signals".to_owned()).spawn(handle).context(failed)?;
        Ok(stop)
    }
}

fn end(signal: i32, message: &str) -> ! {
    say(message);
    process::exit(128 + signal)
}

fn say(message: &str) {
    if !message.is_empty() {
        eprintln!("{message}");
    }
}
