//! The hub of a world whose ranks are in several processes: it collects their calls, and answers them.
//!
//! It belongs to a unique id, in the process that created it. A thread per rank receives the rank's calls. The one
//! that receives the last call of a collective or transfer computes the results and sends them to all members. The
//! hub ends when all ranks have left.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::call::{Call, Slot, difference};
use super::id::WorldId;
use super::protocol::{Message, Posted, address};
use super::refusal::Refusal;
use super::sums::Sums;
use super::world::check_join;
use crate::driver::configuration::Configuration;

pub(super) struct Hub {
    world: WorldId,
    /// Of its socket.
    name: String,
    sums: Sums,
    hangs: bool,
    ranks: Mutex<Ranks>,
}

#[derive(Default)]
struct Ranks {
    /// Those that have joined and have not left.
    members: Vec<Option<Member>>,
    is_complete: bool,
    /// Those of this process that have left; their connections end with the hub.
    leaving: Vec<Member>,
    has_ended: bool,
    calls: BTreeMap<Slot, Gathering>,
}

#[derive(Clone)]
struct Member {
    stream: Arc<Mutex<UnixStream>>,
    process: u32,
}

/// A call that some of its members have made.
struct Gathering {
    call: Call,
    /// The first member that made it.
    first: usize,
    parts: Vec<Option<Part>>,
    fault: Option<String>,
}

struct Part {
    rank: usize,
    request: u64,
    data: Vec<u8>,
}

impl Hub {
    /// Starts the hub of an id, whose socket has this name.
    pub(super) fn start(
        world: WorldId,
        name: &str,
        configuration: &Configuration,
    ) -> io::Result<()> {
        let listener = UnixListener::bind_addr(&address(name)?)?;
        let hub = Arc::new(Hub {
            world,
            name: name.to_owned(),
            sums: configuration.sums,
            hangs: configuration.hangs,
            ranks: Mutex::default(),
        });
        let listen = move || hub.listen(&listener);
        thread::Builder::new().name("nccl hub".to_owned()).spawn(listen).map(drop)
    }

    fn listen(self: Arc<Hub>, listener: &UnixListener) {
        while let Ok((stream, _)) = listener.accept()
            && !self.lock().has_ended
        {
            let hub = self.clone();
            let serve = move || hub.serve(&stream);
            // If this fails, the connection is closed, and the rank reports that.
            let _ = thread::Builder::new().name("nccl hub rank".to_owned()).spawn(serve);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Ranks> {
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a rank until it leaves or its process ends. A failed connection is the same.
    fn serve(&self, stream: &UnixStream) -> io::Result<()> {
        let (rank, size, process) = match Message::receive(stream)? {
            Message::Join { rank, size, process } if rank < size => (rank, size, process),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        let member = Member { stream: Arc::new(Mutex::new(stream.try_clone()?)), process };
        if let Err(refusal) = self.join(rank, size, member) {
            let Refusal { code, message, .. } = refusal;
            return Message::Refused { code, message }.send(stream);
        }
        while let Ok(Message::Call(posted)) = Message::receive(stream) {
            self.add(rank, posted);
        }
        self.leave(rank);
        Ok(())
    }

    fn join(&self, rank: usize, size: usize, member: Member) -> Result<(), Refusal> {
        let mut ranks = self.lock();
        if ranks.members.is_empty() {
            ranks.members.resize(size, None);
        }
        let known = ranks.members.len();
        let has_come = ranks.members.get(rank).is_some_and(Option::is_some);
        let is_taken = has_come || ranks.is_complete || ranks.has_ended;
        check_join(self.world, rank, [size, known], is_taken)?;
        member.send(&Message::Joined);
        ranks.members[rank] = Some(member);
        ranks.is_complete = ranks.members.iter().all(Option::is_some);
        if ranks.is_complete {
            ranks.members.iter().flatten().for_each(|member| member.send(&Message::Complete));
        }
        Ok(())
    }

    fn leave(&self, rank: usize) {
        let mut ranks = self.lock();
        let left = ranks.members[rank].take();
        ranks.leaving.extend(left.filter(|member| member.process == std::process::id()));
        if ranks.members.iter().all(Option::is_none) {
            ranks.has_ended = true;
            ranks.leaving.clear();
            // Wakes the thread that listens.
            let _ = address(&self.name).and_then(|address| UnixStream::connect_addr(&address));
        }
    }

    /// Adds a rank's call, and answers it and those of the other members if they have come.
    fn add(&self, rank: usize, posted: Posted) {
        let call = posted.call;
        let (fault, due) = self.collect(rank, posted);
        let (members, parts): (Vec<Member>, Vec<Part>) = due.into_iter().unzip();
        let requests: Vec<u64> = parts.iter().map(|part| part.request).collect();
        let messages: Vec<Message> = match fault {
            Some(message) => {
                let fault = |request| Message::Fault { request, message: message.clone() };
                requests.into_iter().map(fault).collect()
            }
            None if parts.is_empty() => return,
            None => {
                let inputs: Vec<_> = parts.into_iter().map(|part| part.data).collect();
                let results = requests.into_iter().zip(call.results(&inputs, self.sums));
                results.map(|(request, data)| Message::Result { request, data }).collect()
            }
        };
        // Once this process's own ranks have their answers it may end, and the hub with it.
        let is_of_process = |member: &Member| member.process == std::process::id();
        let mut answers: Vec<_> = members.into_iter().zip(messages).collect();
        answers.sort_by_key(|(member, _)| is_of_process(member));
        answers.iter().for_each(|(member, message)| member.send(message));
    }

    /// Adds a call. Returns the parts that can be answered, and what differs between the members.
    fn collect(&self, rank: usize, posted: Posted) -> (Option<String>, Vec<(Member, Part)>) {
        let mut ranks = self.lock();
        let Ranks { members, calls, .. } = &mut *ranks;
        let Posted { request, slot, member, call, data } = posted;
        let gathering = calls.entry(slot).or_insert_with(|| Gathering {
            call,
            first: member,
            parts: (0..slot.members(members.len())).map(|_| None).collect(),
            fault: None,
        });
        gathering.parts[member] = Some(Part { rank, request, data });
        if gathering.call != call {
            let calls = [(gathering.first, &gathering.call), (member, &call)];
            gathering.fault.get_or_insert_with(|| difference(&slot.name(self.world), calls));
        }
        let fault = gathering.fault.clone();

        // Calls of a rank that has left never end.
        let is_there = |part: &Part| members[part.rank].is_some();
        let is_whole = gathering.parts.iter().all(|it| it.as_ref().is_some_and(is_there));
        let due: Vec<Part> = match fault {
            Some(_) if self.hangs => return (None, Vec::new()),
            Some(_) => gathering.parts.iter_mut().filter_map(Option::take).collect(),
            None if is_whole => {
                calls.remove(&slot).into_iter().flat_map(|it| it.parts).flatten().collect()
            }
            None => Vec::new(),
        };
        let of_members =
            due.into_iter().filter_map(|part| Some((members[part.rank].clone()?, part)));
        (fault, of_members.collect())
    }
}

impl Member {
    fn send(&self, message: &Message) {
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        // The thread that receives from a rank notices when its process has ended.
        let _ = message.send(&stream);
    }
}
