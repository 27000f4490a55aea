//! Counts and records the collectives of a rank.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use meshgrad_collectives::{Clock, Counters};
use meshgrad_error::ensure;
use meshgrad_mesh::Group;
use meshgrad_runtime::{Device, OpTrace, Pending, Result, Tensor};

use super::{CollectiveSpan, CommStats, RankTrace, Span};

/// What the communicators of a rank report to.
pub(super) struct Tracer {
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    stats: CommStats,
    /// Requests for equal groups share a communicator, and so its numbers.
    counters: HashMap<Group, Arc<Counters>>,
    /// By the number of collectives before, while the rank records.
    spans: Option<BTreeMap<u64, CollectiveSpan>>,
}

impl Tracer {
    pub(super) fn new(clock: Clock) -> Tracer {
        Tracer { clock, state: Mutex::default() }
    }

    pub(super) fn now(&self) -> Duration {
        self.clock.now()
    }

    pub(super) fn stats(&self) -> CommStats {
        self.lock().stats
    }

    pub(super) fn counters(&self, group: &Group) -> Arc<Counters> {
        let mut state = self.lock();
        let counters = state.counters.entry(group.clone());
        let new = || Arc::new(Counters::new(group.len()));
        counters.or_insert_with(new).clone()
    }

    /// Counts a collective that has started, and also the wait for it.
    pub(super) fn started(
        self: &Arc<Self>,
        span: CollectiveSpan,
        pending: Pending<Option<Tensor>>,
    ) -> Pending<Option<Tensor>> {
        let mut state = self.lock();
        let id = state.stats.collectives;
        state.stats.collectives += 1;
        state.stats.bytes += span.bytes;
        if let Some(spans) = &mut state.spans {
            spans.insert(id, span.clone());
        }
        drop(state);

        let tracer = self.clone();
        Pending::by_host(move || {
            let start = tracer.now();
            let result = pending.wait();
            let end = tracer.now();
            tracer.waited(id, span, Span { start, end });
            result
        })
    }

    /// A collective that started before the recording gets its span now, so that all exposed time
    /// is recorded.
    fn waited(&self, id: u64, span: CollectiveSpan, wait: Span) {
        let mut state = self.lock();
        state.stats.exposed += wait.duration();
        if let Some(spans) = &mut state.spans {
            spans.entry(id).or_insert(span).wait = Some(wait);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A rank that records, until [`Recording::finish`] or until this is dropped.
#[must_use = "dropping it ends the recording"]
pub struct Recording {
    rank: usize,
    tracer: Arc<Tracer>,
    /// `None` once it has ended.
    ops: Option<OpTrace>,
}

impl Recording {
    pub(super) fn start(rank: usize, device: &Device, tracer: &Arc<Tracer>) -> Result<Recording> {
        let clock = tracer.clock.clone();
        let mut state = tracer.lock();
        ensure!(
            state.spans.is_none(),
            Invalid,
            "record: rank {rank} already records; finish the first recording"
        );
        let ops = device.trace_ops(move || clock.now())?;
        state.spans = Some(BTreeMap::new());
        Ok(Recording { rank, tracer: tracer.clone(), ops: Some(ops) })
    }

    /// Ends the recording and returns it.
    pub fn finish(mut self) -> RankTrace {
        let ops = self.ops.take().map_or_else(Vec::new, OpTrace::finish);
        let spans = self.tracer.lock().spans.take().unwrap_or_default();
        RankTrace { rank: self.rank, collectives: spans.into_values().collect(), ops }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if self.ops.is_some() {
            self.tracer.lock().spans = None;
        }
    }
}
