//! Parses PTX text (PTX ISA 9.0, chapters 4 and 5) to a syntax tree. The meaning of instructions is
//! defined in [`crate::program`].

mod cursor;
mod initial;
mod lexer;
mod parser;
mod statements;
pub(crate) mod syntax;
mod types;
mod variables;

pub(crate) use parser::{heading, parse};
pub(crate) use types::bytes_of_type;

/// An error in a module's text, with its line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ptx line {line}: {message}\n    {text}")]
pub struct PtxError {
    /// The line of the text, counted from 1.
    pub line: u32,
    /// The description of the error.
    pub message: String,
    /// The line itself.
    pub text: String,
}

impl PtxError {
    pub(crate) fn new(source: &str, line: u32, message: impl Into<String>) -> PtxError {
        let text = source.lines().nth((line as usize).saturating_sub(1));
        PtxError { line, message: message.into(), text: text.unwrap_or_default().trim().to_owned() }
    }
}
