//! The tile that a CTA computes, and the mask.
//!
//! A mask is a range of keys for each query, or equally a range of queries for each key. With d =
//! position(query) - key, a valid key is visible if -ahead <= d < window. That takes one unsigned
//! comparison: d + ahead < ahead + window.

use super::ROWS_PER_CTA;
use super::problem::{self, Axis, CACHED, Call, IntegerList, PACKED};
use crate::assembler::{
    Argument, ArgumentFor, Arguments, GlobalAddress, Kernel, Pred, S32, S64, U32, U64,
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

/// Rows of one head of one sequence.
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

    /// The rows of one head for the tokens of `span`, in one batch row.
    #[track_caller]
    pub(super) fn rows(self, batch: U32<'k>, span: Span<'k>, head: U32<'k>) -> Rows<'k> {
        Rows {
            start: self.row(batch, span.begin, head),
            stride: self.strides[1],
            count: span.length,
        }
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

    /// The value at `index`, clamped to 0 to `most`.
    #[track_caller]
    fn at(self, index: U32<'k>, most: U32<'k>) -> U32<'k> {
        clamped(self.value(index), most)
    }

    /// Like [`IntegerList::at`], but also reports a value that it clamps.
    #[track_caller]
    fn checked(self, index: U32<'k>, most: U32<'k>, faults: Option<Faults<'k>>) -> U32<'k> {
        let value = self.value(index);
        if let Some(faults) = faults {
            let beyond = value.unsigned().gt(most.wide());
            faults.report(beyond, value);
        }
        clamped(value, most)
    }
}

#[track_caller]
fn clamped<'k>(value: S64<'k>, most: U32<'k>) -> U32<'k> {
    value.max(0).min(most.wide().signed()).unsigned().low()
}

/// The range of one sequence among the tokens.
#[derive(Clone, Copy)]
pub(super) struct Span<'k> {
    pub(super) begin: U32<'k>,
    pub(super) length: U32<'k>,
}

/// The tile of a CTA: queries or keys of one head of one sequence.
pub(super) struct CtaTile<'k> {
    call: Call<'k>,
    pub(super) batch: U32<'k>,
    /// A query head or a key-value head, depending on the axis.
    pub(super) head: U32<'k>,
    /// The block of result columns.
    pub(super) block: U32<'k>,
    /// The tile's first row, relative to its sequence.
    pub(super) first: U32<'k>,
    pub(super) queries: Span<'k>,
    /// The valid keys.
    pub(super) keys: Span<'k>,
    /// All keys, including invalid ones, whose gradients are 0.
    pub(super) all_keys: Span<'k>,
    /// Position of the sequence's first query.
    position: S32<'k>,
}

impl<'k> CtaTile<'k> {
    #[track_caller]
    pub(super) fn of_cta(call: Call<'k>, axis: Axis) -> CtaTile<'k> {
        CtaTile::reporting(call, axis, [None; 2])
    }

    /// Like [`CtaTile::of_cta`], but reports invalid positions, lengths and offsets to `reports`.
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

        let zero = || k.var(0u32);
        let (batch, first, position) = (zero(), zero(), k.var(call.first_query));
        let (query_begin, queries) = (zero(), k.var(call.queries));
        let (key_begin, keys, all_keys) = (zero(), k.var(call.keys), k.var(call.keys));
        let [of_queries, of_keys] = reports;
        let packed = || {
            let of_axis = match axis {
                Axis::Queries => call.of_queries,
                Axis::Keys => call.of_keys,
            };
            let sequence = sequence_of(call, of_axis, length, tile);
            let begin = of_axis.at(sequence, length) / ROWS_PER_CTA + sequence;
            first.set((tile - begin) * ROWS_PER_CTA);

            let span = |list: IntegerList<'k>, most: U32<'k>, faults: Option<Faults<'k>>| {
                let begin = list.checked(sequence, most, faults);
                let end = list.checked(sequence + 1, most, faults);
                if let Some(faults) = faults {
                    // The sequences must cover all tokens in order.
                    let first = sequence.equals(0) & begin.differs(0);
                    let last = (sequence + 1).equals(call.count) & end.differs(most);
                    faults.report(first | last | end.lt(begin), end.wide().signed());
                }
                (begin, end.max(begin) - begin)
            };
            let (begin, length) = span(call.of_queries, call.queries, of_queries);
            query_begin.set(begin);
            queries.set(length);
            let (begin, length) = span(call.of_keys, call.keys, of_keys);
            key_begin.set(begin);
            keys.set(length);
            all_keys.set(length);
            position.set(*keys - *queries);
        };
        let rows = || {
            let per_row = (length + (ROWS_PER_CTA - 1)) / ROWS_PER_CTA;
            batch.set(tile / per_row);
            first.set((tile % per_row) * ROWS_PER_CTA);
            k.if_(call.kind.equals(CACHED), || {
                let most = k.constant(MAX_POSITIONS);
                let offset = call.of_queries.checked(*batch, most, of_queries);
                position.set(call.first_query + offset);
                keys.set(call.of_keys.checked(*batch, call.keys, of_keys));
            });
        };
        k.if_else(call.kind.equals(PACKED), packed, rows);

        let span = |begin: U32<'k>, length: U32<'k>| Span { begin, length };
        CtaTile {
            call,
            batch: *batch,
            head: others % heads,
            block: others / heads,
            first: *first,
            queries: span(*query_begin, *queries),
            keys: span(*key_begin, *keys),
            all_keys: span(*key_begin, *all_keys),
            position: position.signed(),
        }
    }

    /// The address of the sequence's first element in `base`, [B, H, T] of f32, for query head
    /// `head`.
    #[track_caller]
    pub(super) fn of_queries(&self, base: GlobalAddress<'k>, head: U32<'k>) -> GlobalAddress<'k> {
        let line = self.batch * self.call.heads + head;
        let index = line.mul_wide(self.call.queries) + self.queries.begin.wide();
        base.element_wide::<f32>(index)
    }

    /// The range of keys that queries of the tile attend to. Its start is rounded down to a
    /// multiple of `step`.
    #[track_caller]
    pub(super) fn visible_keys(&self, step: u32) -> [U32<'k>; 2] {
        let last = (self.first + ROWS_PER_CTA).min(self.queries.length) - 1;
        let before = self.first.signed() + self.position + 1;
        let start = (before - self.call.window).max(0).unsigned();
        let end = last.signed() + self.position + 1 + self.call.ahead;
        let end = end.max(0).unsigned().min(self.keys.length);
        [start / step * step, end]
    }

    /// The range of queries that attend to keys of the tile. Its start is rounded down to a
    /// multiple of `step`.
    #[track_caller]
    pub(super) fn visible_queries(&self, step: u32) -> [U32<'k>; 2] {
        let last = (self.first + ROWS_PER_CTA).min(self.keys.length) - 1;
        let start = self.first.signed() - self.call.ahead - self.position;
        let start = start.max(0).unsigned();
        let end = last.signed() + self.call.window - self.position;
        let end = end.max(0).unsigned().min(self.queries.length);
        let valid = self.first.lt(self.keys.length);
        [start / step * step, valid.select(end, 0u32)]
    }

    /// `position(query) - key + ahead`, the left side of the mask's comparison.
    #[track_caller]
    pub(super) fn behind(&self, query: U32<'k>, key: U32<'k>) -> U32<'k> {
        let ahead = (self.position + self.call.ahead).unsigned();
        query + ahead - key
    }

    /// Whether a key at this distance ([`CtaTile::behind`]) is visible to the query.
    #[track_caller]
    pub(super) fn is_visible(&self, behind: U32<'k>) -> Pred<'k> {
        behind.lt((self.call.ahead + self.call.window).unsigned())
    }

    /// Whether all keys in `key..key + keys` are visible to all queries in
    /// `query..query + queries`.
    #[track_caller]
    pub(super) fn all_visible(
        &self,
        (query, queries): (U32<'k>, u32),
        (key, keys): (U32<'k>, u32),
    ) -> Pred<'k> {
        let behind = self.behind(query, key);
        // A negative distance wraps to a large number, which is not visible.
        let nearest = self.is_visible(behind - (keys - 1));
        let farthest = self.is_visible(behind + (queries - 1));
        nearest & farthest & (key + keys).le(self.keys.length)
    }
}

/// The packed sequence of a tile: the last one whose first tile is `tile` or before.
#[track_caller]
fn sequence_of<'k>(
    call: Call<'k>,
    begins: IntegerList<'k>,
    length: U32<'k>,
    tile: U32<'k>,
) -> U32<'k> {
    let k = call.queries.kernel();
    let (low, high) = (k.var(0u32), k.var(call.count));
    k.while_(
        || (*high - *low).gt(1),
        || {
            let middle = (*low + *high) >> 1;
            let begin = begins.at(middle, length) / ROWS_PER_CTA + middle;
            let before = begin.le(tile);
            high.set(before.select(*high, middle));
            low.set(before.select(middle, *low));
        },
    );
    low.get()
}
