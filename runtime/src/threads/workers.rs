//! Worker threads that park until a pool requests one.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::pool::Pool;

/// A request to serve as worker `worker` of `pool`.
pub(super) struct Request {
    pub(super) pool: Arc<Pool>,
    pub(super) worker: usize,
}

/// Parked threads, each represented by the sender that unparks it. Threads never exit; a parked
/// thread serves the next pool that requests one.
static PARKED: Mutex<Vec<Sender<Request>>> = Mutex::new(Vec::new());

fn parked() -> MutexGuard<'static, Vec<Sender<Request>>> {
    PARKED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Unparks a thread, or spawns one if none is parked. Returns false if the spawn fails.
pub(super) fn send(request: Request) -> bool {
    let unparked = parked().pop();
    let thread = match unparked {
        Some(thread) => thread,
        None => match spawn() {
            Some(thread) => thread,
            None => return false,
        },
    };
    thread.send(request).is_ok()
}

fn spawn() -> Option<Sender<Request>> {
    let (sender, requests) = channel();
    let own_sender = sender.clone();
    let thread = thread::Builder::new().name("meshgrad-cpu".into());
    let spawned = thread.spawn(move || serve(&own_sender, &requests));
    spawned.is_ok().then_some(sender)
}

fn serve(own_sender: &Sender<Request>, requests: &Receiver<Request>) {
    // The loop never ends, because this thread holds a sender of the channel.
    for Request { pool, worker } in requests {
        pool.run_worker(worker);
        parked().push(own_sender.clone());
    }
}
