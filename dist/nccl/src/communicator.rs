//! A communicator of one rank, and the calls that it enqueues.

use std::collections::HashSet;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use meshgrad_error::{Result, bail, ensure, error};
use meshgrad_mesh::GroupOptions;
use meshgrad_runtime::{DType, GpuSlice, GpuSliceMut, StreamWork, is_capturing};

use crate::Library;
use crate::config::Config;
use crate::functions::{Handle, Stream, UniqueId};
use crate::status::Status;
use crate::version::Version;

/// The time between polls of a call that is in progress.
const POLL: Duration = Duration::from_micros(20);
/// From this version on, communicators can be aborted in a group.
const GROUPED_ABORT: Version = Version { major: 2, minor: 22, patch: 0 };
/// `ncclSum`.
const SUM: c_int = 0;

/// One rank's communicator. One thread enqueues; any thread may poll or abort it. Dropping it destroys it, which
/// waits for its work.
#[derive(Debug)]
pub struct Communicator {
    library: &'static Library,
    size: usize,
    /// `None` once it was aborted.
    handle: Mutex<Option<Raw>>,
    /// What has run outside of graphs.
    known: Mutex<HashSet<Known>>,
}

/// The name of a call, its root or peer, and for a collective its number of elements.
type Known = (&'static str, usize, usize);

#[derive(Clone, Copy, Debug)]
struct Raw(Handle);

// SAFETY: NCCL allows any thread to use a communicator, one at a time, which the mutex ensures.
unsafe impl Send for Raw {}

impl Communicator {
    /// Begins to create the communicator of `rank` of `size`, on the GPU whose context is current. It does not wait
    /// for other ranks: [`Communicator::is_ready`] says when all have come.
    ///
    /// # Errors
    /// When NCCL refuses the arguments, or fails.
    pub fn begin(
        library: &'static Library,
        id: [u8; 128],
        [rank, size]: [usize; 2],
        options: &GroupOptions,
    ) -> Result<Communicator> {
        let number = |value: usize| {
            c_int::try_from(value).map_err(|_| error!(Invalid, "NCCL has no rank {value}"))
        };
        let (rank, ranks) = (number(rank)?, number(size)?);
        let (mut handle, mut config) = (ptr::null_mut(), Config::new(options));
        let init = library.functions().comm_init_rank_config;
        // SAFETY: the pointers are valid; the library copies what they point to.
        let status =
            unsafe { init(&raw mut handle, ranks, UniqueId(id), rank, config.as_mut_ptr()) };
        if status != Status::IN_PROGRESS {
            library.check(status, "ncclCommInitRankConfig")?;
        }
        let handle = Mutex::new(Some(Raw(handle)));
        Ok(Communicator { library, size, handle, known: Mutex::default() })
    }

    /// Whether all ranks have come, and the last call is not in progress.
    ///
    /// # Errors
    /// When the communicator has failed, or was aborted.
    pub fn is_ready(&self) -> Result<bool> {
        self.poll(self.open(&self.lock())?)
    }

    /// Checks for errors that NCCL found later than the call, such as a failed network; none once it was aborted.
    ///
    /// # Errors
    /// That error.
    pub fn check(&self) -> Result<()> {
        self.lock().map_or(Ok(()), |raw| self.poll(raw).map(drop))
    }

    /// Enqueues `calls` on the stream of `work`, as one group: they start together. During
    /// [`Device::capture`](meshgrad_runtime::Device::capture), they become part of the graph.
    ///
    /// # Errors
    /// That of `calls`; when NCCL refuses a call or fails, and when the communicator was aborted; during a capture,
    /// for a call that has not run before: a first one may allocate memory and connect to other ranks.
    pub fn enqueue<'a>(&self, work: &mut StreamWork, calls: &'a [Call<'a>]) -> Result<()> {
        self.know(calls)?;
        let used = calls.iter().flat_map(Call::slices);
        work.enqueue(used, |stream| {
            let handle = self.lock();
            let raw = self.open(&handle)?;
            let functions = self.library.functions();
            // SAFETY: opens a group of this thread.
            self.library.check(unsafe { (functions.group_start)() }, "ncclGroupStart")?;
            let started = calls.iter().try_for_each(|call| self.start(call, raw, stream));
            // Also after an error, because the group is this thread's until it is closed.
            // SAFETY: the group is open.
            let status = unsafe { (functions.group_end)() };
            started?;
            drop(handle);
            match status {
                Status::IN_PROGRESS => self.wait(),
                other => self.library.check(other, "ncclGroupEnd"),
            }
        })
    }

    /// Records that `calls` run, or checks that they have run before they are captured.
    fn know(&self, calls: &[Call<'_>]) -> Result<()> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for call in calls {
            if !is_capturing() {
                known.insert(call.known());
            }
            ensure!(
                known.contains(&call.known()),
                Invalid,
                "{} during Device::capture: NCCL may allocate memory and connect to other ranks for it; run the same \
                 work once before the capture",
                call.known().0
            );
        }
        Ok(())
    }

    /// Starts a call of the open group.
    fn start(&self, call: &Call<'_>, Raw(handle): Raw, stream: Stream) -> Result<()> {
        call.check(self.size)?;
        let (x, y) = call.sides();
        let address = |slice: Option<&GpuSlice<'_>>| slice.map_or(Ok(0), GpuSlice::address);
        let to = address(y.map(GpuSliceMut::as_slice))? as *mut c_void;
        let from = address(x)? as *const c_void;
        let part = call.part();
        let (count, dtype) = (part.elements(), element(part.dtype())?);
        let index = call.rank() as c_int; // below the size, which is a c_int
        let f = self.library.functions();
        // SAFETY: the addresses are of slices that `check` found long enough and that the work keeps, and the
        // communicator and the stream exist.
        let status = unsafe {
            match call {
                Call::AllReduce(..) => (f.all_reduce)(from, to, count, dtype, SUM, handle, stream),
                Call::ReduceScatter(..) => {
                    (f.reduce_scatter)(from, to, count, dtype, SUM, handle, stream)
                }
                Call::AllGather(..) => (f.all_gather)(from, to, count, dtype, handle, stream),
                Call::Reduce(..) => (f.reduce)(from, to, count, dtype, SUM, index, handle, stream),
                Call::Broadcast(..) => (f.broadcast)(from, to, count, dtype, index, handle, stream),
                Call::Send(..) => (f.send)(from, count, dtype, index, handle, stream),
                Call::Recv(..) => (f.recv)(to, count, dtype, index, handle, stream),
            }
        };
        match status {
            Status::IN_PROGRESS => Ok(()),
            other => self.library.check(other, "a call in a group"),
        }
    }

    /// Ends the communicator without waiting for its work, which ends without results. Its ranks must all do so.
    ///
    /// # Errors
    /// When NCCL fails.
    pub fn abort(&self) -> Result<()> {
        let Some(Raw(handle)) = self.lock().take() else {
            return Ok(());
        };
        // SAFETY: the communicator exists, and no thread uses it any more.
        let status = unsafe { (self.library.functions().comm_abort)(handle) };
        self.library.check(status, "ncclCommAbort")
    }

    /// [Aborts](Communicator::abort) communicators together: one that waits for a GPU, on which another one still
    /// waits for its ranks, would wait without end.
    pub fn abort_all(communicators: &[Arc<Communicator>]) {
        let abort = |it: &Arc<Communicator>| drop(it.abort()); // the others are to end, too
        match communicators.first().map(|it| it.library) {
            None => {}
            Some(library) if library.version() >= GROUPED_ABORT => {
                // SAFETY: opens and closes a group of this thread.
                unsafe { (library.functions().group_start)() };
                communicators.iter().for_each(abort);
                // SAFETY: as above.
                unsafe { (library.functions().group_end)() };
            }
            Some(_) => thread::scope(|scope| {
                for communicator in communicators {
                    scope.spawn(move || abort(communicator));
                }
            }),
        }
    }

    /// Waits until NCCL has started the last call. It may connect to a peer first.
    fn wait(&self) -> Result<()> {
        while !self.is_ready()? {
            thread::sleep(POLL);
        }
        Ok(())
    }

    fn poll(&self, Raw(handle): Raw) -> Result<bool> {
        let mut state = Status::SUCCESS;
        // SAFETY: the communicator and the pointer are valid.
        let status =
            unsafe { (self.library.functions().comm_get_async_error)(handle, &raw mut state) };
        self.library.check(status, "ncclCommGetAsyncError")?;
        match state {
            Status::IN_PROGRESS => Ok(false),
            other => self.library.check(other, "a communicator").map(|()| true),
        }
    }

    fn open(&self, handle: &Option<Raw>) -> Result<Raw> {
        handle.ok_or_else(|| error!(PeerFailed, "the communicator was aborted"))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Raw>> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if let Some(Raw(handle)) = self.lock().take() {
            // Errors in `drop` are ignored.
            // SAFETY: the communicator exists, and nothing uses it any more.
            let _ = unsafe { (self.library.functions().comm_destroy)(handle) };
        }
    }
}

/// A call of a communicator of n ranks, with slices of one dtype. Reductions are sums.
#[derive(Clone)]
pub enum Call<'a> {
    /// `[r]` to `[r]`.
    AllReduce(GpuSlice<'a>, GpuSliceMut<'a>),
    /// `[n r]` to this rank's `[r]`.
    ReduceScatter(GpuSlice<'a>, GpuSliceMut<'a>),
    /// `[r]` to `[n r]`.
    AllGather(GpuSlice<'a>, GpuSliceMut<'a>),
    /// `[r]` to `[r]`, at the root.
    Reduce(GpuSlice<'a>, Option<GpuSliceMut<'a>>, usize),
    /// `[r]`, at the root, to `[r]`.
    Broadcast(Option<GpuSlice<'a>>, GpuSliceMut<'a>, usize),
    /// To a rank, whose n-th receipt from this one is this one's n-th message to it.
    Send(GpuSlice<'a>, usize),
    /// From a rank.
    Recv(GpuSliceMut<'a>, usize),
}

impl<'a> Call<'a> {
    /// What it reads and what it writes.
    fn sides(&self) -> (Option<&GpuSlice<'a>>, Option<&GpuSliceMut<'a>>) {
        match self {
            Call::AllReduce(x, y) | Call::ReduceScatter(x, y) | Call::AllGather(x, y) => {
                (Some(x), Some(y))
            }
            Call::Reduce(x, y, _) => (Some(x), y.as_ref()),
            Call::Broadcast(x, y, _) => (x.as_ref(), Some(y)),
            Call::Send(x, _) => (Some(x), None),
            Call::Recv(y, _) => (None, Some(y)),
        }
    }

    /// The slice whose elements are counted: the smaller one.
    fn part(&self) -> &GpuSlice<'a> {
        match self {
            Call::AllReduce(x, _)
            | Call::AllGather(x, _)
            | Call::Reduce(x, ..)
            | Call::Send(x, _) => x,
            Call::ReduceScatter(_, y) | Call::Broadcast(_, y, _) | Call::Recv(y, _) => y.as_slice(),
        }
    }

    /// The root or the peer; 0 without one.
    fn rank(&self) -> usize {
        match self {
            Call::Reduce(.., rank)
            | Call::Broadcast(.., rank)
            | Call::Send(_, rank)
            | Call::Recv(_, rank) => *rank,
            _ => 0,
        }
    }

    fn known(&self) -> Known {
        let elements = self.part().elements();
        let (name, elements) = match self {
            Call::AllReduce(..) => ("all_reduce", elements),
            Call::ReduceScatter(..) => ("reduce_scatter", elements),
            Call::AllGather(..) => ("all_gather", elements),
            Call::Reduce(..) => ("reduce", elements),
            Call::Broadcast(..) => ("broadcast", elements),
            Call::Send(..) => ("send", 0),
            Call::Recv(..) => ("recv", 0),
        };
        (name, self.rank(), elements)
    }

    fn slices(&self) -> impl Iterator<Item = &GpuSlice<'a>> {
        let (x, y) = self.sides();
        x.into_iter().chain(y.map(GpuSliceMut::as_slice))
    }

    /// Checks the numbers of elements, the dtypes, and the rank that it names, in a communicator of `size`.
    fn check(&self, size: usize) -> Result<()> {
        let (rank, (x, y)) = (self.rank(), self.sides());
        ensure!(rank < size, Invalid, "NCCL: there is no rank {rank} among {size}");
        let (Some(x), Some(y)) = (x, y.map(GpuSliceMut::as_slice)) else {
            return Ok(());
        };
        let (times_x, times_y) = match self {
            Call::ReduceScatter(..) => (1, size),
            Call::AllGather(..) => (size, 1),
            _ => (1, 1),
        };
        ensure!(
            x.elements() * times_x == y.elements() * times_y && x.dtype() == y.dtype(),
            Invalid,
            "NCCL: {} x {} do not go to {} x {} in a communicator of {size} ranks",
            x.dtype(),
            x.elements(),
            y.dtype(),
            y.elements()
        );
        Ok(())
    }
}

/// `ncclDataType_t`.
fn element(dtype: DType) -> Result<c_int> {
    Ok(match dtype {
        DType::U8 | DType::Bool => 1,
        DType::I32 => 2,
        DType::U32 => 3,
        DType::I64 => 4,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::BF16 => 9,
        other => bail!(Unsupported, "NCCL: elements of {other} are not supported"),
    })
}
