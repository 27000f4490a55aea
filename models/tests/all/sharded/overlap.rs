//! Communication in chunks beside products changes no bit.

use std::sync::{Arc, Mutex, PoisonError};

use meshgrad_collectives::Redistribute;
use meshgrad_comm::conformance::Fault;
use meshgrad_comm::{Communicator, Local, LocalRank, Redistributor};
use meshgrad_mesh::{Chunks, Group, Sharding};
use meshgrad_runtime::{Pending, Result, Tensor, ops};

use crate::sharded::cases::{CASES, Case};
use crate::sharded::run::{Outcome, on_ranks, on_ranks_through};

/// Every tensor-parallel case, with and without checkpointing, in f32 and bf16; and with one row
/// per rank, so that sequences are divided into chunks and not the batch.
fn cases() -> Vec<Case> {
    // Experts on a mesh of their own have no seams.
    let parallel = CASES.iter().filter(|case| case.is_tensor_parallel() && case.apart.is_none());
    let with_rows = |case: &Case| [3, case.replicas()].map(|rows| Case { rows, ..*case });
    let with_dtypes = |case: Case| [false, true].map(|bf16| Case { bf16, ..case });
    let checkpointed =
        |case: Case| [false, true].map(|checkpointing| Case { checkpointing, ..case });
    let cases = parallel.flat_map(with_rows).flat_map(with_dtypes);
    let mut all: Vec<Case> = Vec::new();
    for case in cases.flat_map(checkpointed) {
        let name = |case: &Case| (case.to_string(), case.rows);
        if !all.iter().any(|other| name(other) == name(&case)) {
            all.push(case);
        }
    }
    all
}

/// The loss, every gradient and every buffer have the same bits for any number of chunks.
#[test]
fn overlap_changes_no_bit() {
    for case in cases() {
        let run = |chunks| on_ranks(&case, Fault::None, |plan| plan.overlap(chunks)).unwrap();
        let whole = run(1);
        for chunks in [2, 3] {
            let difference = difference(&whole, &run(chunks));
            assert_eq!(difference, None, "{case}, {} rows, {chunks} chunks", case.rows);
        }
    }
}

/// A chunk that is lost, or two that change places, are found in every case.
#[test]
fn lost_and_swapped_chunks_are_found() {
    // Projections with adapters do not overlap.
    let cases = cases().into_iter().filter(|case| case.bf16 && !case.lora);
    for case in cases.filter(Case::has_three_ranks) {
        let whole = on_ranks(&case, Fault::None, |plan| plan).unwrap();
        for fault in [ChunkFault::Lost, ChunkFault::Swapped] {
            let through = |rank: &LocalRank| -> Arc<dyn Redistribute> {
                Arc::new(FaultyChunks {
                    inner: Redistributor::new(rank),
                    fault,
                    first: Arc::default(),
                    second: Arc::default(),
                })
            };
            let local = Local::new(case.mesh().len());
            let outcomes = on_ranks_through(&local, &case, through, |plan| plan.overlap(3));
            let is_found = outcomes.map_or(true, |it| difference(&whole, &it).is_some());
            assert!(is_found, "{case}, {} rows: {fault:?}", case.rows);
        }
    }
}

/// The first tensor of a rank that differs in a bit.
fn difference(expected: &[Outcome], actual: &[Outcome]) -> Option<String> {
    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let ranks = expected.iter().zip(actual).enumerate();
    for (rank, (expected, actual)) in ranks {
        for ((name, expected), (_, actual)) in expected.iter().zip(actual) {
            if bits(expected) != bits(actual) {
                return Some(format!("rank {rank}: {name}"));
            }
        }
    }
    None
}

#[derive(Clone, Copy, Debug)]
enum ChunkFault {
    /// The second chunk is zeros.
    Lost,
    /// The first two chunks change places.
    Swapped,
}

type Slot<T> = Arc<Mutex<Option<T>>>;

fn take<T>(slot: &Slot<T>) -> T {
    let held = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
    held.unwrap()
}

fn put<T>(slot: &Slot<T>, value: T) {
    *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
}

/// Redistributes with a fault in chunks.
struct FaultyChunks {
    inner: Redistributor,
    fault: ChunkFault,
    /// The result of the first chunk, until the second is waited for.
    first: Slot<Tensor>,
    /// The second chunk, until the first is waited for.
    second: Slot<Pending<Tensor>>,
}

impl Redistribute for FaultyChunks {
    fn redistribute(&self, x: &Tensor, to: &Sharding) -> Result<Tensor> {
        self.inner.redistribute(x, to)
    }

    fn start(&self, x: &Tensor, to: &Sharding) -> Result<Pending<Tensor>> {
        self.inner.start(x, to)
    }

    fn start_chunk(
        &self,
        x: &Tensor,
        ends: [&Sharding; 2],
        chunks: &Chunks,
        chunk: usize,
    ) -> Result<Pending<Tensor>> {
        let pending = self.inner.start_chunk(x, ends, chunks, chunk)?;
        let (first, second) = (self.first.clone(), self.second.clone());
        Ok(match (self.fault, chunk) {
            (ChunkFault::Lost, 1) => {
                Pending::by_host(move || Ok(ops::affine(&pending.wait()?, 0.0, 0.0)?.local()))
            }
            (ChunkFault::Swapped, 0) => Pending::by_host(move || {
                put(&first, pending.wait()?);
                take(&second).wait()
            }),
            (ChunkFault::Swapped, 1) => {
                put(&second, pending);
                Pending::by_host(move || Ok(take(&first)))
            }
            _ => pending,
        })
    }

    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn connect(&self, group: &Group) -> Result<Arc<dyn Communicator>> {
        self.inner.connect(group)
    }
}
