//! Segment sums: sums of the rows that have the same key, in the order of their positions.

use crate::assembler::{
    F32, GlobalAddress, In, Kernel, Launch, Out, Pred, Ptx, Target, U32, U64, Variant,
};
use crate::dtype::{Dtype, Loaded};
use crate::params;

const THREADS: u32 = 128;

/// Rows whose loads are in flight together.
const TOGETHER: u32 = 4;

/// starts\[v\] = the number of sorted keys that are less than v, for v in 0..=rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SegmentStarts;

impl SegmentStarts {
    /// The launch for `rows` rows.
    pub fn launch(self, rows: u32) -> Option<Launch> {
        Launch::new([rows / THREADS + 1, 1, 1], THREADS)
    }
}

params! {
    /// Arguments of [`SegmentStarts`].
    pub struct SegmentStartsArguments => Call {
        /// The address of the sorted keys.
        keys: In,
        /// Destination of the starts, `rows + 1` values.
        starts: Out,
        /// Number of keys.
        count: u32,
        /// Number of rows.
        rows: u32,
    }
}

impl Variant for SegmentStarts {
    type Arguments = SegmentStartsArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let Call { keys, starts, count, rows } = self.parameters(k);
        let row = k.cta().mad(THREADS, k.thread());
        k.if_(row.le(rows), || {
            let (low, high) = (k.var(0u32), k.var(count));
            k.while_(
                || low.lt(*high),
                || {
                    let middle = *low + ((*high - *low) >> 1);
                    let less = keys.element::<u32>(middle).load::<u32>().lt(row);
                    low.set(less.select(middle + 1, *low));
                    high.set(less.select(*high, middle));
                },
            );
            starts.element::<u32>(row).store(low.get());
        });
        k.finish()
    }

    fn entry(&self) -> String {
        "segment_starts".into()
    }
}

/// The extents of a [`SegmentSum`].
#[derive(Clone, Copy, Debug)]
pub struct Segments {
    /// Extent of o; 1 unless all rows are written.
    pub outer: u32,
    /// Number of positions.
    pub count: u32,
    /// Number of rows.
    pub rows: u32,
    /// Elements per row.
    pub inner: u32,
}

/// sum\[o, v, ..\] = the sum of x\[o, p, ..\] over the positions p with key v, in their sorted
/// order. Computed in f32 and rounded once.
///
/// With `write_all_rows`, every row is overwritten; rows without positions become zeros. Otherwise
/// only rows that have positions are written, and the sums are added to their old values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SegmentSum {
    from: Dtype,
    to: Dtype,
    /// Elements per thread: 16 bytes of x, or one.
    width: u32,
    /// Threads per row, a power of two.
    across: u32,
    write_all_rows: bool,
}

impl SegmentSum {
    /// The kernel for rows of `inner` elements. `aligned`: whether x and the sums begin at
    /// multiples of 16 bytes. `write_all_rows`: whether rows without positions are written, too.
    pub fn new(
        from: Dtype,
        to: Dtype,
        inner: u32,
        aligned: bool,
        write_all_rows: bool,
    ) -> SegmentSum {
        let vectors = aligned && inner.is_multiple_of(from.per_vector().max(to.per_vector()));
        let width = if vectors { from.per_vector().max(to.per_vector()) } else { 1 };
        let across = (inner / width).clamp(1, THREADS).next_power_of_two();
        SegmentSum { from, to, width, across, write_all_rows }
    }

    /// The arguments for these extents. `sorted`: the keys and their positions.
    pub fn arguments(
        &self,
        x: In,
        [keys, positions]: [In; 2],
        starts: In,
        sum: Out,
        extents: &Segments,
    ) -> SegmentSumArguments {
        SegmentSumArguments {
            x,
            keys,
            positions,
            starts,
            sum,
            items: self.items(extents),
            count: extents.count,
            rows: extents.rows,
            inner: extents.inner,
            tiles: self.tiles(extents.inner),
        }
    }

    /// The launch; `None` if nothing is written.
    pub fn launch(&self, extents: &Segments) -> Option<Launch> {
        let items = self.items(extents).div_ceil(THREADS / self.across);
        let ctas = items.saturating_mul(self.tiles(extents.inner));
        Launch::new([ctas, 1, 1], THREADS)
    }

    /// Rows to process: all, or the maximum number of rows that can have a position.
    fn items(&self, extents: &Segments) -> u32 {
        match self.write_all_rows {
            true => extents.outer.saturating_mul(extents.rows),
            false => extents.count,
        }
    }

    /// CTAs per row.
    fn tiles(&self, inner: u32) -> u32 {
        inner.div_ceil(self.across * self.width)
    }
}

/// One row of the sums, which a group of threads computes.
struct Item<'k> {
    exists: Pred<'k>,
    /// The range of its positions in the sorted list.
    start: U32<'k>,
    end: U32<'k>,
    /// The row of x at position 0.
    base: U64<'k>,
    /// The row of the sums.
    row: U64<'k>,
}

params! {
    /// Arguments of [`SegmentSum`].
    pub struct SegmentSumArguments => SegmentSumCall {
        /// The address of the first element of x.
        x: In,
        /// The sorted keys.
        keys: In,
        /// Their positions.
        positions: In,
        /// The address of the starts, from [`SegmentStarts`].
        starts: In,
        /// The address of the first sum.
        sum: Out,
        /// Rows to process.
        items: u32,
        /// Number of positions.
        count: u32,
        /// Number of rows.
        rows: u32,
        /// Elements per row.
        inner: u32,
        /// CTAs per row.
        tiles: u32,
    }
}

impl Variant for SegmentSum {
    type Arguments = SegmentSumArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS).reserve_load_registers();
        let SegmentSumCall { x, keys, positions, starts, sum, items, count, rows, inner, tiles } =
            self.parameters(k);

        let (tile, number) = (k.cta() % tiles, k.cta() / tiles);
        let item = number.mad(THREADS / self.across, k.thread() / self.across);
        let column = (tile.mad(self.across, k.thread() % self.across)) * self.width;
        let exists = item.lt(items) & column.lt(inner);
        let item = match self.write_all_rows {
            true => any_row(exists, item, [count, rows], starts),
            false => with_positions(k, exists, item, rows, [keys, starts]),
        };
        k.if_(item.exists, || {
            let to = sum.byte_add(element(item.row, inner, column, self.to));
            let zeros = (0..self.width).map(|_| k.constant(0.0_f32)).collect();
            let before = if self.write_all_rows {
                zeros
            } else {
                widened(&load(self.to, self.width, k.constant(true), to))
            };
            let sums: Vec<_> = before.into_iter().map(|x| k.var(x)).collect();
            k.for_range(item.start, item.end, TOGETHER, |first| {
                let next = (0..TOGETHER).map(|i| first + i).map(|index| {
                    let exists = index.lt(item.end);
                    let position = positions.element::<u32>(index).load_if::<u32>(exists);
                    (exists, position)
                });
                let next: Vec<_> = next.collect();
                let mut loaded = Vec::new();
                for (exists, position) in next {
                    let row = item.base + position.wide();
                    let from = x.byte_add(element(row, inner, column, self.from));
                    loaded.push((exists, load(self.from, self.width, exists, from)));
                }
                for (exists, loaded) in loaded {
                    for (sum, value) in sums.iter().zip(widened(&loaded)) {
                        sum.set(exists.select(**sum + value, **sum));
                    }
                }
            });
            let sums: Vec<F32<'_>> = sums.iter().map(|sum| sum.get()).collect();
            store(self.to, to, &sums);
        });
        k.finish()
    }

    fn entry(&self) -> String {
        let SegmentSum { from, to, width, across, write_all_rows } = self;
        let (from, to) = (from.name(), to.name());
        let rows = if *write_all_rows { "every" } else { "added" };
        format!("segment_sum_{from}_to_{to}_{rows}_w{width}_t{across}")
    }
}

/// Row `item % rows` of outer index `item / rows`.
#[track_caller]
fn any_row<'k>(
    exists: Pred<'k>,
    item: U32<'k>,
    [count, rows]: [U32<'k>; 2],
    starts: GlobalAddress<'k>,
) -> Item<'k> {
    let outer = item / rows;
    let start = starts.element::<u32>(item - outer * rows);
    Item {
        exists,
        start: start.load_if(exists),
        end: start.offset(4).load_if(exists),
        base: outer.mul_wide(count),
        row: item.wide(),
    }
}

/// The row of the key at index `item` of the sorted list, if it is the first of equal keys.
#[track_caller]
fn with_positions<'k>(
    k: &'k Kernel,
    exists: Pred<'k>,
    item: U32<'k>,
    rows: U32<'k>,
    [keys, starts]: [GlobalAddress<'k>; 2],
) -> Item<'k> {
    let key = keys.element::<u32>(item).load_if::<u32>(exists);
    let inside = exists & key.lt(rows);
    let start = starts.element::<u32>(key);
    let [first, end] = [start, start.offset(4)].map(|at| at.load_if::<u32>(inside));
    Item {
        exists: inside & first.equals(item),
        start: first,
        end,
        base: k.constant(0u64),
        row: key.wide(),
    }
}

/// The offset of an element in bytes.
#[track_caller]
fn element<'k>(row: U64<'k>, inner: U32<'k>, column: U32<'k>, dtype: Dtype) -> U64<'k> {
    (row * inner.wide() + column.wide()) * u64::from(dtype.size())
}

/// Loads `width` elements if `condition` is true.
#[track_caller]
fn load<'k>(
    dtype: Dtype,
    width: u32,
    condition: Pred<'k>,
    from: GlobalAddress<'k>,
) -> Vec<Loaded<'k>> {
    let accesses = i64::from(width.div_ceil(dtype.per_vector()));
    let starts = (0..accesses).map(|i| from.offset(16 * i));
    starts.map(|from| Loaded::new(dtype, width, condition, from)).collect()
}

#[track_caller]
fn widened<'k>(loaded: &[Loaded<'k>]) -> Vec<F32<'k>> {
    loaded.iter().flat_map(Loaded::widen).collect()
}

/// Rounds and stores the elements.
#[track_caller]
fn store<'k>(dtype: Dtype, to: GlobalAddress<'k>, values: &[F32<'k>]) {
    if let [value] = values {
        return dtype.store(to, *value);
    }
    for (i, values) in (0..).zip(values.chunks_exact(dtype.per_vector() as usize)) {
        dtype.round(|j| values[j]).store(to.offset(16 * i));
    }
}
