//! How far loading is.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// What takes less needs no line.
const PATIENCE: Duration = Duration::from_secs(1);

/// Calls `load` with what it shall tell bytes read and all to (as
/// [`Loader::progress`](meshgrad_models::hf::Loader::progress)). If that takes longer than a
/// second, a line on standard error shows them until it is done, on a terminal only.
pub fn with_loading_bar<T>(load: impl FnOnce(&(dyn Fn(u64, u64) + Sync)) -> T) -> T {
    let bar = LoadingBar::new(Instant::now());
    load(&|read, all| bar.show(read, all))
}

struct LoadingBar {
    begun: Instant,
    bar: OnceLock<ProgressBar>,
}

impl LoadingBar {
    fn new(begun: Instant) -> LoadingBar {
        let bar = OnceLock::new();
        LoadingBar { begun, bar }
    }

    fn show(&self, read: u64, all: u64) {
        let elapsed = self.begun.elapsed();
        if elapsed < PATIENCE {
            return;
        }
        let bar = self.bar.get_or_init(|| new_bar(elapsed));
        bar.set_length(all);
        bar.set_position(read);
    }
}

impl Drop for LoadingBar {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.get() {
            bar.finish_and_clear();
        }
    }
}

/// Hidden where standard error is no terminal.
fn new_bar(elapsed: Duration) -> ProgressBar {
    let bar = ProgressBar::new(0).with_elapsed(elapsed);
    let template = "loading {bar:30} {binary_bytes} of {binary_total_bytes}, \
                    {binary_bytes_per_sec}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Short work has no line; the line of long work follows it, from folder to folder.
    #[test]
    fn only_long_work_has_a_line() {
        let hour = Duration::from_secs(3600);
        let begins_later = LoadingBar::new(Instant::now() + hour);
        begins_later.show(1, 10);
        assert!(begins_later.bar.get().is_none());

        let mut bar = LoadingBar::new(Instant::now());
        bar.begun -= PATIENCE;
        for (read, all) in [(1, 10), (10, 10), (3, 7)] {
            bar.show(read, all);
            let shown = bar.bar.get().unwrap();
            assert_eq!((shown.position(), shown.length()), (read, Some(all)));
        }
    }

    #[test]
    fn what_is_loaded_comes_through() {
        let loaded = with_loading_bar(|progress| {
            progress(1, 2);
            "loaded"
        });
        assert_eq!(loaded, "loaded");
    }
}
