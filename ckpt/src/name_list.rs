//! A list of unique names with fast lookup.
//!
//! Names nearly always arrive in order, because headers are sorted. Ascending names are not hashed,
//! and looking them up in order needs no hash either.

use std::hash::BuildHasher;
use std::sync::{Arc, OnceLock};

use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};

/// Unique names, in the order in which they were added.
#[derive(Clone, Debug)]
pub(crate) struct NameList<N = Arc<str>> {
    names: Vec<N>,
    /// Built on first use; until then the names are in ascending order.
    table: OnceLock<Table>,
}

impl<N> Default for NameList<N> {
    fn default() -> NameList<N> {
        NameList { names: Vec::new(), table: OnceLock::new() }
    }
}

impl<N: AsRef<str>> NameList<N> {
    /// A list of ascending names.
    pub(crate) fn ascending(names: Vec<N>) -> NameList<N> {
        NameList { names, table: OnceLock::new() }
    }

    /// Adds the name that `make` returns and returns its index; `Err` with the index of an equal
    /// name.
    pub(crate) fn add(&mut self, name: &str, make: impl FnOnce() -> N) -> Result<usize, usize> {
        let index = self.names.len();
        if self.is_ascending() && self.names.last().is_none_or(|last| last.as_ref() < name) {
            self.names.push(make());
            return Ok(index);
        }
        let table = self.table.take();
        let mut table = table.unwrap_or_else(|| Table::of(&self.names));
        let added = table.add(name, &self.names);
        self.table = OnceLock::from(table);
        if added.is_ok() {
            self.names.push(make());
        }
        added
    }

    /// Whether all names are known to be ascending.
    pub(crate) fn is_ascending(&self) -> bool {
        self.table.get().is_none()
    }

    /// The index of a name, found without hashing if it is `next`. Sets `next` to the index after
    /// it.
    pub(crate) fn find(&self, name: &str, next: &mut usize) -> Option<usize> {
        let index = match self.names.get(*next) {
            Some(it) if it.as_ref() == name => *next,
            _ => {
                let table = self.table.get_or_init(|| Table::of(&self.names));
                table.find(name, &self.names)?
            }
        };
        *next = index + 1;
        Some(index)
    }

    pub(crate) fn as_slice(&self) -> &[N] {
        &self.names
    }

    pub(crate) fn into_vec(self) -> Vec<N> {
        self.names
    }
}

/// The indices of names by hash; never iterated.
#[derive(Clone, Debug, Default)]
struct Table {
    indices: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Table {
    fn of<N: AsRef<str>>(names: &[N]) -> Table {
        let hasher = DefaultHashBuilder::default();
        let mut indices = HashTable::with_capacity(names.len());
        let hash = |index: &u32| hasher.hash_one(names[*index as usize].as_ref());
        for index in 0..names.len() as u32 {
            indices.insert_unique(hash(&index), index, hash);
        }
        Table { indices, hasher }
    }

    fn find<N: AsRef<str>>(&self, name: &str, names: &[N]) -> Option<usize> {
        let is_it = |index: &u32| names[*index as usize].as_ref() == name;
        let index = self.indices.find(self.hasher.hash_one(name), is_it)?;
        Some(*index as usize)
    }

    /// Adds the index of a new name at the end; `Err` with the index of an equal name.
    fn add<N: AsRef<str>>(&mut self, name: &str, names: &[N]) -> Result<usize, usize> {
        let Table { indices, hasher } = self;
        let is_it = |index: &u32| names[*index as usize].as_ref() == name;
        let hash_again = |index: &u32| hasher.hash_one(names[*index as usize].as_ref());
        match indices.entry(hasher.hash_one(name), is_it, hash_again) {
            Entry::Occupied(known) => Err(*known.get() as usize),
            Entry::Vacant(free) => {
                free.insert(names.len() as u32);
                Ok(names.len())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshgrad_ckpt_crash::SplitMix64;

    /// For any order of names and lookups, each name has the index of its first occurrence.
    #[test]
    fn names_keep_their_first_index() {
        for (seed, in_order) in (0..40).zip([0, 5, 30].into_iter().cycle()) {
            let mut rng = SplitMix64::new(seed);
            let (mut list, mut added) = (NameList::<Arc<str>>::default(), Vec::new());
            for number in 0..60 {
                let name = match number < in_order {
                    true => format!("a{number:02}"),
                    false => format!("b{}", rng.below(50)),
                };
                let known = added.iter().position(|it| *it == name);
                let expected = known.map_or(Ok(added.len()), Err);
                assert_eq!(list.add(&name, || name.as_str().into()), expected);
                if known.is_none() {
                    added.push(name);
                }
                let mut next = rng.below(60) as usize;
                let name = format!("b{}", rng.below(50));
                let expected = added.iter().position(|it| *it == name);
                if rng.below(10) == 0 {
                    assert_eq!(list.find(&name, &mut next), expected);
                    assert!(expected.is_none_or(|index| next == index + 1));
                }
            }
            assert!(list.as_slice().iter().map(|it| &**it).eq(&added));
        }
    }
}
