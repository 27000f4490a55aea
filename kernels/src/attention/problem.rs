//! The arguments of the attention kernels on the host.

use crate::assembler::{Arguments, Launch};
use crate::error::{Error, Result};

use super::SIDE;
use super::cta_tile::MAX_POSITIONS;

/// Mask bounds are clamped to this distance; anything further hides nothing.
const FAR: u32 = 1 << 29;

/// Of queries and of positions. With it, and [`FAR`], no sum of positions leaves an i32.
const MAX_QUERIES: u32 = 1 << 28;

/// Of keys.
const MAX_KEYS: u32 = 1 << 24;

/// Of CTAs; of rows there are 64 times as many.
const MAX_TILES: u32 = 1 << 28;

/// A [B, T, H, D] view whose last axis is dense.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// Of the first element.
    pub address: u64,
    /// Bytes between neighbors along B, T and H.
    pub strides: [u64; 3],
}

impl View {
    pub(super) fn push(&self, arguments: &mut Arguments) {
        arguments.push_pointer(self.address);
        for stride in self.strides {
            arguments.push_u64(stride);
        }
    }
}

/// Extents of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extents {
    batch: u32,
    queries: u32,
    keys: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
}

impl Extents {
    /// B; T queries and S keys; H query heads, a multiple of G key-value heads; D.
    ///
    /// # Errors
    /// [`Error::Extent`] for more than 2^28 queries, 2^24 keys or 2^20 features, and for more than
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
        };
        // A packed batch has as many tiles more as it has sequences, of which each has a position.
        let rows = queries.max(keys).div_ceil(SIDE as usize) * 2 + 2;
        let columns = head_dim.div_ceil(SIDE as usize);
        let tiles = [batch, heads, columns]
            .into_iter()
            .fold(rows, usize::saturating_mul);
        within("tiles", tiles, MAX_TILES)?;
        Ok(extents)
    }

    /// D.
    pub fn head_dim(&self) -> u32 {
        self.head_dim
    }

    /// [B, H, T] rows of queries.
    pub(super) fn rows(&self) -> u64 {
        u64::from(self.batch) * u64::from(self.heads) * u64::from(self.queries)
    }

    pub(super) fn push_rows(&self, arguments: &mut Arguments) {
        let [queries, heads] = [self.queries, self.heads];
        arguments
            .push_u64(self.rows())
            .push_u32(queries)
            .push_u32(heads)
            .push_u32(self.head_dim);
    }
}

fn within(what: &'static str, value: usize, most: u32) -> Result<u32> {
    let fits = u32::try_from(value).ok().filter(|value| *value <= most);
    fits.ok_or(Error::Extent {
        kernel: "attention",
        what,
        value,
        least: 0,
        most: most as usize,
    })
}

/// A list of i32 or i64 in device memory.
#[derive(Clone, Copy, Debug)]
pub struct Integers {
    /// Of the first.
    pub address: u64,
    /// Whether they have 64 bits.
    pub wide: bool,
    /// How far the next one is: 1, or 0 where one value is for all batch rows.
    pub step: u32,
}

impl Integers {
    const NONE: Integers = Integers {
        address: 0,
        wide: false,
        step: 0,
    };

    fn push(&self, arguments: &mut Arguments) {
        arguments
            .push_pointer(self.address)
            .push_u32(self.wide.into())
            .push_u32(self.step);
    }
}

/// How queries and keys are arranged in sequences.
#[derive(Clone, Copy, Debug)]
pub enum Sequences {
    /// Each row of the batch is one sequence; queries and keys start at position 0.
    Rows,
    /// Each row is one sequence with a key-value cache.
    Cached {
        /// Position of the first query of each row.
        q_offset: Integers,
        /// How many keys are valid in each row.
        k_len: Integers,
    },
    /// One row of `count` packed sequences.
    Packed {
        /// Where each sequence's queries begin, and their end.
        cu_seqlens_q: Integers,
        /// Where each sequence's keys begin, and their end.
        cu_seqlens_k: Integers,
        /// How many sequences there are: 1 at least.
        count: u32,
    },
}

/// Codes of [`Sequences`] on the GPU.
pub(super) const CACHED: u32 = 1;
/// As [`CACHED`].
pub(super) const PACKED: u32 = 2;

/// The axis whose tiles CTAs own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Axis {
    /// Of queries, by query heads.
    Queries,
    /// Of keys, by key-value heads.
    IndexKeys,
}

/// Extents, mask and scale of one attention.
#[derive(Clone, Copy, Debug)]
pub struct Problem {
    /// Extents of the operands.
    pub extents: Extents,
    /// Whether keys after a query's position are hidden.
    pub causal: bool,
    /// Keys at or before the position minus this are hidden.
    pub window: Option<usize>,
    /// Where queries and keys stand.
    pub sequences: Sequences,
    /// Factor of q k before softmax.
    pub scale: f32,
}

impl Problem {
    /// How many values [`Problem::sequences`] may have: of queries, and of keys. They begin at 0.
    pub fn ranges(&self) -> [usize; 2] {
        let most = match self.sequences {
            Sequences::Cached { .. } => MAX_POSITIONS,
            _ => self.extents.queries,
        };
        [most, self.extents.keys].map(|most| most as usize + 1)
    }

    /// Tiles along `axis`, for one head. A packed sequence may begin anywhere: sequence s has the
    /// tiles from floor(begin / side) + s on, which are enough for each.
    fn tiles(&self, axis: Axis) -> u64 {
        let extents = self.extents;
        let length = match axis {
            Axis::Queries => extents.queries,
            Axis::IndexKeys => extents.keys,
        };
        match self.sequences {
            _ if length == 0 => 0,
            Sequences::Packed { count, .. } => u64::from(length / SIDE) + u64::from(count),
            _ => u64::from(length.div_ceil(SIDE)) * u64::from(extents.batch),
        }
    }

    /// A CTA of `threads` for each tile, head and block of columns; `None` if there is none.
    pub(super) fn launch(&self, axis: Axis, blocks: u32, threads: u32) -> Option<Launch> {
        let heads = match axis {
            Axis::Queries => self.extents.heads,
            Axis::IndexKeys => self.extents.kv_heads,
        };
        let ctas = self.tiles(axis) * u64::from(heads) * u64::from(blocks);
        Launch::new([u32::try_from(ctas).unwrap_or(u32::MAX), 1, 1], threads)
    }

    pub(super) fn push(&self, axis: Axis, arguments: &mut Arguments) {
        let extents = self.extents;
        let none = Integers::NONE;
        let (kind, lists, count) = match self.sequences {
            Sequences::Rows => (0, [none, none], 0),
            Sequences::Cached { q_offset, k_len } => (CACHED, [q_offset, k_len], 0),
            Sequences::Packed {
                cu_seqlens_q,
                cu_seqlens_k,
                count,
            } => (PACKED, [cu_seqlens_q, cu_seqlens_k], count),
        };
        let group = extents.heads / extents.kv_heads.max(1);
        let window = self.window.and_then(|window| u32::try_from(window).ok());
        let ahead = if self.causal { 0 } else { FAR };

        arguments.push_u32(kind).push_u32(count);
        lists.iter().for_each(|list| list.push(arguments));
        for extent in [extents.queries, extents.keys, extents.heads, group] {
            arguments.push_u32(extent);
        }
        arguments
            .push_u32(extents.head_dim)
            .push_u32(u32::try_from(self.tiles(axis)).unwrap_or(u32::MAX))
            .push_u32(ahead)
            .push_u32(window.unwrap_or(FAR).min(FAR))
            .push_f32(self.scale);
    }
}
