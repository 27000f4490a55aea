//! Messages of bytes between ranks, sent and received by MPI.
//!
//! MPI reads and writes the bytes until it says that a transfer is complete. A transfer that is
//! dropped before that leaks its bytes.

use std::mem::{self, ManuallyDrop, MaybeUninit};
use std::os::raw::c_int;

use meshgrad_error::{Result, bail};
use mpi::ffi;
use mpi::raw::AsRaw;
use mpi::topology::SimpleCommunicator;

use crate::processes::bytes::Bytes;

/// The most bytes of one MPI message, whose count is a C int.
const PIECE: usize = 1 << 30;

/// A communicator of MPI that only this transport uses.
pub(super) struct Wire {
    /// Freeing it would wait for all ranks.
    communicator: ManuallyDrop<SimpleCommunicator>,
}

// SAFETY: an MPI communicator is a handle that any thread may use; MPI is initialized so that it
// may be called from any thread, one at a time, and only the owner of the wire calls it.
unsafe impl Send for Wire {}

/// Bytes that are being sent.
pub(super) struct Sending {
    requests: Requests,
    bytes: Option<Bytes>,
}

/// Bytes that are being received.
pub(super) struct Receiving {
    requests: Requests,
    /// Empty, with capacity for `length` bytes.
    bytes: Vec<u8>,
    length: usize,
}

/// The unfinished requests of a transfer.
struct Requests(Vec<ffi::MPI_Request>);

// SAFETY: requests are handles that any thread may use, and their owner tests them exclusively.
unsafe impl Send for Requests {}

impl Wire {
    /// Takes a communicator that nothing else uses.
    pub(super) fn new(communicator: SimpleCommunicator) -> Result<Wire> {
        let raw = communicator.as_raw();
        // SAFETY: the communicator is alive.
        let code = unsafe { ffi::MPI_Comm_set_errhandler(raw, ffi::RSMPI_ERRORS_RETURN) };
        check("MPI_Comm_set_errhandler", code)?;
        Ok(Wire { communicator: ManuallyDrop::new(communicator) })
    }

    /// Starts to send bytes to a rank.
    pub(super) fn send(&self, bytes: Bytes, rank: usize, tag: c_int) -> Result<Sending> {
        let mut sending = Sending { requests: Requests(Vec::new()), bytes: Some(bytes.clone()) };
        for piece in bytes.chunks(PIECE) {
            let mut request = MaybeUninit::uninit();
            // SAFETY: `sending` keeps the bytes, or leaks them, until the request is complete.
            let code = unsafe {
                ffi::MPI_Isend(
                    piece.as_ptr().cast(),
                    piece.len() as c_int, // at most PIECE
                    ffi::RSMPI_UINT8_T,
                    rank as c_int, // MPI's own rank
                    tag,
                    self.communicator.as_raw(),
                    request.as_mut_ptr(),
                )
            };
            check("MPI_Isend", code)?;
            // SAFETY: the call succeeded, so it wrote the request.
            sending.requests.0.push(unsafe { request.assume_init() });
        }
        Ok(sending)
    }

    /// Starts to receive `length` bytes that a rank sends.
    pub(super) fn receive(&self, length: usize, rank: usize, tag: c_int) -> Result<Receiving> {
        let mut receiving = Receiving::new(length);
        let room = &mut receiving.bytes.spare_capacity_mut()[..length];
        for piece in room.chunks_mut(PIECE) {
            let mut request = MaybeUninit::uninit();
            // SAFETY: `receiving` keeps the bytes, or leaks them, until the request is complete.
            let code = unsafe {
                ffi::MPI_Irecv(
                    piece.as_mut_ptr().cast(),
                    piece.len() as c_int, // at most PIECE
                    ffi::RSMPI_UINT8_T,
                    rank as c_int, // MPI's own rank
                    tag,
                    self.communicator.as_raw(),
                    request.as_mut_ptr(),
                )
            };
            check("MPI_Irecv", code)?;
            // SAFETY: the call succeeded, so it wrote the request.
            receiving.requests.0.push(unsafe { request.assume_init() });
        }
        Ok(receiving)
    }

    /// Starts to receive the next message with a tag, if one has arrived. Returns its sender.
    pub(super) fn receive_any(&self, tag: c_int) -> Result<Option<(usize, Receiving)>> {
        let (mut found, mut status) = (0, MaybeUninit::<ffi::MPI_Status>::uninit());
        let mut message = MaybeUninit::uninit();
        // SAFETY: the communicator is alive, and the results are written to local variables.
        let code = unsafe {
            ffi::MPI_Improbe(
                ffi::RSMPI_ANY_SOURCE,
                tag,
                self.communicator.as_raw(),
                &mut found,
                message.as_mut_ptr(),
                status.as_mut_ptr(),
            )
        };
        check("MPI_Improbe", code)?;
        if found == 0 {
            return Ok(None);
        }
        // SAFETY: a message was found, so both were written.
        let (mut message, status) = unsafe { (message.assume_init(), status.assume_init()) };
        let mut receiving = Receiving::new(count_of(&status)?);
        let mut request = MaybeUninit::uninit();
        // SAFETY: `receiving` keeps the bytes, or leaks them, until the request is complete.
        let code = unsafe {
            ffi::MPI_Imrecv(
                receiving.bytes.as_mut_ptr().cast(),
                receiving.length as c_int, // as MPI counted
                ffi::RSMPI_UINT8_T,
                &mut message,
                request.as_mut_ptr(),
            )
        };
        check("MPI_Imrecv", code)?;
        // SAFETY: the call succeeded, so it wrote the request.
        receiving.requests.0.push(unsafe { request.assume_init() });
        Ok(Some((status.MPI_SOURCE as usize, receiving)))
    }
}

impl Sending {
    /// Whether all bytes are sent, or copied by MPI.
    pub(super) fn is_done(&mut self) -> Result<bool> {
        Ok(self.requests.finished()?.is_some())
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        if self.requests.is_unfinished() {
            mem::forget(self.bytes.take()); // MPI may read them until the process ends
        }
    }
}

impl Receiving {
    fn new(length: usize) -> Receiving {
        Receiving { requests: Requests(Vec::new()), bytes: Vec::with_capacity(length), length }
    }

    /// The bytes, if all have arrived. They are returned once.
    pub(super) fn take(&mut self) -> Result<Option<Vec<u8>>> {
        let Some(statuses) = self.requests.finished()? else {
            return Ok(None);
        };
        let counts: Result<Vec<usize>> = statuses.iter().map(count_of).collect();
        let received: usize = counts?.into_iter().sum();
        if received != self.length {
            bail!(System, "a receive failed: {received} of {} bytes arrived", self.length);
        }
        let mut bytes = mem::take(&mut self.bytes);
        // SAFETY: MPI has written `received` bytes.
        unsafe { bytes.set_len(received) };
        Ok(Some(bytes))
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        if self.requests.is_unfinished() {
            mem::forget(mem::take(&mut self.bytes)); // MPI may write them until the process ends
        }
    }
}

impl Requests {
    /// The statuses of all requests, if all are complete.
    fn finished(&mut self) -> Result<Option<Vec<ffi::MPI_Status>>> {
        let (count, mut done) = (self.0.len(), 0);
        let mut statuses: Vec<ffi::MPI_Status> = Vec::with_capacity(count);
        // SAFETY: the requests are live; MPI sets those that are complete to null. There is room
        // for a status of each.
        let code = unsafe {
            ffi::MPI_Testall(
                count as c_int, // one per gigabyte
                self.0.as_mut_ptr(),
                &mut done,
                statuses.as_mut_ptr(),
            )
        };
        check("MPI_Testall", code)?;
        if done == 0 {
            return Ok(None);
        }
        self.0.clear();
        // SAFETY: all requests are complete, so MPI has written all statuses.
        unsafe { statuses.set_len(count) };
        Ok(Some(statuses))
    }

    fn is_unfinished(&self) -> bool {
        !self.0.is_empty()
    }
}

/// The bytes of a message.
fn count_of(status: &ffi::MPI_Status) -> Result<usize> {
    let mut count = 0;
    // SAFETY: the status belongs to a message of bytes.
    let code = unsafe { ffi::MPI_Get_count(status, ffi::RSMPI_UINT8_T, &mut count) };
    check("MPI_Get_count", code)?;
    Ok(count as usize) // not negative, for messages of bytes
}

fn check(call: &'static str, code: c_int) -> Result<()> {
    if code == ffi::MPI_SUCCESS as c_int {
        return Ok(());
    }
    let mut text = [0u8; ffi::MPI_MAX_ERROR_STRING as usize];
    let mut length = 0;
    // SAFETY: `text` has room for the longest text.
    let found = unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast(), &mut length) };
    let text = match found == ffi::MPI_SUCCESS as c_int {
        true => String::from_utf8_lossy(&text[..length as usize]).into_owned(),
        false => format!("error {code}"),
    };
    bail!(System, "{call} failed: {text}")
}
