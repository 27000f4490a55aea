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
use super::protocol::{Join, Posted, Reply, address};
use super::refusal::Refusal;
use super::sums::Sums;
use super::world::check_join;
use super::world_id::WorldId;
use crate::driver::configuration::Configuration;

/// Collects the calls of a world's ranks.
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
    /// Those of this process that have left. They stay connected while other processes need the hub.
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
    parts: Vec<Option<Arrived>>,
    fault: Option<String>,
}

struct Arrived {
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
        let join = Join::receive(stream)?;
        let member =
            Member { stream: Arc::new(Mutex::new(stream.try_clone()?)), process: join.process };
        if let Err(refusal) = self.join(join, member) {
            return Reply::Refused(refusal.code, refusal.message).send(stream);
        }
        while let Ok(posted) = Posted::receive(stream) {
            self.add(join.rank, posted);
        }
        self.leave(join.rank);
        Ok(())
    }

    fn join(&self, Join { rank, size, .. }: Join, member: Member) -> Result<(), Refusal> {
        let mut ranks = self.lock();
        if ranks.members.is_empty() {
            ranks.members.resize(size, None);
        }
        let known = ranks.members.len();
        let has_come = ranks.members.get(rank).is_some_and(Option::is_some);
        let is_taken = has_come || ranks.is_complete || ranks.has_ended;
        check_join(self.world, rank, [size, known], is_taken)?;
        member.send(&Reply::Joined);
        ranks.members[rank] = Some(member);
        ranks.is_complete = ranks.members.iter().all(Option::is_some);
        if ranks.is_complete {
            ranks.members.iter().flatten().for_each(|member| member.send(&Reply::Complete));
        }
        Ok(())
    }

    fn leave(&self, rank: usize) {
        let mut ranks = self.lock();
        let left = ranks.members[rank].take();
        ranks.leaving.extend(left.filter(Member::is_of_this_process));
        if ranks.members.iter().flatten().all(Member::is_of_this_process) {
            ranks.leaving.clear();
        }
        if ranks.members.iter().all(Option::is_none) {
            ranks.has_ended = true;
            // Wakes the thread that listens.
            let _ = address(&self.name).and_then(|address| UnixStream::connect_addr(&address));
        }
    }

    /// Adds a rank's call, and answers it and those of the other members if they have come.
    fn add(&self, rank: usize, posted: Posted) {
        let call = posted.call;
        let (fault, due) = self.collect(rank, posted);
        if due.is_empty() {
            return;
        }
        let (members, parts): (Vec<Member>, Vec<Arrived>) = due.into_iter().unzip();
        let requests: Vec<u64> = parts.iter().map(|part| part.request).collect();
        let results = match fault {
            Some(fault) => vec![Err(fault); parts.len()],
            None => {
                let inputs: Vec<_> = parts.into_iter().map(|part| part.data).collect();
                call.results(&inputs, self.sums).into_iter().map(Ok).collect()
            }
        };
        let replies = requests.into_iter().zip(results);
        let replies = replies.map(|(request, result)| Reply::Answer(request, result));
        // Once this process's own ranks have their answers it may end, and the hub with it.
        let mut answers: Vec<_> = members.into_iter().zip(replies).collect();
        answers.sort_by_key(|(member, _)| member.is_of_this_process());
        answers.iter().for_each(|(member, reply)| member.send(reply));
    }

    /// Adds a call. Returns the parts that can be answered, and what differs between the members.
    fn collect(&self, rank: usize, posted: Posted) -> (Option<String>, Vec<(Member, Arrived)>) {
        let mut ranks = self.lock();
        let Ranks { members, calls, .. } = &mut *ranks;
        let Posted { request, slot, member, call, data } = posted;
        let gathering = calls.entry(slot).or_insert_with(|| Gathering {
            call,
            first: member,
            parts: (0..slot.members(members.len())).map(|_| None).collect(),
            fault: None,
        });
        gathering.parts[member] = Some(Arrived { rank, request, data });
        if gathering.call != call {
            let calls = [(gathering.first, &gathering.call), (member, &call)];
            gathering.fault.get_or_insert_with(|| difference(&slot.name(self.world), calls));
        }
        let fault = gathering.fault.clone();

        // Calls of a rank that has left never end.
        let is_there = |part: &Arrived| members[part.rank].is_some();
        let is_whole = gathering.parts.iter().all(|it| it.as_ref().is_some_and(is_there));
        let due: Vec<Arrived> = match fault {
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
    fn is_of_this_process(&self) -> bool {
        self.process == std::process::id()
    }

    fn send(&self, reply: &Reply) {
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        // The thread that receives from a rank notices when its process has ended.
        let _ = reply.send(&stream);
    }
}
