//! Processes of a launcher: their variables, how they end, and the worlds that they join.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use meshgrad_comm::launch::{Ended, Environment, Launch, Transport};
use meshgrad_comm::{Collectives, ProcessRank, Rank, Reduction, Result, Tcp, conformance, ranks};
use meshgrad_error::bail;
use meshgrad_runtime::Tensor;

fn launch(ranks: usize, command: &[&str]) -> Launch {
    let command = command.iter().map(OsString::from).collect();
    Launch::new(ranks, command).unwrap()
}

/// Runs a shell script as every rank. Returns how it ended, and the lines of both outputs, sorted.
fn shell(ranks: usize, script: &str) -> (Ended, Vec<String>, Vec<String>) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let never = AtomicBool::new(false);
    let ended = launch(ranks, &["sh", "-c", script]).run(&never, &mut out, &mut err);
    let lines = |bytes: Vec<u8>| {
        let text = String::from_utf8(bytes).unwrap();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    (ended.unwrap(), lines(out), lines(err))
}

#[test]
fn processes_get_the_variables_of_torchrun() {
    let script = "echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE at $MASTER_ADDR
        printf 'no end of line' >&2
        test -n \"$MASTER_PORT\" && test ${#MESHGRAD_SECRET} -ge 32";
    let (ended, out, err) = shell(11, script);
    assert_eq!(ended, Ended::Success);
    let mut expected: Vec<String> =
        (0..11).map(|rank| format!("[{rank:2}] {rank} of 11, {rank} of 11 at 127.0.0.1")).collect();
    expected.sort();
    assert_eq!(out, expected);
    assert!(err.contains(&"[ 7] no end of line".to_owned()), "{err:?}");
}

/// The code of the rank that failed is returned. The others are stopped, with what they started.
#[test]
fn all_are_stopped_when_one_fails() {
    let others = "sleep 1000 & wait";
    for (failing, code) in [("exit 7", 7), ("kill -KILL $$", 137)] {
        let script = format!("if [ $RANK = 1 ]; then {failing}; fi; {others}");
        let (ended, ..) = shell(3, &script);
        assert_eq!(ended, Ended::Failed { rank: 1, code });
    }
}

/// Ranks that fail are restarted, and append to their log files; not if their arguments are wrong.
#[test]
fn ranks_are_restarted() {
    for (restarts, code, starts) in [(3, 7, 3), (1, 7, 2), (3, 2, 1)] {
        let folder = tempfile::tempdir().unwrap();
        let count = folder.path().join("count").display().to_string();
        let script = format!(
            "echo here; test $RANK = 0 && exit 0
            echo >> {count}; test $(wc -l < {count}) -ge 3 || exit {code}"
        );
        let launch = launch(2, &["sh", "-c", &script]).restarts(restarts).log_dir(folder.path());
        let (never, mut err) = (AtomicBool::new(false), Vec::new());
        let ended = launch.run(&never, std::io::sink(), &mut err).unwrap();
        let expected = if starts == 3 { Ended::Success } else { Ended::Failed { rank: 1, code } };
        assert_eq!(ended, expected);
        let log = std::fs::read_to_string(folder.path().join("rank-1.log")).unwrap();
        assert_eq!(log.matches("here").count(), starts);
        let said = String::from_utf8(err).unwrap();
        assert_eq!(
            said.matches(&format!("rank 1 failed with exit code {code}; restart ")).count(),
            starts - 1
        );
    }
}

#[test]
fn all_are_stopped_from_outside() {
    let stop = AtomicBool::new(false);
    let script = "trap 'echo saved; exit 0' TERM; echo ready; sleep 1000 & wait";
    let launch = launch(2, &["sh", "-c", script]);
    let mut out = StopsWhenReady { text: Vec::new(), stop: &stop };
    let ended = launch.run(&stop, &mut out, std::io::sink());
    assert_eq!(ended.unwrap(), Ended::Stopped);
    assert_eq!((out.count("ready"), out.count("saved")), (2, 2));
}

/// An output that stops the launch when both ranks are ready.
struct StopsWhenReady<'s> {
    text: Vec<u8>,
    stop: &'s AtomicBool,
}

impl StopsWhenReady<'_> {
    fn count(&self, word: &str) -> usize {
        String::from_utf8_lossy(&self.text).matches(word).count()
    }
}

impl std::io::Write for StopsWhenReady<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.text.extend(bytes);
        self.stop.store(self.count("ready") == 2, Ordering::Relaxed);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A rank fails because another has failed, right after it. The first one is blamed, not the
/// lowest.
#[test]
fn the_first_rank_that_fails_is_blamed() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe").display().to_string();
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let script = format!(
        "case $RANK in
            2) echo $$ >{pipe}; exit 5;;
            0) read pid <{pipe}
                while read _ _ state _ </proc/$pid/stat; [ $state != Z ]; do :; done
                sleep 0.3 # on a busy machine the launcher runs late
                exit 3;;
            1) trap 'exit 0' TERM; sleep 1000 & wait;;
        esac"
    );
    let ended = (0..5).map(|_| shell(3, &script).0);
    let ended: Vec<Ended> = ended.collect();
    let first = ended.iter().filter(|it| **it == Ended::Failed { rank: 2, code: 5 });
    assert_eq!(first.count(), ended.len(), "{ended:?}");
}

/// The state of a process, such as `S`, or `Z` if it has ended; `None` if it does not exist.
fn state(pid: &str) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("State:"))?;
    Some(line.split_whitespace().nth(1)?.to_owned())
}

/// What a rank leaves behind is stopped. A process in a session of its own goes on, and is not
/// waited for although it keeps the rank's output open.
#[test]
fn launch_does_not_wait_for_descendants() {
    let script = "sleep 1000 & echo $!; setsid sleep 1000 & echo $!
        while read name </proc/$!/comm; [ $name != sleep ]; do sleep 0.01; done; exit $CODE";
    for code in ["0", "4"] {
        let (ended, out, _) = shell(1, &script.replace("$CODE", code));
        let expected = match code {
            "0" => Ended::Success,
            _ => Ended::Failed { rank: 0, code: 4 },
        };
        assert_eq!(ended, expected);
        let pids: Vec<&str> = out.iter().filter_map(|line| line.strip_prefix("[0] ")).collect();
        let has_ended = |pid: &&&str| state(pid).is_none_or(|it| it == "Z");
        while pids.iter().filter(has_ended).count() == 0 {
            std::thread::yield_now(); // the signal was sent
        }
        let outlives: Vec<_> = pids.iter().filter(|pid| !has_ended(pid)).collect();
        assert_eq!(outlives.len(), 1, "{pids:?}");
        let killed = Command::new("kill").arg(outlives[0]).status().unwrap();
        assert!(killed.success());
    }
}

/// The rank that fails first is named, although another one that fails as a consequence ends before.
#[test]
fn a_rank_that_fails_slowly_is_blamed() {
    let program = std::env::current_exe().unwrap();
    let command = ["env", &format!("{CHILD}=fails"), program.to_str().unwrap()];
    let launch = launch(3, &[command.as_slice(), &AS_CHILD].concat());
    let never = AtomicBool::new(false);
    let ended = launch.run(&never, std::io::sink(), std::io::sink()).unwrap();
    assert!(matches!(ended, Ended::Failed { rank: 1, .. }), "{ended:?}");
}

/// Rank 1 fails and takes its time to end; the others fail because it has, and end at once.
fn fail(world: ProcessRank) -> ! {
    if world.rank() == 1 {
        world.fail("the planted fault");
        std::thread::sleep(Duration::from_millis(500));
        std::process::exit(3);
    }
    conformance::check(&*world.world().unwrap(), &[3]).unwrap_err();
    std::process::exit(4);
}

/// The output of each rank is also in a file, both streams together and without the prefix.
#[test]
fn each_rank_has_a_log() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    let script = "echo out of $RANK; echo err of $RANK >&2";
    let launch = launch(11, &["sh", "-c", script]).log_dir(folder.join("new"));
    let never = AtomicBool::new(false);
    let ended = launch.run(&never, std::io::sink(), std::io::sink());
    assert_eq!(ended.unwrap(), Ended::Success);
    for rank in [0, 7, 10] {
        let log = std::fs::read_to_string(folder.join(format!("new/rank-{rank:02}.log"))).unwrap();
        let mut lines: Vec<&str> = log.lines().collect();
        lines.sort();
        assert_eq!(lines, [format!("err of {rank}"), format!("out of {rank}")]);
    }
    let refused = launch_in("/dev/null").unwrap_err().to_string();
    assert!(refused.contains("/dev/null"), "{refused}");
}

fn launch_in(log_dir: &str) -> Result<Ended> {
    let never = AtomicBool::new(false);
    launch(1, &["true"]).log_dir(log_dir).run(&never, std::io::sink(), std::io::sink())
}

#[test]
fn a_command_that_does_not_exist_is_named() {
    let never = AtomicBool::new(false);
    let run = launch(2, &["no-such-program"]).run(&never, std::io::sink(), std::io::sink());
    let error = run.unwrap_err().to_string();
    assert!(error.contains("rank 0: `no-such-program` could not be started"), "{error}");
    let nothing = [
        (0, vec!["true".into()], "a world needs at least 1 rank"),
        (2, vec![], "there is no command; pass one after `--`"),
    ];
    for (ranks, command, expected) in nothing {
        assert_eq!(Launch::new(ranks, command).unwrap_err().to_string(), expected);
    }
}

const CHILD: &str = "MESHGRAD_TEST_CHILD";

/// The main function of a rank; without its variable it does nothing.
#[test]
fn child() {
    if std::env::var(CHILD).is_err() {
        return;
    }
    let environment = Environment::read().unwrap().unwrap();
    let world = match std::env::var_os("PMIX_NAMESPACE") {
        Some(_) => ProcessRank::from_env_over(Transport::Tcp), // a test that only sets variables of mpirun
        None => ProcessRank::from_env(),
    };
    let world = world.unwrap();
    assert_eq!(world.rank(), environment.rank());
    assert_eq!(world.world_size(), environment.world_size());
    if std::env::var(CHILD).is_ok_and(|it| it == "fails") {
        fail(world);
    }
    conformance::check(&*world.world().unwrap(), &[0, 3]).unwrap();
}

/// The arguments with which this program is a child.
const AS_CHILD: [&str; 4] = ["launch::child", "--exact", "--nocapture", "--test-threads=1"];

#[test]
fn launched_processes_find_their_world() {
    let program = std::env::current_exe().unwrap();
    let program = program.to_str().unwrap();
    let command = ["env", &format!("{CHILD}=1"), program];
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let never = AtomicBool::new(false);
    let launch = launch(3, &[command.as_slice(), &AS_CHILD].concat());
    let ended = launch.run(&never, &mut out, &mut err).unwrap();
    assert_eq!(ended, Ended::Success, "{}", String::from_utf8_lossy(&err));
    assert_eq!(String::from_utf8_lossy(&out).matches("1 passed").count(), 3);
}

/// The sum of all ranks. Rank 1 fails if the variable says so.
fn sum(rank: &dyn Rank) -> Result<f32> {
    if rank.rank() == 1 && std::env::var(CHILD).is_ok_and(|it| it == "fails") {
        bail!(Invalid, "the planted fault");
    }
    let x = Tensor::scalar(rank.device(), rank.rank() as f32)?;
    rank.world()?.all_reduce(&x, Reduction::Sum)?.wait()?.item()
}

/// A process with [`ranks::run`]; without its variable it does nothing.
#[test]
fn child_of_run() {
    if std::env::var(CHILD).is_ok() {
        match ranks::run(8, sum) {
            Ok(sums) => println!("the sums are {sums:?}"),
            Err(error) => println!("the error is {error}"),
        }
    }
}

/// One main function runs on threads, and on the processes of a launcher, however many they are. If
/// one fails, all name it.
#[test]
fn one_main_function_runs_on_threads_and_on_processes() {
    assert_eq!(ranks::run(3, sum).unwrap(), [3.0; 3]);
    let program = std::env::current_exe().unwrap();
    let output = |child: &str| {
        let variable = format!("{CHILD}={child}");
        let command = ["env", &variable, program.to_str().unwrap(), "launch::child_of_run"];
        let (mut out, never) = (Vec::new(), AtomicBool::new(false));
        let launch = launch(3, &[command.as_slice(), &AS_CHILD[1..]].concat());
        launch.run(&never, &mut out, std::io::sink()).unwrap();
        String::from_utf8(out).unwrap()
    };
    let sums = output("1");
    assert_eq!(sums.matches("the sums are [3.0]").count(), 3, "{sums}");
    let errors = output("fails");
    assert_eq!(errors.matches("the error is rank").count(), 3, "{errors}");
    assert_eq!(errors.matches("the planted fault").count(), 3, "{errors}");
}

/// Ranks of one host whose launcher states no meeting point, as mpirun, meet through a file: also
/// over the file of an earlier run that was killed.
#[test]
fn ranks_of_a_host_meet_through_a_file() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    let user = std::process::Command::new("id").arg("-u").output().unwrap();
    let user = String::from_utf8(user.stdout).unwrap();
    let stale = folder.join(format!("meshgrad-{}-test_run.meeting", user.trim()));
    std::fs::write(&stale, "127.0.0.1:9\nthe secret of an earlier run").unwrap();
    std::fs::set_permissions(&stale, PermissionsExt::from_mode(0o600)).unwrap();

    let children: Vec<_> = [2, 1, 0]
        .map(|rank: usize| {
            std::thread::sleep(std::time::Duration::from_millis(50)); // rank 0 is the last one
            Command::new(std::env::current_exe().unwrap())
                .args(AS_CHILD)
                .env(CHILD, "1")
                .env("XDG_RUNTIME_DIR", folder)
                .env("PMIX_NAMESPACE", "test/run")
                .env("OMPI_COMM_WORLD_RANK", rank.to_string())
                .env("OMPI_COMM_WORLD_SIZE", "3")
                .env("OMPI_COMM_WORLD_LOCAL_SIZE", "3")
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .into();
    for child in children {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
    }
    assert_eq!(folder.read_dir().unwrap().count(), 0); // rank 0 has removed the file
}

/// A FIFO at the path of the meeting file is an error, and blocks nothing.
#[test]
fn a_fifo_is_not_a_meeting_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    let host = Tcp::through_file(1, 2, &path).join_deadline(Duration::from_millis(200));
    let error = host.join().unwrap_err().to_string();
    assert!(error.contains("is not a regular file; delete it"), "{error}");
}

#[test]
fn a_process_without_a_launcher_is_alone() {
    if Environment::read().unwrap().is_none() {
        let world = ProcessRank::from_env().unwrap();
        assert_eq!((world.rank(), world.world_size()), (0, 1));
        conformance::check(&*world.world().unwrap(), &[3]).unwrap();
    }
}
