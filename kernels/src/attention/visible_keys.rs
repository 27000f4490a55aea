//! The range of keys that each query sees, by document and position.
//!
//! A token is one word: its document and its position are the high and the low 32 bits.

use crate::assembler::{
    GlobalAddress, In, Kernel, Launch, Out, Pred, Ptx, S64, Target, U32, Variant,
};
use crate::faults::FaultSite;
use crate::params;

/// Threads per CTA, one query each.
const THREADS: u32 = 128;

/// The bits of a position.
const POSITION: u64 = u32::MAX as u64;

/// Exclusive upper bounds of documents and of positions. The lower bound is 0.
const LIMITS: [u64; 2] = [1 << 31, POSITION + 1];

/// The word of each token. A document or a position out of range is reported and read as 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenWords;

impl TokenWords {
    /// The launch for all tokens; `None` if there are none.
    pub fn launch(&self, tokens: u64) -> Option<Launch> {
        VisibleKeys.launch(tokens)
    }
}

params! {
    /// Arguments of [`TokenWords`].
    pub struct TokenWordsArguments => Tokens {
        /// \[N\] of i64.
        documents: In,
        /// \[N\] of i64.
        positions: In,
        /// \[N\] of i64.
        words: Out,
        /// Fault sites for documents, of extent 2^31, and for positions, of extent 2^32.
        faults: [FaultSite; 2],
        /// N.
        total: u64,
    }
}

impl Variant for TokenWords {
    type Arguments = TokenWordsArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let Tokens { documents, positions, words, faults, total } = self.parameters(k);
        let index = k.cta().mul_wide(THREADS) + k.thread().wide();
        k.if_(index.lt(total), || {
            let lists = [documents, positions];
            let [document, position] = [0, 1].map(|at| {
                let value = lists[at].element_wide::<i64>(index).load::<i64>();
                let inside = faults[at].check(value, k.constant(LIMITS[at]));
                inside.select(value.unsigned(), 0u64)
            });
            words.element_wide::<i64>(index).store(((document << 32) | position).signed());
        });
        k.finish()
    }

    fn entry(&self) -> String {
        "token_words".to_owned()
    }
}

/// The first key of each query's document within its window, and the end of the keys up to the
/// query. Found by binary search in rows of ascending words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VisibleKeys;

impl VisibleKeys {
    /// The launch for all queries; `None` if there are none.
    pub fn launch(&self, queries: u64) -> Option<Launch> {
        let ctas = queries.div_ceil(u64::from(THREADS));
        Launch::new([u32::try_from(ctas).unwrap_or(u32::MAX), 1, 1], THREADS)
    }
}

params! {
    /// Arguments of [`VisibleKeys`].
    pub struct VisibleKeysArguments => Call {
        /// [B, T] of i64.
        queries: In,
        /// [B, S] of i64.
        keys: In,
        /// [B, T, 2] of i32.
        ranges: Out,
        /// B T.
        total: u64,
        /// T.
        queries_per_row: u32,
        /// S, below 2^31.
        keys_per_row: u32,
        /// The number of positions up to the query's that it sees; 2^32 for all.
        window: u64,
    }
}

impl Variant for VisibleKeys {
    type Arguments = VisibleKeysArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let Call { queries, keys, ranges, total, queries_per_row, keys_per_row, window } =
            self.parameters(k);
        let index = k.cta().mul_wide(THREADS) + k.thread().wide();
        k.if_(index.lt(total), || {
            let query = queries.element_wide::<i64>(index).load::<i64>();
            let row = index / queries_per_row.wide() * keys_per_row.wide();
            let row = (keys.element_wide::<i64>(row), keys_per_row);
            let before = (query.unsigned() & POSITION).min(window - 1);
            let oldest = query - before.signed();

            let end = first_key(row, |key| key.gt(query));
            let first = first_key(row, |key| key.ge(oldest)).min(end);
            let first = window.equals(0).select(end, first);
            let to = ranges.element_wide::<u64>(index);
            to.store(first.signed());
            to.offset(4).store(end.signed());
        });
        k.finish()
    }

    fn entry(&self) -> String {
        "visible_keys".to_owned()
    }
}

/// The first key whose word satisfies the condition, as all later ones do, or the number of keys.
#[track_caller]
fn first_key<'k>(
    (words, count): (GlobalAddress<'k>, U32<'k>),
    condition: impl FnOnce(S64<'k>) -> Pred<'k>,
) -> U32<'k> {
    let k = count.kernel();
    let (low, high) = (k.var(0u32), k.var(count));
    k.while_(
        || low.lt(*high),
        || {
            let middle = (*low + *high) >> 1;
            let found = condition(words.element::<i64>(middle).load());
            high.set(found.select(middle, *high));
            low.set(found.select(*low, middle + 1));
        },
    );
    low.get()
}
