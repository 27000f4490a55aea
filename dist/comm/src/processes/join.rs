//! Joining a world.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{fmt, io, thread};

use meshgrad_error::{Error, Result, bail, ensure, error};
use meshgrad_runtime::Device;

use super::acceptor::{Acceptor, HANDSHAKE};
use super::connection::Connection;
use super::coordinator::Coordinator;
use super::data::Engine;
use super::handshake::{self, Claim, Failure, Purpose, Run};
use super::inquiry::LONGEST;
use super::meeting::{Meeting, MeetingFile, Point};
use super::message::Message;
use super::poll::{Poll, Waker};
use super::process_rank::{Carrier, Parts, ProcessRank};
use super::secret::Secret;
use super::tcp::Addresses;
use crate::system::system;

/// The time limit of a collective, and of joining, if none is set.
const DEADLINE: Duration = Duration::from_secs(300);
/// The time limit of an attempt to reach rank 0.
const ATTEMPT: Duration = Duration::from_secs(10);
/// How long a rank waits for others before it says so.
const NOTICE: Duration = Duration::from_secs(5);
/// The pause between attempts to reach rank 0.
const RETRY: Duration = Duration::from_millis(50);

/// A rank of a world of processes, before it joins.
///
/// ```no_run
/// use meshgrad_comm::{Collectives, Tcp, Rank, Reduction, Secret};
/// use meshgrad_runtime::Tensor;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let secret = Secret::new("a long random text")?;
/// let world = Tcp::new(3, 8, "10.0.0.1:29500", secret).join()?; // rank 3 of 8
/// let x = Tensor::scalar(world.device(), 1.0f32)?;
/// let sum = world.world()?.all_reduce(&x, Reduction::Sum)?.wait()?;
/// assert_eq!(sum.item::<f32>()?, 8.0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Tcp {
    rank: usize,
    world: usize,
    meeting: Meeting,
    listener: Option<TcpListener>,
    threads: usize,
    deadline: Duration,
    join_deadline: Duration,
    grace: Option<Duration>,
    is_strict: bool,
    /// How long this rank waits before it says for which ranks.
    notice: Duration,
    say: fn(&str),
}

impl Tcp {
    /// Rank `rank` of `world` ranks. Rank 0 listens on `address`, such as `10.0.0.1:29500`, and the
    /// others join it there.
    pub fn new(rank: usize, world: usize, address: impl Into<String>, secret: Secret) -> Tcp {
        let address = address.into();
        Tcp::at(rank, world, Meeting::At(Point { address, secret }))
    }

    /// Rank `rank` of `world` ranks of one host and user. Rank 0 chooses a free port and a random
    /// secret and writes them to a file, where the others find them. Each run needs a file name of
    /// its own. Rank 0 removes the file when all have joined.
    pub fn through_file(rank: usize, world: usize, path: impl Into<PathBuf>) -> Tcp {
        Tcp::at(rank, world, Meeting::File(path.into()))
    }

    /// The only rank of a world.
    ///
    /// # Errors
    /// When the operating system has no random bytes.
    pub fn alone() -> Result<Tcp> {
        Ok(Tcp::new(0, 1, "127.0.0.1:0", Secret::random()?))
    }

    fn at(rank: usize, world: usize, meeting: Meeting) -> Tcp {
        Tcp {
            rank,
            world,
            meeting,
            listener: None,
            threads: thread::available_parallelism().map_or(1, usize::from),
            deadline: DEADLINE,
            join_deadline: DEADLINE,
            grace: None,
            is_strict: false,
            notice: NOTICE,
            say: |message| eprintln!("{message}"),
        }
    }

    /// The socket on which rank 0 listens. The address must reach it. By default, rank 0 opens a
    /// socket at the address.
    pub fn listener(mut self, listener: TcpListener) -> Tcp {
        self.listener = Some(listener);
        self
    }

    /// The threads of the rank's device, at least 1. By default all cores.
    pub fn threads(mut self, threads: usize) -> Tcp {
        self.threads = threads;
        self
    }

    /// The time limit of collectives whose group has no `timeout` option; 5 minutes by default.
    pub fn deadline(mut self, deadline: Duration) -> Tcp {
        self.deadline = deadline;
        self
    }

    /// The time in which all ranks must join; 5 minutes by default.
    pub fn join_deadline(mut self, deadline: Duration) -> Tcp {
        self.join_deadline = deadline;
        self
    }

    /// As [`Local::grace`](crate::Local::grace): a tenth of the time limit by default.
    pub fn grace(mut self, grace: Duration) -> Tcp {
        self.grace = Some(grace.min(LONGEST));
        self
    }

    /// As [`Local::strict`](crate::Local::strict).
    pub fn strict(mut self, strict: bool) -> Tcp {
        self.is_strict = strict;
        self
    }

    /// Joins. Waits until all ranks have joined. After five seconds, prints for which ranks it
    /// waits, and where.
    ///
    /// # Errors
    /// When this rank cannot reach rank 0 in time, or rank 0 refuses it; when some ranks do not
    /// join in time; when the operating system refuses a socket or a thread.
    pub fn join(self) -> Result<ProcessRank> {
        self.join_over(None)
    }

    /// Joins a world whose data is carried by `engine` instead of TCP.
    pub(super) fn join_over(self, engine: Option<Box<dyn Engine>>) -> Result<ProcessRank> {
        let (rank, world) = (self.rank, self.world);
        ensure!(
            rank < world && u32::try_from(world).is_ok(),
            Invalid,
            "rank {rank} is outside a world of {world} ranks; ranks are 0 to {}",
            world.saturating_sub(1)
        );
        let device = Device::cpu_with_threads(self.threads)
            .map_err(|error| error.context("the device could not be made"))?;
        let began = Instant::now();
        let until = began + self.join_deadline.min(LONGEST);

        let mut host = self;
        let lead = match host.rank {
            0 => Some(host.lead(until)?),
            _ => None,
        };
        let (stream, Point { address: lead_address, secret }) = host.reach(began, until)?;
        let (control, carrier) = match engine {
            Some(engine) => {
                let (control, ..) = host.enter(stream, &lead_address, None, until)?;
                (control, Carrier::Engine(engine))
            }
            None => {
                let (acceptor, address) = accept(&stream, &secret)?;
                let (control, run, listeners) =
                    host.enter(stream, &lead_address, Some(address), until)?;
                let addresses = Addresses { run, secret, listeners };
                (control, Carrier::Tcp(addresses, acceptor))
            }
        };
        ProcessRank::start(Parts {
            rank,
            world,
            device,
            deadline: host.deadline,
            grace: host.grace,
            is_strict: host.is_strict,
            coordinator: lead.map(|(coordinator, _file)| coordinator),
            control,
            carrier,
        })
    }

    /// Starts the coordinator, and writes the meeting file if there is one.
    fn lead(&mut self, until: Instant) -> Result<(Coordinator, Option<MeetingFile>)> {
        let address = match &self.meeting {
            Meeting::At(point) => point.address.as_str(),
            Meeting::File(_) => "127.0.0.1:0",
        };
        let listener = match self.listener.take() {
            Some(listener) => listener,
            None => listen(address)?,
        };
        let is_chosen = address.ends_with(":0"); // by the system
        let address = (!is_chosen).then(|| address.to_owned());
        let address = match address {
            Some(address) => address, // this rank is reached by the others in the same way
            None => local(&listener)?.to_string(),
        };
        let (secret, path) = match &self.meeting {
            Meeting::At(point) => (point.secret.clone(), None),
            Meeting::File(path) => (Secret::random()?, Some(path.clone())),
        };
        let coordinator =
            Coordinator::start(listener, self.world, secret.clone(), until, self.notice)?;
        let point = Point { address, secret };
        let file = path.map(|path| MeetingFile::write(&path, &point));
        self.meeting = Meeting::At(point);
        Ok((coordinator, file.transpose()?))
    }

    /// Connects to the coordinator, which may not listen yet.
    fn reach(&self, began: Instant, until: Instant) -> Result<(TcpStream, Point)> {
        let mut notice = Some(began + self.notice);
        loop {
            let obstacle = match self.attempt(until) {
                Ok(found) => return Ok(found),
                Err(obstacle) => obstacle,
            };
            // A file may be left over from an earlier run.
            let is_final = matches!(obstacle, Obstacle::Stranger(_))
                && !matches!(self.meeting, Meeting::File(_));
            let Tcp { rank, world, say, .. } = self;
            if is_final || Instant::now() + RETRY >= until {
                return Err(match obstacle {
                    Obstacle::NoAnswer(address, reason) => error!(
                        System,
                        "rank {rank} could not join rank 0 at {address} within {:?}: {reason}",
                        began.elapsed()
                    ),
                    Obstacle::NoPoint(error) | Obstacle::Stranger(error) => error,
                });
            }
            if notice.take_if(|due| *due <= Instant::now()).is_some() {
                let hindrance = match obstacle {
                    Obstacle::NoAnswer(address, reason) => format!("{address}: {reason}"),
                    Obstacle::NoPoint(error) | Obstacle::Stranger(error) => error.to_string(),
                };
                say(&format!("rank {rank} of {world} waits for rank 0: {hindrance}"));
            }
            thread::sleep(RETRY);
        }
    }

    fn attempt(&self, until: Instant) -> Result<(TcpStream, Point), Obstacle> {
        let point = self.meeting.point().map_err(Obstacle::NoPoint)?;
        let Point { address, secret } = &point;
        let no_answer = |error| Obstacle::NoAnswer(address.clone(), error);
        let claim = Claim {
            purpose: Purpose::Control,
            rank: self.rank as u32, // below 2^32, as the world is
            world: self.world as u32,
            run: Run::default(),
        };
        let until = until.min(Instant::now() + ATTEMPT);
        let mut stream = connect(address, until).map_err(no_answer)?;
        match handshake::connect(&mut stream, secret, claim, until) {
            Ok(()) => Ok((stream, point)),
            Err(Failure::Connection(error)) => Err(no_answer(error)),
            Err(Failure::Stranger(reason)) => Err(Obstacle::Stranger(error!(
                Invalid,
                "rank 0 at {address} did not prove that it knows the secret: {reason}; start all \
                 ranks with the same MESHGRAD_SECRET"
            ))),
        }
    }

    /// Tells the coordinator where this rank accepts connections, and waits for all others.
    fn enter(
        &self,
        stream: TcpStream,
        address: &str,
        listener: Option<SocketAddr>,
        until: Instant,
    ) -> Result<(Connection, Run, Vec<SocketAddr>)> {
        let refused = |reason: &dyn fmt::Display| {
            error!(Invalid, "rank 0 refused rank {}: {reason}", self.rank)
        };
        let failed = system("the rank could not open a socket");
        let mut control = Connection::new(stream).map_err(&failed)?;
        let join = Message::Join { listener };
        control.push(join.into()).map_err(|error| refused(&error))?;
        let (_waker, sleeper) = Waker::pair().map_err(failed)?;
        let addresses = listener.map_or(0, |_| self.world);
        loop {
            control.write().map_err(|error| refused(&error))?;
            // What follows the list of members is for the progress thread.
            match control.read_one().map_err(|error| refused(&error))? {
                None => {}
                Some(frame) => match frame.message {
                    Message::Members { run, listeners } if listeners.len() == addresses => {
                        return Ok((control, run, listeners));
                    }
                    Message::Waiting { missing } => {
                        let Tcp { rank, world, say, .. } = self;
                        let missing = match missing[..] {
                            [one] => format!("rank {one}"),
                            _ => format!("ranks {missing:?}"),
                        };
                        say(&format!("rank {rank} of {world} waits at {address} for {missing}"));
                        continue;
                    }
                    Message::Incomplete { reason } => {
                        bail!(System, "rank {} waited in vain: {reason}", self.rank);
                    }
                    Message::Refused { reason } => return Err(refused(&reason)),
                    _ => return Err(refused(&"it sent an unexpected message")),
                },
            }
            // The coordinator reports ranks that do not join in time, so this rank waits a moment
            // longer.
            if Instant::now() >= until + HANDSHAKE {
                return Err(refused(&"it did not answer"));
            }
            let mut poll = Poll::new(&sleeper);
            poll.connection(&control);
            poll.until(until + HANDSHAKE);
            poll.wait();
        }
    }
}

/// Why an attempt to reach rank 0 failed.
#[derive(Debug)]
enum Obstacle {
    /// Rank 0 does not answer at an address: it may start later.
    NoAnswer(String, io::Error),
    /// The file with its address is missing or wrong: it writes the file when it starts.
    NoPoint(Error),
    /// It does not know the secret, or is another program.
    Stranger(Error),
}

/// Accepts connections of other ranks at the local address of `stream`.
fn accept(stream: &TcpStream, secret: &Secret) -> Result<(Acceptor, SocketAddr)> {
    let failed = system("the rank could not listen");
    let own = stream.local_addr().map_err(&failed)?.ip();
    let listener = TcpListener::bind((own, 0)).map_err(&failed)?;
    let address = local(&listener)?;
    let acceptor = Acceptor::new(listener, secret.clone()).map_err(failed)?;
    Ok((acceptor, address))
}

fn connect(address: &str, until: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs()? {
        let left = until.saturating_duration_since(Instant::now());
        match TcpStream::connect_timeout(&address, left.max(RETRY)) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Listens on a loopback address if it is 127.0.0.1 or ::1, otherwise on all interfaces: some
/// systems resolve the host's name to another loopback address.
fn listen(address: &str) -> Result<TcpListener> {
    let failed = |error: io::Error| {
        error!(System, "rank 0 cannot listen on {address}: {error}; choose a free port")
    };
    let mut found = address.to_socket_addrs().map_err(failed)?;
    let Some(mut at) = found.next() else {
        return Err(failed(io::ErrorKind::NotFound.into()));
    };
    if at.ip() != Ipv4Addr::LOCALHOST && at.ip() != Ipv6Addr::LOCALHOST {
        at.set_ip(match at.ip() {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        });
    }
    TcpListener::bind(at).map_err(failed)
}

/// Where a process of this host reaches a listener.
fn local(listener: &TcpListener) -> Result<SocketAddr> {
    listener.local_addr().map_err(system("the address of a socket is unknown"))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::sync::Mutex;

    use super::*;

    /// Each rank that waits says for whom and where, whether it has reached rank 0 or not.
    #[test]
    fn waiting_ranks_say_for_whom() {
        static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
        let said = |message: &str| {
            let until = Instant::now() + Duration::from_secs(60);
            while !SAID.lock().unwrap().iter().any(|it| it.starts_with(message)) {
                assert!(Instant::now() < until, "no rank says `{message}`");
                thread::sleep(RETRY);
            }
        };
        let secret = Secret::new([7; 16]).unwrap();
        let address = format!("127.0.0.1:{}", super::super::free_port().unwrap());
        let host = |rank| {
            let host = Tcp::new(rank, 3, address.clone(), secret.clone()).threads(1);
            let say = |message: &str| SAID.lock().unwrap().push(message.to_owned());
            Tcp { notice: Duration::from_millis(50), say, ..host }
        };
        thread::scope(|scope| {
            let second = scope.spawn(|| host(1).join().map(drop));
            said(&format!("rank 1 of 3 waits for rank 0: {address}: "));
            let first = scope.spawn(|| host(0).join().map(drop));
            said(&format!("rank 1 of 3 waits at {address} for "));
            said(&format!("rank 0 of 3 waits at {address} for "));
            assert!(host(2).join().is_ok());
            assert_eq!((first.join().unwrap(), second.join().unwrap()), (Ok(()), Ok(())));
        });
    }

    /// Data that is not a frame closes the connection, even if the process knows the secret. The
    /// rank can join afterwards, and also after its process ended while it joined.
    #[test]
    fn a_rank_that_sends_garbage_is_refused_and_can_join_again() {
        let secret = Secret::new([7; 16]).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = local(&listener).unwrap().to_string();
        let until = Instant::now() + Duration::from_secs(60);
        let host = |rank| Tcp::new(rank, 2, address.clone(), secret.clone()).threads(1);
        thread::scope(|scope| {
            let lead = host(0).listener(listener);
            let first = scope.spawn(|| lead.join().map(drop));
            let oversized = [u32::MAX.to_le_bytes(), (u32::MAX ^ 0x6d67_7264).to_le_bytes()];
            for garbage in [[0xff; 64].as_slice(), &[oversized.concat(), vec![0; 8]].concat(), &[]]
            {
                let (mut stream, _) = host(1).attempt(until).unwrap();
                stream.set_read_timeout(None).unwrap();
                stream.write_all(garbage).unwrap();
                // It fails if the coordinator has already closed the connection.
                let _ = stream.shutdown(std::net::Shutdown::Write);
                let closed = stream.read(&mut [0; 64]);
                assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
            }
            assert!(host(1).join().is_ok());
            assert_eq!(first.join().unwrap(), Ok(()));
        });
    }
}
