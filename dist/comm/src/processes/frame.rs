//! Frames: a message and its bytes, on a connection that has been authenticated.
//!
//! ```text
//! u32 length of the message   u32 check   u64 length of the payload   message (JSON)   payload
//! ```

use std::fmt;
use std::io::{self, Read};

use super::bytes::Bytes;
use super::message::Message;

const PRELUDE: usize = 16;
/// Distinguishes a frame from other data.
const CHECK: u32 = 0x6d67_7264;
/// The longest message.
pub(super) const MAX_MESSAGE: usize = 1 << 20;
/// The longest payload.
pub(super) const MAX_PAYLOAD: usize = 1 << 36;
/// The most bytes of a payload that are read in one turn, so that connections take turns.
const TURN: usize = 1 << 20;

/// A message and its bytes. Cheap to clone.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Frame {
    pub(super) message: Message,
    pub(super) payload: Bytes,
}

impl From<Message> for Frame {
    fn from(message: Message) -> Frame {
        Frame { message, payload: Bytes::default() }
    }
}

/// A frame that cannot be sent or read.
#[derive(Debug)]
pub(super) enum FrameError {
    /// The connection closed.
    Closed,
    /// The connection failed.
    Io(io::Error),
    /// What is wrong with the frame.
    Wrong(String),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::Closed => f.write_str("the connection closed"),
            FrameError::Io(error) => write!(f, "the connection failed: {error}"),
            FrameError::Wrong(problem) => f.write_str(problem),
        }
    }
}

fn not_a_frame() -> FrameError {
    FrameError::Wrong("it sent data that is not a frame".to_owned())
}

fn unreadable(error: serde_json::Error) -> FrameError {
    FrameError::Wrong(format!("it sent a message that cannot be read: {error}"))
}

impl Frame {
    /// The bytes before the payload.
    pub(super) fn head(&self) -> Result<Vec<u8>, FrameError> {
        let mut bytes = vec![0; PRELUDE];
        serde_json::to_writer(&mut bytes, &self.message).map_err(unreadable)?;
        let length = bytes.len() - PRELUDE;
        check_length("a message", length, MAX_MESSAGE)?;
        check_length("a payload", self.payload.len(), MAX_PAYLOAD)?;
        let short = length as u32; // at most MAX_MESSAGE
        bytes[..4].copy_from_slice(&short.to_le_bytes());
        bytes[4..8].copy_from_slice(&(short ^ CHECK).to_le_bytes());
        bytes[8..16].copy_from_slice(&(self.payload.len() as u64).to_le_bytes());
        Ok(bytes)
    }
}

fn check_length(what: &'static str, length: usize, limit: usize) -> Result<(), FrameError> {
    match length <= limit {
        true => Ok(()),
        false => Err(FrameError::Wrong(format!(
            "it sent {what} of {length} bytes, but at most {limit} are allowed"
        ))),
    }
}

/// Assembles frames from reads of any size. Memory is reserved as a prelude announces it, but used
/// only for what has arrived.
#[derive(Default)]
pub(super) struct FrameReader {
    prelude: Vec<u8>,
    message: Vec<u8>,
    payload: Vec<u8>,
}

impl FrameReader {
    /// Reads one frame, or less: `None` if the source would block or it is another connection's
    /// turn.
    pub(super) fn read(&mut self, source: &mut impl Read) -> Result<Option<Frame>, FrameError> {
        if !fill(source, &mut self.prelude, PRELUDE)? {
            return Ok(None);
        }
        let (length, payload) = lengths(&self.prelude)?;
        if !fill(source, &mut self.message, length)? {
            return Ok(None);
        }
        if self.payload.capacity() < payload {
            // If it fails, memory grows with what arrives, and the announced length was wrong.
            let _ = self.payload.try_reserve_exact(payload);
        }
        let turn = payload.min(self.payload.len() + TURN);
        if !fill(source, &mut self.payload, turn)? || turn < payload {
            return Ok(None);
        }
        let message = serde_json::from_slice(&self.message).map_err(unreadable)?;
        self.prelude.clear();
        self.message.clear();
        Ok(Some(Frame { message, payload: std::mem::take(&mut self.payload).into() }))
    }
}

/// Splits the head of a frame from what follows it. Returns the message, the length of the payload
/// and the rest.
#[cfg(feature = "mpi")]
pub(super) fn split_head(bytes: &[u8]) -> Result<(Message, usize, &[u8]), FrameError> {
    let (prelude, rest) = bytes.split_at_checked(PRELUDE).ok_or_else(not_a_frame)?;
    let (length, payload) = lengths(prelude)?;
    let (message, rest) = rest.split_at_checked(length).ok_or_else(not_a_frame)?;
    let message = serde_json::from_slice(message).map_err(unreadable)?;
    Ok((message, payload, rest))
}

/// The lengths of message and payload.
fn lengths(prelude: &[u8]) -> Result<(usize, usize), FrameError> {
    let word = |at: usize| prelude[at..at + 4].try_into().map(u32::from_le_bytes);
    let payload = prelude[8..16].try_into().map(u64::from_le_bytes);
    let (Ok(message), Ok(check), Ok(payload)) = (word(0), word(4), payload) else {
        return Err(not_a_frame());
    };
    if message ^ CHECK != check {
        return Err(not_a_frame());
    }
    let (message, payload) = (message as usize, usize::try_from(payload).unwrap_or(usize::MAX));
    check_length("a message", message, MAX_MESSAGE)?;
    check_length("a payload", payload, MAX_PAYLOAD)?;
    Ok((message, payload))
}

/// Reads until `buffer` has `length` bytes. False if the source would block before that.
fn fill(source: &mut impl Read, buffer: &mut Vec<u8>, length: usize) -> Result<bool, FrameError> {
    let missing = length.saturating_sub(buffer.len());
    if missing == 0 {
        return Ok(true);
    }
    match source.by_ref().take(missing as u64).read_to_end(buffer) {
        Ok(_) if buffer.len() < length => Err(FrameError::Closed),
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(FrameError::Io(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A seeded generator (xorshift).
    struct Random(u64);

    impl Random {
        fn below(&mut self, end: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 % end as u64) as usize
        }
    }

    /// A socket that returns a few bytes at a time and would block in between.
    struct Dribble<'a> {
        bytes: &'a [u8],
        random: Random,
    }

    impl Read for Dribble<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            if self.bytes.is_empty() {
                return Ok(0);
            }
            let count = self.random.below(9).min(self.bytes.len()).min(into.len());
            if count == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let (now, later) = self.bytes.split_at(count);
            into[..count].copy_from_slice(now);
            self.bytes = later;
            Ok(count)
        }
    }

    fn frames(random: &mut Random) -> Vec<Frame> {
        let frame = |_| Frame {
            message: match random.below(3) {
                0 => Message::Gather { number: 7 },
                1 => Message::Refused { reason: "x".repeat(random.below(200)) },
                _ => Message::Left { rank: 3, sent: 9 },
            },
            payload: (0..random.below(300)).map(|at| at as u8).collect::<Vec<u8>>().into(),
        };
        (0..5).map(frame).collect()
    }

    fn bytes_of(frames: &[Frame]) -> Vec<u8> {
        let bytes = frames.iter().map(|frame| {
            let head = frame.head().unwrap();
            [head.as_slice(), &frame.payload].concat()
        });
        bytes.collect::<Vec<_>>().concat()
    }

    /// The frames before the first error, and the error.
    fn read_all(bytes: &[u8], seed: u64) -> (Vec<Frame>, FrameError) {
        let random = Random(seed);
        let mut source = Dribble { bytes, random };
        let (mut reader, mut frames) = (FrameReader::default(), Vec::new());
        loop {
            match reader.read(&mut source) {
                Ok(frame) => frames.extend(frame),
                Err(error) => return (frames, error),
            }
        }
    }

    /// Frames arrive as they were sent, however the stream is cut.
    #[test]
    fn frames_do_not_depend_on_the_chunks_that_arrive() {
        for seed in 1..300 {
            let frames = frames(&mut Random(seed));
            let (read, end) = read_all(&bytes_of(&frames), seed);
            assert_eq!(read, frames);
            assert!(matches!(end, FrameError::Closed));
        }
    }

    /// Damaged streams are errors, never panics, and allocate no more than what has arrived: the
    /// announced lengths of most of them would not fit into memory.
    #[test]
    fn damaged_frames_are_errors() {
        for seed in 1..5000 {
            let mut random = Random(seed);
            let frames = frames(&mut random);
            let mut bytes = bytes_of(&frames);
            match random.below(4) {
                0 => bytes.truncate(random.below(bytes.len())),
                1 => (0..4).for_each(|_| {
                    let at = random.below(bytes.len());
                    bytes[at] ^= 1 << random.below(8);
                }),
                2 => {
                    let at = random.below(16);
                    bytes[at] = random.below(256) as u8; // in the first prelude
                }
                _ => bytes = (0..200).map(|_| random.below(256) as u8).collect(),
            }
            let (read, _) = read_all(&bytes, seed);
            assert!(read.len() <= frames.len());
        }
    }

    #[test]
    fn oversized_frames_are_refused_before_they_arrive() {
        for (message, payload, what) in [
            (MAX_MESSAGE as u32 + 1, 0u64, "a message"),
            (2, MAX_PAYLOAD as u64 + 1, "a payload"),
            (2, u64::MAX, "a payload"),
        ] {
            let mut prelude = Vec::new();
            prelude.extend(message.to_le_bytes());
            prelude.extend((message ^ CHECK).to_le_bytes());
            prelude.extend(payload.to_le_bytes());
            let (_, error) = read_all(&prelude, 1);
            assert!(error.to_string().contains(what), "{error}");
        }
    }
}
