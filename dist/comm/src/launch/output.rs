//! The output of the processes, line by line.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;

/// A longer line is broken, so that memory is bounded.
const LONGEST_LINE: usize = 64 << 10;
/// The most bytes that are read from a pipe after the ranks have ended: more than a pipe holds.
const REST: usize = 1 << 20;

/// Copies lines with a prefix, and without it to `log`, until the source ends. Processes that
/// outlive the ranks may keep it open, so once `ended` is readable, only the bytes already in it
/// are copied.
pub(super) fn copy_lines(
    mut from: impl Read + AsFd,
    prefix: &str,
    into: &Mutex<impl Write>,
    log: Option<&Mutex<File>>,
    ended: &impl AsFd,
) {
    let (mut line, mut bytes) = (Vec::new(), [0; 8192]);
    let mut rest = REST;
    while rest > 0 {
        let (has_bytes, has_ended) = wait(&from, ended);
        if !has_bytes {
            break;
        }
        let Ok(count @ 1..) = from.read(&mut bytes) else {
            break;
        };
        for part in bytes[..count].split_inclusive(|byte| *byte == b'\n') {
            line.extend_from_slice(part);
            if part.ends_with(b"\n") || line.len() >= LONGEST_LINE {
                write_line(&mut line, prefix, into, log);
            }
        }
        if has_ended {
            rest = rest.saturating_sub(count);
        }
    }
    if !line.is_empty() {
        write_line(&mut line, prefix, into, log);
    }
}

/// Waits for bytes or an end of the source, or for the end of the ranks.
fn wait(from: &impl AsFd, ended: &impl AsFd) -> (bool, bool) {
    let mut fds = [PollFd::new(from, PollFlags::IN), PollFd::new(ended, PollFlags::IN)];
    // The only other error is a lack of memory. A read then waits for the source alone.
    match retry_on_intr(|| poll(&mut fds, None)) {
        Ok(_) => (!fds[0].revents().is_empty(), !fds[1].revents().is_empty()),
        Err(_) => (true, false),
    }
}

fn write_line(
    line: &mut Vec<u8>,
    prefix: &str,
    into: &Mutex<impl Write>,
    log: Option<&Mutex<File>>,
) {
    if !line.ends_with(b"\n") {
        line.push(b'\n');
    }
    if let Some(log) = log {
        // If the disk is full, the processes go on.
        let _ = log.lock().unwrap_or_else(PoisonError::into_inner).write_all(line);
    }
    let mut into = into.lock().unwrap_or_else(PoisonError::into_inner);
    // If the reader has gone, the processes go on.
    let _ = into.write_all(&[prefix.as_bytes(), line].concat());
    let _ = into.flush();
    line.clear();
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::thread;

    use super::*;

    /// The lengths of what is written in one piece.
    #[derive(Default)]
    struct Pieces(Vec<usize>);

    impl Write for Pieces {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.push(bytes.len());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_endless_line_is_split() {
        let (reader, mut writer) = io::pipe().unwrap();
        let (ended, _running) = io::pipe().unwrap();
        let pieces = Mutex::new(Pieces::default());
        let sent = 20 * LONGEST_LINE;
        thread::scope(|scope| {
            scope.spawn(|| copy_lines(reader, "[0] ", &pieces, None, &ended));
            writer.write_all(&vec![b'x'; sent]).unwrap();
            drop(writer);
        });
        let pieces = pieces.into_inner().unwrap().0;
        assert!(pieces.iter().all(|it| *it <= 2 * LONGEST_LINE), "{pieces:?}");
        let added = pieces.len() * "[0] \n".len();
        assert_eq!(pieces.iter().sum::<usize>(), sent + added);
    }

    /// Holds even if a process that outlives the ranks writes without end.
    #[test]
    fn output_is_complete_when_the_ranks_have_ended() {
        let (reader, mut writer) = io::pipe().unwrap();
        let (ended, running) = io::pipe().unwrap();
        let into = Mutex::new(Vec::new());
        writer.write_all(b"one\ntwo").unwrap();
        drop(running);
        copy_lines(reader, "[0] ", &into, None, &ended); // the writer is still open
        assert_eq!(into.into_inner().unwrap(), b"[0] one\n[0] two\n");

        let (reader, mut writer) = io::pipe().unwrap();
        thread::scope(|scope| {
            scope.spawn(move || while writer.write_all(&[b'y'; 4096]).is_ok() {});
            copy_lines(reader, "", &Mutex::new(io::sink()), None, &ended);
        });
    }
}
