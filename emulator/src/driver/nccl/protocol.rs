//! Messages between the ranks of a world in several processes and their hub, over Unix sockets.
//!
//! A message has a header of little-endian words of 64 bits: its kind, its numbers, and how many bytes follow.
//! Both ends are this library, so malformed messages only end the connection.

use std::io::{self, Read, Write};
use std::os::unix::net::{SocketAddr, UnixStream};

use super::call::{Call, Kind, Slot};
use super::element::Element;
use super::sums::Reduction;

#[derive(Debug, PartialEq)]
pub(super) enum Message {
    /// The first message of a rank.
    Join {
        rank: usize,
        size: usize,
        process: u32,
    },
    /// The answer to `Join`.
    Joined,
    /// The answer to `Join`: a code of `ncclResult_t`, and why.
    Refused {
        code: i32,
        message: String,
    },
    /// All ranks have joined.
    Complete,
    Call(Posted),
    /// What a call receives.
    Result {
        request: u64,
        data: Vec<u8>,
    },
    /// What differs between the members of a call.
    Fault {
        request: u64,
        message: String,
    },
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

/// Words of the header before the number of bytes.
const WORDS: usize = 11;

/// The address of a socket. Abstract names leave no file behind when the process is killed.
#[cfg(target_os = "linux")]
pub(super) fn address(name: &str) -> io::Result<SocketAddr> {
    <SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(name)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_pathname(std::env::temp_dir().join(name))
}

impl Message {
    pub(super) fn send(&self, mut to: &UnixStream) -> io::Result<()> {
        let (words, bytes) = self.encode();
        let padding = std::iter::repeat_n(0, WORDS - words.len());
        let header = words.into_iter().chain(padding).chain([bytes.len() as u64]);
        to.write_all(&header.flat_map(u64::to_le_bytes).collect::<Vec<u8>>())?;
        to.write_all(bytes)
    }

    pub(super) fn receive(mut from: &UnixStream) -> io::Result<Message> {
        let mut header = [0; 8 * (WORDS + 1)];
        from.read_exact(&mut header)?;
        let word =
            |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| header[8 * at + byte]));
        let mut bytes = Vec::new();
        let read = from.take(word(WORDS)).read_to_end(&mut bytes)?;
        let is_whole = read as u64 == word(WORDS);
        let message = Message::decode(std::array::from_fn(word), bytes).filter(|_| is_whole);
        message.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn encode(&self) -> (Vec<u64>, &[u8]) {
        match self {
            Message::Join { rank, size, process } => {
                (vec![0, *rank as u64, *size as u64, u64::from(*process)], &[])
            }
            Message::Joined => (vec![1], &[]),
            Message::Refused { code, message } => (vec![2, *code as u64], message.as_bytes()),
            Message::Complete => (vec![3], &[]),
            Message::Call(posted) => (posted.words(), &posted.data),
            Message::Result { request, data } => (vec![5, *request], data),
            Message::Fault { request, message } => (vec![6, *request], message.as_bytes()),
        }
    }

    fn decode(words: [u64; WORDS], bytes: Vec<u8>) -> Option<Message> {
        let [kind, first, second, third, ..] = words;
        Some(match kind {
            0 => {
                Message::Join { rank: first as usize, size: second as usize, process: third as u32 }
            }
            1 => Message::Joined,
            2 => Message::Refused { code: first as i32, message: String::from_utf8(bytes).ok()? },
            3 => Message::Complete,
            4 => Message::Call(Posted::decode(words, bytes)?),
            5 => Message::Result { request: first, data: bytes },
            6 => Message::Fault { request: first, message: String::from_utf8(bytes).ok()? },
            _ => return None,
        })
    }
}

impl Posted {
    fn words(&self) -> Vec<u64> {
        let (number, from, to) = match self.slot {
            Slot::Collective(number) => (number, 0, 0),
            Slot::Transfer { number, from, to } => (number, from, to),
        };
        let (kind, by, root) = match self.call.kind {
            Kind::AllReduce(by) => (0, by, 0),
            Kind::Reduce(by, root) => (1, by, root),
            Kind::Broadcast(root) => (2, Reduction::Sum, root),
            Kind::AllGather => (3, Reduction::Sum, 0),
            Kind::ReduceScatter(by) => (4, by, 0),
            Kind::AllToAll => (5, Reduction::Sum, 0),
            Kind::Transfer => (6, Reduction::Sum, 0),
        };
        let place = [number, from as u64, to as u64, self.member as u64];
        let call = [kind, by as u64, root as u64, self.call.count as u64, self.call.element as u64];
        [&[4, self.request][..], &place, &call].concat()
    }

    fn decode(words: [u64; WORDS], data: Vec<u8>) -> Option<Posted> {
        let [_, request, number, from, to, member, kind, by, root, count, element] = words;
        let (by, root) = (Reduction::of_code(by as i32)?, root as usize);
        let kind = match kind {
            0 => Kind::AllReduce(by),
            1 => Kind::Reduce(by, root),
            2 => Kind::Broadcast(root),
            3 => Kind::AllGather,
            4 => Kind::ReduceScatter(by),
            5 => Kind::AllToAll,
            6 => Kind::Transfer,
            _ => return None,
        };
        let slot = match kind {
            Kind::Transfer => Slot::Transfer { number, from: from as usize, to: to as usize },
            _ => Slot::Collective(number),
        };
        let element = Element::of_code(element as i32)?;
        let call = Call { kind, count: count as usize, element };
        Some(Posted { request, slot, member: member as usize, call, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_as_they_were_sent() {
        let transfer = Slot::Transfer { number: 3, from: 2, to: 1 };
        let by = Reduction::Average;
        let kinds = [
            (Kind::AllReduce(by), Slot::Collective(7)),
            (Kind::Reduce(by, 2), Slot::Collective(8)),
            (Kind::Broadcast(1), Slot::Collective(9)),
            (Kind::AllGather, Slot::Collective(10)),
            (Kind::ReduceScatter(Reduction::Max), Slot::Collective(11)),
            (Kind::AllToAll, Slot::Collective(12)),
            (Kind::Transfer, transfer),
        ];
        let calls = kinds.map(|(kind, slot)| {
            let call = Call { kind, count: 5, element: Element::Bf16 };
            Message::Call(Posted { request: 4, slot, member: 1, call, data: vec![9; 10] })
        });
        let others = [
            Message::Join { rank: 2, size: 3, process: 77 },
            Message::Joined,
            Message::Refused { code: 5, message: "no".to_owned() },
            Message::Complete,
            Message::Result { request: 1, data: vec![1, 2, 3] },
            Message::Fault { request: 1, message: "differs".to_owned() },
        ];
        let (here, there) = UnixStream::pair().unwrap();
        for message in calls.into_iter().chain(others) {
            message.send(&here).unwrap();
            assert_eq!(Message::receive(&there).unwrap(), message);
        }
        // A message that ends too early, as when a process is killed.
        Message::Result { request: 1, data: vec![0; 100] }.send(&here).unwrap();
        let mut start = [0; 150];
        (&there).read_exact(&mut start).unwrap();
        let (cut, end) = UnixStream::pair().unwrap();
        (&cut).write_all(&start).unwrap();
        drop(cut);
        assert!(Message::receive(&end).is_err());
    }
}
