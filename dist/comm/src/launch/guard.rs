//! Stops the ranks when the launcher is killed and cannot do it.
//!
//! A shell reads the process groups of the ranks from a pipe that only the launcher holds open. The
//! pipe ends with the launcher, whatever ends it, and the shell then stops the groups.

use std::io::{self, ErrorKind, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// As a launcher that is stopped, it gives the ranks 30 seconds to save.
const SCRIPT: &str = "trap '' HUP INT TERM
    groups=
    while read -r group; do groups=\"$groups $group\"; done
    kill -TERM $groups
    seconds=0
    while [ $seconds -lt 30 ]; do
        left=
        for group in $groups; do kill -0 $group && left=\"$left $group\"; done
        groups=$left
        [ -n \"$groups\" ] || exit
        sleep 1
        seconds=$((seconds + 1))
    done
    kill -KILL $groups";

/// The shell, which is ended first of all when dropped.
pub(super) struct Guard(Option<Child>);

impl Guard {
    /// Starts the shell. A system without one has no guard.
    pub(super) fn start() -> io::Result<Guard> {
        let mut command = Command::new("sh");
        command
            .args(["-c", SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        match command.spawn() {
            Ok(shell) => Ok(Guard(Some(shell))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Guard(None)),
            Err(error) => Err(error),
        }
    }

    /// Adds the process group of a rank.
    pub(super) fn add(&mut self, group: u32) -> io::Result<()> {
        let pipe = self.0.as_mut().and_then(|shell| shell.stdin.as_mut());
        pipe.map_or(Ok(()), |pipe| writeln!(pipe, "-{group}"))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(mut shell) = self.0.take() {
            // It may have been ended from outside.
            let _ = shell.kill();
            let _ = shell.wait();
        }
    }
}
