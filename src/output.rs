//! Output of the program. The macros here replace those of the standard library, which panic when
//! the reader of a pipe is gone, as in `meshgrad check | head`.

use std::fmt::Arguments;
use std::io::{self, Write};

/// The exit code of a program that SIGPIPE ends, which is how `cat` and others report a closed
/// pipe.
const CLOSED_PIPE: i32 = 141;

/// As the standard library's, but a closed pipe ends the program quietly.
macro_rules! print {
    ($($text:tt)*) => { $crate::output::write(format_args!($($text)*)) };
}

/// As [`print`], with a newline.
macro_rules! println {
    () => { $crate::output::write(format_args!("\n")) };
    ($($text:tt)*) => { $crate::output::write(format_args!("{}\n", format_args!($($text)*))) };
}

/// As the standard library's, but errors are ignored: there is nowhere to report them.
macro_rules! eprintln {
    ($($text:tt)*) => { $crate::output::write_error(format_args!($($text)*)) };
}

/// Writes to standard output.
pub(crate) fn write(text: Arguments<'_>) {
    match io::stdout().lock().write_fmt(text) {
        Ok(()) => (),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(CLOSED_PIPE),
        Err(error) => {
            write_error(format_args!("error: cannot write the output: {error}"));
            std::process::exit(1)
        }
    }
}

/// Writes a line to standard error.
pub(crate) fn write_error(line: Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}");
}
