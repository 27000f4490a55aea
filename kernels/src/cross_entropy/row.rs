//! A row of a tile of logits, in registers. Unlike those of [`crate::row`], its length is known only
//! when the kernel runs, and it need not consist of whole vectors.

use crate::assembler::{
    F32, GlobalAddress, Kernel, Launch, Pred, U32, U64, block_reduce, block_sum, group_reduce,
    group_sum,
};

/// Maximum number of classes of a tile.
pub const MAX_CLASSES: u32 = VECTORS * 4 * CTA;

/// Vectors of four logits per thread and row.
pub(super) const VECTORS: u32 = 4;

/// Threads per row with many classes.
const CTA: u32 = 256;

/// Threads per CTA for rows with few classes.
const SHORT_ROW_THREADS: u32 = 128;

/// Classes after the last multiple of this are loaded and stored one by one.
const WHOLE: u32 = 8;

/// The threads of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lanes {
    /// A warp, for up to 512 classes.
    Warp,
    /// A CTA, for up to [`MAX_CLASSES`] classes.
    Cta,
}

impl Lanes {
    /// Both variants.
    pub const ALL: [Lanes; 2] = [Lanes::Warp, Lanes::Cta];

    /// The threads for rows of `classes` classes; `None` if there are more than [`MAX_CLASSES`].
    pub fn choose(classes: u32) -> Option<Lanes> {
        Lanes::ALL.into_iter().find(|it| classes <= it.most())
    }

    /// Maximum number of classes that fit in registers.
    fn most(self) -> u32 {
        VECTORS * 4 * self.count()
    }

    pub(super) fn count(self) -> u32 {
        match self {
            Lanes::Warp => 32,
            Lanes::Cta => CTA,
        }
    }

    /// Threads per CTA.
    pub(super) fn threads(self) -> u32 {
        self.count().max(SHORT_ROW_THREADS)
    }

    /// The launch over rows; `None` if there are none.
    pub(super) fn launch(self, rows: u32) -> Option<Launch> {
        let rows_of_cta = self.threads() / self.count();
        Launch::new([rows.div_ceil(rows_of_cta), 1, 1], self.threads())
    }

    pub(super) fn name(self) -> String {
        format!("t{}", self.count())
    }
}

/// A row, and this thread's part of the row.
pub(super) struct Row<'k> {
    k: &'k Kernel,
    lanes: Lanes,
    pub(super) index: U64<'k>,
    pub(super) lane: U32<'k>,
    /// Whether the row is in the tile.
    pub(super) exists: Pred<'k>,
    /// Whether this thread is the row's first.
    pub(super) leads: Pred<'k>,
    /// Whether each of the thread's vectors is in the row.
    pub(super) vectors: [Pred<'k>; VECTORS as usize],
    /// Whether this thread has one of the last logits, after the whole vectors.
    pub(super) has_last: Pred<'k>,
    /// The class of that logit.
    pub(super) last: U32<'k>,
}

/// The logits of a thread.
pub(super) struct Logits<'k> {
    pub(super) vectors: [[F32<'k>; 4]; VECTORS as usize],
    pub(super) last: F32<'k>,
}

impl<'k> Row<'k> {
    /// The row of this thread in a tile of `rows` rows and `classes` classes, for a kernel of
    /// [`Lanes::threads`] threads.
    #[track_caller]
    pub(super) fn new(k: &'k Kernel, lanes: Lanes, rows: U32<'k>, classes: U32<'k>) -> Row<'k> {
        let count = lanes.count();
        let lane = k.thread() & (count - 1);
        let in_cta = k.thread() >> count.trailing_zeros();
        let index = k.cta() * (lanes.threads() / count) + in_cta;
        let exists = index.lt(rows);

        let whole = classes & !(WHOLE - 1);
        let in_row = |vector: u32| exists & ((lane + vector * count) * 4).lt(whole);
        let last = whole + lane;
        Row {
            k,
            lanes,
            index: index.wide(),
            lane,
            exists,
            leads: exists & lane.equals(0),
            vectors: [0, 1, 2, 3].map(in_row),
            has_last: exists & last.lt(classes) & lane.lt(WHOLE),
            last,
        }
    }

    /// The start of this row in a matrix with elements of `size` bytes.
    #[track_caller]
    pub(super) fn of(
        &self,
        matrix: GlobalAddress<'k>,
        leading: U64<'k>,
        size: u32,
    ) -> GlobalAddress<'k> {
        matrix.byte_add(self.index * leading * u64::from(size))
    }

    /// Loads the row at `start`, with zeros past its end.
    #[track_caller]
    pub(super) fn load(&self, start: GlobalAddress<'k>) -> Logits<'k> {
        let own = start.byte_add(self.lane.mul_wide(16));
        let count = self.lanes.count();
        let load = |vector: usize| {
            let from = own.offset(16 * i64::from(count) * vector as i64);
            from.load_vector_if::<f32, 4>(self.vectors[vector])
        };
        Logits {
            vectors: [0, 1, 2, 3].map(load),
            last: start.element::<f32>(self.last).load_if(self.has_last),
        }
    }

    /// The maximum of the row's logits, in each thread of the row. It is minus infinity for an
    /// empty row, and NaN if a logit is NaN. All threads of the CTA must call it.
    #[track_caller]
    pub(super) fn max(&self, logits: &Logits<'k>) -> F32<'k> {
        let own = self.fold(logits, f32::NEG_INFINITY, |it| it, F32::max);
        match self.lanes {
            Lanes::Warp => group_reduce(self.k, own, 32, F32::max),
            Lanes::Cta => block_reduce(self.k, own, F32::max),
        }
    }

    /// The sum of `value(logit)` over the row, in each thread of the row. All threads of the CTA
    /// must call it.
    #[track_caller]
    pub(super) fn sum(&self, logits: &Logits<'k>, value: impl Fn(F32<'k>) -> F32<'k>) -> F32<'k> {
        let own = self.fold(logits, 0.0, value, |a, b| a + b);
        match self.lanes {
            Lanes::Warp => group_sum(self.k, own, 32),
            Lanes::Cta => block_sum(self.k, own),
        }
    }

    /// Reduces `value(logit)` over the thread's logits by `join`. Logits outside the row count as
    /// `neutral`.
    #[track_caller]
    fn fold(
        &self,
        logits: &Logits<'k>,
        neutral: f32,
        value: impl Fn(F32<'k>) -> F32<'k>,
        join: impl Fn(F32<'k>, F32<'k>) -> F32<'k>,
    ) -> F32<'k> {
        let mut total = self.has_last.select(value(logits.last), neutral);
        for (exists, vector) in self.vectors.iter().zip(&logits.vectors) {
            for logit in vector {
                total = join(total, exists.select(value(*logit), neutral));
            }
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_hold_their_rows() {
        assert_eq!(Lanes::choose(0), Some(Lanes::Warp));
        assert_eq!(Lanes::choose(512), Some(Lanes::Warp));
        assert_eq!(Lanes::choose(513), Some(Lanes::Cta));
        assert_eq!(Lanes::choose(MAX_CLASSES), Some(Lanes::Cta));
        assert_eq!(Lanes::choose(MAX_CLASSES + 1), None);
        assert_eq!(Lanes::Warp.launch(9).map(|it| it.grid), Some([3, 1, 1]));
        assert_eq!(Lanes::Cta.launch(0), None);
    }
}
