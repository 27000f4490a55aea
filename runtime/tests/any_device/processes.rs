//! Tests in processes of their own: a process opens the driver or the emulator once, reads the
//! emulator's options then, and cannot use a GPU after a kernel has failed.

use std::process::{Command, Output};

/// Runs tests of this program in a process with these environment variables.
pub(crate) fn run(tests: &[&str], variables: &[(&str, &str)]) -> Output {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.args(["--include-ignored", "--exact", "--nocapture"]).args(tests);
    command.envs(variables.iter().copied()).output().unwrap()
}

/// [`run`], and asserts that the tests exist and pass.
#[track_caller]
pub(crate) fn assert_pass(tests: &[&str], variables: &[(&str, &str)]) {
    let run = run(tests, variables);
    let [output, errors] = [&run.stdout, &run.stderr].map(|it| String::from_utf8_lossy(it));
    let passed = output.contains(&format!("{} passed", tests.len()));
    assert!(run.status.success() && passed, "{variables:?}: {output}{errors}");
}
