//! Chrome's trace-event format, read back.

use std::collections::{BTreeMap, BTreeSet};

use meshgrad_comm::{RankTrace, chrome_trace};
use serde_json::Value;

use crate::traces::program::{self, RANKS};

/// A nanosecond, in the format's microseconds.
const NANOSECOND: f64 = 1e-3;

struct Event {
    name: String,
    category: String,
    start: f64,
    duration: f64,
    arguments: Value,
}

/// A document, checked for what a viewer needs.
#[derive(Default)]
struct Read {
    processes: BTreeMap<u64, String>,
    threads: BTreeMap<(u64, u64), String>,
    /// By process and thread, in the document's order.
    events: BTreeMap<(u64, u64), Vec<Event>>,
}

fn read(json: &str) -> Read {
    let document: Value = serde_json::from_str(json).unwrap();
    let mut read = Read::default();
    for event in document["traceEvents"].as_array().unwrap() {
        let text = |key: &str| event[key].as_str().unwrap().to_owned();
        let pid = event["pid"].as_u64().unwrap();
        let thread = (pid, event["tid"].as_u64().unwrap());
        let label = || event["args"]["name"].as_str().unwrap().to_owned();
        match (&*text("ph"), &*text("name")) {
            ("M", "process_name") => drop(read.processes.insert(pid, label())),
            ("M", "thread_name") => drop(read.threads.insert(thread, label())),
            ("M", name) => assert!(name.ends_with("sort_index")),
            ("X", _) => read.events.entry(thread).or_default().push(Event {
                name: text("name"),
                category: text("cat"),
                start: event["ts"].as_f64().unwrap(),
                duration: event["dur"].as_f64().unwrap(),
                arguments: event["args"].clone(),
            }),
            (phase, _) => panic!("phase {phase}"),
        }
    }
    read
}

impl Read {
    fn of_rank(&self, rank: usize, category: &str) -> Vec<&Event> {
        let of_rank = self.events.range((rank as u64, 0)..(rank as u64 + 1, 0));
        let events = of_rank.flat_map(|(_, events)| events);
        events.filter(|event| event.category == category).collect()
    }
}

/// One process per rank, whose threads have all ops, collectives and waits, without overlaps.
#[test]
fn a_document_has_all_spans_of_all_ranks() {
    for (transport, ranks) in program::on_all_transports() {
        let traces: Vec<RankTrace> = ranks.iter().map(|(_, trace)| trace.clone()).collect();
        let read = read(&chrome_trace(&traces));

        let names: Vec<&str> = read.processes.values().map(String::as_str).collect();
        assert_eq!(names, ["rank 0", "rank 1", "rank 2"], "{transport}");
        for (rank, (stats, trace)) in ranks.iter().enumerate() {
            let count = |category| read.of_rank(rank, category).len();
            let waits = read.of_rank(rank, "exposed waits");
            let waited = trace.collectives.iter().filter(|span| span.wait.is_some());
            // A meta device runs no kernels.
            let ops = usize::from(transport != "Plan");
            assert_eq!((count("ops"), trace.ops.len()), (ops, ops), "{transport}");
            assert_eq!(count("collectives"), trace.collectives.len(), "{transport}");
            assert_eq!(waits.len(), waited.count(), "{transport}");
            let exposed: f64 = waits.iter().map(|event| event.duration).sum();
            let difference = exposed - stats.exposed.as_nanos() as f64 / 1e3;
            assert!(difference.abs() < NANOSECOND, "{transport}: {difference}");
        }
        for (thread, events) in &read.events {
            let name = &read.threads[thread];
            for event in events {
                assert!(name.starts_with(&event.category), "{name}");
            }
            for pair in events.windows(2) {
                let end = pair[0].start + pair[0].duration;
                assert!(end < pair[1].start + NANOSECOND, "{transport}: {name}");
            }
        }
    }
}

/// An all_reduce is open while other collectives start, so it is on a thread of its own; and all
/// events of a collective say which one it is.
#[test]
fn overlapping_collectives_are_on_several_threads() {
    let (_, ranks) = program::on_all_transports().remove(1);
    let traces: Vec<RankTrace> = ranks.into_iter().map(|(_, trace)| trace).collect();
    let read = read(&chrome_trace(&traces));
    let names: BTreeSet<&str> = read.threads.values().map(String::as_str).collect();
    assert!(names.contains("collectives 2"), "{names:?}");
    for rank in 0..RANKS {
        let first = read.of_rank(rank, "collectives")[0];
        assert_eq!(first.name, "all_reduce(bf16 x 20, sum)");
        assert_eq!(first.arguments["number"], 0);
        assert_eq!(first.arguments["bytes"], 40);
        assert_eq!(first.arguments["group"], "[0, 1, 2]");
        let at = first.arguments["at"].as_str().unwrap();
        assert!(at.contains("tests/all/traces/program.rs"), "{at}");
    }
}
