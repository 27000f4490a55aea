//! Replicas that load the same targets: each byte is read once among them.
//!
//! Data-parallel ranks need equal bytes. They split the chunks of the plan round-robin, and each
//! sends what it read to the others:
//!
//! ```text
//!              chunk 0      chunk 1      chunk 2      chunk 3
//! replica 0    reads, sends receives     reads, sends receives
//! replica 1    receives     reads, sends receives     reads, sends
//! ```
//!
//! All replicas have the same plan, so chunks need no announcement. The plans are compared before
//! any read. Bytes travel through an [`Exchange`]; [`Replica`] implements it between the threads of
//! a process.
//!
//! All replicas work on chunks in the same order. The owner of the first unfinished chunk has
//! finished all earlier ones, so it has a thread and the memory for it: there is no deadlock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use meshgrad_error::{Error, Result, ensure, error};

use super::exchange::Exchange;
use crate::plan::Digest;

/// An [`Exchange`] between replicas in one process, each on its own thread.
///
/// ```
/// use meshgrad_ckpt::exec::{Replica, Slices, execute_shared};
/// use meshgrad_ckpt::graph::Graph;
/// use meshgrad_ckpt::plan::{Catalog, LoadPlan, Options, LoadRequest};
/// use meshgrad_ckpt::source::{BackendChoice, Sources};
/// use meshgrad_ckpt::{Dtype, FileWriter, Folder};
///
/// # let folder = tempfile::tempdir()?;
/// # let mut file = FileWriter::new();
/// # file.add("w", Dtype::U8, &[1000])?;
/// # file.save(folder.path().join("model.safetensors"), |_, data| data.append(&[7; 1000]))?;
/// let folder = Folder::open(folder.path())?;
/// let mut graph = Graph::new();
/// let w = graph.source("w", Dtype::U8, &[1000])?;
/// let request = LoadRequest::all("w", &graph, w);
/// let options = Options { window: 256, ..Options::default() };
/// let plan = LoadPlan::new(&graph, &Catalog::of(&folder), &[request], &options)?;
///
/// let mut loaded = vec![[0; 1000]; 2];
/// let read = std::thread::scope(|scope| {
///     let load = |(replica, to): (Replica, &mut [u8; 1000])| {
///         let sources = Sources::open(&folder, BackendChoice::Auto)?;
///         execute_shared(&plan, &sources, &Slices::new([&mut to[..]]), &replica, &|_read| {})
///     };
///     let threads: Vec<_> = Replica::all(2)
///         .into_iter()
///         .zip(&mut loaded)
///         .map(|it| scope.spawn(move || load(it)))
///         .collect();
///     let stats = threads.into_iter().map(|it| it.join().unwrap());
///     stats.map(|it| it.map(|it| it.read_bytes)).sum::<Result<u64, meshgrad_ckpt::Error>>()
/// })?;
/// assert_eq!(read, 1000);
/// assert!(loaded.iter().all(|it| it == &[7; 1000]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Replica {
    group: Arc<Group>,
    number: usize,
}

#[derive(Debug)]
struct Group {
    replicas: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The plans of the current comparison, by replica.
    plans: BTreeMap<usize, Digest>,
    /// The number of finished comparisons.
    rounds: u64,
    /// The result of the last comparison.
    outcome: Option<Error>,
    /// Chunks that some replica has yet to receive.
    sent: BTreeMap<usize, Sent>,
    stopped: BTreeSet<usize>,
    /// The first replica that failed; the errors of the others follow from it.
    failed: Option<usize>,
}

impl State {
    /// The error for a replica that waits for one that has stopped.
    fn stopped(&self, replica: usize) -> Error {
        let replica = self.failed.unwrap_or(replica);
        error!(PeerFailed, "replica {replica} has stopped: see its own error")
    }
}

#[derive(Debug)]
struct Sent {
    bytes: Arc<[u8]>,
    waiting: BTreeSet<usize>,
}

impl Replica {
    /// Creates `replicas` replicas. Each thread of a replica holds a copy of the chunk that it
    /// sends until the others have received it.
    pub fn all(replicas: usize) -> Vec<Replica> {
        let group = Arc::new(Group { replicas, state: Mutex::default(), changed: Condvar::new() });
        let numbered = (0..replicas).map(|number| Replica { group: group.clone(), number });
        numbered.collect()
    }

    /// Waits until `ready` returns a value.
    fn wait<T>(&self, mut ready: impl FnMut(&mut State) -> Option<Result<T>>) -> Result<T> {
        let mut state = self.group.lock();
        loop {
            if state.stopped.contains(&self.number) {
                return Err(state.stopped(self.number));
            }
            if let Some(answer) = ready(&mut state) {
                return answer;
            }
            let waited = self.group.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn leave(&self) {
        self.group.lock().stopped.insert(self.number);
        self.group.changed.notify_all();
    }

    fn others(&self) -> BTreeSet<usize> {
        let all = 0..self.group.replicas;
        all.filter(|it| *it != self.number).collect()
    }
}

impl Exchange for Replica {
    fn replicas(&self) -> usize {
        self.group.replicas
    }

    fn replica(&self) -> usize {
        self.number
    }

    fn compare_plans(&self, plan: Digest) -> Result<()> {
        let round = {
            let mut state = self.group.lock();
            state.plans.insert(self.number, plan);
            let round = state.rounds;
            if state.plans.len() == self.group.replicas {
                state.outcome = first_difference(&std::mem::take(&mut state.plans));
                state.rounds += 1;
                self.group.changed.notify_all();
            }
            round
        };
        self.wait(|state| {
            if state.rounds > round {
                return Some(state.outcome.clone().map_or(Ok(()), Err));
            }
            let absent = state.stopped.iter().find(|it| !state.plans.contains_key(it));
            absent.map(|replica| Err(state.stopped(*replica)))
        })
    }

    fn send(&self, chunk: usize, bytes: &[u8]) -> Result<()> {
        let sent = Sent { bytes: bytes.into(), waiting: self.others() };
        self.group.lock().sent.insert(chunk, sent);
        self.group.changed.notify_all();
        self.wait(|state| {
            let waiting = &state.sent.get(&chunk)?.waiting;
            if let Some(replica) = waiting.intersection(&state.stopped).next() {
                return Some(Err(state.stopped(*replica)));
            }
            waiting.is_empty().then(|| {
                state.sent.remove(&chunk);
                Ok(())
            })
        })
    }

    fn receive(&self, chunk: usize, bytes: &mut [u8]) -> Result<()> {
        let owner = chunk % self.group.replicas;
        let sent = self.wait(|state| match state.sent.get(&chunk) {
            Some(sent) if sent.waiting.contains(&self.number) => Some(Ok(sent.bytes.clone())),
            _ if state.stopped.contains(&owner) => Some(Err(state.stopped(owner))),
            _ => None,
        })?;
        ensure!(
            sent.len() == bytes.len(),
            System,
            "cannot exchange chunk {chunk} between replicas: it has {} bytes instead of {}",
            sent.len(),
            bytes.len()
        );
        bytes.copy_from_slice(&sent);
        if let Some(sent) = self.group.lock().sent.get_mut(&chunk) {
            sent.waiting.remove(&self.number);
        }
        self.group.changed.notify_all();
        Ok(())
    }

    fn abort(&self) {
        self.group.lock().failed.get_or_insert(self.number);
        self.leave();
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Group {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn first_difference(plans: &BTreeMap<usize, Digest>) -> Option<Error> {
    let (replica, plan) = plans.first_key_value()?;
    let (other, other_plan) = plans.iter().find(|(_, it)| *it != plan)?;
    Some(error!(
        Invalid,
        "replica {replica} has plan {plan}, but replica {other} has plan {other_plan}: replicas \
         must make the same requests of the same files with the same options"
    ))
}
