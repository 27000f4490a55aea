//! Ops with more tensors than a [`Launcher`] tracks inline. Several of them may be views of one
//! storage.

use std::collections::HashSet;

use meshgrad_error::bail;
use meshgrad_kernels::{In, Out};

use super::Launcher;
use crate::core::storage::{busy, immutable};
use crate::{Kind, Result, Tensor};

impl Launcher<'_> {
    /// Returns the addresses of contiguous tensors that a kernel changes, and of tensors that it
    /// only reads. Increments the version of each changed storage once.
    ///
    /// # Errors
    /// When a changed tensor is a value; when two changed tensors share elements; when a read tensor
    /// shares a storage with a changed one, and while work on another stream conflicts. After an
    /// error nothing has changed, versions included.
    pub(crate) fn use_many(
        &self,
        changed: &[&Tensor],
        read: &[&Tensor],
    ) -> Result<(Vec<Out>, Vec<In>)> {
        self.expect_disjoint(changed)?;
        let storages: HashSet<usize> = changed.iter().map(|x| x.storage_id()).collect();
        let may_change = |x: &&&Tensor| x.kind() != Kind::Value;
        if read.iter().filter(may_change).any(|x| storages.contains(&x.storage_id())) {
            return Err(busy(self.op));
        }

        let claimed = changed.iter().map(|x| x.address_to_claim(self.op).map(Out));
        let claimed = claimed.collect::<Result<Vec<Out>>>()?;
        let read = read.iter().map(|x| x.address(self.op).map(In));
        let read = read.collect::<Result<Vec<In>>>()?;
        let mut unraised = storages;
        for x in changed {
            if unraised.remove(&x.storage_id()) {
                x.raise_version();
            }
        }
        Ok((claimed, read))
    }

    /// Checks that all tensors are mutable and share no elements.
    fn expect_disjoint(&self, changed: &[&Tensor]) -> Result<()> {
        let mut spans = Vec::with_capacity(changed.len());
        for (at, x) in changed.iter().enumerate() {
            if x.kind() == Kind::Value {
                return Err(immutable(self.op));
            }
            let start = x.dtype().bytes(x.layout().offset());
            let end = start + x.dtype().bytes(x.elements());
            if start < end {
                spans.push((x.storage_id(), start, end, at));
            }
        }
        spans.sort_unstable();
        let overlap = |pair: &[(usize, usize, usize, usize)]| {
            let [(storage, _, end, _), (other, start, _, at)] = pair else {
                return None;
            };
            (storage == other && start < end).then_some(*at)
        };
        match spans.windows(2).find_map(overlap) {
            Some(at) => {
                bail!(Invalid, "{}: writes twice to the elements of {}", self.op, changed[at])
            }
            None => Ok(()),
        }
    }
}
