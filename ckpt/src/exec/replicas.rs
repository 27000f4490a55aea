//! Replicas: several that load the same, each byte read once among them.
//!
//! Data-parallel ranks want equal bytes. Instead of reading all of them each, they share the chunks
//! of the plan out among them, one to each in turn, and pass on what they read:
//!
//! ```text
//!              chunk 0      chunk 1      chunk 2      chunk 3
//! replica 0    reads, gives takes        reads, gives takes
//! replica 1    takes        reads, gives takes        reads, gives
//! ```
//!
//! The plan is the same for all of them, so nobody has to be told what comes; that it is the same is
//! found out before anything is read. How bytes travel is an [`Exchange`]; [`Replica`] is the one
//! between the threads of a process.
//!
//! Chunks are worked on in order everywhere. For the first that is not done yet, all before it are,
//! so its owner has a thread and the memory for it: nobody waits for ever.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::exchange::{Exchange, ExchangeError};
use crate::plan::Digest;

/// One of the replicas of a process, each with a thread of its own.
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
/// let want = LoadRequest::all("w", &graph, w);
/// let options = Options { window: 256, ..Options::default() };
/// let plan = LoadPlan::new(&graph, &Catalog::of(&folder), &[want], &options)?;
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
    hub: Arc<Hub>,
    number: usize,
}

#[derive(Debug)]
struct Hub {
    replicas: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Of this meeting, as they come.
    plans: BTreeMap<usize, Digest>,
    /// Meetings that are over.
    meetings: u64,
    /// What the last meeting came to.
    outcome: Option<ExchangeError>,
    /// Chunks that somebody has yet to take.
    given: BTreeMap<usize, Given>,
    gone: BTreeSet<usize>,
    /// Whose error was the first: those of the others follow from it.
    failed: Option<usize>,
}

impl State {
    /// The error for those who would wait for one that has gone.
    fn gone(&self, replica: usize) -> ExchangeError {
        ExchangeError::Gone {
            replica: self.failed.unwrap_or(replica),
        }
    }
}

#[derive(Debug)]
struct Given {
    bytes: Arc<[u8]>,
    waiting: BTreeSet<usize>,
}

impl Replica {
    /// So many replicas. Each holds a copy of a chunk for each of its threads while others take it.
    pub fn all(replicas: usize) -> Vec<Replica> {
        let hub = Arc::new(Hub {
            replicas,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let numbered = (0..replicas).map(|number| Replica {
            hub: hub.clone(),
            number,
        });
        numbered.collect()
    }

    /// Waits until `ready` has something to say.
    fn wait<T>(
        &self,
        mut ready: impl FnMut(&mut State) -> Option<Result<T, ExchangeError>>,
    ) -> Result<T, ExchangeError> {
        let mut state = self.hub.lock();
        loop {
            if state.gone.contains(&self.number) {
                return Err(state.gone(self.number));
            }
            if let Some(answer) = ready(&mut state) {
                return answer;
            }
            let waited = self.hub.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn leave(&self) {
        self.hub.lock().gone.insert(self.number);
        self.hub.changed.notify_all();
    }

    fn others(&self) -> BTreeSet<usize> {
        let all = 0..self.hub.replicas;
        all.filter(|it| *it != self.number).collect()
    }
}

impl Exchange for Replica {
    fn replicas(&self) -> usize {
        self.hub.replicas
    }

    fn replica(&self) -> usize {
        self.number
    }

    fn agree(&self, plan: Digest) -> Result<(), ExchangeError> {
        let meeting = {
            let mut state = self.hub.lock();
            state.plans.insert(self.number, plan);
            let meeting = state.meetings;
            if state.plans.len() == self.hub.replicas {
                state.outcome = first_difference(&std::mem::take(&mut state.plans));
                state.meetings += 1;
                self.hub.changed.notify_all();
            }
            meeting
        };
        self.wait(|state| {
            if state.meetings > meeting {
                return Some(state.outcome.clone().map_or(Ok(()), Err));
            }
            let absent = state.gone.iter().find(|it| !state.plans.contains_key(it));
            absent.map(|replica| Err(state.gone(*replica)))
        })
    }

    fn give(&self, chunk: usize, bytes: &[u8]) -> Result<(), ExchangeError> {
        let given = Given {
            bytes: bytes.into(),
            waiting: self.others(),
        };
        self.hub.lock().given.insert(chunk, given);
        self.hub.changed.notify_all();
        self.wait(|state| {
            let waiting = &state.given.get(&chunk)?.waiting;
            if let Some(replica) = waiting.intersection(&state.gone).next() {
                return Some(Err(state.gone(*replica)));
            }
            waiting.is_empty().then(|| {
                state.given.remove(&chunk);
                Ok(())
            })
        })
    }

    fn take(&self, chunk: usize, bytes: &mut [u8]) -> Result<(), ExchangeError> {
        let owner = chunk % self.hub.replicas;
        let given = self.wait(|state| match state.given.get(&chunk) {
            Some(given) if given.waiting.contains(&self.number) => Some(Ok(given.bytes.clone())),
            _ if state.gone.contains(&owner) => Some(Err(state.gone(owner))),
            _ => None,
        })?;
        if given.len() != bytes.len() {
            let (is, wanted) = (given.len(), bytes.len());
            let message = format!("it has {is} bytes instead of {wanted}");
            return Err(ExchangeError::Transport { chunk, message });
        }
        bytes.copy_from_slice(&given);
        if let Some(given) = self.hub.lock().given.get_mut(&chunk) {
            given.waiting.remove(&self.number);
        }
        self.hub.changed.notify_all();
        Ok(())
    }

    fn abandon(&self) {
        self.hub.lock().failed.get_or_insert(self.number);
        self.leave();
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Hub {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn first_difference(plans: &BTreeMap<usize, Digest>) -> Option<ExchangeError> {
    let (replica, plan) = plans.first_key_value()?;
    let (other, other_plan) = plans.iter().find(|(_, it)| *it != plan)?;
    Some(ExchangeError::Differ {
        replica: *replica,
        plan: *plan,
        other: *other,
        other_plan: *other_plan,
    })
}
