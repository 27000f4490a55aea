//! Ranks as processes: this test program starts itself.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use meshgrad_comm::{Collectives, FailedRank, Rank, Reduction, conformance, free_port};
use meshgrad_runtime::{DType, ops};

use crate::tcp::worlds;

/// How many times ranks are killed. `scripts/prove/kill-ranks` sets more.
const KILLS: u64 = 6;

/// What a child does: `conform` or `loop`, its rank, the number of ranks, and the address.
const ROLE: &str = "MESHGRAD_TEST_ROLE";

fn start(role: &str, rank: usize, ranks: usize, address: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["tcp::processes::child", "--exact", "--nocapture", "--test-threads=1"])
        .env(ROLE, format!("{role} {rank} {ranks} {address}"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// A free port of this host.
fn address() -> String {
    format!("127.0.0.1:{}", free_port().unwrap())
}

/// The main function of a child process; without a role it does nothing.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let words: Vec<&str> = role.split(' ').collect();
    let [role, rank, ranks, address] = words[..] else {
        panic!("{role}");
    };
    let host = worlds::tcp(rank.parse().unwrap(), ranks.parse().unwrap(), address);
    let world = host.join().unwrap();
    let all = world.world().unwrap();
    if role == "conform" {
        return conformance::check(&*all, &[0, 1, 7, 9001]).unwrap();
    }
    println!("\nready");
    let large = ops::full(world.device(), &[50_000], DType::F32, 1.0).unwrap();
    let error = loop {
        let pending = all.all_reduce(&large, Reduction::Sum);
        if let Err(error) = pending.and_then(|sum| sum.wait()) {
            break error;
        }
    };
    assert!(error.details::<FailedRank>().is_some(), "{error}");
    println!("\nverdict {error}");
}

#[test]
fn processes_conform() {
    for ranks in [3, 4] {
        let address = address();
        let children: Vec<Child> =
            (0..ranks).map(|rank| start("conform", rank, ranks, &address)).collect();
        succeed(children);
    }
}

fn succeed(children: Vec<Child>) {
    for child in children {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
    }
}

/// A process that is killed while ranks join can be replaced.
#[test]
fn a_rank_that_is_killed_while_joining_can_be_replaced() {
    for seed in 0..3 {
        let address = address();
        let mut children: Vec<Child> =
            (0..3).map(|rank| start("conform", rank, 4, &address)).collect();
        std::thread::sleep(Duration::from_millis(40 * seed));
        let mut victim = children.pop().unwrap();
        victim.kill().unwrap();
        victim.wait().unwrap();
        children.extend([2, 3].map(|rank| start("conform", rank, 4, &address)));
        succeed(children);
    }
}

/// A rank is killed at a random moment. All others return an error that names it, the collective
/// and the line, and end, well before the time limit of the collective.
#[test]
fn killed_ranks_are_named() {
    let kills = std::env::var("MESHGRAD_TEST_KILLS").map_or(KILLS, |kills| kills.parse().unwrap());
    let ranks = 4;
    for seed in 0..kills {
        let address = address();
        let victim = (seed % ranks) as usize;
        let mut children: Vec<Child> =
            (0..ranks as usize).map(|rank| start("loop", rank, ranks as usize, &address)).collect();
        let mut outputs: Vec<_> =
            children.iter_mut().map(|child| BufReader::new(child.stdout.take().unwrap())).collect();
        for output in &mut outputs {
            let is_ready = |line: &str| line.trim() == "ready";
            assert!(output.by_ref().lines().any(|line| is_ready(&line.unwrap())));
        }
        std::thread::sleep(Duration::from_micros(seed * 7919 % 40_000));
        children[victim].kill().unwrap();

        let killed = Instant::now();
        for (rank, (mut child, mut output)) in children.into_iter().zip(outputs).enumerate() {
            let mut text = String::new();
            output.read_to_string(&mut text).unwrap();
            let status = child.wait().unwrap();
            if rank == victim {
                continue;
            }
            assert!(status.success(), "seed {seed}, rank {rank}: {text}");
            let verdict = text.lines().find(|line| line.starts_with("verdict "));
            let verdict = verdict.unwrap_or_else(|| panic!("seed {seed}, rank {rank}: {text}"));
            for part in [
                format!("rank {victim} died"),
                format!("rank {rank} called all_reduce(f32 x 50000, sum)"),
                "processes.rs:".to_owned(),
            ] {
                assert!(verdict.contains(&part), "seed {seed}: {verdict}");
            }
        }
        assert!(killed.elapsed() < worlds::DEADLINE, "seed {seed}");
    }
}
