//! NCCL between processes, each with its own emulated GPUs: this test program starts itself.

use std::env;
use std::ffi::{c_int, c_void};
use std::io::{BufRead, BufReader, Read, Write, stdin};
use std::ops::Range;
use std::process::{Child, ChildStdout, Command, Stdio, exit};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, DevicePtr};
use meshgrad_nccl::Library;
use meshgrad_nccl::raw::{Handle, Status, UniqueId};

use crate::emulated::report;
use crate::nccl::{
    F32, MAX, Rank, SUM, begin, join_second, library, on_ranks, poll, reduces, refused,
    refused_beside_rank_0,
};

/// What a child does, and its rank.
const ROLE: &str = "MESHGRAD_TEST_ROLE";
const SIZE: usize = 3;
/// Long enough for a wrong answer to come, if there is one.
const SHORT: Duration = Duration::from_millis(100);
/// `ncclRemoteError`.
const REMOTE_ERROR: Status = Status(6);

/// Three ranks, as processes. Each creates a unique id, and gets those of all.
struct Processes {
    children: Vec<Child>,
    outputs: Vec<BufReader<ChildStdout>>,
    ids: Vec<UniqueId>,
}

impl Processes {
    fn start(role: &str, variables: &[(&str, &str)]) -> Processes {
        let child = |rank| {
            Command::new(env::current_exe().unwrap())
                .args(["processes::child", "--exact", "--nocapture", "--test-threads=1"])
                .env(ROLE, format!("{role} {rank}"))
                .env("MESHGRAD_EMULATOR_PROCESSES", "1")
                .envs(variables.iter().copied())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        };
        let mut children: Vec<Child> = (0..SIZE).map(child).collect();
        let outputs = children.iter_mut().map(|it| BufReader::new(it.stdout.take().unwrap()));
        let outputs = outputs.collect();
        let mut processes = Processes { children, outputs, ids: Vec::new() };
        let ids: Vec<String> = (0..SIZE).map(|rank| processes.heard(rank)).collect();
        (0..SIZE).for_each(|rank| ids.iter().for_each(|id| processes.tell(rank, id)));
        processes.ids = ids.iter().map(|id| UniqueId(from_hex(id).try_into().unwrap())).collect();
        processes
    }

    /// The next line that a rank says.
    fn heard(&mut self, rank: usize) -> String {
        let mut lines = self.outputs[rank].by_ref().lines().map(Result::unwrap);
        let said = lines.find_map(|line| line.strip_prefix("> ").map(str::to_owned));
        said.unwrap_or_else(|| panic!("rank {rank} has ended"))
    }

    fn tell(&mut self, rank: usize, line: &str) {
        writeln!(self.children[rank].stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Waits until these ranks have called [`meet`], and lets them go on.
    fn meet(&mut self, ranks: Range<usize>) {
        ranks.clone().for_each(|rank| assert_eq!(self.heard(rank), "here"));
        ranks.for_each(|rank| self.tell(rank, "go on"));
    }

    fn kill(&mut self, rank: usize) {
        self.children[rank].kill().unwrap();
        self.children[rank].wait().unwrap();
    }

    /// Waits until these ranks have ended well.
    fn end(mut self, ranks: impl IntoIterator<Item = usize>) {
        for rank in ranks {
            assert!(self.children[rank].wait().unwrap().success(), "rank {rank}");
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.children {
            // One that has ended cannot be killed.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn say(line: &str) {
    println!("\n> {line}");
}

fn hear() -> String {
    let mut line = String::new();
    stdin().read_line(&mut line).unwrap();
    line.trim().to_owned()
}

/// Waits for the other ranks.
fn meet() {
    say("here");
    hear();
}

fn hex(bytes: impl IntoIterator<Item = u8>) -> String {
    bytes.into_iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&text[2 * at..][..2], 16).unwrap();
    (0..text.len() / 2).map(byte).collect()
}

/// The main function of a child; without a role it does nothing.
#[test]
fn child() {
    let Ok(role) = env::var(ROLE) else {
        return;
    };
    thread::spawn(|| {
        sleep(Duration::from_secs(60));
        eprintln!("a rank waits without end");
        exit(1)
    });
    let words: Vec<&str> = role.split(' ').collect();
    let (library, rank) = (library(), words[1].parse().unwrap());
    say(&hex(library.unique_id().unwrap()));
    let ids: Vec<_> = (0..SIZE).map(|_| from_hex(&hear()).try_into().unwrap()).collect();
    let ids: Vec<UniqueId> = ids.into_iter().map(UniqueId).collect();
    let join = |id: usize| Rank::join(library, ids[id], rank, SIZE);
    match words[0] {
        "agree" => agree(&join(0), ids[1]),
        "differ" => differ(&join(1)),
        "cross" => cross(&join(1)),
        "hang" => wait(&join(0), 4 + rank, Status::SUCCESS),
        "lose-rank" => wait(&join(0), 4, Status::SUCCESS),
        "lose-hub" => wait(&join(2), 4, REMOTE_ERROR),
        "block" => block(&join(0)),
        "linger" => linger(&join(0)),
        "misuse" if rank == 0 => misuse(library, ids[0]),
        "misuse" => {}
        role => panic!("{role}"),
    }
}

fn destroy(library: &Library, communicator: Handle) {
    // SAFETY: nothing uses the communicator any more.
    let status = unsafe { (library.functions().comm_destroy)(communicator) };
    assert_eq!(status, Status::SUCCESS);
}

fn abort(library: &Library, communicator: Handle) {
    // SAFETY: no other thread is in a call of the communicator.
    let status = unsafe { (library.functions().comm_abort)(communicator) };
    assert_eq!(status, Status::SUCCESS);
}

/// Calls of all kinds, of numbers whose sums depend on their order.
fn results(rank: &Rank, second: Handle) -> Vec<f32> {
    let (own, root) = (rank.communicator, 1);
    let values = |count: usize| -> Vec<f32> {
        (0..count).map(|at| 1.0 / (3 + rank.rank * 7 + at * 5) as f32).collect()
    };
    let (next, before) = ((rank.rank + 1) % SIZE, (rank.rank + SIZE - 1) % SIZE);
    let (sent, received) = (5 * rank.rank, 5 * before);
    // SAFETY: the buffers have the sizes that the calls need, and the rank is not destroyed meanwhile.
    let mut all = unsafe {
        [
            rank.call(&values(7), 7, |nccl, from, to, on| {
                (nccl.all_reduce)(from, to, 7, F32, SUM, own, on)
            }),
            rank.call(&values(4), 4, |nccl, from, to, on| {
                (nccl.reduce)(from, to, 4, F32, MAX, root, own, on)
            }),
            rank.call(&values(3), 3, |nccl, from, to, on| {
                (nccl.broadcast)(from, to, 3, F32, root, own, on)
            }),
            rank.call(&values(4), 4 * SIZE, |nccl, from, to, on| {
                (nccl.all_gather)(from, to, 4, F32, own, on)
            }),
            rank.call(&values(5 * SIZE), 5, |nccl, from, to, on| {
                (nccl.reduce_scatter)(from, to, 5, F32, SUM, second, on)
            }),
            rank.call(&values(2 * SIZE), 2 * SIZE, |nccl, from, to, on| {
                (nccl.all_to_all.unwrap())(from, to, 2, F32, own, on)
            }),
            rank.call(&values(10), 10, |nccl, from, to, on| {
                assert_eq!((nccl.group_start)(), Status::SUCCESS);
                let sent = (nccl.send)(from, sent, F32, next as c_int, own, on);
                let received = (nccl.recv)(to, received, F32, before as c_int, own, on);
                assert_eq!([sent, received], [Status::SUCCESS; 2]);
                (nccl.group_end)()
            }),
        ]
        .concat()
    };
    all.extend(in_two_orders(rank, second, &values(6)));
    all
}

/// Sums `values` in two communicators of the same ranks, on a stream each. One process calls in the other order, which
/// is reported between threads only.
fn in_two_orders(rank: &Rank, second: Handle, values: &[f32]) -> Vec<f32> {
    let streams = [rank.stream.clone(), rank.stream.context().new_stream().unwrap()];
    let buffers = streams.clone().map(|stream| stream.clone_htod(values).unwrap());
    let communicators = [rank.communicator, second];
    let is_reversed = rank.rank == 1 && env::var(ROLE).is_ok();
    let order = if is_reversed { [1, 0] } else { [0, 1] };
    for at in order {
        let (to, _to) = buffers[at].device_ptr(&streams[at]);
        let (to, on) = (to as *mut c_void, streams[at].cu_stream().cast());
        let reduce = rank.functions().all_reduce;
        // SAFETY: the buffers have this size.
        let status = unsafe { reduce(to, to, values.len(), F32, SUM, communicators[at], on) };
        assert_eq!(status, Status::SUCCESS);
    }
    [0, 1].map(|at| streams[at].clone_dtoh(&buffers[at]).unwrap()).concat()
}

fn agree(rank: &Rank, second: UniqueId) {
    let second = join_second(rank, second);
    let results = results(rank, second);
    say(&hex(results.into_iter().flat_map(f32::to_le_bytes)));
    destroy(rank.library, second);
    destroy(rank.library, rank.communicator);
}

#[test]
fn processes_get_the_bits_of_threads() {
    let second = library().unique_id().map(UniqueId).unwrap();
    let of_threads = on_ranks(SIZE, |rank| {
        let second = join_second(rank, second);
        let results = results(rank, second);
        destroy(rank.library, second);
        hex(results.into_iter().flat_map(f32::to_le_bytes))
    });
    let mut processes = Processes::start("agree", &[]);
    let of_processes: Vec<String> = (0..SIZE).map(|rank| processes.heard(rank)).collect();
    assert_eq!(of_processes, of_threads);
    processes.end(0..SIZE);
}

fn differ(rank: &Rank) {
    let (status, _) = reduces(rank, rank.communicator, if rank.rank == 2 { 5 } else { 4 });
    let failed = rank.stream.synchronize().is_err() || status != Status::SUCCESS;
    say(&format!("{failed} {}", report()));
    meet();
    abort(rank.library, rank.communicator);
}

/// Rank 0 sends more than rank 1 receives.
fn cross(rank: &Rank) {
    let from_or_to = 1 - rank.rank.min(1) as c_int;
    let (own, is_third) = (rank.communicator, rank.rank == 2);
    let buffer = rank.stream.clone_htod(&[1.0f32; 8]).unwrap();
    let (at, on) = (buffer.device_ptr(&rank.stream).0, rank.stream.cu_stream().cast());
    let nccl = rank.functions();
    // SAFETY: the buffer has eight elements.
    let status = unsafe {
        match rank.rank {
            0 => (nccl.send)(at as *const c_void, 6, F32, from_or_to, own, on),
            1 => (nccl.recv)(at as *mut c_void, 5, F32, from_or_to, own, on),
            _ => Status::SUCCESS,
        }
    };
    let failed = rank.stream.synchronize().is_err() || status != Status::SUCCESS;
    say(&format!("{} {}", failed || is_third, report()));
    meet();
    abort(rank.library, own);
}

#[test]
fn different_calls_are_reported_by_their_members() {
    for (role, members, calls) in [
        ("differ", 3, ["all_reduce(f32 x 4, sum)", "rank 2 called all_reduce(f32 x 5, sum)"]),
        ("cross", 2, ["the sender called transfer(f32 x 6)", "transfer(f32 x 5)"]),
    ] {
        let mut processes = Processes::start(role, &[]);
        for rank in 0..SIZE {
            let said = processes.heard(rank);
            let has_all = calls.iter().all(|call| said.contains(call));
            let is_right = said.starts_with("true ") && has_all == (rank < members);
            assert!(is_right, "{role}, rank {rank}: {said}");
        }
        processes.meet(0..SIZE);
        processes.end(0..SIZE);
    }
}

/// Calls a collective that never ends, rank 1 later than the others. Then all abort it.
fn wait(rank: &Rank, count: usize, expected: Status) {
    let call = || assert_eq!(reduces(rank, rank.communicator, count).0, Status::SUCCESS);
    if rank.rank != 1 {
        call();
    }
    meet();
    sleep(SHORT);
    if rank.rank == 1 {
        call();
    }
    let event = rank.stream.record_event(None).unwrap();
    sleep(SHORT);
    assert_eq!(poll(rank.library, rank.communicator), expected);
    assert!(!event.try_is_complete().unwrap());
    meet();
    abort(rank.library, rank.communicator);
    rank.stream.synchronize().unwrap();
    assert!(event.try_is_complete().unwrap());
}

#[test]
fn ranks_wait_for_a_rank_that_was_killed() {
    for role in ["lose-rank", "lose-hub"] {
        let mut processes = Processes::start(role, &[]);
        (0..SIZE).for_each(|rank| assert_eq!(processes.heard(rank), "here"));
        processes.kill(2);
        (0..2).for_each(|rank| processes.tell(rank, "go on"));
        processes.meet(0..2);
        processes.end(0..2);
    }
}

#[test]
fn wrong_calls_can_wait_without_end() {
    let mut processes = Processes::start("hang", &[("MESHGRAD_EMULATOR_HANGS", "1")]);
    processes.meet(0..SIZE);
    processes.meet(0..SIZE);
    processes.end(0..SIZE);
}

/// Rank 0 enqueues two calls before the others, and then calls nothing until they have theirs.
fn block(rank: &Rank) {
    if rank.rank != 0 {
        hear();
    }
    for _ in 0..2 {
        assert_eq!(reduces(rank, rank.communicator, 4).0, Status::SUCCESS);
    }
    if rank.rank != 0 {
        rank.stream.synchronize().unwrap();
    }
    say("done");
    if rank.rank == 0 {
        hear();
    }
    destroy(rank.library, rank.communicator);
}

#[test]
fn operations_run_while_a_process_calls_nothing() {
    let mut processes = Processes::start("block", &[]);
    processes.heard(0);
    for rank in 1..SIZE {
        processes.tell(rank, "call");
    }
    for rank in 1..SIZE {
        assert_eq!(processes.heard(rank), "done");
    }
    processes.tell(0, "end");
    processes.end(0..SIZE);
}

/// Rank 0, which has the hub, is done before the others transfer.
fn linger(rank: &Rank) {
    if rank.rank > 0 {
        sleep(SHORT);
        let own = rank.communicator;
        // SAFETY: as above.
        let received = rank.call(&[7.0f32; 4], 4, |nccl, from, to, on| unsafe {
            match rank.rank {
                1 => (nccl.send)(from, 4, F32, 2, own, on),
                _ => (nccl.recv)(to, 4, F32, 1, own, on),
            }
        });
        assert_eq!(received, [if rank.rank == 2 { 7.0 } else { 0.0 }; 4]);
    }
    destroy(rank.library, rank.communicator);
}

#[test]
fn a_rank_that_is_done_serves_the_others() {
    Processes::start("linger", &[]).end(0..SIZE);
}

/// Ranks of one process, on one GPU.
fn misuse(library: &Library, id: UniqueId) {
    let _context = CudaContext::new_non_primary(0, 0).unwrap();
    let (status, first) = begin(library, id, 0, 2);
    assert_eq!([status, poll(library, first)], [Status::IN_PROGRESS; 2]);
    refused_beside_rank_0(library, id);
    let (_, second) = begin(library, id, 1, 2);
    for communicator in [first, second] {
        while poll(library, communicator) == Status::IN_PROGRESS {
            thread::yield_now();
        }
        assert_eq!(poll(library, communicator), Status::SUCCESS);
    }
    refused(library, begin(library, id, 1, 2).0, 5, "exists already");
    let begun = Instant::now();
    destroy(library, first);
    destroy(library, second);
    assert!(begun.elapsed() < Duration::from_secs(4), "one waited for the other");
    say("refused");
    hear();
    let mut statuses = std::iter::repeat_with(|| begin(library, id, 0, 2).0);
    let last = statuses.find(|status| *status != Status(5)).unwrap();
    refused(library, last, 6, "has ended");
}

#[test]
fn misuse_of_processes_is_refused() {
    let mut processes = Processes::start("misuse", &[]);
    processes.heard(0);
    let (library, _context) = (library(), CudaContext::new_non_primary(0, 0).unwrap());
    let (status, _) = begin(library, processes.ids[0], 0, 2);
    refused(library, status, 4, "set MESHGRAD_EMULATOR_PROCESSES=1");
    processes.tell(0, "end");
    processes.end(0..SIZE);
}
