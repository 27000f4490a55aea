//! Words that a code cannot say: reports of sanitizers, of leaks, and why a call failed. And the
//! counters of launches, for those who ask.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::machine::counters::Counters;

use super::configuration::CountersTo;
use super::error::{Code, Error};

/// What is told besides codes.
pub(crate) struct Reports {
    quiet: bool,
    counters_to: CountersTo,
    last: Mutex<String>,
    /// JSON of each launch since counting began.
    counted: Mutex<Option<Vec<String>>>,
    /// Held while counters are written: each launch's stay together.
    writing: Mutex<()>,
}

impl Reports {
    pub(crate) fn new(quiet: bool, counters_to: CountersTo) -> Reports {
        Reports {
            quiet,
            counters_to,
            last: Mutex::default(),
            counted: Mutex::default(),
            writing: Mutex::default(),
        }
    }

    /// Keeps why a call failed.
    pub(crate) fn keep(&self, error: &Error, call: &str) {
        // Programs ask until it is no more so; nothing has gone wrong.
        if error.code != Code::NotReady {
            *lock(&self.last) = format!("{error}\n(returned by {call})");
        }
    }

    /// Tells that an operation of a stream has failed.
    pub(crate) fn failure(&self, error: &Error) {
        self.tell(&error.to_string());
    }

    /// Tells something that is no failure of a call.
    pub(crate) fn tell(&self, words: &str) {
        *lock(&self.last) = words.to_owned();
        self.say(words);
    }

    /// The latest words.
    pub(crate) fn last(&self) -> String {
        lock(&self.last).clone()
    }

    /// Counts from now on, and forgets what was counted.
    pub(crate) fn start_counting(&self) {
        *lock(&self.counted) = Some(Vec::new());
    }

    /// A JSON array of what was counted since it began, for `take`, which says whether it took it:
    /// counting has then ended.
    pub(crate) fn take_counted(&self, take: impl FnOnce(&str) -> bool) {
        let mut counted = lock(&self.counted);
        let all = format!("[{}]", counted.as_deref().unwrap_or_default().join(","));
        if take(&all) {
            *counted = None;
        }
    }

    /// Whether launches should count.
    pub(crate) fn wants_counters(&self) -> bool {
        self.counters_to != CountersTo::Nowhere || lock(&self.counted).is_some()
    }

    /// Notes a launch's counters where somebody wants them.
    pub(crate) fn count(&self, counters: &Counters) {
        if let Some(counted) = &mut *lock(&self.counted) {
            counted.push(counters.to_json());
        }
        let written = match &self.counters_to {
            CountersTo::Nowhere => Ok(()),
            CountersTo::Stderr => {
                let table = counters.to_table();
                let _alone = lock(&self.writing);
                io::stderr().write_all(table.as_bytes())
            }
            CountersTo::File(path) => {
                let line = counters.to_json() + "\n";
                let _alone = lock(&self.writing);
                append(path, line.as_bytes())
            }
        };
        if let Err(error) = written {
            self.say(&format!("counters are lost: {error}"));
        }
    }

    fn say(&self, words: &str) {
        if !self.quiet {
            // A closed stderr is nobody's fault and nobody's concern.
            let _ = writeln!(io::stderr(), "meshgrad emulator: {words}");
        }
    }
}

/// In one call, so that lines of several processes do not mix either.
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
    fn counters_of_many_threads_stay_apart() {
        let file = format!("meshgrad-counters-{}", process::id());
        let path = env::temp_dir().join(file);
        let reports = Reports::new(true, CountersTo::File(path.clone()));
        let counters = Counters {
            unreached: vec![(1, "trap;".to_owned()); 300],
            ..Counters::default()
        };
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
