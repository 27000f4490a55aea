//! Programs with one mistake each, and the same programs without it: two ranks with two communicators and two
//! streams. Each runs in a process of its own, with streams in order and interleaved.

use std::env;
use std::ffi::c_void;
use std::process::{Command, Stdio, exit};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier, Mutex};
use std::thread::{self, sleep};
use std::time::Duration;

use cudarc::driver::{CudaStream, DevicePtr, LaunchConfig, PushKernelArg, result, sys};
use cudarc::nvrtc::Ptx;
use meshgrad_nccl::Library;
use meshgrad_nccl::raw::{Handle, Status, UniqueId};

use crate::emulated::{self, report};
use crate::nccl::{EndOnPanic, F32, Rank, SUM, join_second, library};

/// The program that a child runs, and whether with its mistake.
const PROGRAM: &str = "MESHGRAD_TEST_PROGRAM";
const ORDERS: [&str; 4] = ["ordered", "random:1", "random:2", "random:3"];
const ONE_AT_A_TIME: (&str, &str) = ("MESHGRAD_EMULATOR_RESIDENT", "1");
const OLD: (&str, &str) = ("MESHGRAD_EMULATOR_NCCL", "2.19");

const READS: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry reads(.param .u64 x) {
    .reg .u64 %rd;
    .reg .f32 %f;
    .reg .pred %p;
    ld.param.u64 %rd, [x];
    ld.global.f32 %f, [%rd];
    setp.lt.f32 %p, %f, 0f00000000;
    @%p trap;
    ret;
}";

struct Program {
    /// A part of the report.
    finding: &'static str,
    variable: Option<(&'static str, &'static str)>,
    run: fn(&Part<'_>),
}

const fn program(finding: &'static str, run: fn(&Part<'_>)) -> Program {
    Program { finding, variable: None, run }
}

impl Program {
    const fn with(self, variable: (&'static str, &'static str)) -> Program {
        Program { variable: Some(variable), ..self }
    }
}

const PROGRAMS: &[Program] = &[
    program("called all_reduce(f32 x 5, sum)", |it| {
        it.reduce(it.first, 0, if it.is_wrong_on(1) { 5 } else { 4 });
    }),
    program("called all_reduce(f32 x 0, sum)", |it| {
        it.reduce(it.first, 0, if it.is_wrong { 4 * it.rank } else { 0 });
        it.reduce(it.first, 0, 4);
    }),
    program("waits in collective 0 of", |it| {
        it.ordered().into_iter().for_each(|communicator| it.reduce(communicator, 0, 4));
    }),
    program("different orders: collective 0 of", |it| it.reduce_both()),
    program("has no room for collective 0 of", |it| it.reduce_both()).with(ONE_AT_A_TIME),
    // In one order, but the stream of the first is behind on one GPU.
    program("GPU 0 has no room for collective 0 of", |it| {
        if it.is_wrong_on(0) {
            it.wait_for_mark();
        }
        it.reduce(it.first, 0, 4);
        it.reduce(it.second, 1, 4);
        it.mark();
    })
    .with(ONE_AT_A_TIME),
    program("waits in transfer 0 from rank", |it| {
        if !it.is_wrong {
            it.start_group();
        }
        it.exchange();
        if !it.is_wrong {
            it.end_group();
        }
    }),
    program("a thread ended while its group with calls of rank", |it| {
        let body = || {
            it.start_group();
            it.reduce(it.first, 0, 4);
            if !it.is_wrong {
                it.end_group();
            }
        };
        thread::scope(|scope| scope.spawn(body).join().unwrap());
    }),
    program("ends while a group that calls it is open", |it| {
        it.start_group();
        it.reduce(it.first, 0, 4);
        if it.is_wrong {
            it.destroy(it.first);
        }
        it.end_group();
    }),
    // Before the others call it,
    program("rank 1 ends its communicator without all_reduce", |it| {
        if it.rank == 1 {
            it.destroy(it.first);
        }
        it.meet.wait();
        if it.is_wrong_on(0) {
            it.reduce(it.first, 0, 4);
        }
    }),
    // and after.
    program("ends its communicator without all_reduce(f32 x 4", |it| {
        if !it.is_wrong_on(1) {
            it.reduce(it.first, 0, 4);
        }
        it.meet.wait();
        if it.rank == 1 {
            it.destroy(it.first);
        }
    }),
    program("was destroyed or is not a communicator", |it| {
        it.destroy(it.first);
        it.destroy(if it.is_wrong { it.first } else { it.second });
    }),
    program("overlap, but not in place", |it| {
        it.all_reduce(it.first, 0, it.x, it.x + if it.is_wrong { 8 } else { 0 }, 4);
    }),
    // A kernel on another stream reads what is received, and does not wait for it,
    program("which was never written", |it| it.use_early(it.x + 128, |on| it.read(on, it.x + 128))),
    // also in place,
    program("byte 0 of allocation", |it| it.use_early(it.x, |on| it.read(on, it.x))),
    // or writes it,
    program("what member 0 receives by all_reduce", |it| {
        it.use_early(it.x + 128, |on| it.set(on, it.x + 128));
    }),
    // or what is sent.
    program("what member 0 sends by all_reduce", |it| {
        it.use_early(it.x + 128, |on| it.set(on, it.x));
    }),
    program("was freed before it ran", |it| {
        // SAFETY: the use after the free is what is tested.
        let x = unsafe { result::malloc_async(it.streams[0].cu_stream(), 16) }.unwrap();
        it.streams[0].synchronize().unwrap();
        if it.rank == 0 {
            it.all_reduce(it.first, 0, x, x, 4);
            let on = &it.streams[usize::from(it.is_wrong)];
            // SAFETY: as above.
            unsafe { result::free_async(x, on.cu_stream()) }.unwrap();
            it.streams[1].synchronize().unwrap();
        }
        it.meet.wait();
        if it.rank == 1 {
            it.all_reduce(it.first, 0, x, x, 4);
        }
    }),
    program("is on GPU 0, but its buffer on GPU 1", |it| {
        let x = it.buffers[if it.is_wrong { 1 } else { it.rank }].load(Relaxed);
        it.all_reduce(it.first, 0, x, x, 4);
    }),
    program("a group calls blocking and other communicators", |it| {
        let blocking = it.join_blocking();
        it.start_group();
        it.reduce(it.first, 0, 4);
        it.reduce(if it.is_wrong { blocking } else { it.second }, 1, 4);
        it.end_group();
    }),
    program("is called by two threads at once", |it| {
        it.start_group();
        it.reduce(it.first, 0, 4);
        let other = if it.is_wrong { it.first } else { it.second };
        thread::scope(|scope| scope.spawn(|| it.reduce(other, 1, 4)).join().unwrap());
        it.end_group();
    }),
    program("is aborted in a group, which NCCL can do from 2.22 on", |it| {
        if it.is_wrong {
            it.start_group();
        }
        // SAFETY: no other thread is in a call of the communicator.
        it.check(unsafe { (it.library.functions().comm_abort)(it.first as Handle) });
    })
    .with(OLD),
    program("ncclAlltoAll is not in NCCL 2.19.3", |it| {
        assert_eq!(it.library.version().to_string(), "2.19.3");
        assert!(it.library.functions().all_to_all.is_none());
        if it.is_wrong {
            it.all_to_all_of_exports();
        }
    })
    .with(OLD),
];

/// A rank of a program. Handles are numbers, so that threads can use them.
struct Part<'a> {
    is_wrong: bool,
    rank: usize,
    library: &'static Library,
    streams: [Arc<CudaStream>; 2],
    first: usize,
    second: usize,
    /// Of 64 elements, and those of both ranks.
    x: u64,
    buffers: &'a [AtomicU64; 2],
    id_of_blocking: UniqueId,
    meet: &'a Barrier,
    messages: &'a Mutex<Vec<String>>,
}

impl Part<'_> {
    fn is_wrong_on(&self, rank: usize) -> bool {
        self.is_wrong && self.rank == rank
    }

    fn on(&self, stream: usize) -> *mut c_void {
        self.streams[stream].cu_stream().cast()
    }

    fn check(&self, status: Status) {
        let failed = self.library.check(status, "it").err();
        self.messages.lock().unwrap().extend(failed.map(|error| error.to_string()));
    }

    fn all_reduce(&self, communicator: usize, stream: usize, from: u64, to: u64, count: usize) {
        let (from, to) = (from as *const c_void, to as *mut c_void);
        let (all_reduce, on) = (self.library.functions().all_reduce, self.on(stream));
        // SAFETY: the buffers have this size, or are wrong and checked.
        self.check(unsafe { all_reduce(from, to, count, F32, SUM, communicator as Handle, on) });
    }

    /// Starts a kernel that compares the element at `x`.
    fn read(&self, stream: usize, x: u64) {
        let module = self.streams[0].context().load_module(Ptx::from_src(READS)).unwrap();
        let kernel = module.load_function("reads").unwrap();
        let mut launch = self.streams[stream].launch_builder(&kernel);
        // SAFETY: the kernel reads one element.
        let _ = unsafe { launch.arg(&x).launch(LaunchConfig::for_num_elems(1)) }; // seen later
        std::mem::forget(kernel); // unloading it would wait for the stream
    }

    /// Starts a write of the element at `x`.
    fn set(&self, stream: usize, x: u64) {
        // SAFETY: the element exists.
        let set = unsafe { result::memset_d8_async(x, 7, 4, self.streams[stream].cu_stream()) };
        set.unwrap();
    }

    /// Reduces into `to`. Rank 0 uses memory on the same stream, or wrongly on the other one, before rank 1 comes.
    fn use_early(&self, to: u64, start_use: impl Fn(usize)) {
        if self.rank == 0 {
            self.all_reduce(self.first, 0, self.x, to, 4);
            start_use(usize::from(self.is_wrong));
            if self.is_wrong {
                self.synchronize(1);
            }
        }
        self.meet.wait();
        if self.rank == 1 && self.messages.lock().unwrap().is_empty() {
            self.all_reduce(self.first, 0, self.x, to, 4);
        }
    }

    fn synchronize(&self, stream: usize) {
        if let Err(error) = self.streams[stream].synchronize() {
            self.messages.lock().unwrap().push(format!("{error}: {}", report()));
        }
    }

    fn reduce(&self, communicator: usize, stream: usize, count: usize) {
        let x = self.x + 128 * stream as u64;
        self.all_reduce(communicator, stream, x, x, count);
    }

    /// The communicators, in another order on a rank that is wrong.
    fn ordered(&self) -> [usize; 2] {
        if self.is_wrong_on(1) { [self.second, self.first] } else { [self.first, self.second] }
    }

    fn reduce_both(&self) {
        for communicator in self.ordered() {
            self.reduce(communicator, usize::from(communicator == self.second), 4);
        }
    }

    /// Sends to the other rank, and receives from it.
    fn exchange(&self) {
        let (nccl, peer, on) = (self.library.functions(), 1 - self.rank as i32, self.on(0));
        let (from, to) = (self.x as *const c_void, (self.x + 128) as *mut c_void);
        let own = self.first as Handle;
        // SAFETY: the buffers have four elements.
        self.check(unsafe { (nccl.send)(from, 4, F32, peer, own, on) });
        // SAFETY: as above.
        self.check(unsafe { (nccl.recv)(to, 4, F32, peer, own, on) });
    }

    /// Calls a function that the table of functions hides.
    fn all_to_all_of_exports(&self) {
        type AllToAll = unsafe extern "C" fn(u64, u64, usize, i32, Handle, *mut c_void) -> Status;
        let (from, to, on) = (self.x, self.x + 128, self.on(0));
        // SAFETY: this is the function's type, and the buffers have two parts of two elements.
        self.check(unsafe {
            let function = emulated::driver(&[]).get::<AllToAll>(b"ncclAlltoAll").unwrap();
            function(from, to, 2, F32, self.first as Handle, on)
        });
    }

    /// Lets the first stream wait for [`Part::mark`].
    fn wait_for_mark(&self) {
        let stream = self.streams[0].cu_stream();
        // SAFETY: the last element is not used otherwise; 1 waits for equality.
        let waits = unsafe { sys::cuStreamWaitValue32_v2(stream, self.x + 252, 5, 1) };
        waits.result().unwrap();
    }

    fn mark(&self) {
        let stream = self.streams[0].context().new_stream().unwrap();
        // SAFETY: as above.
        let marked =
            unsafe { sys::cuStreamWriteValue32_v2(stream.cu_stream(), self.x + 252, 5, 0) };
        marked.result().unwrap();
    }

    fn start_group(&self) {
        // SAFETY: opens a group of this thread.
        self.check(unsafe { (self.library.functions().group_start)() });
    }

    fn end_group(&self) {
        // SAFETY: without arguments.
        self.check(unsafe { (self.library.functions().group_end)() });
    }

    fn destroy(&self, communicator: usize) {
        // SAFETY: the handle is checked.
        self.check(unsafe { (self.library.functions().comm_destroy)(communicator as Handle) });
    }

    /// A communicator with the default configuration.
    fn join_blocking(&self) -> usize {
        let (init, mut handle) = (self.library.functions().comm_init_rank_config, ptr::null_mut());
        let (id, rank) = (self.id_of_blocking, self.rank as i32);
        // SAFETY: the pointer is valid.
        self.check(unsafe { init(&mut handle, 2, id, rank, ptr::null_mut()) });
        handle as usize
    }
}

/// The main function of a child; without a program it does nothing.
#[test]
fn broken_child() {
    let Ok(chosen) = env::var(PROGRAM) else {
        return;
    };
    thread::spawn(|| {
        sleep(Duration::from_secs(60));
        println!("\n> it waits without end");
        exit(1)
    });
    let (mistake, finding) = chosen.split_once(' ').unwrap();
    let is_wrong = mistake == "wrong";
    let program = PROGRAMS.iter().find(|it| it.finding == finding).unwrap();
    let library = library();
    let [first, second, id_of_blocking] = [(); 3].map(|()| UniqueId(library.unique_id().unwrap()));
    let (meet, messages, buffers) = (Barrier::new(2), Mutex::default(), Default::default());
    let run = |rank: usize| {
        let _guard = EndOnPanic;
        let joined = Rank::join(library, first, rank, 2);
        let x = joined.stream.clone_htod(&[1.0f32; 64]).unwrap();
        let streams = [joined.stream.clone(), joined.stream.context().new_stream().unwrap()];
        let buffers: &[AtomicU64; 2] = &buffers;
        buffers[rank].store(x.device_ptr(&joined.stream).0, Relaxed);
        joined.stream.synchronize().unwrap();
        let part = Part {
            is_wrong,
            rank,
            library,
            streams,
            first: joined.communicator as usize,
            second: join_second(&joined, second) as usize,
            x: buffers[rank].load(Relaxed),
            buffers,
            id_of_blocking,
            meet: &meet,
            messages: &messages,
        };
        meet.wait();
        (program.run)(&part);
        (0..part.streams.len()).for_each(|stream| part.synchronize(stream));
        meet.wait();
    };
    thread::scope(|scope| [0, 1].map(|rank| scope.spawn(move || run(rank))).map(drop));
    let messages = messages.into_inner().unwrap();
    if !messages.is_empty() {
        println!("\n> {}", messages.join("; "));
    }
    exit(0);
}

#[test]
fn mistakes_are_found() {
    let child = |program: &Program, is_wrong: bool, order: &str| {
        let chosen = format!("{} {}", if is_wrong { "wrong" } else { "right" }, program.finding);
        Command::new(env::current_exe().unwrap())
            .args(["broken::broken_child", "--exact", "--nocapture", "--test-threads=1"])
            .env(PROGRAM, chosen)
            .env("MESHGRAD_EMULATOR_STREAMS", order)
            .env("MESHGRAD_EMULATOR_LEAKS", "off")
            .envs(program.variable)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let mut surprises = Vec::new();
    for program in PROGRAMS {
        for is_wrong in [true, false] {
            let children = ORDERS.map(|order| (order, child(program, is_wrong, order)));
            for (order, child) in children {
                let output = child.wait_with_output().unwrap();
                let said = String::from_utf8_lossy(&output.stdout);
                let found = said.split_once("\n> ").map_or("", |(_, found)| found);
                let is_right = match is_wrong {
                    true => found.contains(program.finding),
                    false => found.is_empty() && output.status.success(),
                };
                if !is_right {
                    surprises.push(format!("{}, {is_wrong}, {order}: {said}", program.finding));
                }
            }
        }
    }
    assert!(surprises.is_empty(), "{}", surprises.join("\n"));
}
