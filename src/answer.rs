//! The result of a command: text on standard output, and an exit code.

use std::io::{self, Write};
use std::process::ExitCode;

use serde::Serialize;

use crate::table::printable;

/// The output and the exit code of a command.
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) code: u8,
}

impl Answer {
    pub(crate) fn success(text: String) -> Answer {
        Answer { text, code: 0 }
    }

    pub(crate) fn json(value: &impl Serialize, code: u8) -> anyhow::Result<Answer> {
        let text = serde_json::to_string_pretty(value)? + "\n";
        Ok(Answer { text, code })
    }
}

/// Prints an answer, or the error with the exit code `failure`.
pub(crate) fn print(answer: anyhow::Result<Answer>, failure: u8) -> ExitCode {
    match answer.and_then(|answer| Ok((write(&answer.text)?, answer.code))) {
        Ok(((), code)) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {}", printable(&crate::message(&error)));
            ExitCode::from(failure)
        }
    }
}

/// Writes the text. A closed pipe, as with `head`, is not an error.
fn write(text: &str) -> anyhow::Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(anyhow::Error::from(error).context("cannot write the output"))
        }
        _ => Ok(()),
    }
}
