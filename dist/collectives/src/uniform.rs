//! Values that are equal on all ranks by construction.

use std::fmt;

use meshgrad_error::{Error, error};
use meshgrad_mesh::Group;
use meshgrad_runtime::{Element, Result, Tensor};

use crate::collectives::Collectives;
use crate::communicator::Communicator;
use crate::ticket::Reduction;

/// A value that is equal on all members of a group, because it came from a collective or is a
/// constant. Code that decides which collectives to start takes a `Uniform`, so that all ranks
/// decide alike.
///
/// A `Uniform` cannot be created from a value of one rank. The functions passed to it are `fn`
/// pointers, so they cannot capture such a value. They must not read what differs between processes
/// either, such as the process id, a static variable, the environment, files, or the time. No type
/// can prevent that.
///
/// ```compile_fail,E0308
/// # use meshgrad_collectives::Uniform;
/// # let rank = 3;
/// let differs = Uniform::constant(|| rank + 1);
/// ```
///
/// ```compile_fail,E0308
/// # use meshgrad_collectives::Uniform;
/// # let (three, rank) = (Uniform::constant(|| 3), 1);
/// let differs = three.map(|three| three + rank);
/// ```
///
/// ```compile_fail,E0423
/// # use meshgrad_collectives::Uniform;
/// let differs = Uniform(std::process::id());
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Uniform<T> {
    value: T,
    /// The members on which it is equal; `None` for all ranks.
    group: Option<Group>,
}

impl<T> Uniform<T> {
    /// A constant: `value` returns the same on all ranks.
    pub fn constant(value: fn() -> T) -> Uniform<T> {
        Uniform { value: value(), group: None }
    }

    /// The value.
    pub fn get(&self) -> &T {
        &self.value
    }

    /// The value, for decisions about collectives of `group`.
    ///
    /// # Errors
    /// When it may differ between members of `group`.
    pub fn get_in(&self, group: &Group) -> Result<&T> {
        let covers = |own: &Group| {
            let mut ranks = group.ranks().iter();
            ranks.all(|rank| own.index_of(*rank).is_some())
        };
        match &self.group {
            Some(own) if !covers(own) => Err(not_uniform(own, group)),
            _ => Ok(&self.value),
        }
    }

    /// A function of the value.
    pub fn map<U>(self, f: fn(T) -> U) -> Uniform<U> {
        Uniform { value: f(self.value), group: self.group }
    }

    /// Both values.
    ///
    /// # Errors
    /// When the values belong to groups with different ranks.
    pub fn zip<U>(self, other: Uniform<U>) -> Result<Uniform<(T, U)>> {
        let group = match (self.group, other.group) {
            (Some(group), Some(other)) if group.ranks() != other.ranks() => {
                return Err(not_uniform(&group, &other));
            }
            (group, other) => group.or(other),
        };
        Ok(Uniform { value: (self.value, other.value), group })
    }
}

impl<T: Element> Uniform<T> {
    /// The reduction of the values of all members of a communicator. Waits for them.
    ///
    /// # Errors
    /// As [`Collectives::all_reduce`].
    #[track_caller]
    pub fn reduced<C>(communicator: &C, value: T, reduction: Reduction) -> Result<Uniform<T>>
    where
        C: Communicator + ?Sized,
    {
        let x = Tensor::scalar(communicator.device(), value)?;
        let value = communicator.all_reduce(&x, reduction)?.wait()?.item()?;
        Ok(Uniform { value, group: Some(communicator.group().clone()) })
    }

    /// The value of one member of a communicator. Waits for it.
    ///
    /// # Errors
    /// As [`Collectives::broadcast`].
    #[track_caller]
    pub fn broadcast<C>(communicator: &C, value: T, root: usize) -> Result<Uniform<T>>
    where
        C: Communicator + ?Sized,
    {
        let x = Tensor::scalar(communicator.device(), value)?;
        let value = communicator.broadcast(&x, root)?.wait()?.item()?;
        Ok(Uniform { value, group: Some(communicator.group().clone()) })
    }
}

fn not_uniform(group: &Group, other: &Group) -> Error {
    error!(
        Invalid,
        "the value is equal on {group}, but may differ on {other}; reduce or broadcast it over \
         that group"
    )
}

impl<T: fmt::Debug> fmt::Debug for Uniform<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Uniform({:?}", self.value)?;
        match &self.group {
            Some(group) => write!(f, " on {group})"),
            None => f.write_str(")"),
        }
    }
}
