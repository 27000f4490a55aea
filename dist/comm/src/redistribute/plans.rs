//! The plans that a rank has made: a model redistributes the same shardings in every step.

use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::{Equivalent, HashMap};
use meshgrad_mesh::{Redistribution, Sharding, ShardingError};

/// Plans that are kept. When there are more, all are dropped.
const MAX_PLANS: usize = 1024;

/// A bounded cache of plans.
#[derive(Default)]
pub(super) struct Plans(Mutex<HashMap<Key, Arc<Redistribution>>>);

#[derive(PartialEq, Eq, Hash)]
struct Key {
    from: Sharding,
    to: Sharding,
    bits: usize,
}

/// A [`Key`] with the same hash, to look one up without a copy.
#[derive(Hash)]
struct KeyRef<'a> {
    from: &'a Sharding,
    to: &'a Sharding,
    bits: usize,
}

impl Equivalent<Key> for KeyRef<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        self.bits == key.bits && *self.from == key.from && *self.to == key.to
    }
}

impl Plans {
    /// The plan for these shardings and elements of `bits` bits, which `make` makes if it is not
    /// known.
    pub(super) fn get(
        &self,
        from: &Sharding,
        to: &Sharding,
        bits: usize,
        make: impl FnOnce() -> Result<Redistribution, ShardingError>,
    ) -> Result<Arc<Redistribution>, ShardingError> {
        let mut plans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plan) = plans.get(&KeyRef { from, to, bits }) {
            return Ok(plan.clone());
        }
        let plan = Arc::new(make()?);
        if plans.len() >= MAX_PLANS {
            plans.clear();
        }
        let (from, to) = (from.clone(), to.clone());
        plans.insert(Key { from, to, bits }, plan.clone());
        Ok(plan)
    }
}

#[cfg(test)]
mod tests {
    use meshgrad_mesh::{Hosts, LinkCosts, Mesh, Placement};

    use super::*;

    /// Equal keys make one plan, others make their own, and the number of plans is bounded.
    #[test]
    fn equal_keys_share_a_plan() {
        let plans = Plans::default();
        let mut made = 0;
        let mut plan = |axis: &str, extent: usize, bits: usize| {
            let mesh = Mesh::new(&[2], &[axis]).unwrap();
            let from = Sharding::new(&mesh, [(axis, Placement::shard(0))], &[extent]).unwrap();
            let to = Sharding::replicated(&mesh, &[extent]).unwrap();
            let plan = plans.get(&from, &to, bits, || {
                made += 1;
                Redistribution::plan(&from, &to, bits, &Hosts::Uniform(2), &LinkCosts::default())
            });
            let plan = plan.unwrap();
            assert_eq!((plan.from(), plan.to()), (&from, &to));
            assert_eq!(plan.bytes(), (extent.div_ceil(2) * bits / 8) as u64);
            made
        };
        assert_eq!(
            [plan("tp", 8, 32), plan("tp", 8, 32), plan("tp", 8, 16)],
            [1, 1, 2]
        );
        assert_eq!(
            [plan("dp", 8, 32), plan("tp", 9, 32), plan("tp", 8, 32)],
            [3, 4, 4]
        );
        for extent in 10..2 * MAX_PLANS {
            plan("tp", extent, 32);
        }
        assert!(plans.0.lock().unwrap().len() <= MAX_PLANS);
    }
}
