//! Messages between the ranks of a world in several processes and their hub, over Unix sockets.
//!
//! A rank sends [`Join`] and then [`Posted`] calls; the hub sends [`Reply`]s. A message is a few little-endian words
//! of 64 bits, the last of which is the number of bytes that follow. Both ends are this library, so a malformed
//! message only ends the connection.

use std::array;
use std::io::{self, Read, Write};
use std::os::unix::net::{SocketAddr, UnixStream};

use super::call::{Call, Kind, Slot};
use super::element::Element;
use super::sums::Reduction;

/// The first message of a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Join {
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) process: u32,
}

/// A rank's part in a call, with the bytes that it sends.
#[derive(Debug, PartialEq)]
pub(super) struct Posted {
    /// Identifies the answer.
    pub(super) request: u64,
    pub(super) slot: Slot,
    pub(super) member: usize,
    pub(super) call: Call,
    pub(super) data: Vec<u8>,
}

/// What the hub sends to a rank.
#[derive(Debug, PartialEq)]
pub(super) enum Reply {
    Joined,
    /// The rank cannot join: a code of `ncclResult_t`, and why.
    Refused(i32, String),
    /// All ranks have joined.
    Complete,
    /// What a request receives, or what differs between the members of its call.
    Answer(u64, Result<Vec<u8>, String>),
}

/// The address of a socket. Abstract names leave no file behind when the process is killed.
#[cfg(target_os = "linux")]
pub(super) fn address(name: &str) -> io::Result<SocketAddr> {
    <SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(name)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_pathname(std::env::temp_dir().join(name))
}

fn send(mut to: &UnixStream, words: &[u64], bytes: &[u8]) -> io::Result<()> {
    let header = words.iter().copied().chain([bytes.len() as u64]);
    to.write_all(&header.flat_map(u64::to_le_bytes).collect::<Vec<u8>>())?;
    to.write_all(bytes)
}

fn receive<const WORDS: usize>(mut from: &UnixStream) -> io::Result<([u64; WORDS], Vec<u8>)> {
    let mut header = vec![0; 8 * (WORDS + 1)];
    from.read_exact(&mut header)?;
    let word = |at: usize| u64::from_le_bytes(array::from_fn(|byte| header[8 * at + byte]));
    let mut bytes = Vec::new();
    match from.take(word(WORDS)).read_to_end(&mut bytes)? as u64 == word(WORDS) {
        true => Ok((array::from_fn(word), bytes)),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

impl Join {
    pub(super) fn send(self, to: &UnixStream) -> io::Result<()> {
        send(to, &[self.rank as u64, self.size as u64, u64::from(self.process)], &[])
    }

    pub(super) fn receive(from: &UnixStream) -> io::Result<Join> {
        let ([rank, size, process], _) = receive(from)?;
        Ok(Join { rank: rank as usize, size: size as usize, process: process as u32 })
    }
}

impl Reply {
    pub(super) fn send(&self, to: &UnixStream) -> io::Result<()> {
        match self {
            Reply::Joined => send(to, &[0, 0], &[]),
            Reply::Refused(code, message) => send(to, &[1, *code as u64], message.as_bytes()),
            Reply::Complete => send(to, &[2, 0], &[]),
            Reply::Answer(request, Ok(data)) => send(to, &[3, *request], data),
            Reply::Answer(request, Err(fault)) => send(to, &[4, *request], fault.as_bytes()),
        }
    }

    pub(super) fn receive(from: &UnixStream) -> io::Result<Reply> {
        let ([kind, number], bytes) = receive(from)?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(match kind {
            0 => Reply::Joined,
            1 => Reply::Refused(number as i32, text(bytes)),
            2 => Reply::Complete,
            3 => Reply::Answer(number, Ok(bytes)),
            _ => Reply::Answer(number, Err(text(bytes))),
        })
    }
}

impl Posted {
    pub(super) fn send(&self, to: &UnixStream) -> io::Result<()> {
        let Call { kind, count, element, is_captured } = self.call;
        let (number, from, rank) = match self.slot {
            Slot::Collective(number) => (number, 0, 0),
            Slot::Transfer { number, from, to } => (number, from, to),
        };
        let (kind, by, root) = match kind {
            Kind::AllReduce(by) => (0, by, 0),
            Kind::Reduce(by, root) => (1, by, root),
            Kind::Broadcast(root) => (2, Reduction::Sum, root),
            Kind::AllGather => (3, Reduction::Sum, 0),
            Kind::ReduceScatter(by) => (4, by, 0),
            Kind::AllToAll => (5, Reduction::Sum, 0),
            Kind::Transfer => (6, Reduction::Sum, 0),
        };
        let captured = usize::from(is_captured);
        let indices =
            [from, rank, self.member, by as usize, root, count, element as usize, captured];
        let words = [self.request, number, kind].into_iter();
        let words: Vec<u64> = words.chain(indices.map(|index| index as u64)).collect();
        send(to, &words, &self.data)
    }

    pub(super) fn receive(stream: &UnixStream) -> io::Result<Posted> {
        let ([request, number, kind, indices @ ..], data) = receive::<11>(stream)?;
        let [from, to, member, by, root, count, element, captured] =
            indices.map(|index| index as usize);
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        let by = Reduction::of_code(by as i32).ok_or_else(invalid)?;
        let kind = match kind {
            0 => Kind::AllReduce(by),
            1 => Kind::Reduce(by, root),
            2 => Kind::Broadcast(root),
            3 => Kind::AllGather,
            4 => Kind::ReduceScatter(by),
            5 => Kind::AllToAll,
            _ => Kind::Transfer,
        };
        let slot = match kind {
            Kind::Transfer => Slot::Transfer { number, from, to },
            _ => Slot::Collective(number),
        };
        let element = Element::of_code(element as i32).ok_or_else(invalid)?;
        let call = Call { kind, count, element, is_captured: captured != 0 };
        Ok(Posted { request, slot, member, call, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_as_they_were_sent() {
        let (here, there) = UnixStream::pair().unwrap();
        for (kind, slot) in [
            (Kind::AllReduce(Reduction::Average), Slot::Collective(7)),
            (Kind::Reduce(Reduction::Min, 2), Slot::Collective(8)),
            (Kind::Broadcast(1), Slot::Collective(9)),
            (Kind::AllGather, Slot::Collective(10)),
            (Kind::ReduceScatter(Reduction::Max), Slot::Collective(11)),
            (Kind::AllToAll, Slot::Collective(12)),
            (Kind::Transfer, Slot::Transfer { number: 3, from: 2, to: 1 }),
        ] {
            let call = Call { kind, count: 5, element: Element::Bf16, is_captured: true };
            let posted = Posted { request: 4, slot, member: 1, call, data: vec![9; 10] };
            posted.send(&here).unwrap();
            assert_eq!(Posted::receive(&there).unwrap(), posted);
        }
        for reply in [
            Reply::Joined,
            Reply::Refused(5, "no".to_owned()),
            Reply::Complete,
            Reply::Answer(1, Ok(vec![1, 2, 3])),
            Reply::Answer(1, Err("differs".to_owned())),
        ] {
            reply.send(&here).unwrap();
            assert_eq!(Reply::receive(&there).unwrap(), reply);
        }
        let join = Join { rank: 2, size: 3, process: 77 };
        join.send(&here).unwrap();
        assert_eq!(Join::receive(&there).unwrap(), join);

        // As when a process is killed while it sends.
        (&here).write_all(&[1; 100]).unwrap();
        drop(here);
        assert!(Posted::receive(&there).is_err());
    }
}
