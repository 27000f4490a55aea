//! A process that does nothing but save is killed at random moments. What it has reported as saved
//! is there and whole, nothing half-written is found, and what is left over can be removed.

use std::io::{BufRead, BufReader};
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

use meshgrad_ckpt::{Dtype, FolderWriter, Staging, discover, keep_last, step_name, sweep};

const RUN: &str = "MESHGRAD_CKPT_KILL_TEST_RUN";
const KILLS: u64 = 25;

/// The child: not a test of its own, it returns at once unless a parent gave it a folder.
#[test]
fn child_saves_until_it_is_killed() {
    let Some(run) = env::var_os(RUN) else { return };
    let run = Path::new(&run);

    let mut step = discover(run)
        .unwrap()
        .last()
        .map_or(0, |newest| newest.step().unwrap());
    loop {
        step += 1;
        let mut staging = Staging::new(run, &step_name(step)).unwrap();

        let mut model = FolderWriter::new().max_shard_bytes(100_000);
        for at in 0..4 {
            model
                .add(&format!("w{at}"), Dtype::F32, &[50, 250])
                .unwrap();
        }
        let row = [step as u8; 1000];
        model
            .write(&mut staging, "", |_, out| {
                (0..50).try_for_each(|_| out.append(&row))
            })
            .unwrap();

        staging.commit().unwrap();
        println!("\nsaved {step}");
        keep_last(run, NonZeroUsize::new(2).unwrap()).unwrap();
    }
}

#[test]
fn a_kill_at_any_moment_loses_nothing_that_was_saved() {
    let run = tempfile::tempdir().unwrap();
    let mut last_saved = 0;

    for kill in 0..KILLS {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "child_saves_until_it_is_killed", "--nocapture"])
            .env(RUN, run.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();

        // After the first save, so that the kill falls into the work; then at another moment each
        // time.
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let saved = |line: &str| {
            line.strip_prefix("saved ")
                .and_then(|step| step.parse().ok())
        };
        let first: Option<u64> = lines.by_ref().find_map(|line| saved(&line.unwrap()));
        assert!(first.is_some(), "the child ended before it saved");
        thread::sleep(Duration::from_micros(kill * 1_700));
        child.kill().unwrap();
        child.wait().unwrap();

        let reported = lines
            .map_while(Result::ok)
            .filter_map(|line| saved(&line))
            .last();
        last_saved = reported.or(first).unwrap().max(last_saved);

        let found = discover(run.path()).unwrap();
        for published in &found {
            published.verify().unwrap();
        }
        let newest = found.last().unwrap().step().unwrap();
        assert!(
            newest >= last_saved,
            "{last_saved} was reported, {newest} is the newest"
        );
    }

    sweep(run.path()).unwrap();
    for entry in fs::read_dir(run.path()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(name.starts_with("step-"), "{name} is left over");
    }
}
