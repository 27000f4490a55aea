//! The tile that a CTA computes, and the mask.
//!
//! A mask is a range of keys for each query, whose bounds do not decrease from query to query. It is
//! therefore also a range of queries for each key. A key is in a range if last - key < count, as
//! unsigned numbers.

use super::ROWS_PER_CTA;
use super::problem::{self, Axis, CACHED, Call, IntegerList, RANGES};
use crate::assembler::{
    Argument, ArgumentFor, Arguments, GlobalAddress, Kernel, Pred, S32, S64, SharedAddress, U32,
    U64,
};
use crate::faults::Faults;

/// The positions of first queries that are in device memory are clamped to this.
pub(super) const MAX_POSITIONS: u32 = 1 << 28;

/// A [B, T, H, D] view in registers.
#[derive(Clone, Copy)]
pub struct View<'k> {
    base: GlobalAddress<'k>,
    strides: [U64<'k>; 3],
}

impl<P> Argument for problem::View<P> {
    type InKernel<'k> = View<'k>;
}

impl<P> ArgumentFor<()> for problem::View<P>
where
    P: ArgumentFor<()> + for<'k> Argument<InKernel<'k> = GlobalAddress<'k>>,
{
    #[track_caller]
    fn declare<'k>(k: &'k Kernel, name: &str, (): &()) -> View<'k> {
        View {
            base: P::declare(k, name, &()),
            strides: <[u64; 3]>::declare(k, &format!("{name}_stride"), &()),
        }
    }

    fn push(&self, (): &(), arguments: &mut Arguments) {
        self.address.push(&(), arguments);
        self.strides.push(&(), arguments);
    }
}

/// Rows of one head of one batch row.
#[derive(Clone, Copy)]
pub(super) struct Rows<'k> {
    /// Address of the first row.
    pub(super) start: GlobalAddress<'k>,
    /// Bytes from one row to the next.
    pub(super) stride: U64<'k>,
    /// The number of rows.
    pub(super) count: U32<'k>,
}

impl<'k> View<'k> {
    /// The address of one row.
    #[track_caller]
    pub(super) fn row(self, batch: U32<'k>, token: U32<'k>, head: U32<'k>) -> GlobalAddress<'k> {
        let [by_b, by_t, by_h] = self.strides;
        let of_token = batch.wide() * by_b + token.wide() * by_t;
        self.base.byte_add(of_token + head.wide() * by_h)
    }

    /// The first `count` rows of one head of one batch row.
    #[track_caller]
    pub(super) fn rows(self, batch: U32<'k>, count: U32<'k>, head: U32<'k>) -> Rows<'k> {
        let [by_b, by_t, by_h] = self.strides;
        let start = self.base.byte_add(batch.wide() * by_b + head.wide() * by_h);
        Rows { start, stride: by_t, count }
    }
}

impl<'k> IntegerList<'k> {
    /// The value at `index`.
    #[track_caller]
    fn value(self, index: U32<'k>) -> S64<'k> {
        let is_wide = self.wide.differs(0);
        let from = self.address.element::<u32>((index * self.step) << self.wide);
        let low = from.load::<u32>();
        let high = from.offset(4).load_if::<u32>(is_wide);
        let wide = (high.wide() << 32) | low.wide();
        is_wide.select(wide.signed(), low.signed().wide())
    }

    /// The value at `index`, clamped to 0 to `most`. A value that is clamped is reported.
    #[track_caller]
    fn checked(self, index: U32<'k>, most: U32<'k>, faults: Option<Faults<'k>>) -> U32<'k> {
        let value = self.value(index);
        if let Some(faults) = faults {
            let beyond = value.unsigned().gt(most.wide());
            faults.report(beyond, value);
        }
        value.max(0).min(most.wide().signed()).unsigned().low()
    }
}

/// The keys of a query, before `ahead` and the window apply: the query's own range, or all keys up
/// to its position.
#[derive(Clone, Copy)]
pub(super) struct Limits<'k> {
    pub(super) first: S32<'k>,
    pub(super) end: S32<'k>,
}

/// The keys that a query sees: those up to `last`, `count` of them.
#[derive(Clone, Copy)]
pub(super) struct Seen<'k> {
    last: U32<'k>,
    count: U32<'k>,
}

impl<'k> Seen<'k> {
    /// The same keys, numbered from `key` on.
    #[track_caller]
    pub(super) fn from(self, key: U32<'k>) -> Seen<'k> {
        Seen { last: self.last - key, count: self.count }
    }

    #[track_caller]
    pub(super) fn contains(self, key: u32) -> Pred<'k> {
        // A key after the last one wraps to a large number.
        (self.last - key).lt(self.count)
    }
}

/// The keys that each query of a tile sees: those from `first` to `end`.
#[derive(Clone, Copy)]
pub(super) struct Common<'k> {
    first: U32<'k>,
    end: U32<'k>,
}

impl<'k> Common<'k> {
    /// Whether each query sees the keys in `key..key + keys`.
    #[track_caller]
    pub(super) fn contain(self, key: U32<'k>, keys: u32) -> Pred<'k> {
        key.ge(self.first) & (key + keys).le(self.end)
    }
}

/// The tile of a CTA: queries or keys of one head of one batch row.
pub(super) struct CtaTile<'k> {
    call: Call<'k>,
    pub(super) batch: U32<'k>,
    /// A query head or a key-value head, depending on the axis.
    pub(super) head: U32<'k>,
    /// The block of result columns.
    pub(super) block: U32<'k>,
    /// The tile's first row.
    pub(super) first: U32<'k>,
    /// The number of queries.
    pub(super) queries: U32<'k>,
    /// The number of valid keys.
    pub(super) keys: U32<'k>,
    /// The number of all keys, including invalid ones, whose gradients are 0.
    pub(super) all_keys: U32<'k>,
    /// Position of the first query.
    position: S32<'k>,
}

impl<'k> CtaTile<'k> {
    #[track_caller]
    pub(super) fn of_cta(call: Call<'k>, axis: Axis) -> CtaTile<'k> {
        CtaTile::reporting(call, axis, [None; 2])
    }

    /// Like [`CtaTile::of_cta`], but reports invalid positions, lengths and ranges to `reports`.
    /// Only the forward kernel does.
    #[track_caller]
    pub(super) fn reporting(
        call: Call<'k>,
        axis: Axis,
        reports: [Option<Faults<'k>>; 2],
    ) -> CtaTile<'k> {
        let k = call.queries.kernel();
        let (length, heads) = match axis {
            Axis::Queries => (call.queries, call.heads),
            Axis::Keys => (call.keys, call.heads / call.group),
        };
        let tile = k.cta() % call.tiles;
        let others = k.cta() / call.tiles;
        // Under a causal mask the last queries attend to the most keys, so their CTAs start first.
        let tile = match axis {
            Axis::Queries => call.tiles - 1 - tile,
            Axis::Keys => tile,
        };
        let per_row = (length + (ROWS_PER_CTA - 1)) / ROWS_PER_CTA;
        let (batch, first) = (tile / per_row, (tile % per_row) * ROWS_PER_CTA);

        let (position, keys) = (k.var(call.first_query), k.var(call.keys));
        let [of_queries, of_keys] = reports;
        k.if_(call.kind.equals(CACHED), || {
            let most = k.constant(MAX_POSITIONS);
            let offset = call.of_queries.checked(batch, most, of_queries);
            position.set(call.first_query + offset);
            keys.set(call.of_keys.checked(batch, call.keys, of_keys));
        });
        let tile = CtaTile {
            call,
            batch,
            head: others % heads,
            block: others / heads,
            first,
            queries: call.queries,
            keys: *keys,
            all_keys: call.keys,
            position: position.signed(),
        };
        if let Some(faults) = of_keys {
            tile.report_ranges(faults);
        }
        tile
    }

    /// Reports ranges out of range, and ranges whose bounds decrease: these as a negative index.
    #[track_caller]
    fn report_ranges(&self, faults: Faults<'k>) {
        let k = self.batch.kernel();
        let query = self.first + k.thread();
        let exists = k.thread().lt(ROWS_PER_CTA) & query.lt(self.queries);
        let is_first_head = (self.head + self.block).equals(0);
        k.if_(self.has_ranges() & exists & is_first_head, || {
            let own = self.range(query, exists);
            let before = self.range(query - 1, query.gt(0));
            let most = self.all_keys.signed();
            for bound in [own.first, own.end] {
                faults.report(bound.lt(0) | bound.gt(most), bound.wide());
            }
            let pairs = [(own.first, own.end), (before.first, own.first), (before.end, own.end)];
            for (low, high) in pairs {
                faults.report(high.lt(low), high.wide() - low.wide());
            }
        });
    }

    /// The address of the batch row's first element in `base`, [B, H, T] of f32, for query head
    /// `head`.
    #[track_caller]
    pub(super) fn of_queries(&self, base: GlobalAddress<'k>, head: U32<'k>) -> GlobalAddress<'k> {
        let line = self.batch * self.call.heads + head;
        base.element_wide::<f32>(line.mul_wide(self.queries))
    }

    #[track_caller]
    fn has_ranges(&self) -> Pred<'k> {
        self.call.kind.equals(RANGES)
    }

    /// The address of a query's range.
    #[track_caller]
    fn range_address(&self, query: U32<'k>) -> GlobalAddress<'k> {
        let index = self.batch.mul_wide(self.queries) + query.wide();
        self.call.ranges.element_wide::<u64>(index)
    }

    /// A query's range, if `exists`; otherwise an empty one.
    #[track_caller]
    fn range(&self, query: U32<'k>, exists: Pred<'k>) -> Limits<'k> {
        let at = self.range_address(query);
        Limits { first: at.load_if::<i32>(exists), end: at.offset(4).load_if::<i32>(exists) }
    }

    #[track_caller]
    fn limits(&self, query: U32<'k>) -> Limits<'k> {
        let k = query.kernel();
        let (first, end) = (k.var(0i32), k.var(self.up_to(query)));
        k.if_(self.has_ranges(), || {
            let range = self.range(query, query.lt(self.queries));
            first.set(range.first);
            end.set(range.end);
        });
        Limits { first: *first, end: *end }
    }

    /// The number of keys up to the query's position.
    #[track_caller]
    fn up_to(&self, query: U32<'k>) -> S32<'k> {
        query.signed() + self.position + 1
    }

    /// Stores the limits of a query for [`staged_limits`]. Those of a query that does not exist are
    /// empty or arbitrary. The stores are complete when the thread's async copies are.
    #[track_caller]
    pub(super) fn stage_limits(
        &self,
        query: U32<'k>,
        exists: Pred<'k>,
        to: [SharedAddress<'k>; 2],
    ) {
        let copy = || {
            let from = self.range_address(query);
            to[0].copy_async::<4>(from, exists);
            to[1].copy_async::<4>(from.offset(4), exists);
        };
        let compute = || {
            to[0].store(query.kernel().constant(0i32));
            to[1].store(self.up_to(query));
        };
        query.kernel().if_else(self.has_ranges(), copy, compute);
    }

    /// The first key and the end of the keys that a query with these limits sees. There are none if
    /// the end is not above the first key.
    #[track_caller]
    fn bounds(&self, limits: Limits<'k>) -> [U32<'k>; 2] {
        let first = (limits.end - self.call.window).max(limits.first).max(0).unsigned();
        let end = (limits.end + self.call.ahead).max(0).unsigned().min(self.keys);
        [first, end]
    }

    /// The keys that a query with these limits sees.
    #[track_caller]
    pub(super) fn seen_within(&self, limits: Limits<'k>) -> Seen<'k> {
        let [first, end] = self.bounds(limits);
        Seen { last: end - 1, count: end.max(first) - first }
    }

    /// The keys that a query sees.
    #[track_caller]
    pub(super) fn seen(&self, query: U32<'k>) -> Seen<'k> {
        self.seen_within(self.limits(query))
    }

    /// The keys that all queries in `query..query + queries` see, from the limits of the first and
    /// the last of them.
    #[track_caller]
    pub(super) fn common_within(&self, first: Limits<'k>, last: Limits<'k>) -> Common<'k> {
        Common { first: self.bounds(last)[0], end: self.bounds(first)[1] }
    }

    /// The keys that all queries in `query..query + queries` see.
    #[track_caller]
    pub(super) fn common(&self, query: U32<'k>, queries: u32) -> Common<'k> {
        let last = (query + queries).min(self.queries) - 1;
        self.common_within(self.limits(query), self.limits(last))
    }

    /// The range of keys that queries of the tile attend to. Its start is rounded down to a
    /// multiple of `step`.
    #[track_caller]
    pub(super) fn visible_keys(&self, step: u32) -> [U32<'k>; 2] {
        let last = (self.first + ROWS_PER_CTA).min(self.queries) - 1;
        let [start, _] = self.bounds(self.limits(self.first));
        let [_, end] = self.bounds(self.limits(last));
        [start / step * step, end]
    }

    /// The range of queries that attend to keys of the tile. Its start is rounded down to a
    /// multiple of `step`.
    #[track_caller]
    pub(super) fn visible_queries(&self, step: u32) -> [U32<'k>; 2] {
        let k = self.first.kernel();
        let last = (self.first + ROWS_PER_CTA).min(self.keys) - 1;
        let (start, end) = (k.var(0u32), k.var(0u32));
        let by_position = || {
            let first = self.first.signed() - self.call.ahead - self.position;
            start.set(first.max(0).unsigned());
            let after = last.signed() + self.call.window - self.position;
            let valid = self.first.lt(self.keys);
            end.set(valid.select(after.max(0).unsigned().min(self.queries), 0u32));
        };
        let by_range = || {
            start.set(self.first_query_where(|[_, end]| end.gt(self.first)));
            end.set(self.first_query_where(|[first, _]| first.gt(last)));
        };
        k.if_else(self.has_ranges(), by_range, by_position);
        [*start / step * step, *end]
    }

    /// The first query whose bounds satisfy the condition, as those of all later queries do, or the
    /// number of queries.
    #[track_caller]
    fn first_query_where(&self, condition: impl FnOnce([U32<'k>; 2]) -> Pred<'k>) -> U32<'k> {
        let k = self.first.kernel();
        let (low, high) = (k.var(0u32), k.var(self.queries));
        k.while_(
            || low.lt(*high),
            || {
                let middle = (*low + *high) >> 1;
                let found = condition(self.bounds(self.limits(middle)));
                high.set(found.select(middle, *high));
                low.set(found.select(*low, middle + 1));
            },
        );
        low.get()
    }
}

/// The limits that [`CtaTile::stage_limits`] stored.
#[track_caller]
pub(super) fn staged_limits<'k>([first, end]: [SharedAddress<'k>; 2]) -> Limits<'k> {
    Limits { first: first.load::<i32>(), end: end.load::<i32>() }
}
