//! Merging of sorted runs.

use super::{Ranked, SortedKeys};
use crate::assembler::{GlobalAddress, In, Kernel, Launch, Ptx, Target, U32, U64, Variant};
use crate::dtype::Dtype;
use crate::params;

/// Runs that are merged into one.
const AT_ONCE: u32 = 8;

/// Threads per CTA.
const THREADS: u32 = 128;

/// The sorted runs of a row. All but the last have `len` keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runs {
    /// Number of runs.
    pub count: u32,
    /// Keys per run, and the distance between the starts of runs.
    pub len: u32,
    /// Keys of the last run.
    pub last: u32,
}

impl Runs {
    /// The runs after one merge that keeps the first `kept` keys of each merged run.
    #[must_use]
    pub fn merged(&self, kept: u32) -> Runs {
        let count = self.count.div_ceil(AT_ONCE);
        let before_last = u64::from(self.count - 1) % u64::from(AT_ONCE);
        let last = before_last * u64::from(self.len) + u64::from(self.last);
        Runs {
            count,
            len: self.len.saturating_mul(AT_ONCE).min(kept),
            last: last.min(kept.into()) as u32,
        }
    }
}

/// Merges runs of keys, eight at a time. If one run is left, writes the elements and their indices
/// instead of keys.
///
/// Each thread ranks one key: it counts the larger keys in the eight runs by eight simultaneous
/// binary searches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MergeRuns {
    /// The dtype of the elements, if they are written instead of keys.
    elements: Option<Dtype>,
}

impl MergeRuns {
    /// The kernel that merges `runs` of rows of `dtype`.
    pub fn new(runs: Runs, dtype: Dtype) -> MergeRuns {
        MergeRuns { elements: (runs.count <= AT_ONCE).then_some(dtype) }
    }

    /// The launch; `None` if there are no rows.
    pub fn launch(&self, rows: u64, runs: Runs) -> Option<Launch> {
        let keys = u64::from(runs.count) * u64::from(runs.len);
        let parts = u32::try_from(keys.div_ceil(THREADS.into())).unwrap_or(u32::MAX);
        // A row may need more CTAs than the grid's second dimension allows, so the grid has one
        // dimension.
        let ctas = u64::from(parts).saturating_mul(rows);
        Launch::new([u32::try_from(ctas).unwrap_or(u32::MAX), 1, 1], THREADS)
    }
}

params! {
    /// Arguments of [`MergeRuns`].
    pub struct MergeRunsArguments => Call {
        /// The elements, and the destinations of keys or values.
        to: SortedKeys,
        /// \[R, count, len\] of u64.
        from: In,
        /// Number of runs.
        count: u32,
        /// Keys per run.
        len: u32,
        /// Keys of the last run.
        last: u32,
        /// Keys that each merged run keeps.
        kept: u32,
        /// CTAs per row.
        parts: u32,
        /// The first step of a binary search: the largest power of two in a run.
        step: u32,
    }
}

impl MergeRunsArguments {
    /// The arguments that merge `runs` and keep the first `kept` keys of each merged run.
    pub fn new(from: In, to: SortedKeys, runs: Runs, kept: u32) -> MergeRunsArguments {
        let Runs { count, len, last } = runs;
        let keys = u64::from(count) * u64::from(len);
        MergeRunsArguments {
            to,
            from,
            count,
            len,
            last,
            kept,
            parts: keys.div_ceil(THREADS.into()) as u32,
            step: 1 << len.max(1).ilog2(),
        }
    }
}

impl Variant for MergeRuns {
    type Arguments = MergeRunsArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let Call { to, from, count, len, last, kept, parts, step } = self.parameters(k);

        let row = k.cta() / parts;
        let at = (k.cta() - row * parts).mad(THREADS, k.thread());
        let (run, line) = (at / len, row.mul_wide(count) * len.wide());
        let length_of = |run| length_of(run, [count, len, last]);
        let exists = (at - run * len).lt(length_of(run));
        let keys = from.element_wide::<u64>(line);
        let own = keys.element::<u64>(at).load_if::<u64>(exists);

        let group = run >> AT_ONCE.trailing_zeros();
        let runs = (0..AT_ONCE).map(|i| {
            let run = group * AT_ONCE + i;
            let length = exists.select(length_of(run), 0u32);
            (keys.element::<u64>(run * len), length)
        });
        let runs: Vec<(GlobalAddress<'_>, U32<'_>)> = runs.collect();
        let place = keys_before(k, &runs, own, step);

        let line = row.mul_wide((count + (AT_ONCE - 1)) >> AT_ONCE.trailing_zeros()) + group.wide();
        let index = line * kept.wide() + place.wide();
        let ranked = Ranked { exists: exists & place.lt(kept), key: own, to: index };
        to.store(self.elements, row.wide(), &[ranked]);
        k.finish()
    }

    fn entry(&self) -> String {
        match self.elements {
            None => "merge_runs_to_keys".to_owned(),
            Some(dtype) => format!("merge_runs_to_{}", dtype.name()),
        }
    }
}

/// The number of keys of a run; 0 past the last run.
#[track_caller]
fn length_of<'k>(run: U32<'k>, [count, len, last]: [U32<'k>; 3]) -> U32<'k> {
    let full = run.equals(count - 1).select(last, len);
    run.lt(count).select(full, 0u32)
}

/// The number of keys in `runs` that are larger than `own`.
#[track_caller]
fn keys_before<'k>(
    k: &'k Kernel,
    runs: &[(GlobalAddress<'k>, U32<'k>)],
    own: U64<'k>,
    step: U32<'k>,
) -> U32<'k> {
    let before: Vec<_> = runs.iter().map(|_| k.var(0u32)).collect();
    let step = k.var(step);
    k.while_(
        || step.gt(0),
        || {
            let probes = runs.iter().zip(&before).map(|((run, length), before)| {
                let further = **before + *step;
                let probe = run.element::<u64>(further - 1);
                probe.load_if::<u64>(further.le(*length))
            });
            for (before, key) in before.iter().zip(probes.collect::<Vec<_>>()) {
                before.add(key.gt(own).select(*step, 0u32));
            }
            step.set(*step >> 1);
        },
    );
    before[1..].iter().fold(*before[0], |sum, before| sum + **before)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNS: Runs = Runs { count: 149, len: 50, last: 20 };

    /// Each merge leaves an eighth of the runs, and the last one leaves the k keys.
    #[test]
    fn merges_end_with_one_run() {
        let of = |count, len, last| Runs { count, len, last };
        let first = RUNS.merged(50);
        assert_eq!(first, of(19, 50, 50));
        assert_eq!(first.merged(50), of(3, 50, 50));
        assert_eq!(first.merged(50).merged(50), of(1, 50, 50));
        assert_eq!(of(2, 1024, 5).merged(1029), of(1, 1029, 1029));
        assert_eq!(of(9, 1024, 5).merged(9000), of(2, 8192, 5));
    }
}
