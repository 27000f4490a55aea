//! argmax and argmin: the index of the first extreme element of each row.

use crate::assembler::{
    F32, In, Kernel, Launch, Out, Ptx, Target, Variable, Variant, block_reduce,
};
use crate::dtype::Dtype;
use crate::params;
use crate::row::{Chunked, IN_FLIGHT, PART_THREADS, Part, PartTile, chunk_of_rows};
use crate::sort_key::{NONE, index_of, key};

/// Threads per CTA of [`ArgReduceChunks`].
const THREADS: u32 = 128;

/// Whether to find the maximum or the minimum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Extreme {
    /// The maximum.
    Max,
    /// The minimum.
    Min,
}

impl Extreme {
    fn name(self) -> &'static str {
        match self {
            Extreme::Max => "argmax",
            Extreme::Min => "argmin",
        }
    }

    /// A value that is larger for better elements.
    #[track_caller]
    fn order(self, value: F32<'_>) -> F32<'_> {
        match self {
            Extreme::Max => value,
            Extreme::Min => -value,
        }
    }
}

/// The number of chunks per row, for `rows` rows of `features` elements. If it is 1, [`ArgReduce`]
/// writes indices. Otherwise it writes one key per chunk, and [`ArgReduceChunks`] reduces them.
pub fn chunks_per_row(rows: u64, features: u64) -> u64 {
    features.div_ceil(chunk_of_rows(rows, features)).max(1)
}

/// `indices[r]` = the index of the first extreme element of row r, or of its first NaN. If rows are
/// long, the kernel writes the key of the best element of each chunk instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ArgReduce {
    extreme: Extreme,
    tile: PartTile,
    /// Whether the kernel writes keys of chunks instead of indices.
    chunked: bool,
}

impl ArgReduce {
    /// The kernel for `rows` rows of `features` > 0 elements. `aligned`: whether x is 16-byte
    /// aligned.
    pub fn new(
        extreme: Extreme,
        dtype: Dtype,
        rows: u64,
        features: u64,
        aligned: bool,
    ) -> ArgReduce {
        ArgReduce {
            extreme,
            tile: PartTile::new(dtype, rows, features, aligned),
            chunked: chunks_per_row(rows, features) > 1,
        }
    }

    /// The launch; `None` if there are no rows.
    pub fn launch(&self, rows: u64, features: u64) -> Option<Launch> {
        self.tile.launch(rows, chunks_per_row(rows, features))
    }
}

params! {
    /// Arguments of [`ArgReduce`].
    pub struct ArgReduceArguments => Call {
        /// \[R, D\].
        x: In,
        /// \[R\] of i64, or \[R, P\] of u64 if P = [`chunks_per_row`] is greater than 1.
        indices: Out,
        /// R.
        rows: u64,
        /// D, at least 1 and less than 2^32.
        features: u64,
        /// Elements per chunk, [`chunk_of_rows`].
        chunk: u64,
        /// P.
        chunks: u32,
    }
}

impl ArgReduceArguments {
    /// The arguments for R and D.
    pub fn new(x: In, indices: Out, [rows, features]: [u64; 2]) -> ArgReduceArguments {
        ArgReduceArguments {
            x,
            indices,
            rows,
            features,
            chunk: chunk_of_rows(rows, features),
            chunks: chunks_per_row(rows, features) as u32,
        }
    }
}

impl Variant for ArgReduce {
    type Arguments = ArgReduceArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, PART_THREADS).reserve_load_registers();
        let Call { x, indices, rows, features, chunk, chunks } = self.parameters(k);
        let of = Chunked { rows, features, chunk };

        let part = Part::new(k, self.tile, x, of);
        let first = part.first.low();
        let best: Vec<Variable<'_, u64>> = (0..IN_FLIGHT).map(|_| k.var(NONE)).collect();
        part.for_each(|access, loaded| {
            let best = best[access];
            for (i, value) in (0..).zip(loaded.values()) {
                let index = first + loaded.at + i;
                let key = key(self.extreme.order(value), index, loaded.exists);
                best.set(best.max(key));
            }
        });
        let others = best[1..].iter();
        let best = others.fold(*best[0], |all, other| all.max(**other));
        let best = part.fold(best, |a, b| a.max(b));

        let result = match self.chunked {
            true => best,
            false => index_of(best).wide(),
        };
        let to = indices.element_wide::<u64>(part.chunk(chunks));
        to.store_if(part.leads, result);
        k.finish()
    }

    fn entry(&self) -> String {
        let (extreme, tile) = (self.extreme.name(), self.tile.name());
        let keys = if self.chunked { "_keys" } else { "" };
        format!("{extreme}_{tile}{keys}")
    }
}

/// `indices[r]` = the index of the element with the largest key in row r of `keys`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ArgReduceChunks;

impl ArgReduceChunks {
    /// The launch; `None` if there are no rows.
    pub fn launch(&self, rows: u64) -> Option<Launch> {
        Launch::new([u32::try_from(rows).unwrap_or(u32::MAX), 1, 1], THREADS)
    }
}

params! {
    /// Arguments of [`ArgReduceChunks`].
    pub struct ArgReduceChunksArguments => ArgReduceChunksCall {
        /// \[R, P\] of u64.
        keys: In,
        /// \[R\] of i64.
        indices: Out,
        /// P.
        chunks: u32,
    }
}

impl Variant for ArgReduceChunks {
    type Arguments = ArgReduceChunksArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let ArgReduceChunksCall { keys, indices, chunks } = self.parameters(k);

        let line = keys.element_wide::<u64>(k.cta().mul_wide(chunks));
        let best = k.var(NONE);
        k.for_range(k.thread(), chunks, THREADS, |chunk| {
            best.set(best.max(line.element::<u64>(chunk).load::<u64>()));
        });
        let best = block_reduce(k, best.get(), |a, b| a.max(b));
        let to = indices.element::<u64>(k.cta());
        to.store_if(k.thread().equals(0), index_of(best).wide());
        k.finish()
    }

    fn entry(&self) -> String {
        "arg_reduce_chunks".to_owned()
    }
}
