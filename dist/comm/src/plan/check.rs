//! Executes the logs of several ranks together.
//!
//! A collective completes when all members have started it, and a wait ends when its collective has
//! completed. Nothing else orders ranks, so the outcome does not depend on which rank goes first.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt;

use meshgrad_collectives::{CallSite, CommError, Counts, Peer, Ticket, Wait};
use meshgrad_error::{Result, bail};
use meshgrad_mesh::Group;

use super::log::{CommEvent, CommLog, LoggedCall};
use crate::hang::{Graph, Stuck};
use crate::members::{Key, Members};

/// The result of a check in which all ranks reach the end of their logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// The number of logs.
    pub ranks: usize,
    /// The collectives that completed.
    pub collectives: usize,
    /// The transfers that completed.
    pub transfers: usize,
    /// The bytes of all calls.
    pub bytes: u64,
}

/// `no deadlock: 12 collectives and 4 transfers of 8 ranks`
impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no deadlock: {} collectives and {} transfers of {} ranks",
            self.collectives, self.transfers, self.ranks
        )
    }
}

/// Checks that ranks with these logs start matching collectives and do not wait for each other
/// forever. One log per rank; members without a log are assumed to take part in everything.
///
/// # Errors
/// When two logs are of one rank. Otherwise the error with which the ranks
/// would fail: [`CommError::Mismatch`] or [`CommError::PairCounts`] of the first call that differs,
/// [`CommError::Returned`] if a rank ends without starting what others wait for,
/// [`CommError::OrderInversion`] with the smallest cycle.
pub fn check_logs(logs: &[CommLog]) -> Result<Checked> {
    let mut ranks: Vec<usize> = logs.iter().map(CommLog::rank).collect();
    ranks.sort_unstable();
    if let Some(pair) = ranks.windows(2).find(|pair| pair[0] == pair[1]) {
        bail!(Invalid, "there are two logs of rank {}; pass one log per rank", pair[0]);
    }
    let mut run = Run::new(logs);
    run.finish_all();
    match run.first_mismatch() {
        Some(error) => Err(error.into()),
        None => Ok(run.outcome()?),
    }
}

/// A call of a log's rank.
#[derive(Clone, Copy)]
struct Call<'a> {
    log: usize,
    logged: &'a LoggedCall,
    number: u64,
}

impl Call<'_> {
    fn agrees_with(&self, other: &Call<'_>) -> bool {
        let (one, other) = (self.logged, other.logged);
        let (of_one, of_other) = (&one.request.fingerprint, &other.request.fingerprint);
        one.fused == other.fused && of_one.agrees_with(of_other)
    }

    fn receives(&self) -> bool {
        matches!(self.logged.request.peer, Some(Peer::From(_)))
    }
}

struct Meeting<'a> {
    group: usize,
    key: Key,
    /// The members that have logs.
    expected: usize,
    arrivals: Vec<Call<'a>>,
    /// Logs that wait.
    waiting: Vec<usize>,
}

impl Meeting<'_> {
    fn is_complete(&self) -> bool {
        self.arrivals.len() == self.expected
    }
}

struct Run<'a> {
    logs: &'a [CommLog],
    /// By rank.
    log_of: HashMap<usize, usize>,
    groups: Vec<&'a Group>,
    /// The number of members of each group that have logs.
    logged: Vec<usize>,
    /// For each log, its groups' indices in `groups`.
    group_of: Vec<Vec<usize>>,
    meetings: Vec<Meeting<'a>>,
    by_key: HashMap<(usize, Key), usize>,
    progress: Vec<Progress>,
    /// The meetings where calls differ, and the call that does.
    mismatches: Vec<(usize, Call<'a>)>,
}

#[derive(Default)]
struct Progress {
    /// The next event.
    at: usize,
    /// The next number, by group and peer.
    numbers: HashMap<(usize, Option<Peer>), u64>,
    /// The meetings of events that are calls.
    meetings: HashMap<usize, usize>,
}

impl<'a> Run<'a> {
    fn new(logs: &'a [CommLog]) -> Run<'a> {
        let log_of: HashMap<usize, usize> = logs.iter().map(CommLog::rank).zip(0..).collect();
        let mut groups: Vec<&Group> = Vec::new();
        let mut known: HashMap<&Group, usize> = HashMap::new();
        let mut group_of = Vec::with_capacity(logs.len());
        for log in logs {
            let of_log = log.groups().iter().map(|group| {
                *known.entry(group).or_insert_with(|| {
                    groups.push(group);
                    groups.len() - 1
                })
            });
            group_of.push(of_log.collect());
        }
        let has_log = |rank: &&usize| log_of.contains_key(*rank);
        let count = |group: &&Group| group.ranks().iter().filter(has_log).count();
        let logged = groups.iter().map(count).collect();
        Run {
            logs,
            log_of,
            groups,
            logged,
            group_of,
            meetings: Vec::new(),
            by_key: HashMap::new(),
            progress: logs.iter().map(|_| Progress::default()).collect(),
            mismatches: Vec::new(),
        }
    }

    /// Runs all logs until each has ended or waits.
    fn finish_all(&mut self) {
        let mut runnable: VecDeque<usize> = (0..self.logs.len()).collect();
        while let Some(log) = runnable.pop_front() {
            self.advance(log, &mut runnable);
        }
    }

    /// Runs a log until it ends or waits. Logs that it wakes become runnable.
    fn advance(&mut self, log: usize, runnable: &mut VecDeque<usize>) {
        let logs = self.logs;
        let events = logs[log].events();
        while let Some(event) = events.get(self.progress[log].at) {
            match event {
                CommEvent::Wait(call) => {
                    let meeting = self.progress[log].meetings[call];
                    let meeting = &mut self.meetings[meeting];
                    if !meeting.is_complete() {
                        meeting.waiting.push(log);
                        return;
                    }
                }
                CommEvent::Start(call) => {
                    let group = self.group_of[log][call.group];
                    if !self.arrive(log, group, call, runnable) {
                        return;
                    }
                }
            }
            self.progress[log].at += 1;
        }
    }

    /// Adds the call that a log is at to its meeting; false if it differs from the others.
    fn arrive(
        &mut self,
        log: usize,
        group: usize,
        logged: &'a LoggedCall,
        runnable: &mut VecDeque<usize>,
    ) -> bool {
        let request = &logged.request;
        let progress = &mut self.progress[log];
        let event = progress.at;
        let number = progress.numbers.entry((group, request.peer)).or_default();
        let call = Call { log, logged, number: *number };
        *number += 1;

        let own_index = || self.groups[group].index_of(self.logs[log].rank());
        let index = request.peer.and_then(|_| own_index());
        let key = Key::of(index.unwrap_or(0), request.peer, call.number);
        let at = self.meeting(group, key);
        self.progress[log].meetings.insert(event, at);
        let first = self.meetings[at].arrivals.first();
        if first.is_some_and(|first| !first.agrees_with(&call)) {
            self.mismatches.push((at, call));
            return false;
        }
        let meeting = &mut self.meetings[at];
        meeting.arrivals.push(call);
        if meeting.is_complete() {
            runnable.extend(meeting.waiting.drain(..));
        }
        true
    }

    fn meeting(&mut self, group: usize, key: Key) -> usize {
        if let Some(at) = self.by_key.get(&(group, key)) {
            return *at;
        }
        let expected = match key.between {
            Members::All => self.logged[group],
            two => {
                let ranks = two.ranks(self.groups[group]);
                let logged = ranks.iter().filter(|rank| self.log_of.contains_key(rank));
                logged.count()
            }
        };
        self.meetings.push(Meeting {
            group,
            key,
            expected,
            arrivals: Vec::new(),
            waiting: Vec::new(),
        });
        self.by_key.insert((group, key), self.meetings.len() - 1);
        self.meetings.len() - 1
    }

    /// The mismatch with the lowest number.
    fn first_mismatch(&self) -> Option<CommError> {
        let differing = self.mismatches.iter().map(|(at, call)| {
            let meeting = &self.meetings[*at];
            (meeting.key.number, meeting.group, *at, *call)
        });
        let first = differing.min_by_key(|(number, group, _, call)| (*number, *group, call.log));
        let mismatch = first.map(|(_, group, at, call)| CommError::Mismatch {
            group: self.groups[group].clone(),
            first: self.site(self.meetings[at].arrivals[0]),
            second: self.site(call),
        });
        mismatch.or_else(|| {
            let complete = self.meetings.iter().filter(|meeting| meeting.is_complete());
            complete.filter_map(|meeting| self.pair_mismatch(meeting)).next()
        })
    }

    /// The error if one member sends a different number of elements than the receiver expects.
    fn pair_mismatch(&self, meeting: &Meeting<'a>) -> Option<CommError> {
        let group = self.groups[meeting.group];
        let pairwise = |call: &Call<'a>| match &call.logged.request.fingerprint.counts {
            Counts::Pairwise { send, recv } => {
                let index = group.index_of(self.logs[call.log].rank())?;
                Some((index, send.clone(), recv.clone(), *call))
            }
            _ => None,
        };
        let calls: Vec<_> = meeting.arrivals.iter().filter_map(pairwise).collect();
        for (from, send, _, sender) in &calls {
            for (to, _, recv, receiver) in &calls {
                if send[*to] != recv[*from] {
                    return Some(CommError::PairCounts {
                        group: group.clone(),
                        sender: self.site(*sender),
                        receiver: self.site(*receiver),
                        sent: send[*to],
                        expected: recv[*from],
                    });
                }
            }
        }
        None
    }

    fn outcome(&self) -> Result<Checked, CommError> {
        let is_stuck = |meeting: &&Meeting<'a>| !meeting.waiting.is_empty();
        let stuck: Vec<&Meeting<'a>> = self.meetings.iter().filter(is_stuck).collect();
        if stuck.is_empty() {
            return Ok(self.checked());
        }
        if let Some(error) = self.returned(&stuck) {
            return Err(error);
        }
        let graph: Vec<Stuck> = stuck.iter().map(|meeting| self.stuck(meeting)).collect();
        let all: Vec<usize> = (0..graph.len()).collect();
        let cycle = Graph::new(&graph).smallest_cycle(&all).unwrap_or_default();
        let waits = cycle.iter().map(|step| {
            let meeting = stuck[step.stuck];
            let of_rank = |call: &&Call<'a>| self.logs[call.log].rank() == step.rank;
            let call = meeting.arrivals.iter().find(of_rank);
            Wait {
                group: self.groups[meeting.group].clone(),
                call: self.site(*call.unwrap_or(&meeting.arrivals[0])),
                waits_for: step.waits_for,
            }
        });
        Err(CommError::OrderInversion { cycle: waits.collect() })
    }

    fn checked(&self) -> Checked {
        let transfers = |meeting: &&Meeting<'a>| meeting.key.between != Members::All;
        let complete = || self.meetings.iter().filter(|meeting| meeting.is_complete());
        let transfers = complete().filter(transfers).count();
        let calls = self.logs.iter().flat_map(CommLog::calls);
        Checked {
            ranks: self.logs.len(),
            collectives: complete().count() - transfers,
            transfers,
            bytes: calls.map(|call| call.bytes).sum(),
        }
    }

    /// The error if a rank has ended without starting a collective that other members wait for.
    fn returned(&self, stuck: &[&Meeting<'a>]) -> Option<CommError> {
        let waited_in: BTreeSet<usize> = stuck.iter().map(|meeting| meeting.group).collect();
        let mut ended: BTreeMap<(usize, Key), (&Meeting<'a>, Vec<usize>)> = BTreeMap::new();
        for meeting in &self.meetings {
            if meeting.is_complete() || !waited_in.contains(&meeting.group) {
                continue;
            }
            let mut missing = self.missing(meeting);
            missing.retain(|rank| {
                let log = self.log_of[rank];
                self.progress[log].at == self.logs[log].events().len()
            });
            if !missing.is_empty() {
                ended.insert((meeting.group, meeting.key), (meeting, missing));
            }
        }
        let (_, (meeting, missing)) = ended.into_iter().next()?;
        Some(CommError::Returned {
            group: self.groups[meeting.group].clone(),
            call: self.site(meeting.arrivals[0]),
            missing,
        })
    }

    fn stuck(&self, meeting: &Meeting<'a>) -> Stuck {
        let waiting = meeting.waiting.iter().map(|log| self.logs[*log].rank());
        let mut waiting: Vec<usize> = waiting.collect();
        waiting.sort_unstable();
        Stuck { waiting, missing: self.missing(meeting) }
    }

    /// The ranks with logs that have not started a collective, in ascending order.
    fn missing(&self, meeting: &Meeting<'a>) -> Vec<usize> {
        let group = self.groups[meeting.group];
        let arrivals = meeting.arrivals.iter();
        let arrived: BTreeSet<(usize, bool)> =
            arrivals.map(|call| (self.logs[call.log].rank(), call.receives())).collect();
        let ranks = meeting.key.between.ranks(group).into_iter().enumerate();
        let is_transfer = meeting.key.between != Members::All;
        let missing = ranks.filter(|(place, rank)| {
            let receives = is_transfer && *place == 1;
            !arrived.contains(&(*rank, receives)) && self.log_of.contains_key(rank)
        });
        let mut missing: Vec<usize> = missing.map(|(_, rank)| rank).collect();
        missing.sort_unstable();
        missing
    }

    fn site(&self, call: Call<'_>) -> CallSite {
        let ticket = Ticket { number: call.number, request: call.logged.request.clone() };
        let mut site = CallSite::new(self.logs[call.log].rank(), &ticket);
        if call.logged.fused > 1 {
            site.call = format!("{} in fuse of {}", site.call, call.logged.fused);
        }
        site
    }
}
