//! Executing a [plan](crate::plan): reads files into targets within the planned memory.
//!
//! ```text
//!            queue (chunks in the order of the files)
//!              |            |
//!           thread        thread         each owns one window
//!              | read_at    | read_at    a long contiguous chunk is read into its target
//!           window          |
//!              | scatter    |
//!           target        target         allocated by the sink, returned when complete
//! ```
//!
//! - Bytes are written once, to their final destination: the tensors' own memory on the CPU, a
//!   staging buffer for a device. The [`Sink`] decides.
//! - The thread that writes the last bytes of a target returns the target to the sink immediately.
//!   An incomplete target is never returned.
//! - The first error stops all threads and is returned.
//! - Several replicas that make the same requests can share the reads ([`execute_shared`]).
//! - **Memory.** Plan, targets and windows are the only memory. With
//!   [`Targets::Released`](crate::plan::Targets), a chunk waits until the targets that it starts
//!   fit into the planned memory. Chunks are admitted in file order, so a chunk waits only for
//!   earlier ones. There is no deadlock if all targets that are open at once fit, which the plan
//!   ensures.

mod chunks;
mod convert;
mod exchange;
mod memory;
mod open_tensors;
mod queue;
mod replicas;
mod scatter;
mod shared;
mod sink;
#[cfg(test)]
mod tests;
mod ties;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

pub use chunks::split;
pub use exchange::Exchange;
pub use memory::{gather, rows_per_batch};
pub(crate) use memory::{not_computed, part_of_a_byte, put};
pub use open_tensors::{OpenTensors, TensorBytes};
pub use replicas::Replica;
pub use sink::{Sink, Slices};
pub use ties::{check_ties, not_tied};

use meshgrad_error::{Error, Result, ensure, error};

use crate::error::{changed, io_error, while_reading};
use crate::graph::Operand;
use crate::plan::{ByteLoop, Chunk, ComputedChunk, ComputedTensor, LoadPlan, Part};
use crate::source::{FileChange, Source, Sources, Windows};
use queue::Queue;
use scatter::Destination;
use shared::SharedTargets;

/// Statistics of an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes that were written to targets.
    pub written_bytes: u64,
}

/// Executes a plan: gets memory for each target from `sink`, fills it and returns it. After each
/// chunk, from any thread, calls `progress` with the bytes read so far, out of
/// [`LoadPlan::read_bytes`].
///
/// # Errors
/// Errors of the sink; when the sources are not those of the plan's folder, memory has another size
/// than its target, or a file cannot be read or has changed. Targets affected by an error are never
/// completed.
pub fn execute<S: Sink>(
    plan: &LoadPlan,
    sources: &Sources,
    sink: &S,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Stats, S::Error> {
    run(plan, sources, sink, None, progress)
}

/// Executes a plan as [`execute`] does, in one of several replicas. Each reads its share of the
/// chunks and sends it to the others. Together they read each byte once and compute each computed
/// tensor once. [`Stats::read_bytes`] and `progress` count the reads of this replica.
///
/// # Errors
/// As [`execute`]; errors of the exchange. When one replica fails, the others fail with an error
/// that names it.
pub fn execute_shared<S: Sink>(
    plan: &LoadPlan,
    sources: &Sources,
    sink: &S,
    exchange: &dyn Exchange,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Stats, S::Error> {
    let (replica, replicas) = (exchange.replica(), exchange.replicas());
    if replica >= replicas {
        let error = error!(
            Invalid,
            "there is no replica {replica} of {replicas}: replicas are numbered from 0"
        );
        return Err(error.into());
    }
    let done = match exchange.compare_plans(plan.digest()) {
        Ok(()) => run(plan, sources, sink, Some(exchange), progress),
        Err(error) => Err(error.into()),
    };
    if done.is_err() {
        exchange.abort();
    }
    done
}

fn run<S: Sink>(
    plan: &LoadPlan,
    sources: &Sources,
    sink: &S,
    exchange: Option<&dyn Exchange>,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Stats, S::Error> {
    check(plan, sources)?;
    let execution = Execution {
        plan,
        sources,
        exchange,
        targets: SharedTargets::new(plan, sink)?,
        queue: Queue::new(plan.chunks(), plan.memory().targets),
        progress,
        read: AtomicU64::new(0),
        written: AtomicU64::new(0),
        failure: Mutex::new(None),
    };

    let threads = plan.threads().min(plan.chunks().len()).max(1);
    let mut windows = windows(threads, plan, sources)?;
    thread::scope(|scope| {
        let mut windows = windows.split();
        let own = windows.next().unwrap_or_default();
        for window in windows {
            scope.spawn(|| execution.work(window));
        }
        execution.work(own);
    });

    let failure = execution.failure.into_inner();
    match failure.unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(Stats {
            read_bytes: execution.read.into_inner(),
            written_bytes: execution.written.into_inner(),
        }),
    }
}

/// Allocates one window per thread.
fn windows(threads: usize, plan: &LoadPlan, sources: &Sources) -> Result<Windows, Error> {
    Windows::new(threads, plan.window_bytes()).map_err(|error| {
        let first = plan.chunks().first().map(|chunk| chunk.file as usize);
        let first = first.filter(|file| *file < sources.count());
        let path = first.map_or(Path::new("nothing"), |file| sources.get(file).path());
        io_error("map memory to read", path, error)
    })
}

/// Checks that the sources are the files of the plan and have the planned sizes.
fn check(plan: &LoadPlan, sources: &Sources) -> Result<(), Error> {
    let name = |source: &dyn Source| {
        let name = source.path().file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    };
    let actual: Vec<String> = (0..sources.count()).map(|file| name(sources.get(file))).collect();
    let planned = || plan.files().iter().map(|file| &*file.name);
    ensure!(
        planned().eq(&actual),
        Invalid,
        "the plan reads {}, but the sources are {}: plan and read the same folder",
        planned().collect::<Vec<_>>().join(", "),
        actual.join(", ")
    );

    for (number, file) in plan.files().iter().enumerate() {
        let source = sources.get(number);
        let is_read = plan.chunks().iter().any(|chunk| chunk.file as usize == number);
        if is_read && source.byte_len() != file.bytes {
            let change = FileChange::Length { was: file.bytes, is: source.byte_len() };
            return Err(changed(source.path(), 0, change));
        }
    }
    Ok(())
}

struct Execution<'e, S: Sink> {
    plan: &'e LoadPlan,
    sources: &'e Sources,
    exchange: Option<&'e dyn Exchange>,
    targets: SharedTargets<'e, S>,
    queue: Queue<'e>,
    progress: &'e (dyn Fn(u64) + Sync),
    read: AtomicU64,
    written: AtomicU64,
    failure: Mutex<Option<S::Error>>,
}

/// Buffers that a thread reuses from chunk to chunk.
struct Workspace<'w> {
    window: &'w mut [u8],
    loops: Vec<ByteLoop>,
}

impl<S: Sink> Execution<'_, S> {
    /// The loop of a thread: runs chunks until none are left or one fails.
    fn work(&self, window: &mut [u8]) {
        // Stops the other threads when this one ends, even by a panic, so that none waits for it.
        let _leaving = self.queue.stop_when_dropped();
        let mut workspace = Workspace { window, loops: Vec::new() };
        while let Some((number, chunk)) = self.queue.next() {
            let done = match chunk.in_place {
                Some(to) => self.fetch_in_place(number, chunk, to),
                None => self.fetch_and_scatter(number, chunk, &mut workspace),
            };
            if let Err(error) = done {
                let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
                failure.get_or_insert(error);
                if let Some(exchange) = self.exchange {
                    exchange.abort();
                }
                return;
            }
        }
    }

    /// Reads or computes a chunk, or receives it from the replica that does.
    fn fetch(&self, number: usize, chunk: &Chunk, data: &mut [u8]) -> Result<(), Error> {
        let make = |data: &mut [u8]| match self.plan.computed_chunk(chunk) {
            Some((computed, computed_chunk)) => self.make(computed, computed_chunk, data),
            None => self.read(chunk, data),
        };
        match self.exchange {
            None => make(data),
            Some(exchange) if number % exchange.replicas() == exchange.replica() => {
                make(data)?;
                exchange.send(number, data)
            }
            Some(exchange) => exchange.receive(number, data),
        }
    }

    /// Reports the bytes read so far.
    fn advance(&self, bytes: u64) {
        let before = self.read.fetch_add(bytes, Ordering::Relaxed);
        (self.progress)(before + bytes);
    }

    fn fetch_in_place(&self, number: usize, chunk: &Chunk, to: u64) -> Result<(), S::Error> {
        let bytes = chunk.read.end - chunk.read.start;
        // There is exactly one copy: ranges that several copies need are read into a window.
        for copy in self.plan.copies_of(chunk).take(1) {
            let target = copy.target as usize;
            let mut place = self.targets.place(target)?;
            self.fetch(number, chunk, place.bytes(to..to + bytes))?;
            self.count(target, bytes)?;
        }
        Ok(())
    }

    fn fetch_and_scatter(
        &self,
        number: usize,
        chunk: &Chunk,
        workspace: &mut Workspace<'_>,
    ) -> Result<(), S::Error> {
        let Workspace { window, loops } = workspace;
        let window = &mut window[..(chunk.read.end - chunk.read.start) as usize];
        self.fetch(number, chunk, window)?;
        for copy in self.plan.copies_of(chunk) {
            let target = copy.target as usize;
            let place = self.targets.place(target)?;
            let conversion = self.plan.conversion(copy);
            let mut bytes = 0;
            copy.clip(&chunk.own, loops, |part| {
                let from = part.from - chunk.read.start;
                let moved = Part { from, ..part };
                match conversion {
                    None => scatter::scatter(window, moved, place),
                    Some(conversion) => {
                        scatter::scatter_converted(window, moved, place, conversion)
                    }
                }
                bytes += part.filled_bytes();
            });
            self.count(target, bytes)?;
        }
        Ok(())
    }

    fn read(&self, chunk: &Chunk, data: &mut [u8]) -> Result<(), Error> {
        let source = self.sources.get(chunk.file as usize);
        let read = source.read_at(chunk.read.start, data);
        read.map_err(|error| match self.plan.copies_of(chunk).next() {
            Some(copy) => while_reading(error, self.plan.tensor(copy)),
            None => error,
        })?;
        self.advance(data.len() as u64);
        Ok(())
    }

    /// Loads the operand rows that a chunk needs, then computes the chunk.
    fn make(
        &self,
        computed: &ComputedTensor,
        computed_chunk: &ComputedChunk,
        out: &mut [u8],
    ) -> Result<(), Error> {
        let targets = computed_chunk.plan.targets().iter();
        let mut loaded: Vec<Vec<u8>> = targets.map(|it| vec![0; it.bytes as usize]).collect();
        let slices = Slices::new(loaded.iter_mut().map(|it| &mut it[..]));
        let stats = execute(&computed_chunk.plan, self.sources, &slices, &|_| {})?;

        let parts = loaded.iter().zip(&computed.types).zip(&computed_chunk.operand_rows);
        let operands =
            parts.map(|((bytes, tensor), rows)| Operand { tensor, rows: rows.clone(), bytes });
        let operands: Vec<Operand<'_>> = operands.collect();
        computed.computation.compute(computed_chunk.rows.clone(), &operands, out);
        self.advance(stats.read_bytes);
        Ok(())
    }

    /// Counts bytes written to a target; the last ones complete it.
    fn count(&self, target: usize, bytes: u64) -> Result<(), S::Error> {
        self.written.fetch_add(bytes, Ordering::Relaxed);
        if self.targets.count(target, bytes)? {
            self.queue.release(self.plan.targets()[target].bytes);
        }
        Ok(())
    }
}
