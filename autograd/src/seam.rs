//! Seams: the places of a model at which values are redistributed.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use meshgrad_mesh::Placement;

use crate::{Operand, Result, ops};

/// A named place of a model at which a value gets other placements. The model decides where it is,
/// a plan which placements: none, as on a single rank, leave the value as it is.
///
/// A seam next to a matrix product can be combined with it ([`Seam::redistribute_linear`],
/// [`Seam::linear_redistribute`]), so that communication overlaps with the product.
///
/// Like a [`Param`](crate::Param), it is a field of a module, and clones share the placements.
#[derive(Clone)]
pub struct Seam(Arc<Inner>);

struct Inner {
    name: String,
    placements: RwLock<Placements>,
    /// Of a redistribution beside a product.
    chunks: AtomicUsize,
}

type Placements = Arc<[(String, Placement)]>;

impl Seam {
    /// A seam without placements.
    pub fn new(name: impl Into<String>) -> Seam {
        Seam(Arc::new(Inner {
            name: name.into(),
            placements: RwLock::new(Arc::new([])),
            chunks: AtomicUsize::new(1),
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

    /// Sets the number of chunks in which a redistribution beside a product runs; 1 at first.
    pub fn overlap(&self, chunks: usize) {
        self.0.chunks.store(chunks, Ordering::Relaxed);
    }

    /// The number of chunks.
    pub fn chunks(&self) -> usize {
        self.0.chunks.load(Ordering::Relaxed)
    }

    /// `x` with the seam's placements, by [`ops::redistribute`].
    ///
    /// # Errors
    /// As [`ops::redistribute`].
    pub fn redistribute<V: Operand>(&self, x: &V) -> Result<V> {
        ops::redistribute(x, self.placements())
    }

    /// The products of [`Seam::redistribute`] of `x` with each of `ws`. With chunks, they overlap:
    /// [`ops::redistribute_linear`].
    ///
    /// # Errors
    /// As [`ops::redistribute_linear`].
    pub fn redistribute_linear<V: Operand, const N: usize>(
        &self,
        x: &V,
        ws: [&V; N],
    ) -> Result<[V; N]> {
        ops::redistribute_linear(x, self.placements(), ws, self.chunks())
    }

    /// [`Seam::redistribute`] of the product of `x` and `w`. With chunks, they overlap:
    /// [`ops::linear_redistribute`].
    ///
    /// # Errors
    /// As [`ops::linear_redistribute`].
    pub fn linear_redistribute<V: Operand>(&self, x: &V, w: &V) -> Result<V> {
        ops::linear_redistribute(x, w, self.placements(), self.chunks())
    }
}

impl fmt::Debug for Seam {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let placements: Vec<String> =
            self.placements().iter().map(|(axis, at)| format!("{axis}: {at}")).collect();
        write!(f, "{} ({})", self.name(), placements.join(", "))
    }
}
