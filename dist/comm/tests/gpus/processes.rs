//! Ranks as processes over the emulated NCCL: this test program starts itself.

use std::env;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use meshgrad_comm::{Collectives, NcclRank, Rank, Secret, Tcp, free_port};
use meshgrad_runtime::Device;

use super::is_real;
use super::nccl::sum;

/// What a child does: its drill, whether it is the victim, its rank, and the address.
const ROLE: &str = "MESHGRAD_TEST_ROLE";
const RANKS: usize = 3;
/// The time limit of collectives.
const LIMIT: Duration = Duration::from_secs(2);

fn start(drill: &str, victim: usize, rank: usize, address: &str) -> Child {
    let is_victim = rank == victim;
    Command::new(env::current_exe().unwrap())
        .args(["processes::child", "--exact", "--nocapture", "--test-threads=1"])
        .env(ROLE, format!("{drill} {is_victim} {rank} {address}"))
        .env("MESHGRAD_EMULATOR_PROCESSES", "1")
        .env("MESHGRAD_EMULATOR_HANGS", "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The main function of a child process; without a role it does nothing.
#[test]
fn child() {
    let Ok(role) = env::var(ROLE) else {
        return;
    };
    let words: Vec<&str> = role.split(' ').collect();
    let [drill, is_victim, rank, address] = words[..] else {
        panic!("{role}");
    };
    let secret = Secret::new("a secret for tests only").unwrap();
    let host = Tcp::new(rank.parse().unwrap(), RANKS, address, secret).threads(1).deadline(LIMIT);
    let host = host.join().unwrap();
    let rank = NcclRank::new(&host, Device::emulator(0).unwrap()).unwrap();
    let world = rank.world().unwrap();
    sum(&rank, &*world, 4).unwrap();
    // A rank that still waited for this sum would fail with the others' next one.
    host.world().unwrap().barrier().unwrap().wait().unwrap();
    println!("\nready");
    let count = if drill == "wrong" && is_victim == "true" { 5 } else { 4 };
    let error = loop {
        if let Err(error) = sum(&rank, &*world, count) {
            break error;
        }
    };
    println!("\nverdict {error}");
    if drill == "wrong" {
        std::thread::sleep(LIMIT); // a rank that has ended would be named instead
    }
}

/// A rank is killed, stopped, or calls something else. The others get a verdict that names it, and end.
#[test]
fn ranks_that_do_not_answer_are_named() {
    if is_real() || !Device::emulator_is_built() {
        println!("skipped: it is for the emulator");
        return;
    }
    let wrong = "all_reduce(f32 x 5, sum)";
    for (drill, victim, expected) in [
        ("kill", 1, "rank 1 died"),
        ("kill", 0, "rank 0 died"),
        ("wrong", 1, wrong),
        ("wrong", 0, wrong),
        ("stop", 1, "rank 1 did not start it"),
    ] {
        run(drill, victim, expected);
    }
    if env::var_os("MESHGRAD_EXHAUSTIVE").is_some() {
        run("stop", 0, "rank 0 died: it does not ask");
    }
}

fn run(drill: &str, victim: usize, expected: &str) {
    let address = format!("127.0.0.1:{}", free_port().unwrap());
    let mut children: Vec<Child> =
        (0..RANKS).map(|rank| start(drill, victim, rank, &address)).collect();
    let mut outputs: Vec<_> =
        children.iter_mut().map(|child| BufReader::new(child.stdout.take().unwrap())).collect();
    for output in &mut outputs {
        assert!(output.by_ref().lines().any(|line| line.unwrap().trim() == "ready"));
    }
    let signal = match drill {
        "kill" => Some("-KILL"),
        "stop" => Some("-STOP"),
        _ => None,
    };
    let send = |signal: &str, child: &Child| {
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status();
        assert!(sent.unwrap().success());
    };
    signal.iter().for_each(|signal| send(signal, &children[victim]));

    let others = children.iter_mut().zip(outputs).enumerate().filter(|(rank, _)| *rank != victim);
    for (rank, (child, mut output)) in others {
        let mut text = String::new();
        output.read_to_string(&mut text).unwrap();
        assert!(child.wait().unwrap().success(), "{drill}, rank {rank}: {text}");
        let verdict = text.lines().find(|line| line.starts_with("verdict "));
        // One that stopped after it had called the collective is not known.
        let is_named = |it: &str| {
            it.contains(expected) || (drill == "stop" && it.contains("NCCL did not finish it"))
        };
        assert!(verdict.is_some_and(is_named), "{drill}, rank {rank}: {text}");
    }
    children[victim].kill().unwrap();
    children[victim].wait().unwrap();
}
