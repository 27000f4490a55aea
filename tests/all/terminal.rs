//! The output of the program on a terminal of 80 columns, and on a pipe that nothing reads.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Stdio;

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::test_dir::{Output, TestDir};

const CONFIG: &str = r#"
data = { paths = ["text.txt"], tokenizer = "byte", val_fraction = 0.1 }
train = { steps = 25, batch_size = 2, seq_len = 16 }
schedule = { warmup_steps = 1 }
sample = { every = 0 }
log = { val_every = 0, every = 10 }
"#;

/// What the program writes to a terminal with this many columns.
fn on_terminal(columns: u16, dir: &TestDir, arguments: &[&str]) -> String {
    // Processes that other tests start do not keep it open.
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let controller = openpt(flags).unwrap();
    grantpt(&controller).unwrap();
    unlockpt(&controller).unwrap();
    let terminal: OwnedFd = ioctl_tiocgptpeer(controller.as_fd(), flags).unwrap();
    let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&terminal, size).unwrap();

    let mut child = dir
        .command(arguments)
        .env("TERM", "xterm")
        .stdout(terminal)
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let (mut text, mut bytes) = (Vec::new(), [0; 4096]);
    let mut controller = File::from(controller);
    // The last process of a terminal ends it with an error.
    while let Ok(count @ 1..) = controller.read(&mut bytes) {
        text.extend(&bytes[..count]);
    }
    assert!(child.wait().unwrap().success());
    String::from_utf8(text).unwrap()
}

/// The rows of a terminal after `output`, from the top. The cursor moves up, to the start of a row,
/// and erases to the end of a row or the whole row; other sequences set colors.
fn screen(output: &str) -> Vec<String> {
    let mut rows = vec![Vec::new()];
    let (mut row, mut column) = (0usize, 0);
    let mut rest = output;
    while let Some(char) = rest.chars().next() {
        rest = &rest[char.len_utf8()..];
        match char {
            '\r' => column = 0,
            '\n' => {
                row += 1;
                if row == rows.len() {
                    rows.push(Vec::new());
                }
            }
            '\u{1b}' => {
                let end = rest.find(|char: char| char.is_ascii_alphabetic()).unwrap();
                let number = rest[..end].trim_start_matches('[');
                match &rest[end..=end] {
                    "A" => row -= number.parse().unwrap_or(1),
                    "K" if number == "2" => rows[row].clear(),
                    "K" => rows[row].truncate(column),
                    _ => {}
                }
                rest = &rest[end + 1..];
            }
            char => {
                if rows[row].len() <= column {
                    rows[row].resize(column + 1, ' ');
                }
                rows[row][column] = char;
                column += 1;
            }
        }
    }
    rows.into_iter().map(String::from_iter).collect()
}

#[test]
fn lines_stay_above_the_bar() {
    let dir = TestDir::with_run(CONFIG);
    let arguments = ["train", "small.toml", "--device", "cpu", "--run-dir", "run"];
    let output = on_terminal(80, &dir, &arguments);

    // What was drawn at the bottom: text and bar, in one row.
    let drawn: Vec<&str> = output.split(['\r', '\n', '\u{1b}']).collect();
    let bars = drawn.iter().filter(|text| text.contains("=>") || text.contains("---"));
    let bars: Vec<&&str> = bars.filter(|text| text.contains("step")).collect();
    assert!(!bars.is_empty(), "{output:?}");
    for bar in bars {
        for part in ["step", "loss", "tok/s", "eta"] {
            assert!(bar.contains(part), "no {part} in {bar:?}");
        }
        assert!(bar.chars().count() <= 80 + "[2K".len(), "{bar:?}");
    }

    let screen = screen(&output);
    let shown = |start: &str| screen.iter().filter(|row| row.starts_with(start)).count();
    for step in [1, 10, 20, 25] {
        let line = format!("step {step:>2}/25  loss ");
        assert_eq!(shown(&line), 1, "{line} in {screen:#?}");
    }
    assert_eq!(shown("step"), 4, "{screen:#?}");
    assert_eq!(shown("checkpoint  run/step-000025"), 1, "{screen:#?}");
}

/// The output of the program when nothing reads its standard output.
fn unread(dir: &TestDir, arguments: &[&str]) -> Output {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = dir.command(arguments);
    command.stdout(writer).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    Output::new(&command, child.wait_with_output().unwrap())
}

#[test]
fn a_closed_pipe_ends_commands_quietly() {
    let dir = TestDir::with_run(CONFIG);
    let sample = ["sample", "run", "--prompt", "one", "--tokens", "3", "--device", "cpu"];
    let cases: [(&[&str], i32); 7] = [
        // A run is finished anyway, because its result is in files.
        (&["train", "small.toml", "--device", "cpu", "--run-dir", "run"], 0),
        (&sample, 141),
        (&["config"], 141),
        (&["check"], 141),
        (&["bench", "cpu", "--smoke", "--only", "softmax"], 141),
        (&["ckpt", "inspect", "run/step-000025"], 0),
        (&["--help"], 0),
    ];
    for (arguments, code) in cases {
        let output = unread(&dir, arguments);
        assert!(!output.stderr.contains("panicked"), "{}", output.shown());
        assert_eq!(output.code, code, "{}", output.shown());
    }
    assert!(dir.path("run/step-000025/manifest.json").exists());
}
