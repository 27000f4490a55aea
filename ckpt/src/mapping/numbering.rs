//! How names write numbers: `{l+10}` and `{l:03}`.

use std::fmt;

/// How a name writes the number of a capture: `{l+10}` adds 10, `{l:03}` has at least three digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Numbering {
    pub(super) plus: u64,
    pub(super) width: usize,
}

/// The most digits of `{l:03}`.
pub(super) const MAX_WIDTH: usize = 20;

impl fmt::Display for Numbering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.plus > 0 {
            write!(f, "+{}", self.plus)?;
        }
        match self.width {
            0 => Ok(()),
            width => write!(f, ":0{width}"),
        }
    }
}

impl Numbering {
    /// Splits the number off the front of `text`.
    pub(super) fn take<'t>(&self, text: &'t str) -> Option<(u64, &'t str)> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (written, rest) = text.split_at(digits);
        // The only form of a number that `write` writes.
        let is_written = match digits > self.width {
            true => written == "0" || !written.starts_with('0'),
            false => digits == self.width,
        };
        let number: u64 = written.parse().ok().filter(|_| is_written)?;
        Some((number.checked_sub(self.plus)?, rest))
    }

    /// Writes a number; returns false if it is too large.
    pub(super) fn write(&self, number: u64, to: &mut String) -> bool {
        let Some(number) = number.checked_add(self.plus) else {
            return false;
        };
        let digits = number.checked_ilog10().map_or(1, |log| log as usize + 1);
        (digits..self.width).for_each(|_| to.push('0'));
        push_number(number, to);
        true
    }
}

/// Writes digits directly, because formatting would take most of the time.
fn push_number(number: u64, to: &mut String) {
    if number >= 10 {
        push_number(number / 10, to);
    }
    to.push(char::from(b'0' + (number % 10) as u8));
}
