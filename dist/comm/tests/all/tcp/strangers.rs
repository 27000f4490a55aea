//! Strangers change nothing: wrong secrets, garbage, half-open connections.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use meshgrad_comm::{Collectives, Rank, Reduction, Secret, Tcp};
use meshgrad_runtime::Tensor;

use crate::tcp::worlds::{self, DEADLINE};

#[test]
fn short_secrets_are_refused() {
    let error = Secret::new("short").unwrap_err();
    let expected = "the secret has 5 bytes, but needs at least 16; set MESHGRAD_SECRET to a longer \
                    random string";
    assert_eq!(error.to_string(), expected);
    assert_eq!(format!("{:?}", Secret::random().unwrap()), "Secret(..)");
    assert_ne!(Secret::random(), Secret::random());
}

/// A world forms and computes while strangers connect to it all the time.
#[test]
fn a_world_forms_among_strangers() {
    let (listener, address) = worlds::listener();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let (address, done) = (&address, &done);
        for seed in 0..3u64 {
            scope.spawn(move || pester(address, seed, done));
        }
        let first = scope.spawn(|| {
            let host = worlds::tcp(0, 3, address).listener(listener);
            sum(host)
        });
        thread::sleep(Duration::from_millis(100)); // only strangers so far
        let wrong = Secret::new("the secret of another world").unwrap();
        let error = Tcp::new(1, 3, address.clone(), wrong).join().unwrap_err();
        let error = error.to_string();
        assert!(error.contains("did not prove that it knows the secret"), "{error}");
        assert!(error.contains("MESHGRAD_SECRET"), "{error}");

        let others = [1, 2].map(|rank| scope.spawn(move || sum(worlds::tcp(rank, 3, address))));
        let sums = others.map(|rank| rank.join().unwrap());
        assert_eq!((first.join().unwrap(), sums), (3, [3, 3]));
        done.store(true, Ordering::Relaxed);
    });
}

fn sum(host: Tcp) -> i64 {
    let world = host.join().unwrap();
    let x = Tensor::scalar(world.device(), world.rank() as i64).unwrap();
    let mut last = 0;
    for _ in 0..20 {
        let sum = world.world().unwrap().all_reduce(&x, Reduction::Sum);
        last = sum.unwrap().wait().unwrap().item::<i64>().unwrap();
    }
    last
}

/// Connects again and again, with seeded garbage, early ends, and connections left open.
fn pester(address: &str, seed: u64, done: &AtomicBool) {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
    let mut left_open = Vec::new();
    while !done.load(Ordering::Relaxed) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let Ok(mut stream) = TcpStream::connect(address) else {
            return; // the world has ended
        };
        // A connection that was made while the listener closed gets no answer and no end.
        stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let mut garbage: Vec<u8> =
            (0..random % 300).map(|at| (random >> (at % 57)) as u8).collect();
        if random.is_multiple_of(3) {
            garbage.splice(0..0, *b"meshgrad\x01"); // the right start
        }
        if random.is_multiple_of(5) {
            let mut challenge = [0; 41];
            let _ = stream.read_exact(&mut challenge);
            garbage.splice(0..0, challenge); // its own words
        }
        let _ = stream.write_all(&garbage);
        if random.is_multiple_of(7) && left_open.len() < 50 {
            left_open.push(stream);
        }
        thread::sleep(Duration::from_micros(500));
    }
}

/// A rank that finds another program at rank 0's address reports it, and sends nothing that depends
/// on the secret.
#[test]
fn another_program_at_the_address_is_an_error() {
    let (listener, address) = worlds::listener();
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(&[b'?'; 64]).unwrap();
            let mut sent = Vec::new();
            let _ = stream.read_to_end(&mut sent);
            assert!(sent.is_empty()); // nothing that depends on the secret
        });
        let error = worlds::tcp(1, 2, &address).join().unwrap_err();
        assert!(error.to_string().contains("not a meshgrad process"), "{error}");
    });
    let soon = worlds::tcp(1, 2, "127.0.0.1:9").join_deadline(Duration::from_millis(200));
    let error = soon.deadline(DEADLINE).join().unwrap_err();
    let expected = "rank 1 could not join rank 0 at 127.0.0.1:9 within ";
    assert!(error.to_string().starts_with(expected), "{error}");
}
