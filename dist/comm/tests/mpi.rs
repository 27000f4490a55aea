//! The transport over MPI: this test program starts itself under mpirun.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use meshgrad_collectives::registry::Exchange;
use meshgrad_comm::conformance::{self, Fault, Faulty};
use meshgrad_comm::{Collectives, CommError, FailedRank, Mpi, ProcessRank, Rank, Reduction};
use meshgrad_mesh::{Channel, Group, GroupOptions, Mesh};
use meshgrad_runtime::{DType, Result, Tensor, ops};

/// How many times ranks are killed. `scripts/prove/kill-ranks` sets more.
const KILLS: usize = 3;
const DEADLINE: Duration = Duration::from_secs(60);

/// Jobs run one at a time: mpirun fails if another one removes the folder that both use.
static JOB: Mutex<()> = Mutex::new(());

/// What a child does: the name of a function below.
const ROLE: &str = "MESHGRAD_TEST_ROLE";
const ROLES: [(&str, fn()); 12] = [
    ("conform", conform),
    ("control", control),
    ("faults", faults),
    ("groups", groups),
    ("mismatch", mismatch),
    ("late", late),
    ("inversion", inversion),
    ("repeat", repeat),
    ("twice", twice),
    ("early", early),
    ("abandoned", abandoned),
    ("environment", environment),
];

fn mpirun(ranks: usize, options: &[&str], role: &str) -> Command {
    let mut command = Command::new("mpirun");
    command
        .args(["--oversubscribe", "--timeout", "120"])
        .args(["-n", &ranks.to_string()])
        .args(options)
        .arg(std::env::current_exe().unwrap())
        .args(["child", "--exact", "--nocapture", "--test-threads=1"])
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env(ROLE, role);
    command
}

/// With this option, mpirun does not stop ranks when another one fails.
const RECOVERY: &[&str] = &["--enable-recovery"];

/// Runs a role on all ranks. Returns whether mpirun succeeded, and what all printed.
fn run(ranks: usize, options: &[&str], role: &str) -> (bool, String) {
    let _job = JOB.lock().unwrap_or_else(PoisonError::into_inner);
    let output = mpirun(ranks, options, role).output().unwrap();
    let text = [output.stdout.as_slice(), &output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

fn succeed(ranks: usize, options: &[&str], role: &str) {
    let (succeeded, text) = run(ranks, options, role);
    assert!(succeeded, "{text}");
    assert_eq!(text.matches("1 passed; 0 failed").count(), ranks, "{text}");
}

/// The main function of a child process; without a role it does nothing.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let main = ROLES.iter().find(|(name, _)| *name == role);
    main.expect("a role").1();
}

fn join() -> ProcessRank {
    Mpi::new().threads(1).deadline(DEADLINE).join().unwrap()
}

/// The larger counts take two rounds of an all_reduce, from 3 ranks on, and payloads of their own.
fn conform() {
    let world = join();
    let all = world.world().unwrap();
    conformance::check(&*all, &[0, 1, 7, 2049, 9001]).unwrap();
}

#[test]
fn worlds_conform() {
    for ranks in [1, 2, 3, 4] {
        succeed(ranks, &[], "conform");
    }
}

/// Messages on the control channel.
fn control() {
    conformance::check_control(&join()).unwrap();
}

#[test]
fn messages_pass_collectives_that_wait() {
    succeed(3, &[], "control");
}

/// A check fails on some rank if a reduction is dropped, ranks are swapped, and so on.
fn faults() {
    let world = join();
    let checks = conformance::checks();
    let checks = checks.iter().filter(|check| check.dtype() == DType::F32);
    let cases = checks.flat_map(|check| {
        let faults = Fault::ALL.into_iter();
        let detected = faults.filter(|fault| fault.is_detected_by(check));
        detected.map(move |fault| (check, fault))
    });
    for (number, (check, fault)) in cases.enumerate() {
        // A group of its own for each, because it can fail.
        let group = |order: &[usize]| {
            let mut options = GroupOptions::default();
            options.timeout = Some(Duration::from_millis(500 + number as u64));
            Group::new(order.to_vec()).unwrap().with_options(options)
        };
        let order = group(&[0, 1, 2]);
        let swapped = group(&fault.order(order.ranks()));
        let inner = world.connect("faulty", &swapped).unwrap();
        let checked = check.run(&Faulty::new(fault, order, inner), 257);
        // Ranks without a result notice nothing, so ranks exchange outcomes: over the control
        // plane, because a verdict also fails collectives that wait for the group's ranks.
        let differs = [u8::from(checked.is_err())];
        let all = world.exchange().all_gather(&differs).unwrap().concat();
        assert!(all.contains(&1), "{} accepts {fault:?}", check.name());
    }
}

/// MPI is not finalized after a group has failed; without `RECOVERY`, mpirun would take that for a
/// failed rank.
#[test]
fn checks_detect_faults() {
    succeed(3, RECOVERY, "faults");
}

/// Groups that overlap, one of them in another order, with several collectives in flight.
fn groups() {
    let world = join();
    let rank = world.rank();
    let mesh = Mesh::new(&[2, 2], &["dp", "tp"]).unwrap();
    let group = |axis| mesh.group([axis], rank).unwrap().unwrap();
    let connect = |name: &str, group: &Group| world.connect(name, group).unwrap();
    let (dp, tp) = (connect("dp", &group("dp")), connect("tp", &group("tp")));
    let x = ops::full(world.device(), &[70_001], DType::F32, rank as f64).unwrap();
    for _ in 0..20 {
        let over_tp = tp.all_reduce(&x, Reduction::Sum).unwrap();
        let over_dp = dp.all_reduce(&x, Reduction::Sum).unwrap();
        let (over_dp, over_tp) = (over_dp.wait().unwrap(), over_tp.wait().unwrap());
        let expected = [(2 * (rank % 2) + 2) as f32, (4 * (rank / 2) + 1) as f32];
        for (sum, expected) in [over_dp, over_tp].into_iter().zip(expected) {
            let sum = sum.to_vec::<f32>().unwrap();
            assert!(sum.iter().all(|it| *it == expected));
        }
    }
    if rank != 1 {
        let reordered = connect("reordered", &Group::new([3, 0, 2]).unwrap());
        conformance::check(&*reordered, &[1, 5000]).unwrap();
    }
    world.world().unwrap().barrier().unwrap().wait().unwrap();
}

#[test]
fn groups_of_a_mesh_sum() {
    succeed(4, &[], "groups");
}

/// Prints the error, waits for all ranks over the control plane, and fails.
fn fail(world: &ProcessRank, error: &meshgrad_runtime::Error) {
    println!("\nverdict {error}");
    let _ = world.exchange().all_gather(&[]); // fails if a rank has died
    std::process::exit(1);
}

/// The verdicts that ranks printed.
fn verdicts(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| line.starts_with("verdict "))
}

fn mismatch() {
    let world = join();
    let x = ops::full(world.device(), &[5], DType::F32, 1.0).unwrap();
    let call = || -> Result<()> {
        let all = world.world()?;
        match world.rank() {
            2 => all.barrier()?.wait(),
            _ => all.all_reduce(&x, Reduction::Sum)?.wait().map(drop),
        }
    };
    fail(&world, &call().unwrap_err());
}

#[test]
fn mismatched_calls_fail_on_all_ranks() {
    let (_, text) = run(3, RECOVERY, "mismatch");
    let of_rank_2 = verdicts(&text).filter(|line| line.contains("rank 2 called barrier() at "));
    assert_eq!(of_rank_2.count(), 3, "{text}");
}

/// All three ranks, with a short time limit.
fn impatient() -> Group {
    let mut options = GroupOptions::default();
    options.timeout = Some(Duration::from_secs(4));
    Group::new([0, 1, 2]).unwrap().with_options(options)
}

/// Rank 1 does not start the collective.
fn late() {
    let world = join();
    world.world().unwrap().barrier().unwrap().wait().unwrap();
    let all = world.connect("late", &impatient()).unwrap();
    if world.rank() == 1 {
        std::thread::sleep(Duration::from_secs(12));
    }
    let error = all.barrier().and_then(|it| it.wait());
    fail(&world, &error.unwrap_err());
}

#[test]
fn missing_ranks_are_named() {
    let (_, text) = run(3, RECOVERY, "late");
    let of_rank_1 = verdicts(&text).filter(|line| line.contains("but rank 1 did not start it"));
    assert_eq!(of_rank_1.count(), 3, "{text}");
}

/// Ranks 0 and 2 use two communicators in one order, rank 1 in the other.
fn inversion() {
    let world = join();
    let mut groups = [impatient(), impatient().with_channel(Channel::Own(1))];
    if world.rank() == 1 {
        groups.reverse();
    }
    let barriers = || -> Result<()> {
        world.world()?.barrier()?.wait()?;
        for group in &groups {
            world.connect("inverted", group)?.barrier()?.wait()?;
        }
        Ok(())
    };
    fail(&world, &barriers().unwrap_err());
}

#[test]
fn order_inversions_are_reported_by_all() {
    let (_, text) = run(3, RECOVERY, "inversion");
    let cycles: Vec<&str> = verdicts(&text).collect();
    assert_eq!(cycles.len(), 3, "{text}");
    assert!(cycles[0].contains("deadlock: rank"), "{text}");
    assert!(cycles.iter().all(|cycle| *cycle == cycles[0]), "{text}");
}

fn twice() {
    let world = join();
    let again = Mpi::new().join().unwrap_err().to_string();
    assert!(again.contains("has initialized it before"), "{again}");
    drop(world);
}

#[test]
fn a_process_joins_once() {
    succeed(2, &[], "twice");
}

/// Rank 1 leaves before a collective whose messages it would have to receive.
fn early() {
    let world = join();
    if world.rank() == 1 {
        return;
    }
    let large = ops::full(world.device(), &[50_000], DType::F32, 1.0).unwrap();
    let all = world.world().unwrap();
    let sum = all.all_reduce(&large, Reduction::Sum);
    let error = sum.and_then(|sum| sum.wait()).unwrap_err();
    println!("\nverdict {error}");
    drop(world); // waits for no message to rank 1
    println!("\nleft");
    std::process::exit(1);
}

#[test]
fn ranks_that_leave_early_are_not_waited_for() {
    let (_, text) = run(3, RECOVERY, "early");
    assert_eq!(verdicts(&text).count(), 2, "{text}");
    assert_eq!(text.lines().filter(|line| *line == "left").count(), 2, "{text}");
}

/// Odd ranks start to receive, and leave. The sender gets an error for what they do not receive.
fn abandoned() {
    let world = join();
    let rank = world.rank();
    let pair = [rank / 2 * 2, rank / 2 * 2 + 1];
    let pair = world.connect("pair", &Group::new(pair.to_vec()).unwrap()).unwrap();
    let large = ops::full(world.device(), &[3_000_000], DType::F32, 1.0).unwrap();
    world.world().unwrap().barrier().unwrap().wait().unwrap();
    if rank % 2 == 1 {
        drop(pair.recv(&[3_000_000], DType::F32, 0));
        return;
    }
    let began = Instant::now();
    let sent = pair.send(&large, 1).and_then(|sent| sent.wait());
    assert!(began.elapsed() < DEADLINE / 2);
    if let Err(error) = sent {
        let error = error.details::<CommError>();
        let expected = vec![rank + 1];
        assert!(
            matches!(error, Some(CommError::Returned { missing, .. }) if *missing == expected),
            "{error:?}"
        );
        println!("\nverdict {rank}");
        drop(world);
        std::process::exit(1);
    }
}

#[test]
fn tensors_that_a_rank_does_not_receive_are_reported() {
    let (_, text) = run(6, RECOVERY, "abandoned");
    assert!(!text.contains("panicked"), "{text}");
}

fn environment() {
    let world = ProcessRank::from_env().unwrap();
    let again = Mpi::new().join().unwrap_err().to_string();
    assert!(again.contains("has initialized it before"), "{again}");
    let one = Tensor::scalar(world.device(), 1i64).unwrap();
    let ranks = world.world().unwrap().all_reduce(&one, Reduction::Sum);
    let ranks: i64 = ranks.unwrap().wait().unwrap().item().unwrap();
    assert_eq!(ranks, 3);
}

#[test]
fn mpi_is_chosen_under_mpirun() {
    succeed(3, &[], "environment");
}

/// Repeats collectives until one fails.
fn repeat() {
    let world = join();
    let all = world.world().unwrap();
    println!("\nready {} {}", world.rank(), std::process::id());
    let large = ops::full(world.device(), &[50_000], DType::F32, 1.0).unwrap();
    let error = loop {
        let pending = all.all_reduce(&large, Reduction::Sum);
        if let Err(error) = pending.and_then(|sum| sum.wait()) {
            break error;
        }
    };
    assert!(error.details::<FailedRank>().is_some(), "{error}");
    fail(&world, &error);
}

/// Kills a rank at a random moment. Returns whether mpirun succeeded, and what the ranks printed.
fn kill(seed: usize, ranks: usize, options: &[&str]) -> (bool, String) {
    let _job = JOB.lock().unwrap_or_else(PoisonError::into_inner);
    let mut job = mpirun(ranks, options, "repeat");
    let job = job.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut job = job.spawn().unwrap();
    let mut output = BufReader::new(job.stdout.take().unwrap());
    let mut processes = vec![String::new(); ranks];
    let mut line = String::new();
    while processes.iter().any(String::is_empty) {
        line.clear();
        assert_ne!(output.read_line(&mut line).unwrap(), 0, "seed {seed}");
        if let ["ready", rank, process] = line.split_whitespace().collect::<Vec<_>>()[..] {
            processes[rank.parse::<usize>().unwrap()] = process.to_owned();
        }
    }
    std::thread::sleep(Duration::from_micros(seed as u64 * 7919 % 40_000));
    let victim = &processes[seed % ranks];
    let killed = Command::new("kill").args(["-9", victim]).status();
    assert!(killed.unwrap().success());

    let mut text = String::new();
    output.read_to_string(&mut text).unwrap();
    (job.wait().unwrap().success(), text)
}

/// All others return an error that names the rank, the collective and the line, if mpirun leaves
/// them the time.
#[test]
fn killed_ranks_are_named() {
    for seed in 0..kills() {
        let (_, text) = kill(seed, 4, RECOVERY);
        let died = format!("rank {} died", seed % 4);
        let named = verdicts(&text).filter(|line| {
            line.contains(&died)
                && line.contains("called all_reduce(f32 x 50000, sum) at ")
                && line.contains("mpi.rs:")
        });
        assert_eq!(named.count(), 3, "seed {seed}: {text}");
    }
}

/// By default, mpirun stops all ranks when one dies.
#[test]
fn mpirun_fails_when_a_rank_is_killed() {
    for seed in 0..kills() {
        let (succeeded, text) = kill(seed, 4, &[]);
        assert!(!succeeded, "seed {seed}: {text}");
    }
}

fn kills() -> usize {
    std::env::var("MESHGRAD_TEST_KILLS").map_or(KILLS, |kills| kills.parse().unwrap())
}
