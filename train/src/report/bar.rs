//! A line at the bottom of a terminal that is redrawn at every step.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

pub(super) struct Bar(ProgressBar);

impl Bar {
    /// A line on standard output, which is a terminal, for `steps` steps.
    pub(super) fn new(steps: u64) -> Option<Bar> {
        let bar =
            ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stdout_with_hz(10));
        // The text shows the progress; a drawn bar would push its end off the line.
        let style = ProgressStyle::with_template("{wide_msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Some(Bar(bar))
    }

    pub(super) fn show(&self, step: u64, line: String) {
        self.0.set_position(step);
        self.0.set_message(line);
    }

    /// Calls `write` while the line is not drawn.
    pub(super) fn suspend(&self, write: impl FnOnce()) {
        self.0.suspend(write);
    }

    /// Leaves the line on the screen.
    pub(super) fn abandon(&self) {
        self.0.abandon();
    }
}
