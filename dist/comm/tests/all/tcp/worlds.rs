//! Worlds whose ranks are threads of this process.

use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use meshgrad_comm::{ProcessRank, Secret, Tcp};

pub(crate) const SECRET: &str = "a secret for tests only";

/// The time limit of collectives in tests that do not test it.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// A rank that joins at `address`.
pub(crate) fn tcp(rank: usize, ranks: usize, address: &str) -> Tcp {
    let secret = Secret::new(SECRET).unwrap();
    let tcp = Tcp::new(rank, ranks, address, secret).threads(1);
    tcp.deadline(DEADLINE).join_deadline(DEADLINE)
}

pub(crate) fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

/// Runs `main` on each rank of a world, and returns its results in rank order.
pub(crate) fn run<T: Send>(
    ranks: usize,
    deadline: Duration,
    main: impl Fn(ProcessRank) -> T + Sync,
) -> Vec<T> {
    run_with(ranks, |host| host.deadline(deadline), main)
}

/// As [`run`], with ranks that `change` sets up.
pub(crate) fn run_with<T: Send>(
    ranks: usize,
    change: impl Fn(Tcp) -> Tcp + Sync,
    main: impl Fn(ProcessRank) -> T + Sync,
) -> Vec<T> {
    let (listener, address) = listener();
    let mut listener = Some(listener);
    thread::scope(|scope| {
        let start = |rank| {
            let (address, main, change, listener) = (&address, &main, &change, listener.take());
            scope.spawn(move || {
                let tcp = change(tcp(rank, ranks, address));
                let tcp = match listener {
                    Some(listener) => tcp.listener(listener),
                    None => tcp,
                };
                main(tcp.join().unwrap())
            })
        };
        let threads: Vec<_> = (0..ranks).map(start).collect();
        threads.into_iter().map(|it| it.join().unwrap()).collect()
    })
}
