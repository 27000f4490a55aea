//! The variables of a process.

use meshgrad_error::{Error, Result, bail, error};

/// The variables of a process.
pub(super) struct Variables<F>(pub(super) F);

impl<F: Fn(&str) -> Option<String>> Variables<F> {
    /// The value; `None` if it is empty.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|value| !value.is_empty())
    }

    pub(super) fn number(&self, name: &'static str) -> Result<Option<usize>> {
        let Some(value) = self.text(name) else {
            return Ok(None);
        };
        match value.trim().parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => bail!(Invalid, "{name} is `{value}`, which is not a number"),
        }
    }
}

/// The error if one of two variables that belong together is missing.
pub(super) fn gap(present: &str, missing: &str) -> Error {
    error!(Invalid, "{present} is set, but {missing} is not; set both or neither")
}

/// The error if two variables disagree.
pub(super) fn contradiction(first: (&str, usize), second: (&str, usize)) -> Error {
    let ((first, first_value), (second, second_value)) = (first, second);
    error!(
        Invalid,
        "{first} is {first_value}, but {second} is {second_value}; unset the variables of one \
         launcher"
    )
}
