//! The variables of a process, and what is wrong with them.

use std::fmt;

use crate::host::JoinError;

/// Variables that contradict each other, or are missing.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// A variable is not a number.
    #[error("{name} is `{value}`, which is not a number")]
    NotANumber {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
    },

    /// One of two variables that belong together is missing.
    #[error("{present} is set, but {missing} is not; set both or neither")]
    Gap {
        /// The variable that is set.
        present: &'static str,
        /// The variable that is not.
        missing: &'static str,
    },

    /// Two variables disagree.
    #[error(
        "{first} is {first_value}, but {second} is {second_value}; unset the variables of one \
         launcher"
    )]
    Contradiction {
        /// A variable.
        first: &'static str,
        /// Its value.
        first_value: usize,
        /// Another one.
        second: &'static str,
        /// Its value.
        second_value: usize,
    },

    /// A number that is not below another.
    #[error("{name} is {value}, but {size_name} is {size}; {name} must be below {size_name}")]
    Outside {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: usize,
        /// The variable with the size.
        size_name: &'static str,
        /// The size.
        size: usize,
    },

    /// Nothing says where rank 0 is.
    #[error(
        "{world} ranks on several hosts need a meeting point; set MASTER_ADDR and MASTER_PORT to \
         an address of rank 0's host and a free port"
    )]
    NoMeetingPoint {
        /// The number of ranks.
        world: usize,
    },

    /// Several hosts without a secret.
    #[error(
        "{world} ranks on several hosts need a secret; set MESHGRAD_SECRET to the same random \
         string on all hosts"
    )]
    NoSecret {
        /// The number of ranks.
        world: usize,
    },

    /// Nothing distinguishes the run from others on its host.
    #[error(
        "{world} ranks of one host need a name for their run; set MESHGRAD_RUN to the same name on \
         all ranks, or MASTER_ADDR, MASTER_PORT and MESHGRAD_SECRET"
    )]
    NoRun {
        /// The number of ranks.
        world: usize,
    },

    /// The rank could not join its world.
    #[error(transparent)]
    Join(#[from] JoinError),
}

/// Prints the message, because an error that `main` returns is printed with `Debug`.
impl fmt::Debug for EnvironmentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The variables of a process.
pub(super) struct Variables<F>(pub(super) F);

impl<F: Fn(&str) -> Option<String>> Variables<F> {
    /// The value; `None` if it is empty.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|value| !value.is_empty())
    }

    pub(super) fn number(&self, name: &'static str) -> Result<Option<usize>, EnvironmentError> {
        let Some(value) = self.text(name) else {
            return Ok(None);
        };
        match value.trim().parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(EnvironmentError::NotANumber { name, value }),
        }
    }
}
