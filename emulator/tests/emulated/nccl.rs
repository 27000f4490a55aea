//! NCCL's functions between emulated GPUs, called by a thread per rank.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::thread;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaStream, DevicePtr, DeviceRepr};
use meshgrad_mesh::GroupOptions;
use meshgrad_nccl::Library;
use meshgrad_nccl::raw::{Config, Functions, Handle, Status, UniqueId};

use crate::emulated;

pub(crate) const F32: c_int = 7;
const I64: c_int = 4;
const BF16: c_int = 9;
pub(crate) const SUM: c_int = 0;
pub(crate) const MAX: c_int = 2;
const AVERAGE: c_int = 4;

/// One rank of a communicator.
pub(crate) struct Rank {
    pub(crate) library: &'static Library,
    pub(crate) stream: Arc<CudaStream>,
    pub(crate) communicator: Handle,
    pub(crate) rank: usize,
    pub(crate) size: usize,
}

pub(crate) fn library() -> &'static Library {
    crate::open_emulator();
    let path = emulated::path();
    Box::leak(Box::new(Library::named(Some(path.as_os_str())).unwrap()))
}

/// Starts to create a communicator on the context that is current.
pub(crate) fn begin(library: &Library, id: UniqueId, rank: usize, size: usize) -> (Status, Handle) {
    let (mut communicator, mut config) = (ptr::null_mut(), Config::new(&GroupOptions::default()));
    let init = library.functions().comm_init_rank_config;
    let (size, rank) = (size as c_int, rank as c_int);
    // SAFETY: the pointers are valid.
    let status = unsafe { init(&mut communicator, size, id, rank, config.as_mut_ptr()) };
    (status, communicator)
}

pub(crate) fn poll(library: &Library, communicator: Handle) -> Status {
    let mut status = Status(0);
    // SAFETY: the communicator and the pointer are valid.
    let polled = unsafe { (library.functions().comm_get_async_error)(communicator, &mut status) };
    assert_eq!(polled, Status::SUCCESS);
    status
}

impl Rank {
    /// Joins on GPU `rank`.
    pub(crate) fn join(library: &'static Library, id: UniqueId, rank: usize, size: usize) -> Rank {
        // Of its own, because some tests end with a context that has failed.
        let context = CudaContext::new_non_primary(rank, 0).unwrap();
        let stream = context.new_stream().unwrap();
        let (status, communicator) = begin(library, id, rank, size);
        assert_eq!(status, Status::IN_PROGRESS);
        while poll(library, communicator) == Status::IN_PROGRESS {
            thread::yield_now();
        }
        Rank { library, stream, communicator, rank, size }
    }

    pub(crate) fn functions(&self) -> &Functions {
        self.library.functions()
    }

    /// Runs a call that sends `input` and receives `count` elements.
    pub(crate) fn call<T: DeviceRepr + Default + Clone + Copy>(
        &self,
        input: &[T],
        count: usize,
        call: impl FnOnce(&Functions, *const c_void, *mut c_void, *mut c_void) -> Status,
    ) -> Vec<T> {
        let send = self.stream.clone_htod(input).unwrap();
        let receive = self.stream.clone_htod(&vec![T::default(); count]).unwrap();
        let (from, _from) = send.device_ptr(&self.stream);
        let (to, _to) = receive.device_ptr(&self.stream);
        let stream = self.stream.cu_stream().cast();
        let status = call(self.functions(), from as *const c_void, to as *mut c_void, stream);
        assert_eq!(status, Status::SUCCESS, "{:?}", self.library.check(status, "call"));
        self.stream.clone_dtoh(&receive).unwrap()
    }
}

/// Ends the process if its thread panics: other ranks would wait for it without end.
pub(crate) struct EndOnPanic;

impl Drop for EndOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            std::process::exit(101);
        }
    }
}

/// Calls `body` on a thread per rank.
pub(crate) fn on_ranks<T: Send>(size: usize, body: impl Fn(&Rank) -> T + Sync) -> Vec<T> {
    let library = library();
    let (id, body) = (library.unique_id().map(UniqueId).unwrap(), &body);
    thread::scope(|scope| {
        let rank = |rank| {
            scope.spawn(move || {
                let _guard = EndOnPanic;
                let rank = Rank::join(library, id, rank, size);
                let result = body(&rank);
                // SAFETY: nothing uses the communicator any more.
                let status = unsafe { (library.functions().comm_destroy)(rank.communicator) };
                assert_eq!(status, Status::SUCCESS);
                result
            })
        };
        let threads: Vec<_> = (0..size).map(rank).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Element `at` of the buffer of `rank`: small integers, which sums in any order give exactly.
fn value(rank: usize, at: usize) -> f32 {
    ((rank * 7 + at * 3) % 11) as f32
}

fn values(rank: usize, count: usize) -> Vec<f32> {
    (0..count).map(|at| value(rank, at)).collect()
}

#[test]
fn collectives_between_gpus_equal_plain_loops() {
    for size in 1..=4 {
        let all = |at: usize| (0..size).map(move |rank| value(rank, at));
        let root = size - 1;
        let results = on_ranks(size, |rank| {
            let own = rank.communicator;
            // SAFETY: the buffers have the sizes that the calls need, and the rank is not destroyed meanwhile.
            unsafe {
                let reduced = rank.call(&values(rank.rank, 5), 5, |nccl, from, to, on| {
                    (nccl.all_reduce)(from, to, 5, F32, SUM, own, on)
                });
                let largest = rank.call(&values(rank.rank, 5), 5, |nccl, from, to, on| {
                    (nccl.reduce)(from, to, 5, F32, MAX, root as c_int, own, on)
                });
                let from_root = rank.call(&values(rank.rank, 3), 3, |nccl, from, to, on| {
                    (nccl.broadcast)(from, to, 3, F32, root as c_int, own, on)
                });
                let gathered = rank.call(&values(rank.rank, 3), 3 * size, |nccl, from, to, on| {
                    (nccl.all_gather)(from, to, 3, F32, own, on)
                });
                let scattered = rank.call(&values(rank.rank, 2 * size), 2, |nccl, from, to, on| {
                    (nccl.reduce_scatter)(from, to, 2, F32, SUM, own, on)
                });
                let exchanged =
                    rank.call(&values(rank.rank, 2 * size), 2 * size, |nccl, from, to, on| {
                        (nccl.all_to_all.unwrap())(from, to, 2, F32, own, on)
                    });
                [reduced, largest, from_root, gathered, scattered, exchanged]
            }
        });
        for (rank, [reduced, largest, from_root, gathered, scattered, exchanged]) in
            results.into_iter().enumerate()
        {
            assert_eq!(reduced, (0..5).map(|at| all(at).sum()).collect::<Vec<f32>>());
            let max = |at| all(at).fold(0.0, f32::max);
            assert_eq!(
                largest,
                (0..5).map(|at| if rank == root { max(at) } else { 0.0 }).collect::<Vec<_>>()
            );
            assert_eq!(from_root, values(root, 3));
            assert_eq!(gathered, (0..size).flat_map(|from| values(from, 3)).collect::<Vec<_>>());
            assert_eq!(scattered, (0..2).map(|at| all(2 * rank + at).sum()).collect::<Vec<f32>>());
            let part = |from: usize| values(from, 2 * size)[2 * rank..][..2].to_vec();
            assert_eq!(exchanged, (0..size).flat_map(part).collect::<Vec<_>>());
        }
    }
}

/// All ranks get the same bits. Averages multiply by a rounded 1/n first; integers wrap, and are divided last.
#[test]
fn sums_are_in_the_type_of_the_elements() {
    let sums = on_ranks(3, |rank| {
        let own = rank.communicator;
        // SAFETY: as above.
        unsafe {
            let bits = rank.call(&[0x3f81_u16; 4], 4, |nccl, from, to, on| {
                (nccl.all_reduce)(from, to, 4, BF16, AVERAGE, own, on)
            });
            let integers = rank.call(&[i64::MAX, 5], 2, |nccl, from, to, on| {
                (nccl.all_reduce)(from, to, 2, I64, AVERAGE, own, on)
            });
            (bits, integers)
        }
    });
    assert!(sums.iter().all(|sum| *sum == sums[0]));
    // 1.0078125 x bf16(1/3) = 0.3359375 rounded, three times.
    assert_eq!(sums[0].0, [0x3f81; 4]);
    assert_eq!(sums[0].1, [i64::MAX.wrapping_mul(3) / 3, 5]);
}

#[test]
fn grouped_transfers_go_around_a_ring() {
    let received = on_ranks(4, |rank| {
        let (next, before) = ((rank.rank + 1) % rank.size, (rank.rank + rank.size - 1) % rank.size);
        // SAFETY: as above.
        rank.call(&values(rank.rank, 6), 6, |nccl, from, to, on| unsafe {
            assert_eq!((nccl.group_start)(), Status::SUCCESS);
            let sent = (nccl.send)(from, 6, F32, next as c_int, rank.communicator, on);
            let received = (nccl.recv)(to, 6, F32, before as c_int, rank.communicator, on);
            assert_eq!([sent, received], [Status::SUCCESS; 2]);
            (nccl.group_end)()
        })
    });
    for (rank, received) in received.into_iter().enumerate() {
        assert_eq!(received, values((rank + 3) % 4, 6));
    }
}

/// Enqueues an all_reduce of `count` elements, and returns its status and the error of the stream.
pub(crate) fn reduces(rank: &Rank, communicator: Handle, count: usize) -> (Status, Option<String>) {
    let buffer = rank.stream.clone_htod(&[1.0f32; 8]).unwrap();
    let (at, _at) = buffer.device_ptr(&rank.stream);
    let (at, stream) = (at as *mut c_void, rank.stream.cu_stream().cast());
    // SAFETY: the buffer has eight elements.
    let status =
        unsafe { (rank.functions().all_reduce)(at, at, count, F32, SUM, communicator, stream) };
    let message = rank.library.check(status, "ncclAllReduce").err();
    (status, message.map(|error| error.to_string()))
}

pub(crate) fn refused(library: &Library, status: Status, code: i32, expected: &str) {
    let message = library.check(status, "it").unwrap_err().to_string();
    assert!(status == Status(code) && message.contains(expected), "{status:?} {message}");
}

/// Ranks that cannot join after rank 0 of 2.
pub(crate) fn refused_beside_rank_0(library: &Library, id: UniqueId) {
    refused(library, begin(library, id, 0, 2).0, 5, "exists already");
    refused(library, begin(library, id, 1, 3).0, 4, "has 2 ranks for others, and 3 for rank 1");
    refused(library, begin(library, id, 2, 2).0, 4, "rank 2 is not below the 2 ranks");
}

/// One rank captures a call, which the other one makes without a graph.
#[test]
fn a_graph_of_some_ranks_is_found() {
    let failed = on_ranks(2, |rank| {
        if rank.rank == 1 {
            reduces(rank, rank.communicator, 4);
            return rank.stream.synchronize().is_err();
        }
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let buffer = rank.stream.clone_htod(&[1.0f32; 8]).unwrap();
        let (at, _at) = buffer.device_ptr(&rank.stream);
        rank.stream.begin_capture(mode).unwrap();
        let (at, stream) = (at as *mut c_void, rank.stream.cu_stream().cast());
        // SAFETY: the buffer has eight elements, and outlives the graph.
        let status = unsafe {
            (rank.functions().all_reduce)(at, at, 4, F32, SUM, rank.communicator, stream)
        };
        assert_eq!(status, Status::SUCCESS);
        let graph = rank.stream.end_capture(flags).unwrap().unwrap();
        // SAFETY: the communicator is not used otherwise.
        let destroyed = unsafe { (rank.functions().comm_destroy)(rank.communicator) };
        let message = rank.library.check(destroyed, "it").unwrap_err().to_string();
        assert!(message.contains("is destroyed before graphs that call it"), "{message}");
        graph.launch().is_err() | rank.stream.synchronize().is_err()
    });
    assert_eq!(failed, [true; 2]);
    assert!(emulated::report().contains("all_reduce(f32 x 4, sum) in a graph"));
}

#[test]
fn misuse_is_refused() {
    let library = library();
    let id = library.unique_id().map(UniqueId).unwrap();
    let context = CudaContext::new_non_primary(0, 0).unwrap();
    let rank = |communicator| Rank {
        library,
        stream: context.new_stream().unwrap(),
        communicator,
        rank: 0,
        size: 2,
    };
    let (status, unfinished) = begin(library, id, 0, 2);
    assert_eq!(status, Status::IN_PROGRESS);
    assert_eq!(poll(library, unfinished), Status::IN_PROGRESS);
    let (status, message) = reduces(&rank(unfinished), unfinished, 4);
    assert_eq!(status, Status::INVALID_ARGUMENT);
    assert!(message.unwrap().contains("before ncclCommGetAsyncError reported success"));

    refused(library, begin(library, id, 1, 2).0, 5, "ranks 0 and 1 of communicator");
    refused_beside_rank_0(library, id);
    let unknown = UniqueId([1; 128]);
    refused(
        library,
        begin(library, unknown, 0, 2).0,
        4,
        "is not one that this process has created",
    );
    // An `ncclConfig_t` of 32 bytes: size, magic, version, blocking, cgaClusterSize, minCTAs and maxCTAs.
    let magic = 0xcafe_beef_u32 as i32;
    let mut config = [32, 0, magic, 21903, 0, i32::MIN, 8, i32::MIN];
    let (init, mut none) = (library.functions().comm_init_rank_config, ptr::null_mut());
    // SAFETY: the pointers are valid.
    let status = unsafe { init(&mut none, 2, id, 1, config.as_mut_ptr().cast()) };
    refused(library, status, 4, "minCTAs 8 is above maxCTAs");
    // SAFETY: without arguments, or with a handle that is checked.
    unsafe {
        refused(library, (library.functions().group_end)(), 5, "without ncclGroupStart");
        assert_eq!((library.functions().comm_abort)(unfinished), Status::SUCCESS);
        refused(library, (library.functions().comm_destroy)(unfinished), 1, "communicator");
    }
}

#[test]
fn wrong_arguments_are_refused() {
    let messages = on_ranks(1, |rank| {
        let buffer = rank.stream.clone_htod(&[1.0f32; 8]).unwrap();
        let (at, _at) = buffer.device_ptr(&rank.stream);
        let (at, stream, own) =
            (at as *mut c_void, rank.stream.cu_stream().cast(), rank.communicator);
        let other = CudaContext::new_non_primary(1, 0).unwrap().new_stream().unwrap();
        let nccl = rank.functions();
        let refused =
            |status: Status| (status.0, rank.library.check(status, "it").unwrap_err().to_string());
        // SAFETY: what is wrong is checked before it is used.
        unsafe {
            [
                refused((nccl.all_reduce)(at, at, 9, F32, SUM, own, stream)),
                refused((nccl.all_gather)(at, at, usize::MAX / 2, F32, own, stream)),
                refused((nccl.broadcast)(at, at, 8, F32, 1, own, stream)),
                refused((nccl.all_reduce)(at, at, 8, 99, SUM, own, stream)),
                refused((nccl.all_reduce)(at, at, 8, F32, SUM, own, other.cu_stream().cast())),
                refused((nccl.send)(at, 8, F32, 0, own, stream)),
            ]
        }
    });
    let expected = [
        (4, "36 bytes at"),
        (4, "exceed the allocation"),
        (4, "has 1 ranks, and no rank 1"),
        (4, "99 is not an ncclDataType_t"),
        (4, "got a stream of another context"),
        (5, "sends to itself without receiving"),
    ];
    for ((code, message), (expected, part)) in messages[0].iter().zip(expected) {
        assert!(*code == expected && message.contains(part), "{code} {message}");
    }
}

/// Joins a second communicator of the same ranks.
pub(crate) fn join_second(rank: &Rank, id: UniqueId) -> Handle {
    let (_, second) = begin(rank.library, id, rank.rank, rank.size);
    while poll(rank.library, second) == Status::IN_PROGRESS {
        thread::yield_now();
    }
    second
}

/// A rank that aborts ends its own collective only.
#[test]
fn each_rank_must_abort() {
    let id = library().unique_id().map(UniqueId).unwrap();
    let waited = on_ranks(3, |rank| {
        let second = join_second(rank, id);
        let is_missing = rank.rank == 2;
        if !is_missing {
            assert_eq!(reduces(rank, second, 4).0, Status::SUCCESS);
        }
        let event = rank.stream.record_event(None).unwrap();
        let waits = !event.try_is_complete().unwrap();
        // SAFETY: no other thread is in a call of the communicator.
        let aborted = unsafe { (rank.functions().comm_abort)(second) };
        assert_eq!(aborted, Status::SUCCESS);
        rank.stream.synchronize().unwrap();
        (waits || is_missing, event.try_is_complete().unwrap())
    });
    assert_eq!(waited, [(true, true); 3]);
}
