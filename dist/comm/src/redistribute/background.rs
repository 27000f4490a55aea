//! Redistributions of several collectives that run while the rank does other work.
//!
//! Each worker is a thread with its own channel, so its collectives have an order that does not
//! depend on what the rank or another worker does meanwhile. The redistributions on a mesh are given
//! to workers in turn, which all ranks of the mesh do alike, whatever other meshes they are in.

use std::collections::HashMap;
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use meshgrad_mesh::{Channel, Mesh, Redistribution};
use meshgrad_runtime::{Error, Pending, Result, Tensor};

use super::member::Member;
use super::steps::Runner;

/// The redistributions that run concurrently. Others wait for the worker that they are given to.
const WORKERS: usize = 4;

pub(super) struct Background {
    member: Arc<Member>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// How many were started on each mesh.
    started: HashMap<Mesh, usize>,
    /// Created with their first jobs.
    workers: Vec<Worker>,
}

struct Worker {
    jobs: Sender<Job>,
    thread: JoinHandle<()>,
}

type Job = Box<dyn FnOnce(&Runner) + Send>;

impl Background {
    pub(super) fn new(member: Arc<Member>) -> Background {
        Background {
            member,
            state: Mutex::default(),
        }
    }

    /// Runs all steps of a plan on a worker.
    pub(super) fn start(&self, plan: Arc<Redistribution>, x: Tensor) -> Result<Pending<Tensor>> {
        let (result, receiver) = sync_channel(1);
        let mesh = plan.from().mesh().clone();
        let job: Job = Box::new(move |runner| {
            // The rank may have dropped its `Pending`.
            let _ = result.send(runner.run(&plan, &x));
        });
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let started = state.started.get(&mesh).copied().unwrap_or(0);
        let number = started % WORKERS;
        if state.workers.len() <= number {
            let worker = Worker::new(self.member.clone(), number)?;
            state.workers.push(worker);
        }
        state.started.insert(mesh, started + 1);
        let sent = state.workers[number].jobs.send(job);
        sent.map_err(|_| panicked(self.member.rank))?;
        let rank = self.member.rank;
        Ok(Pending::by_host(move || {
            receiver.recv().unwrap_or_else(|_| Err(panicked(rank)))
        }))
    }
}

impl Worker {
    fn new(member: Arc<Member>, number: usize) -> Result<Worker> {
        let (jobs, receiver) = channel::<Job>();
        let name = format!("redistribute {number} of rank {}", member.rank);
        let runner = Runner::new(member, Some(Channel::Redistribute(number as u16)));
        let work = move || receiver.iter().for_each(|job| job(&runner));
        let thread = thread::Builder::new().name(name).spawn(work);
        let thread = thread.map_err(|error| Error::Argument {
            op: "redistribute",
            problem: format!("no thread can be started: {error}"),
        })?;
        Ok(Worker { jobs, thread })
    }
}

/// Waits for all jobs, because other ranks wait for this one in their collectives.
impl Drop for Background {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        for Worker { jobs, thread } in state.workers.drain(..) {
            drop(jobs);
            // A panic is an error of the `Pending`.
            let _ = thread.join();
        }
    }
}

fn panicked(rank: usize) -> Error {
    Error::Argument {
        op: "redistribute",
        problem: format!("the thread that redistributes for rank {rank} panicked"),
    }
}
