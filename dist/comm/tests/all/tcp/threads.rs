//! A process has a fixed number of threads, whatever the number of groups.
#![cfg(target_os = "linux")]

use std::process::Command;

use meshgrad_comm::{Collectives, Local, Rank};
use meshgrad_mesh::Group;
use meshgrad_runtime::Result;

use crate::tcp::worlds::{self, DEADLINE};

const RANKS: usize = 8;
/// Set in the process that counts its threads, in which no other test runs.
const CHILD: &str = "MESHGRAD_TEST_COUNT_THREADS";

/// Uses a communicator of every group with this rank, and counts threads before and after.
fn count(rank: &dyn Rank) -> Result<[usize; 2]> {
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let is_member = |ranks: &usize| ranks >> rank.rank() & 1 == 1;
    let all = rank.world()?;
    all.barrier()?.wait()?;
    let before = threads();
    all.barrier()?.wait()?;
    let of_several = (0..1usize << RANKS).filter(|ranks| ranks.count_ones() > 1);
    for ranks in of_several.filter(is_member) {
        let members: Vec<usize> = (0..RANKS).filter(|rank| ranks >> rank & 1 == 1).collect();
        let group = rank.connect("group", &Group::new(members).unwrap())?;
        group.barrier()?.wait()?;
    }
    all.barrier()?.wait()?;
    let after = threads();
    all.barrier()?.wait()?; // no rank leaves before all have counted
    Ok([before, after])
}

/// The main function of the child process; without the variable it does nothing. A thread that has
/// ended may still be counted before.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    for [before, after] in worlds::run(RANKS, DEADLINE, |world| count(&world).unwrap()) {
        assert!(after <= before, "Tcp: {before}, then {after}");
    }
    let local = Local::new(RANKS).threads(1).launch(|rank| count(rank));
    for [before, after] in local.unwrap() {
        assert!(after <= before, "Local: {before}, then {after}");
    }
}

/// All 247 groups of 2 to 8 of 8 ranks, in a process that has all ranks.
#[test]
fn groups_need_no_threads() {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["tcp::threads::child", "--exact", "--test-threads=1"]);
    let output = child.env(CHILD, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}
