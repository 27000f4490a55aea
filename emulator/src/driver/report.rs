//! Messages beyond error codes: sanitizer reports, leak reports and the reason of a failed call.
//! Also the counters of launches.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::machine::counters::Counters;

use super::configuration::CounterSink;
use super::error::{Code, Error};

/// The destination of messages and counters.
pub(crate) struct Reports {
    quiet: bool,
    counter_sink: CounterSink,
    last: Mutex<String>,
    /// JSON of each launch since counting started.
    counted: Mutex<Option<Vec<String>>>,
    /// Held while counters are written, so that the lines of one launch stay together.
    writing: Mutex<()>,
}

impl Reports {
    pub(crate) fn new(quiet: bool, counter_sink: CounterSink) -> Reports {
        Reports {
            quiet,
            counter_sink,
            last: Mutex::default(),
            counted: Mutex::default(),
            writing: Mutex::default(),
        }
    }

    /// Keeps the message of a failed call.
    pub(crate) fn keep(&self, error: &Error, call: &str) {
        // A query of unfinished work returns this code; it is not a failure.
        if error.code != Code::NotReady {
            *lock(&self.last) = format!("{error}\n(returned by {call})");
        }
    }

    /// Reports the failure of a stream operation.
    pub(crate) fn report_failure(&self, error: &Error) {
        self.report(&error.to_string());
    }

    /// Reports a message that is not the failure of a call.
    pub(crate) fn report(&self, message: &str) {
        *lock(&self.last) = message.to_owned();
        self.print(message);
    }

    /// The last message.
    pub(crate) fn last(&self) -> String {
        lock(&self.last).clone()
    }

    /// Starts counting and discards earlier counts.
    pub(crate) fn start_counting(&self) {
        *lock(&self.counted) = Some(Vec::new());
    }

    /// Passes the counts so far to `take` as a JSON array. If `take` returns true, counting stops.
    pub(crate) fn take_counted(&self, take: impl FnOnce(&str) -> bool) {
        let mut counted = lock(&self.counted);
        let all = format!("[{}]", counted.as_deref().unwrap_or_default().join(","));
        if take(&all) {
            *counted = None;
        }
    }

    /// Whether launches should count.
    pub(crate) fn is_counting(&self) -> bool {
        self.counter_sink != CounterSink::Nowhere || lock(&self.counted).is_some()
    }

    /// Stores a launch's counters wherever they were requested.
    pub(crate) fn count(&self, counters: &Counters) {
        if let Some(counted) = &mut *lock(&self.counted) {
            counted.push(counters.to_json());
        }
        let written = match &self.counter_sink {
            CounterSink::Nowhere => Ok(()),
            CounterSink::Stderr => {
                let table = counters.to_table();
                let _alone = lock(&self.writing);
                io::stderr().write_all(table.as_bytes())
            }
            CounterSink::File(path) => {
                let line = counters.to_json() + "\n";
                let _alone = lock(&self.writing);
                append(path, line.as_bytes())
            }
        };
        if let Err(error) = written {
            self.print(&format!("cannot write counters: {error}"));
        }
    }

    fn print(&self, message: &str) {
        if !self.quiet {
            // Ignored: stderr may be closed.
            let _ = writeln!(io::stderr(), "meshgrad emulator: {message}");
        }
    }
}

/// Appends with a single write, so that lines of several processes do not interleave.
fn append(path: &Path, line: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    file.write_all(line)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::{env, fs, process, thread};

    use super::*;

    #[test]
    fn counters_of_concurrent_launches_do_not_interleave() {
        let file = format!("meshgrad-counters-{}", process::id());
        let path = env::temp_dir().join(file);
        let reports = Reports::new(true, CounterSink::File(path.clone()));
        let counters =
            Counters { unreached: vec![(1, "trap;".to_owned()); 300], ..Counters::default() };
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..50).for_each(|_| reports.count(&counters)));
            }
        });

        let written = fs::read_to_string(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(written.lines().count(), 200);
        assert!(written.lines().all(|line| line == counters.to_json()));
    }
}
