//! The tensors in memory that expressions are evaluated from.

use std::collections::{BTreeMap, BTreeSet};

/// The bytes of a tensor: dense, row-major, in host memory.
pub type TensorBytes<'m> = Box<dyn AsRef<[u8]> + 'm>;

/// Tensors by name, each open from its first use to its last.
pub struct OpenTensors<'m> {
    /// The remaining uses of each tensor.
    uses: BTreeMap<String, usize>,
    open: BTreeMap<String, TensorBytes<'m>>,
}

impl<'m> OpenTensors<'m> {
    /// Opens no tensor yet. `uses` has the names of the tensors of each later use.
    pub fn new<'u>(uses: impl IntoIterator<Item = &'u BTreeSet<String>>) -> OpenTensors<'m> {
        let mut counts = BTreeMap::new();
        for name in uses.into_iter().flatten() {
            *counts.entry(name.clone()).or_default() += 1;
        }
        OpenTensors { uses: counts, open: BTreeMap::new() }
    }

    /// Opens the tensors of a use with `read`, unless they are open.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn open<E>(
        &mut self,
        names: &BTreeSet<String>,
        mut read: impl FnMut(&str) -> Result<TensorBytes<'m>, E>,
    ) -> Result<(), E> {
        for name in names {
            if !self.open.contains_key(name) {
                self.open.insert(name.clone(), read(name)?);
            }
        }
        Ok(())
    }

    /// The bytes of an open tensor.
    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.open.get(name).map(|bytes| (**bytes).as_ref())
    }

    /// Ends a use, and drops the tensors that no later use needs.
    pub fn close(&mut self, names: &BTreeSet<String>) {
        for name in names {
            let left = self.uses.entry(name.clone()).or_default();
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.open.remove(name);
            }
        }
    }
}
