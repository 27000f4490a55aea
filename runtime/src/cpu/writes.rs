//! Writing to several tensors together, which may be views of one storage.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use meshgrad_error::bail;

use crate::{Element, Result, Tensor, WriteGuard};

/// The storages of some tensors. Each storage is borrowed for writing only once.
pub(crate) struct Writes<'a, T> {
    storages: BTreeMap<usize, WriteGuard<'a, T>>,
}

impl<'a, T: Element> Writes<'a, T> {
    /// Borrows the storages of `tensors` for `op`.
    pub(crate) fn new(op: &'static str, tensors: &[&'a Tensor]) -> Result<Writes<'a, T>> {
        let mut storages = BTreeMap::new();
        for tensor in tensors {
            if let Entry::Vacant(free) = storages.entry(tensor.storage_id()) {
                free.insert(tensor.write(op)?);
            }
        }
        Ok(Writes { storages })
    }

    /// The elements of each of `tensors`, which must be contiguous and in these storages.
    ///
    /// # Errors
    /// If two of them share elements.
    pub(crate) fn parts(&mut self, op: &'static str, tensors: &[&Tensor]) -> Result<Vec<&mut [T]>> {
        let mut ranges = Vec::with_capacity(tensors.len());
        for (at, tensor) in tensors.iter().enumerate() {
            let range = tensor.contiguous_range(op)?;
            if !range.is_empty() {
                ranges.push((tensor.storage_id(), range.start, range.end, at));
            }
        }
        ranges.sort_unstable();

        let mut parts: Vec<&mut [T]> = tensors.iter().map(|_| <&mut [T]>::default()).collect();
        let mut ranges = ranges.into_iter().peekable();
        for (id, storage) in &mut self.storages {
            let (mut rest, mut done) = (&mut storage[..], 0);
            while let Some((_, start, end, at)) = ranges.next_if(|(of, ..)| of == id) {
                let Some(gap) = start.checked_sub(done) else {
                    bail!(Invalid, "{op}: writes twice to the elements of {}", tensors[at]);
                };
                let (_, from_start) = rest.split_at_mut(gap);
                (parts[at], rest) = from_start.split_at_mut(end - start);
                done = end;
            }
        }
        Ok(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Device, Kind, assert_error};

    #[test]
    fn parts_of_shared_storages() {
        let device = Device::cpu();
        let zeros = || Tensor::zeros(&device, &[10], DType::F32, Kind::Cache).unwrap();
        let (flat, own) = (zeros(), zeros());
        let (late, early) = (flat.slice(0, 6..10).unwrap(), flat.slice(0, 1..5).unwrap());
        let nothing = flat.slice(0, 3..3).unwrap();

        let tensors = [&late, &own, &nothing, &early];
        let mut writes = Writes::<f32>::new("test", &tensors).unwrap();
        let mut parts = writes.parts("test", &tensors).unwrap();
        for (value, part) in parts.iter_mut().enumerate() {
            part.fill(value as f32 + 1.0);
        }
        drop(writes);
        let expected = [0.0, 4.0, 4.0, 4.0, 4.0, 0.0, 1.0, 1.0, 1.0, 1.0];
        assert_eq!(flat.to_vec::<f32>().unwrap(), expected);
        assert_eq!(own.to_vec::<f32>().unwrap(), [2.0; 10]);

        let tensors = [&flat, &early];
        let mut writes = Writes::<f32>::new("test", &tensors).unwrap();
        assert_error(writes.parts("test", &tensors), "test: writes twice to the elements of");
    }
}
