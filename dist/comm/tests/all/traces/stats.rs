//! Counts of collectives and bytes, and recordings that agree with them.

use std::collections::HashMap;
use std::time::Duration;

use meshgrad_comm::{
    Collective, Collectives, CommStats, Local, Plan, Rank, RankTrace, TracedRank, conformance,
};
use meshgrad_runtime::{DType, Error, Result, ops};

use crate::traces::program::{self, RANKS};

/// Checks that a recording has everything that was counted meanwhile.
pub(crate) fn check_sums(stats: CommStats, trace: &RankTrace) -> Result<(), String> {
    let spans = &trace.collectives;
    let waits = spans.iter().filter_map(|span| span.wait);
    let recorded = CommStats {
        collectives: spans.len() as u64,
        bytes: spans.iter().map(|span| span.bytes).sum(),
        exposed: waits.map(|wait| wait.duration()).sum(),
    };
    match recorded == stats {
        true => Ok(()),
        false => Err(format!("recorded {recorded:?}, counted {stats:?}")),
    }
}

/// A plan's log, a plan's counts and those of runs are equal.
#[test]
fn all_transports_count_what_the_plan_logs() {
    let plan = Plan::new(RANKS).unwrap();
    let logs = plan.trace_all(|rank| program::run(rank)).unwrap();
    for (transport, ranks) in program::on_all_transports() {
        for ((stats, _), log) in ranks.iter().zip(&logs) {
            let logged = (log.calls().count() as u64, log.calls().map(|call| call.bytes).sum());
            let counted = (stats.collectives, stats.bytes);
            assert_eq!(counted, logged, "{transport}, rank {}", log.rank());
        }
    }
}

/// Two rows of 3 f32 on rank 0, none on rank 1, one on rank 2: each has the whole of 36 bytes.
#[test]
fn a_call_counts_the_larger_of_input_and_output() {
    let rows = [2, 0, 1];
    let bytes = |rank: &TracedRank<'_>, f: &dyn Fn() -> Result<()>| {
        let before = rank.stats();
        f()?;
        Ok::<_, Error>((rank.stats() - before).bytes)
    };
    let of_ranks = Local::run(RANKS, |rank| {
        let rank = TracedRank::new(rank);
        let (world, own) = (rank.world()?, rank.rank());
        let x = ops::full(rank.device(), &[rows[own], 3], DType::F32, 1.0)?;
        Ok::<_, Error>([
            bytes(&rank, &|| world.all_gather_rows(&x, &rows)?.wait().map(drop))?,
            bytes(&rank, &|| world.gather_rows(&x, &rows, 2)?.wait().map(drop))?,
            bytes(&rank, &|| world.barrier()?.wait())?,
        ])
    });
    assert_eq!(of_ranks.unwrap(), [[36, 24, 0], [36, 0, 0], [36, 36, 0]]);
}

/// Recorded waits add up to the exposed time, and recorded bytes to those counted. A recording that
/// lacks a wait is found.
#[test]
fn recordings_have_all_that_is_counted() {
    for (transport, ranks) in program::on_all_transports() {
        for (stats, trace) in &ranks {
            check_sums(*stats, trace).unwrap_or_else(|error| panic!("{transport}: {error}"));
            for at in 0..trace.collectives.len() {
                let mut faulty = trace.clone();
                let wait = faulty.collectives[at].wait.take();
                let is_exposed = wait.is_some_and(|wait| wait.duration() > Duration::ZERO);
                let found = check_sums(*stats, &faulty).is_err();
                assert_eq!(found, is_exposed, "{transport}, collective {at}");
            }
        }
        let waits = ranks.iter().flat_map(|(_, trace)| &trace.collectives);
        let unwaited = waits.filter(|span| span.wait.is_none()).count();
        assert_eq!(unwaited, RANKS, "{transport}: one per rank is never waited for");
    }
}

/// Calls come before their waits, and a number means the same collective on all members.
#[test]
fn spans_are_in_order_and_numbers_agree() {
    for (transport, ranks) in program::on_all_transports() {
        let mut kinds: HashMap<_, Vec<Collective>> = HashMap::new();
        for span in ranks.iter().flat_map(|(_, trace)| &trace.collectives) {
            assert!(span.call.start <= span.call.end);
            assert!(span.wait.is_none_or(|wait| span.call.end <= wait.start));
            let request = &span.ticket.request;
            if request.peer.is_none() {
                let key = (span.group.clone(), span.ticket.number);
                let kind = request.fingerprint.collective;
                kinds.entry(key).or_default().push(kind);
            }
        }
        for ((group, number), kinds) in kinds {
            let same = vec![kinds[0]; group.len()];
            assert_eq!(kinds, same, "{transport}: {number} of {group}");
        }
    }
}

/// Tracing changes no result.
#[test]
fn traced_ranks_conform() {
    let checked = Local::run(RANKS, |rank| {
        let rank = TracedRank::new(rank);
        let recording = rank.record().map_err(|error| error.to_string())?;
        let world = rank.world().map_err(|error| error.to_string())?;
        conformance::check(&world, &[0, 1, 7]).map_err(|error| error.to_string())?;
        check_sums(rank.stats(), &recording.finish())
    });
    checked.unwrap();
}

#[test]
fn a_rank_has_one_recording_at_a_time() {
    let checked = Local::run(1, |rank| {
        let rank = TracedRank::new(rank);
        let first = rank.record()?;
        let error = rank.record().err().map(|error| error.to_string());
        assert!(error.unwrap().contains("rank 0 already records"));
        drop(first);
        rank.record()?.finish();
        let ops = rank.device().trace_ops(|| Duration::ZERO)?;
        let error = rank.record().err().map(|error| error.to_string());
        assert!(error.unwrap().contains("already recorded"));
        drop(ops);
        drop(rank.record()?);
        Ok::<_, Error>(())
    });
    checked.unwrap();
}
