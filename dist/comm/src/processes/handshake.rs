//! Mutual authentication of the two ends of a connection, by challenge and response.
//!
//! ```text
//! accepting side                         connecting side
//!   magic, version, nonce a   ->
//!                             <-   magic, version, claim, nonce c, MAC("connect", a, claim, c)
//!   MAC("accept", a, claim, c) ->
//! ```
//!
//! The connecting side proves first that it knows the secret, so a stranger learns nothing but a
//! random number. All messages have a fixed size. After the handshake, data is neither encrypted
//! nor authenticated: the network must be trusted.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use super::secret::{self, Secret};

const MAGIC: [u8; 8] = *b"meshgrad";
const VERSION: u8 = 1;

const NONCE: usize = 32;
const CLAIM: usize = 25;
pub(super) const CHALLENGE: usize = 9 + NONCE;
pub(super) const RESPONSE: usize = 9 + CLAIM + NONCE + 32;

/// Identifies a world, so that processes of an earlier one are refused. Zeros before it is known.
pub(super) type Run = [u8; 16];

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// From a rank to the coordinator.
    Control,
    /// From a rank to another one.
    Data,
}

/// What the connecting side claims to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) purpose: Purpose,
    pub(super) rank: u32,
    pub(super) world: u32,
    pub(super) run: Run,
}

impl Claim {
    fn to_bytes(self) -> [u8; CLAIM] {
        let mut bytes = [0; CLAIM];
        bytes[0] = match self.purpose {
            Purpose::Control => 0,
            Purpose::Data => 1,
        };
        bytes[1..5].copy_from_slice(&self.rank.to_le_bytes());
        bytes[5..9].copy_from_slice(&self.world.to_le_bytes());
        bytes[9..25].copy_from_slice(&self.run);
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Claim> {
        let (purpose, rest) = bytes.split_first()?;
        let (rank, rest) = rest.split_first_chunk()?;
        let (world, run) = rest.split_first_chunk()?;
        Some(Claim {
            purpose: match purpose {
                0 => Purpose::Control,
                1 => Purpose::Data,
                _ => return None,
            },
            rank: u32::from_le_bytes(*rank),
            world: u32::from_le_bytes(*world),
            run: run.try_into().ok()?,
        })
    }
}

/// The first message of the accepting side.
pub(super) fn challenge(nonce: &[u8; NONCE]) -> [u8; CHALLENGE] {
    let mut bytes = [0; CHALLENGE];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8] = VERSION;
    bytes[9..].copy_from_slice(nonce);
    bytes
}

/// Checks a response. Returns the claim and the accepting side's proof; `None` if the other side
/// does not know the secret.
pub(super) fn check(
    secret: &Secret,
    nonce: &[u8; NONCE],
    response: &[u8; RESPONSE],
) -> Option<(Claim, [u8; 32])> {
    let (said, proof) = response.split_last_chunk::<32>()?;
    let expected = secret.mac(&[b"connect", nonce, said]);
    if !secret::equal(&expected, proof) || said[..8] != MAGIC || said[8] != VERSION {
        return None;
    }
    let claim = Claim::from_bytes(&said[9..9 + CLAIM])?;
    Some((claim, secret.mac(&[b"accept", nonce, said])))
}

/// Why the connecting side of a handshake failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The connection failed before the other side showed what it is; it may be restarting.
    Connection(io::Error),
    /// The other side is another program, or does not know the secret.
    Stranger(&'static str),
}

/// Fills `buffer`, or fails with `TimedOut`.
fn read_until(stream: &mut TcpStream, buffer: &mut [u8], deadline: Instant) -> io::Result<()> {
    let mut filled = 0;
    while filled < buffer.len() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer[filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => filled += read,
            Err(error) if is_temporary(error.kind()) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether a read was interrupted or took too long.
fn is_temporary(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(kind, Interrupted | TimedOut | WouldBlock)
}

/// The connecting side, which blocks until `deadline`.
pub(super) fn connect(
    stream: &mut TcpStream,
    secret: &Secret,
    claim: Claim,
    deadline: Instant,
) -> Result<(), Failure> {
    let mut challenge = [0; CHALLENGE];
    read_until(stream, &mut challenge, deadline).map_err(Failure::Connection)?;
    let (start, nonce) = challenge.split_at(9);
    if start[..8] != MAGIC {
        return Err(Failure::Stranger("it is not a meshgrad process"));
    }
    if start[8] != VERSION {
        return Err(Failure::Stranger("it has another version of meshgrad"));
    }

    let own: [u8; NONCE] = secret::random()
        .map_err(|error| Failure::Connection(io::Error::other(error.to_string())))?;
    let mut said = Vec::with_capacity(RESPONSE);
    said.extend_from_slice(&MAGIC);
    said.push(VERSION);
    said.extend_from_slice(&claim.to_bytes());
    said.extend_from_slice(&own);
    let proof = secret.mac(&[b"connect", nonce, &said]);
    let response = [said.as_slice(), &proof].concat();
    stream.write_all(&response).map_err(Failure::Connection)?;

    let mut answer = [0; 32];
    match read_until(stream, &mut answer, deadline) {
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            return Err(Failure::Connection(error));
        }
        // It closes the connection of a stranger.
        Err(_) => return Err(Failure::Stranger("it refused the secret of this process")),
        Ok(()) => {}
    }
    match secret::equal(&answer, &secret.mac(&[b"accept", nonce, &said])) {
        true => Ok(()),
        false => Err(Failure::Stranger("its answer is wrong")),
    }
}
