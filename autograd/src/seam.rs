//! Seams: the places of a model at which values are redistributed.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use meshgrad_mesh::Placement;

use crate::{Operand, Result, ops};

/// A named place of a model at which a value gets other placements. The model decides where it is,
/// a plan which placements: none, as on a single rank, leave the value as it is.
///
/// Like a [`Param`](crate::Param), it is a field of a module, and clones share the placements.
#[derive(Clone)]
pub struct Seam(Arc<Inner>);

struct Inner {
    name: String,
    placements: RwLock<Placements>,
}

type Placements = Arc<[(String, Placement)]>;

impl Seam {
    /// A seam without placements.
    pub fn new(name: impl Into<String>) -> Seam {
        Seam(Arc::new(Inner {
            name: name.into(),
            placements: RwLock::new(Arc::new([])),
        }))
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Sets the placements on the named axes; a value keeps its own on all others.
    pub fn place<S: AsRef<str>>(&self, placements: impl AsRef<[(S, Placement)]>) {
        let placements = placements.as_ref().iter();
        let placements = placements.map(|(axis, at)| (axis.as_ref().to_owned(), at.clone()));
        let current = self.0.placements.write();
        *current.unwrap_or_else(PoisonError::into_inner) = placements.collect();
    }

    /// The placements.
    pub fn placements(&self) -> Arc<[(String, Placement)]> {
        let current = self.0.placements.read();
        Arc::clone(&current.unwrap_or_else(PoisonError::into_inner))
    }

    /// `x` with the seam's placements, by [`ops::redistribute`].
    ///
    /// # Errors
    /// As [`ops::redistribute`].
    pub fn redistribute<V: Operand>(&self, x: &V) -> Result<V> {
        let placements = self.placements();
        match placements.is_empty() {
            true => Ok(x.clone()),
            false => ops::redistribute(x, placements),
        }
    }
}

impl fmt::Debug for Seam {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let placements: Vec<String> = self
            .placements()
            .iter()
            .map(|(axis, at)| format!("{axis}: {at}"))
            .collect();
        write!(f, "{} ({})", self.name(), placements.join(", "))
    }
}
