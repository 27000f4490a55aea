//! A progress bar for loading.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Shorter loads show no bar.
const DELAY: Duration = Duration::from_secs(1);

/// Calls `load` with a callback that takes the bytes read and the total (see
/// [`Loader::progress`](meshgrad_models::hf::Loader::progress)). After a second a progress bar is
/// shown on standard error, if that is a terminal.
pub fn with_loading_bar<T>(load: impl FnOnce(&(dyn Fn(u64, u64) + Sync)) -> T) -> T {
    let bar = LoadingBar::new(Instant::now());
    load(&|read, all| bar.show(read, all))
}

struct LoadingBar {
    started: Instant,
    bar: OnceLock<ProgressBar>,
}

impl LoadingBar {
    fn new(started: Instant) -> LoadingBar {
        let bar = OnceLock::new();
        LoadingBar { started, bar }
    }

    fn show(&self, read: u64, all: u64) {
        let elapsed = self.started.elapsed();
        if elapsed < DELAY {
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

/// A progress bar; hidden if standard error is not a terminal.
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

    /// A short load shows no bar. A long one shows a bar, which restarts for each part that is
    /// loaded.
    #[test]
    fn only_long_loads_show_a_bar() {
        let hour = Duration::from_secs(3600);
        let in_the_future = LoadingBar::new(Instant::now() + hour);
        in_the_future.show(1, 10);
        assert!(in_the_future.bar.get().is_none());

        let mut bar = LoadingBar::new(Instant::now());
        bar.started -= DELAY;
        for (read, all) in [(1, 10), (10, 10), (3, 7)] {
            bar.show(read, all);
            let shown = bar.bar.get().unwrap();
            assert_eq!((shown.position(), shown.length()), (read, Some(all)));
        }
    }

    #[test]
    fn the_result_of_loading_is_returned() {
        let loaded = with_loading_bar(|progress| {
            progress(1, 2);
            "loaded"
        });
        assert_eq!(loaded, "loaded");
    }
}
