//! Reductions of rows, which read each element once and do not keep it. Rows may have any length;
//! long rows are split into chunks, one per CTA.

use super::element;
use crate::assembler::{
    F32, GlobalAddress, Kernel, Launch, Pred, Register, Shuffle, U32, U64, block_reduce,
    group_reduce,
};
use crate::dtype::{Dtype, Vector};

/// Threads per CTA.
pub(crate) const PART_THREADS: u32 = 256;

/// Accesses per thread that are in flight together.
pub(crate) const IN_FLIGHT: u32 = 4;

/// Maximum accesses to a row that lanes of one warp share; longer rows need the whole CTA.
const MAX_WARP_ACCESSES: u64 = 128;

/// CTAs that keep a large GPU busy.
pub(crate) const ENOUGH_CTAS: u64 = 1024;

/// Minimum elements per chunk, so that a CTA has several rounds of loads.
const MIN_CHUNK: u64 = 8192;

/// Maximum elements per chunk.
pub(crate) const MAX_CHUNK: u64 = 1 << 31;

/// Elements per chunk when reducing `rows` rows of `features` elements: enough chunks to keep a GPU
/// busy, or one per row if the rows alone do. The last chunk may be shorter.
pub fn chunk_of_rows(rows: u64, features: u64) -> u64 {
    let most = features.div_ceil(MIN_CHUNK).max(1);
    let chunks = (ENOUGH_CTAS / rows.max(1)).clamp(1, most);
    // A multiple of the elements per vector of every dtype.
    let chunk = features.div_ceil(chunks).next_multiple_of(8);
    chunk.min(features).max(1)
}

/// How rows are distributed over threads: `lanes` threads per row, in accesses of `width` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PartTile {
    dtype: Dtype,
    lanes: u32,
    width: u32,
}

impl PartTile {
    /// The tile for rows of `features` elements. `aligned`: whether the first row begins at a
    /// multiple of 16 bytes.
    pub(crate) fn new(dtype: Dtype, rows: u64, features: u64, aligned: bool) -> PartTile {
        let vector = u64::from(dtype.per_vector());
        // A single row may end within a vector.
        let whole = features.is_multiple_of(vector) || rows == 1;
        let width = if aligned && whole { vector } else { 1 };
        let accesses = features.div_ceil(width).max(1);
        let lanes = match accesses {
            ..=MAX_WARP_ACCESSES => accesses.next_power_of_two().min(32) as u32,
            _ => PART_THREADS,
        };
        PartTile { dtype, lanes, width: width as u32 }
    }

    /// The launch for `rows` rows of `chunks` chunks each; `None` if either is zero.
    pub(crate) fn launch(self, rows: u64, chunks: u64) -> Option<Launch> {
        let ctas = rows.div_ceil((PART_THREADS / self.lanes).into());
        let ctas = u32::try_from(ctas).unwrap_or(u32::MAX);
        Launch::new([ctas, chunks as u32, 1], PART_THREADS)
    }

    /// The part of a kernel's name for this tile: `bf16_w8_t32`.
    pub(crate) fn name(self) -> String {
        let PartTile { dtype, lanes, width } = self;
        format!("{}_w{width}_t{lanes}", dtype.name())
    }

    #[track_caller]
    fn load<'k>(self, from: GlobalAddress<'k>, exists: Pred<'k>) -> Access<'k> {
        match self.width {
            1 => Access::One(self.dtype.load_if(exists, from)),
            _ => Access::Vector(self.dtype.load_vector_if(exists, from)),
        }
    }
}

/// Number of rows, elements per row and elements per chunk, as kernel parameters.
#[derive(Clone, Copy)]
pub(crate) struct Chunked<'k> {
    pub(crate) rows: U64<'k>,
    pub(crate) features: U64<'k>,
    pub(crate) chunk: U64<'k>,
}

/// The chunk of a row that a thread works on, together with the other lanes of the row.
pub(crate) struct Part<'k> {
    k: &'k Kernel,
    tile: PartTile,
    /// The index of the row.
    pub(crate) row: U64<'k>,
    /// Whether this thread is the first of its row, and the row exists.
    pub(crate) leads: Pred<'k>,
    /// The index in the row of the first element of the chunk.
    pub(crate) first: U64<'k>,
    start: GlobalAddress<'k>,
    /// Elements of the chunk; 0 if the row does not exist.
    len: U32<'k>,
    lane: U32<'k>,
}

/// Neighboring elements that a thread has loaded.
pub(crate) struct Loaded<'k> {
    /// The index in the chunk of the first element.
    pub(crate) at: U32<'k>,
    /// Whether the elements exist; otherwise the values are 0.
    pub(crate) exists: Pred<'k>,
    access: Access<'k>,
}

enum Access<'k> {
    One(F32<'k>),
    Vector(Vector<'k>),
}

impl<'k> Loaded<'k> {
    /// The elements as f32.
    #[track_caller]
    pub(crate) fn values(&self) -> Vec<F32<'k>> {
        match &self.access {
            Access::One(value) => vec![*value],
            Access::Vector(vector) => vector.widen(),
        }
    }
}

impl<'k> Part<'k> {
    /// The part of this thread in a kernel of [`PART_THREADS`] threads.
    #[track_caller]
    pub(crate) fn new(
        k: &'k Kernel,
        tile: PartTile,
        x: GlobalAddress<'k>,
        of: Chunked<'k>,
    ) -> Part<'k> {
        let thread = k.thread();
        let in_cta = thread >> tile.lanes.trailing_zeros();
        let row = k.cta().mul_wide(PART_THREADS / tile.lanes) + in_cta.wide();
        let (exists, first) = (row.lt(of.rows), k.cta_y().wide() * of.chunk);
        let len = (of.features - first).min(of.chunk).low();
        let lane = thread & (tile.lanes - 1);
        Part {
            k,
            tile,
            row,
            leads: exists & lane.equals(0),
            first,
            start: x.byte_add((row * of.features + first) * u64::from(tile.dtype.size())),
            len: exists.select(len, 0u32),
            lane,
        }
    }

    /// Emits a loop over the elements of this thread. An iteration calls `body` for each of its
    /// [`IN_FLIGHT`] accesses, with the number of the access. The partial vector at the end of a
    /// single row takes a second loop, in which the number is 0.
    #[track_caller]
    pub(crate) fn for_each(&self, body: impl Fn(usize, &Loaded<'k>)) {
        let PartTile { dtype, lanes, width } = self.tile;
        let (whole, first) = match width {
            1 => (self.len, self.lane),
            _ => (self.len & !(width - 1), self.lane * width),
        };
        let step = lanes * width;
        self.k.for_range(first, whole, step * IN_FLIGHT, |at| {
            let load = |i: u32| {
                let at = if i == 0 { at } else { at + i * step };
                let exists = at.lt(whole);
                let from = element(dtype, self.start, at);
                let access = self.tile.load(from, exists);
                Loaded { at, exists, access }
            };
            let loads: Vec<_> = (0..IN_FLIGHT).map(load).collect();
            for (i, loaded) in loads.iter().enumerate() {
                body(i, loaded);
            }
        });

        if width > 1 {
            self.k.for_range(whole + self.lane, self.len, lanes, |at| {
                let value = dtype.load(element(dtype, self.start, at));
                let loaded =
                    Loaded { at, exists: self.k.constant(true), access: Access::One(value) };
                body(0, &loaded);
            });
        }
    }

    /// Merges the values of all lanes of this row; every lane gets the result. All threads of the
    /// CTA must call it.
    #[track_caller]
    pub(crate) fn fold<T: Shuffle>(
        &self,
        value: Register<'k, T>,
        merge: impl Fn(Register<'k, T>, Register<'k, T>) -> Register<'k, T>,
    ) -> Register<'k, T> {
        match self.tile.lanes {
            lanes @ ..=32 => group_reduce(self.k, value, lanes, merge),
            _ => block_reduce(self.k, value, merge),
        }
    }

    /// The index of this chunk among all chunks of all rows.
    #[track_caller]
    pub(crate) fn chunk(&self, chunks: U32<'k>) -> U64<'k> {
        self.row * chunks.wide() + self.k.cta_y().wide()
    }
}
