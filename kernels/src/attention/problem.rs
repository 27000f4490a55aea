//! Host side of the attention kernels: extents, mask and launch.

use meshgrad_error::{Result, error};

use crate::assembler::{Argument, ArgumentFor, Arguments, In, Kernel, Launch, Out};
use crate::params;

use super::ROWS_PER_CTA;
use super::cta_tile::MAX_POSITIONS;

/// Mask bounds are clamped to this distance. It exceeds all distances, so it masks nothing.
const FAR: u32 = 1 << 29;

/// The most queries of a sequence. With this, [`FAR`] and [`MAX_POSITIONS`], sums of positions fit in
/// an i32.
const MAX_QUERIES: u32 = 1 << 28;

/// The most keys.
const MAX_KEYS: u32 = 1 << 24;

/// The most tiles, of 64 rows each.
const MAX_TILES: u32 = 1 << 28;

/// A [B, T, H, D] view whose last dim is contiguous, at an [`In`](crate::assembler::In) or
/// [`Out`](crate::assembler::Out) address.
#[derive(Clone, Copy, Debug)]
pub struct View<P> {
    /// The first element.
    pub address: P,
    /// Strides of B, T and H in bytes.
    pub strides: [u64; 3],
}

impl View<Out> {
    /// The same view, for a kernel that reads what an earlier one wrote.
    pub fn written(self) -> View<In> {
        View { address: self.address.written(), strides: self.strides }
    }
}

/// Extents of the operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extents {
    batch: u32,
    queries: u32,
    keys: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    first_query: u32,
}

impl Extents {
    /// Checks the extents \[B, T, S\], the numbers of heads \[H, G\], and D. H is a multiple of G.
    ///
    /// # Errors
    /// For more than 2^28 queries, 2^24 keys or 2^20 features, and for more than
    /// 2^28 tiles.
    pub fn new(
        [batch, queries, keys]: [usize; 3],
        [heads, kv_heads]: [usize; 2],
        head_dim: usize,
    ) -> Result<Extents> {
        let extents = Extents {
            batch: within("batch rows", batch, u32::MAX)?,
            queries: within("queries", queries, MAX_QUERIES)?,
            keys: within("keys", keys, MAX_KEYS)?,
            heads: within("heads", heads, u32::MAX)?,
            kv_heads: within("key heads", kv_heads, u32::MAX)?,
            head_dim: within("head dim", head_dim, 1 << 20)?,
            first_query: 0,
        };
        let rows = queries.max(keys).div_ceil(ROWS_PER_CTA as usize);
        let columns = head_dim.div_ceil(ROWS_PER_CTA as usize);
        let tiles = [batch, heads, columns].into_iter().fold(rows, usize::saturating_mul);
        within("tiles", tiles, MAX_TILES)?;
        Ok(extents)
    }

    /// The same extents, for queries from index `first` on of a longer sequence. The kernels add
    /// `first` to the positions of [`Sequences::Rows`] and [`Sequences::Cached`].
    ///
    /// # Errors
    /// When the queries end after index 2^28.
    pub fn with_first_query(self, first: usize) -> Result<Extents> {
        let end = within("queries", first.saturating_add(self.queries as usize), MAX_QUERIES)?;
        Ok(Extents { first_query: end - self.queries, ..self })
    }

    pub(super) fn queries(&self) -> u32 {
        self.queries
    }

    pub(super) fn heads(&self) -> u32 {
        self.heads
    }

    /// D.
    pub fn head_dim(&self) -> u32 {
        self.head_dim
    }

    /// [B, H, T] rows of queries.
    pub(super) fn rows(&self) -> u64 {
        u64::from(self.batch) * u64::from(self.heads) * u64::from(self.queries)
    }
}

fn within(what: &'static str, value: usize, most: u32) -> Result<u32> {
    let fits = u32::try_from(value).ok().filter(|value| *value <= most);
    fits.ok_or_else(|| error!(Unsupported, "attention: {what} = {value} is not in 0..={most}"))
}

params! {
    /// A list of i32 or i64 in device memory.
    pub struct Integers => IntegerList {
        /// The first integer.
        address: In,
        /// Whether the integers are i64.
        wide: bool,
        /// Elements from one integer to the next: 1, or 0 if all batch rows share one value.
        step: u32,
    }
}

impl Integers {
    const NONE: Integers = Integers { address: In(0), wide: false, step: 0 };
}

/// How queries and keys are arranged in sequences.
#[derive(Clone, Copy, Debug)]
pub enum Sequences {
    /// Each row of the batch is one sequence; the sequence's queries and keys start at position 0.
    Rows,
    /// Each row is one sequence with a key-value cache.
    Cached {
        /// Position of the first query of each row's sequence.
        q_offset: Integers,
        /// The number of valid keys of each row.
        k_len: Integers,
    },
    /// The first key of each query, and the end of its keys: [B, T, 2] of i32. Neither decreases
    /// along T.
    Ranges(In),
}

/// The code of [`Sequences::Cached`] in the parameter `kind`; [`Sequences::Rows`] is 0.
pub(super) const CACHED: u32 = 1;
/// The code of [`Sequences::Ranges`].
pub(super) const RANGES: u32 = 2;

/// Whether a CTA owns a tile of queries or of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Tiles of queries, for each query head.
    Queries,
    /// Tiles of keys, for each key-value head.
    Keys,
}

/// Extents, mask and scale of an attention op.
#[derive(Clone, Copy, Debug)]
pub struct Problem {
    /// Extents of the operands.
    pub extents: Extents,
    /// Whether keys after a query's position are masked. The ranges of [`Sequences::Ranges`] have
    /// their end instead.
    pub causal: bool,
    /// If set, keys at `position - window` and before are masked; of a range, all but the last
    /// `window`.
    pub window: Option<usize>,
    /// How queries and keys are arranged in sequences.
    pub sequences: Sequences,
    /// The factor of q k^T.
    pub scale: f32,
}

impl Problem {
    /// Exclusive upper bounds of the integers of [`Problem::sequences`], first for queries and then
    /// for keys. The lower bound is 0.
    pub fn ranges(&self) -> [usize; 2] {
        let most = match self.sequences {
            Sequences::Cached { .. } => MAX_POSITIONS,
            _ => self.extents.queries,
        };
        [most, self.extents.keys].map(|most| most as usize + 1)
    }

    /// Tiles along `axis`, for one head.
    fn tiles(&self, axis: Axis) -> u64 {
        let extents = self.extents;
        let length = match axis {
            Axis::Queries => extents.queries,
            Axis::Keys => extents.keys,
        };
        u64::from(length.div_ceil(ROWS_PER_CTA)) * u64::from(extents.batch)
    }

    /// A CTA of `threads` for each tile, head and block of columns. `None` if the grid is empty.
    pub(super) fn launch(&self, axis: Axis, blocks: u32, threads: u32) -> Option<Launch> {
        let heads = match axis {
            Axis::Queries => self.extents.heads,
            Axis::Keys => self.extents.kv_heads,
        };
        let ctas = self.tiles(axis) * u64::from(heads) * u64::from(blocks);
        Launch::new([u32::try_from(ctas).unwrap_or(u32::MAX), 1, 1], threads)
    }

    /// The parameters of a kernel whose CTAs own tiles along `axis`.
    fn parameters(&self, axis: Axis) -> Parameters {
        let extents = self.extents;
        let none = Integers::NONE;
        let (kind, [of_queries, of_keys], ranges) = match self.sequences {
            Sequences::Rows => (0, [none, none], In(0)),
            Sequences::Cached { q_offset, k_len } => (CACHED, [q_offset, k_len], In(0)),
            Sequences::Ranges(ranges) => (RANGES, [none, none], ranges),
        };
        let ends_at_position = self.causal || kind == RANGES;
        let window = self.window.and_then(|window| u32::try_from(window).ok());

        Parameters {
            kind,
            first_query: extents.first_query,
            of_queries,
            of_keys,
            ranges,
            queries: extents.queries,
            keys: extents.keys,
            heads: extents.heads,
            group: extents.heads / extents.kv_heads.max(1),
            head_dim: extents.head_dim,
            tiles: u32::try_from(self.tiles(axis)).unwrap_or(u32::MAX),
            ahead: if ends_at_position { 0 } else { FAR as i32 },
            window: window.unwrap_or(FAR).min(FAR) as i32,
            scale: self.scale,
        }
    }
}

params! {
    /// Extents, mask and scale of an attention op.
    struct Parameters => Call {
        /// 0, [`CACHED`] or [`RANGES`].
        kind: u32,
        /// The index of the first query in its sequence.
        first_query: u32,
        of_queries: Integers,
        of_keys: Integers,
        ranges: In,
        queries: u32,
        keys: u32,
        heads: u32,
        /// Query heads per key-value head.
        group: u32,
        head_dim: u32,
        tiles: u32,
        ahead: i32,
        window: i32,
        scale: f32,
    }
}

impl Argument for Problem {
    type InKernel<'k> = Call<'k>;
}

impl ArgumentFor<Axis> for Problem {
    #[track_caller]
    fn declare<'k>(k: &'k Kernel, name: &str, axis: &Axis) -> Call<'k> {
        Parameters::declare(k, name, axis)
    }

    fn push(&self, axis: &Axis, arguments: &mut Arguments) {
        self.parameters(*axis).push(axis, arguments);
    }
}
