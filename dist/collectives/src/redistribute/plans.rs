//! The plans that a rank has made: a model redistributes the same shardings in every step.

use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::{Equivalent, HashMap};
use meshgrad_mesh::{Result, Sharding};

/// A bounded cache of plans.
pub(super) struct Plans<K, P> {
    kept: Mutex<HashMap<K, Arc<P>>>,
    /// When there are more, all are dropped.
    most: usize,
}

/// What the plan for a tensor depends on.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct Key {
    from: Sharding,
    to: Sharding,
    bits: usize,
}

/// A [`Key`] with the same hash, to look one up without a copy.
#[derive(Hash)]
pub(super) struct KeyRef<'a> {
    pub(super) from: &'a Sharding,
    pub(super) to: &'a Sharding,
    /// The bits of an element.
    pub(super) bits: usize,
}

impl Equivalent<Key> for KeyRef<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        self.bits == key.bits && *self.from == key.from && *self.to == key.to
    }
}

impl From<&KeyRef<'_>> for Key {
    fn from(key: &KeyRef<'_>) -> Key {
        Key { from: key.from.clone(), to: key.to.clone(), bits: key.bits }
    }
}

/// The keys of a list of tensors.
#[derive(Hash)]
pub(super) struct KeyRefs<'a>(pub(super) Vec<KeyRef<'a>>);

impl Equivalent<Vec<Key>> for KeyRefs<'_> {
    fn equivalent(&self, keys: &Vec<Key>) -> bool {
        let mut pairs = self.0.iter().zip(keys);
        self.0.len() == keys.len() && pairs.all(|(own, key)| own.equivalent(key))
    }
}

impl From<&KeyRefs<'_>> for Vec<Key> {
    fn from(keys: &KeyRefs<'_>) -> Vec<Key> {
        keys.0.iter().map(Key::from).collect()
    }
}

impl<K: Eq + Hash, P> Plans<K, P> {
    pub(super) fn new(most: usize) -> Plans<K, P> {
        Plans { kept: Mutex::default(), most }
    }

    /// The plan for `key`, which `make` makes if it is not known.
    pub(super) fn get<Q: Hash + Equivalent<K>>(
        &self,
        key: &Q,
        make: impl FnOnce() -> Result<P>,
    ) -> Result<Arc<P>>
    where
        K: for<'a> From<&'a Q>,
    {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plan) = kept.get(key) {
            return Ok(plan.clone());
        }
        let plan = Arc::new(make()?);
        if kept.len() >= self.most {
            kept.clear();
        }
        kept.insert(K::from(key), plan.clone());
        Ok(plan)
    }
}

#[cfg(test)]
mod tests {
    use meshgrad_mesh::{Hosts, LinkCosts, Mesh, Placement, Redistribution};

    use super::*;

    const MOST: usize = 100;

    fn shardings(axis: &str, extent: usize) -> [Sharding; 2] {
        let mesh = Mesh::new(&[2], &[axis]).unwrap();
        let from = Sharding::new(&mesh, [(axis, Placement::shard(0))], &[extent]).unwrap();
        [from, Sharding::replicated(&mesh, &[extent]).unwrap()]
    }

    /// Equal keys make one plan, others make their own, and the number of plans is bounded.
    #[test]
    fn equal_keys_share_a_plan() {
        let plans: Plans<Key, Redistribution> = Plans::new(MOST);
        let mut made = 0;
        let mut plan = |axis: &str, extent: usize, bits: usize| {
            let [from, to] = &shardings(axis, extent);
            let plan = plans.get(&KeyRef { from, to, bits }, || {
                made += 1;
                Redistribution::plan(from, to, bits, &Hosts::Uniform(2), &LinkCosts::default())
            });
            let plan = plan.unwrap();
            assert_eq!((plan.from(), plan.to()), (from, to));
            assert_eq!(plan.bytes(), (extent.div_ceil(2) * bits / 8) as u64);
            made
        };
        assert_eq!([plan("tp", 8, 32), plan("tp", 8, 32), plan("tp", 8, 16)], [1, 1, 2]);
        assert_eq!([plan("dp", 8, 32), plan("tp", 9, 32), plan("tp", 8, 32)], [3, 4, 4]);
        for extent in 10..2 * MOST {
            plan("tp", extent, 32);
        }
        assert!(plans.kept.lock().unwrap().len() <= MOST);
    }

    /// A list has its own plan if a tensor of it, their order or their number differs.
    #[test]
    fn equal_lists_share_a_plan() {
        let plans: Plans<Vec<Key>, usize> = Plans::new(MOST);
        let mut made = 0;
        let mut plan = |extents: &[usize]| {
            let all: Vec<_> = extents.iter().map(|it| shardings("tp", *it)).collect();
            let keys = all.iter().map(|[from, to]| KeyRef { from, to, bits: 32 });
            let keys = KeyRefs(keys.collect());
            let plan = plans.get(&keys, || {
                made += 1;
                Ok(made)
            });
            *plan.unwrap()
        };
        let lists: [&[usize]; 6] = [&[4, 8], &[4, 8], &[8, 4], &[4], &[4, 8, 8], &[4, 8]];
        assert_eq!(lists.map(&mut plan), [1, 1, 2, 3, 4, 1]);
    }
}
