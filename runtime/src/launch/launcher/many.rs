//! Ops that use more tensors at once than a [`Launcher`] holds in place, some of which may be parts
//! of one storage.

use std::collections::HashSet;

use super::Launcher;
use crate::{Error, Kind, Result, Tensor};

impl Launcher<'_> {
    /// Where the first elements of contiguous tensors lie that a kernel changes, and those of others
    /// that it reads. The version of a storage goes up by one, however many of its parts change.
    ///
    /// # Errors
    /// [`Error::Immutable`]; [`Error::Argument`] when two that change share elements;
    /// [`Error::Busy`] when what is read is of a storage that changes, and while work on another
    /// stream uses it otherwise. Nothing has changed then, versions included.
    pub(crate) fn use_many(
        &self,
        changed: &[&Tensor],
        read: &[&Tensor],
    ) -> Result<(Vec<u64>, Vec<u64>)> {
        self.expect_apart(changed)?;
        let storages: HashSet<usize> = changed.iter().map(|x| x.storage_id()).collect();
        let may_change = |x: &&&Tensor| x.kind() != Kind::Value;
        if read
            .iter()
            .filter(may_change)
            .any(|x| storages.contains(&x.storage_id()))
        {
            return Err(Error::Busy { op: self.op });
        }

        let claimed = changed.iter().map(|x| x.address_to_claim(self.op));
        let claimed = claimed.collect::<Result<Vec<u64>>>()?;
        let read = read.iter().map(|x| x.address(self.op));
        let read = read.collect::<Result<Vec<u64>>>()?;
        let mut unraised = storages;
        for x in changed {
            if unraised.remove(&x.storage_id()) {
                x.raise_version();
            }
        }
        Ok((claimed, read))
    }

    /// That all may change, and none has an element of another.
    fn expect_apart(&self, changed: &[&Tensor]) -> Result<()> {
        let mut spans = Vec::with_capacity(changed.len());
        for (at, x) in changed.iter().enumerate() {
            if x.kind() == Kind::Value {
                return Err(Error::Immutable { op: self.op });
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
            Some(at) => Err(Error::Argument {
                op: self.op,
                problem: format!("writes twice to the elements of {:?}", changed[at]),
            }),
            None => Ok(()),
        }
    }
}
