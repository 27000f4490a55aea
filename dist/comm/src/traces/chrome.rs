//! The trace-event format of Chrome, which Perfetto (ui.perfetto.dev) and chrome://tracing read.
//!
//! Described in "Trace Event Format", Google, 2016:
//! <https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU>. Used here are
//! complete events (`X`), with times in microseconds, and metadata (`M`): the names and the order
//! of processes and threads.

use std::time::Duration;

use meshgrad_collectives::SourceLine;
use serde_json::{Value, json};

use super::{CollectiveSpan, RankTrace, Span};

/// More than the events of one kind that overlap each other.
const LANES: usize = 1_000_000;

/// Traces of ranks as one JSON document in Chrome's trace-event format.
///
/// Each rank is a process, whose number is the rank. It has the threads `ops`, `collectives` (from
/// the call to the end of the wait) and `exposed waits`. Events that overlap are on further
/// threads, such as `collectives 2`. A collective's arguments are its group, number, bytes and source line;
/// the number and the group are the same on all members.
///
/// Times are those of each rank's [clock](crate::Rank::clock). The ranks of `Local` share one. With
/// `Tcp` and `Mpi`, a clock starts when its rank has joined, so processes are aligned only
/// roughly. There each rank writes a file of its own; the `traceEvents` of several can be joined.
pub fn chrome_trace(ranks: &[RankTrace]) -> String {
    let events: Vec<Value> = ranks.iter().flat_map(of_rank).collect();
    json!({ "traceEvents": events, "displayTimeUnit": "ms" }).to_string()
}

/// An event without its place.
struct Event {
    name: String,
    span: Span,
    arguments: Value,
}

fn of_rank(trace: &RankTrace) -> Vec<Value> {
    let rank = trace.rank;
    let ops = trace.ops.iter().map(|op| Event {
        name: op.name.to_owned(),
        span: Span { start: op.start, end: op.end },
        arguments: json!({}),
    });
    let collectives = trace.collectives.iter().map(|it| of_collective(it, it.span()));
    let waits = trace.collectives.iter();
    let waits = waits.filter_map(|it| it.wait.map(|wait| of_collective(it, wait)));

    let mut events = vec![
        metadata(rank, 0, "process_name", json!({ "name": format!("rank {rank}") })),
        metadata(rank, 0, "process_sort_index", json!({ "sort_index": rank })),
    ];
    events.extend(track(rank, 0, "ops", ops.collect()));
    events.extend(track(rank, 1, "collectives", collectives.collect()));
    events.extend(track(rank, 2, "exposed waits", waits.collect()));
    events
}

fn of_collective(of: &CollectiveSpan, span: Span) -> Event {
    let request = &of.ticket.request;
    Event {
        name: request.fingerprint.to_string(),
        span,
        arguments: json!({
            "group": of.group.to_string(),
            "number": of.ticket.number,
            "bytes": of.bytes,
            "at": SourceLine::from(request.caller).to_string(),
        }),
    }
}

/// The events of one kind, on as few threads as they need not to overlap.
fn track(rank: usize, number: usize, kind: &str, mut events: Vec<Event>) -> Vec<Value> {
    events.sort_by_key(|event| event.span.start);
    let mut ends: Vec<Duration> = Vec::new();
    let mut written = Vec::with_capacity(events.len() + 2);
    for event in events {
        let is_free = |end: &Duration| *end <= event.span.start;
        let lane = ends.iter().position(is_free).unwrap_or(ends.len());
        let thread = number * LANES + lane;
        match ends.get_mut(lane) {
            Some(end) => *end = event.span.end,
            None => {
                ends.push(event.span.end);
                let name = match lane {
                    0 => kind.to_owned(),
                    _ => format!("{kind} {}", lane + 1),
                };
                written.push(metadata(rank, thread, "thread_name", json!({ "name": name })));
                let order = json!({ "sort_index": thread });
                written.push(metadata(rank, thread, "thread_sort_index", order));
            }
        }
        written.push(json!({
            "ph": "X",
            "cat": kind,
            "name": event.name,
            "pid": rank,
            "tid": thread,
            "ts": micros(event.span.start),
            "dur": micros(event.span.duration()),
            "args": event.arguments,
        }));
    }
    written
}

fn metadata(rank: usize, thread: usize, name: &str, arguments: Value) -> Value {
    json!({ "ph": "M", "name": name, "pid": rank, "tid": thread, "args": arguments })
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1_000.0
}
