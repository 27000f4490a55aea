//! Threads that sleep until a team asks for help.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::team::Team;

/// The team that asks, and which of its members the helper is.
pub(super) struct Request {
    pub(super) team: Arc<Team>,
    pub(super) member: usize,
}

/// Helpers that sleep, each by what wakes it. They stay for good, for whichever team asks next.
static ASLEEP: Mutex<Vec<Sender<Request>>> = Mutex::new(Vec::new());

fn asleep() -> MutexGuard<'static, Vec<Sender<Request>>> {
    ASLEEP.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes a helper, or starts one if none sleeps. False where the machine has no thread left.
pub(super) fn send(request: Request) -> bool {
    let awakened = asleep().pop();
    let helper = match awakened {
        Some(helper) => helper,
        None => match start() {
            Some(helper) => helper,
            None => return false,
        },
    };
    helper.send(request).is_ok()
}

fn start() -> Option<Sender<Request>> {
    let (helper, requests) = channel();
    let itself = helper.clone();
    let thread = thread::Builder::new().name("meshgrad-cpu".into());
    let started = thread.spawn(move || serve(&itself, &requests));
    started.is_ok().then_some(helper)
}

fn serve(itself: &Sender<Request>, requests: &Receiver<Request>) {
    // Ends never: it holds a sender of its own.
    for Request { team, member } in requests {
        team.help(member);
        asleep().push(itself.clone());
    }
}
