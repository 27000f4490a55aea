//! A progress bar on the last line of a terminal, redrawn at most ten times per second.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

pub(super) struct Bar(ProgressBar);

impl Bar {
    /// A bar on standard output, which is a terminal, for `steps` steps.
    pub(super) fn new(steps: u64) -> Option<Bar> {
        let bar =
            ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stdout_with_hz(10));
        // The bar takes the room that the text leaves.
        let style = ProgressStyle::with_template("{msg}  {wide_bar}");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars("=>-"));
        Some(Bar(bar))
    }

    pub(super) fn show(&self, step: u64, line: String) {
        self.0.set_position(step);
        self.0.set_message(line);
    }

    /// Calls `write` while the bar is not drawn.
    pub(super) fn suspend(&self, write: impl FnOnce()) {
        self.0.suspend(write);
    }

    pub(super) fn clear(&self) {
        self.0.finish_and_clear();
    }
}
