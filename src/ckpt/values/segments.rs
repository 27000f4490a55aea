//! Processes segments of tensors on several threads within a memory budget.
//!
//! The boundaries of segments and blocks depend only on the tensors, not on threads and budget, so
//! every sum is reproducible to the bit.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::ensure;
use indicatif::{ProgressBar, ProgressStyle};

use super::super::size::{self, ByteSize};

/// Elements of a segment.
const SEGMENT: u64 = 4 << 20;

/// Smaller reads are inefficient. The size is a multiple of a block of the largest elements.
const MIN_BUFFER: u64 = 64 << 10;

/// Larger buffers are not faster.
const MAX_BUFFER: u64 = 8 << 20;

/// A range of elements of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) tensor: usize,
    /// The first element, and the one after the last.
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// The number of threads and the size of their buffers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Workers {
    threads: usize,
    buffer_bytes: usize,
}

impl Workers {
    /// At most `threads` threads with `buffers` buffers each, all within `budget`.
    pub(crate) fn new(budget: ByteSize, threads: usize, buffers: u64) -> anyhow::Result<Workers> {
        let least = MIN_BUFFER * buffers;
        ensure!(
            budget.0 >= least,
            "--budget {} is too small: reading needs at least {}",
            size::bytes(budget.0),
            size::bytes(least)
        );

        let threads = threads.min((budget.0 / least) as usize).max(1);
        let share = budget.0 / (threads as u64 * buffers);
        let buffer_bytes = share.min(MAX_BUFFER) / MIN_BUFFER * MIN_BUFFER;
        Ok(Workers { threads, buffer_bytes: buffer_bytes as usize })
    }

    /// Bytes per buffer: a whole number of blocks for any dtype.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// Calls `worker` on each thread. The returned closures process the segments of all tensors,
    /// which have `elements` elements. Results are merged per tensor, in the order of the segments.
    ///
    /// Shows progress towards `bytes` on a terminal.
    pub(crate) fn run<R, W>(
        &self,
        elements: &[u64],
        bytes: u64,
        worker: impl Fn() -> W + Sync,
        merge: impl Fn(&mut R, &R),
    ) -> anyhow::Result<Vec<R>>
    where
        R: Default + Send,
        W: FnMut(Segment, &ProgressBar) -> anyhow::Result<R>,
    {
        let segments = segments(elements);
        let worker = || {
            let (mut worker, segments) = (worker(), &segments);
            move |at: usize, progress: &ProgressBar| worker(segments[at], progress)
        };
        let done = parallel_map(self.threads, segments.len(), bytes, worker);

        let mut merged: Vec<R> = elements.iter().map(|_| R::default()).collect();
        for (segment, result) in segments.iter().zip(done) {
            merge(&mut merged[segment.tensor], &result?);
        }
        Ok(merged)
    }
}

/// Calls `worker` on each thread. The returned closures process the indices below `count`, each
/// once. Returns the results in order; if one is an error, only the results up to that error.
pub(crate) fn parallel_map<R: Send, W>(
    threads: usize,
    count: usize,
    bytes: u64,
    worker: impl Fn() -> W + Sync,
) -> Vec<anyhow::Result<R>>
where
    W: FnMut(usize, &ProgressBar) -> anyhow::Result<R>,
{
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let done = Mutex::new(Vec::with_capacity(count));
    let progress = progress_bar(bytes);

    let work = || {
        let mut worker = worker();
        while !failed.load(Ordering::Relaxed) {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                break;
            }
            let result = worker(at, &progress);
            failed.fetch_or(result.is_err(), Ordering::Relaxed);
            // No code panics while holding the lock.
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            done.push((at, result));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(count) {
            scope.spawn(work);
        }
        work();
    });
    progress.finish_and_clear();

    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    // Indices are taken in order and always finished, so no result before an error is missing.
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

fn segments(elements: &[u64]) -> Vec<Segment> {
    let cut = |(tensor, &end): (usize, &u64)| {
        let starts = (0..end.div_ceil(SEGMENT)).map(|at| at * SEGMENT);
        starts.map(move |start| Segment { tensor, start, end: end.min(start + SEGMENT) })
    };
    elements.iter().enumerate().flat_map(cut).collect()
}

/// A progress bar, shown only on a terminal.
pub(crate) fn progress_bar(bytes: u64) -> ProgressBar {
    let progress = ProgressBar::new(bytes);
    let template = "{bar:30} {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, \
                    {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        progress.set_style(style);
    }
    progress.enable_steady_tick(Duration::from_millis(100));
    progress
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_cover_every_tensor_in_order() {
        let elements = [0, 1, SEGMENT, SEGMENT + 1, 3 * SEGMENT - 1];
        let all = segments(&elements);
        for (tensor, &count) in elements.iter().enumerate() {
            let mut at = 0;
            for segment in all.iter().filter(|segment| segment.tensor == tensor) {
                assert_eq!(segment.start, at);
                assert!(segment.end > at && segment.end - at <= SEGMENT);
                at = segment.end;
            }
            assert_eq!(at, count);
        }
        assert!(all.is_sorted_by_key(|segment| (segment.tensor, segment.start)));
    }

    /// For any budget and number of threads, all buffers fit and are whole blocks.
    #[test]
    fn buffers_stay_within_the_budget() {
        for budget in [64 << 10, 65 << 10, 1 << 20, (3 << 20) + 7, 256 << 20, 1 << 40] {
            for threads in [1, 2, 7, 64] {
                for buffers in [1, 2] {
                    let Ok(workers) = Workers::new(ByteSize(budget), threads, buffers) else {
                        assert!(budget < MIN_BUFFER * buffers);
                        continue;
                    };
                    let used = workers.buffer_bytes() as u64 * buffers * workers.threads as u64;
                    assert!(used <= budget && used > 0 && workers.threads <= threads);
                    assert_eq!(workers.buffer_bytes() as u64 % MIN_BUFFER, 0);
                }
            }
        }
    }

    #[test]
    fn the_first_error_stops_the_work_and_is_returned() {
        let workers = Workers::new(ByteSize(1 << 20), 4, 1).unwrap();
        let worker = || {
            |segment: Segment, _: &ProgressBar| match segment.tensor {
                2 => anyhow::bail!("tensor 2"),
                _ => Ok(()),
            }
        };
        let error = workers.run(&[1; 8], 8, worker, |(), ()| ()).unwrap_err();
        assert_eq!(error.to_string(), "tensor 2");
    }
}
