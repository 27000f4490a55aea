//! Rows of a matrix, for kernels that normalize, scale or compare whole rows.
//!
//! Such a kernel is bound by memory. It should read every element once, in 16-byte accesses, and
//! issue all loads of a row before waiting for the first. If a row fits, it stays in registers from
//! its load to its last use. A few lanes of a warp share a short row, so that no lane is idle and
//! sums need no shared memory; a whole CTA shares a long one. A row that is too long, or not of
//! whole aligned vectors, is read again in each pass by a CTA that loops over it.
//!
//! A kernel is written once for both ([`Form`]). [`Row::load`] loads a row that stays in registers,
//! and only notes the address of a row that loops read. [`Row::each`] and [`Row::store`] are passes:
//! straight code, or a loop.

mod form;
mod part;
mod tile;
mod values;

pub use form::{Form, LoopTile};
pub use part::chunk_of_rows;
pub(crate) use part::{Chunked, ENOUGH_CTAS, IN_FLIGHT, MAX_CHUNK, PART_THREADS, Part, PartTile};
pub use tile::RowTile;
pub use values::Values;
pub(crate) use values::{Access, First, Step, element};

use crate::assembler::{F32, GlobalAddress, Kernel, Pred, U32, U64, block_reduce, group_reduce};
use crate::dtype::Dtype;
use form::LOOP_THREADS;

/// The row that a thread works on.
pub struct Row<'k> {
    pub(crate) k: &'k Kernel,
    pub(crate) dtype: Dtype,
    /// Whether the row exists, and the thread has elements of it.
    pub(crate) exists: Pred<'k>,
    /// Whether this thread is the first of an existing row.
    pub(crate) leads: Pred<'k>,
    /// Threads that share the row; more than a warp are the whole CTA.
    pub(crate) lanes: u32,
    pub(crate) place: Place<'k>,
}

/// Where a row is while the kernel works on it.
pub(crate) enum Place<'k> {
    /// In registers.
    Registers {
        index: Index<'k>,
        features: u32,
        /// The index in the row of the thread's first element.
        first: Index<'k>,
        /// All elements of the thread.
        all: Step<'k>,
    },
    /// In memory.
    Loop { index: U32<'k>, features: U32<'k>, pass: Box<Pass<'k>> },
}

/// An index in registers of 32 or 64 bits.
#[derive(Clone, Copy)]
pub(crate) enum Index<'k> {
    Narrow(U32<'k>),
    Wide(U64<'k>),
}

impl<'k> Index<'k> {
    /// The 64-bit product.
    #[track_caller]
    fn times(self, count: u32) -> U64<'k> {
        match self {
            Index::Narrow(index) => index.mul_wide(count),
            Index::Wide(index) => index * u64::from(count),
        }
    }
}

/// Emits the loops of a pass, which call the argument with each step.
pub(crate) type Pass<'k> = dyn Fn(&dyn Fn(&Step<'k>)) + 'k;

impl<'k> Row<'k> {
    /// The row of this thread in a kernel of [`Form::threads`] threads, for a matrix of `rows` rows
    /// of `features` elements.
    #[track_caller]
    pub fn new(k: &'k Kernel, form: Form, rows: U64<'k>, features: U32<'k>) -> Row<'k> {
        match form {
            Form::Tile(tile) => Row::in_registers(k, tile, rows),
            Form::Loop(tile) => Row::in_a_loop(k, tile, features),
        }
    }

    #[track_caller]
    fn in_registers(k: &'k Kernel, tile: RowTile, rows: U64<'k>) -> Row<'k> {
        let (thread, per_vector) = (k.thread(), tile.dtype.per_vector());
        let in_cta = thread >> tile.lanes.trailing_zeros();
        let lane = thread & (tile.lanes - 1);
        let index = k.cta().mul_wide(tile.rows()) + in_cta.wide();
        let first = Index::Wide((lane * per_vector).wide());

        let in_matrix = index.lt(rows);
        // Consecutive threads own consecutive vectors, so accesses are coalesced.
        let exist = (0..tile.vectors()).map(|vector| {
            let last = tile.features - vector * tile.lanes * per_vector;
            match last >= tile.lanes * per_vector {
                true => in_matrix,
                false => in_matrix & (lane * per_vector).lt(last),
            }
        });
        let exist: Vec<Pred<'k>> = exist.collect();
        let accesses = (0..).zip(&exist).map(|(i, exists)| Access {
            first: First::Offset(i * tile.lanes * per_vector),
            width: per_vector,
            exists: *exists,
        });
        Row {
            k,
            dtype: tile.dtype,
            exists: exist[0],
            leads: in_matrix & lane.equals(0),
            lanes: tile.lanes,
            place: Place::Registers {
                index: Index::Wide(index),
                features: tile.features,
                first,
                all: Step { dtype: tile.dtype, accesses: accesses.collect(), pair: None },
            },
        }
    }

    /// The row of this CTA.
    #[track_caller]
    fn in_a_loop(k: &'k Kernel, LoopTile { dtype, width }: LoopTile, features: U32<'k>) -> Row<'k> {
        let first = match width {
            1 => k.thread(),
            width => k.thread() * width,
        };
        let exists = k.constant(true);
        let pass = move |body: &dyn Fn(&Step<'k>)| {
            k.for_range(first, features, LOOP_THREADS * width, |index| {
                let first = First::Index(index);
                body(&Step { dtype, accesses: vec![Access { first, width, exists }], pair: None });
            });
        };
        Row {
            k,
            dtype,
            exists,
            leads: k.thread().equals(0),
            lanes: LOOP_THREADS,
            place: Place::Loop { index: k.cta(), features, pass: Box::new(pass) },
        }
    }

    /// Loads this row of a matrix.
    #[track_caller]
    pub fn load(&self, matrix: GlobalAddress<'k>) -> Values<'k> {
        self.load_or_later(self.of_matrix(matrix), None)
    }

    /// Loads this row of a matrix; elements outside the row, which a thread may have, are `other`
    /// instead of 0.
    #[track_caller]
    pub fn load_or(&self, matrix: GlobalAddress<'k>, other: f32) -> Values<'k> {
        self.load_or_later(self.of_matrix(matrix), Some(other))
    }

    /// Loads the elements of a \[D\] vector in the columns of this thread.
    #[track_caller]
    pub fn load_vector(&self, vector: GlobalAddress<'k>) -> Values<'k> {
        self.load_from(vector)
    }

    /// Loads the row that begins at `start`.
    #[track_caller]
    pub(crate) fn load_from(&self, start: GlobalAddress<'k>) -> Values<'k> {
        self.load_or_later(self.own(start, self.dtype.size()), None)
    }

    /// Loads this row's element of an f32 vector with one element per row.
    #[track_caller]
    pub fn load_scalar(&self, vector: GlobalAddress<'k>) -> F32<'k> {
        self.of_vector(vector).load_if(self.exists)
    }

    /// Stores this row's element of an f32 vector with one element per row.
    #[track_caller]
    pub fn store_scalar(&self, vector: GlobalAddress<'k>, value: F32<'k>) {
        self.of_vector(vector).store_if(self.leads, value);
    }

    /// Calls `body` with the operands of each element.
    #[track_caller]
    pub fn each<const N: usize>(&self, operands: [&Values<'k>; N], body: impl Fn([F32<'k>; N])) {
        self.each_step(operands, |operands| {
            for i in 0..operands[0].len() {
                body(operands.each_ref().map(|operand| operand[i]));
            }
        });
    }

    /// Calls `body` with the operands of all elements of a step.
    #[track_caller]
    pub(crate) fn each_step<const N: usize>(
        &self,
        operands: [&Values<'k>; N],
        body: impl Fn([Vec<F32<'k>>; N]),
    ) {
        self.pass(&|step| body(operands.map(|operand| operand.of(step))));
    }

    /// `f` of the operands of each element.
    pub fn map<const N: usize>(
        &self,
        operands: [&Values<'k>; N],
        f: impl Fn([F32<'k>; N]) -> F32<'k> + 'k,
    ) -> Values<'k> {
        let operands = operands.map(Values::clone);
        self.values(move |step| {
            let operands = operands.each_ref().map(|operand| operand.of(step));
            let element = |i| f(operands.each_ref().map(|operand: &Vec<_>| operand[i]));
            (0..operands[0].len()).map(element).collect()
        })
    }

    /// Stores `f` of the operands of each element, rounded, to this row of a matrix.
    #[track_caller]
    pub fn store<const N: usize>(
        &self,
        matrix: GlobalAddress<'k>,
        operands: [&Values<'k>; N],
        f: impl Fn([F32<'k>; N]) -> F32<'k>,
    ) {
        self.store_of(matrix, &operands, |x| f(std::array::from_fn(|at| x[at])));
    }

    /// Like [`Row::store`]. Calls `then` with each element as stored, and returns the row as
    /// stored.
    #[track_caller]
    pub fn store_and<const N: usize>(
        &self,
        matrix: GlobalAddress<'k>,
        operands: [&Values<'k>; N],
        f: impl Fn([F32<'k>; N]) -> F32<'k>,
        then: impl Fn(F32<'k>),
    ) -> Values<'k> {
        let to = self.of_matrix(matrix);
        let stored = self.values(move |step| step.widen(&step.load(to), None));
        self.pass(&|step| {
            let operands = operands.map(|operand| operand.of(step));
            let rounded = step.store(to, |i| f(operands.each_ref().map(|operand| operand[i])));
            let rounded = step.widen(&rounded, None);
            rounded.iter().for_each(|value| then(*value));
            stored.keep(rounded);
        });
        stored
    }

    /// As [`Row::each`], for any number of operands. `body` also gets whether the element exists.
    #[track_caller]
    pub fn each_of(&self, operands: &[&Values<'k>], body: impl Fn(&[F32<'k>], Pred<'k>)) {
        self.pass(&|step| {
            let operands: Vec<_> = operands.iter().map(|operand| operand.of(step)).collect();
            for (i, exists) in step.existing().into_iter().enumerate() {
                let at: Vec<_> = operands.iter().map(|operand| operand[i]).collect();
                body(&at, exists);
            }
        });
    }

    /// As [`Row::store`], for any number of operands.
    #[track_caller]
    pub fn store_of(
        &self,
        matrix: GlobalAddress<'k>,
        operands: &[&Values<'k>],
        f: impl Fn(&[F32<'k>]) -> F32<'k>,
    ) {
        // Only loops need the address before the operands; earlier, it takes registers.
        let looped = matches!(self.place, Place::Loop { .. });
        let early = looped.then(|| self.of_matrix(matrix));
        self.pass(&|step| {
            let operands: Vec<_> = operands.iter().map(|operand| operand.of(step)).collect();
            let to = early.unwrap_or_else(|| self.of_matrix(matrix));
            let at = |i| operands.iter().map(move |operand| operand[i]);
            step.store(to, |i| f(&at(i).collect::<Vec<_>>()));
        });
    }

    /// The sum over the threads of this row, in all of them. All threads of the CTA must call it.
    #[track_caller]
    pub fn sum(&self, value: F32<'k>) -> F32<'k> {
        self.reduce(value, |a, b| a + b)
    }

    /// The sum over the threads of this row divided by its elements; 0 if it has none. All threads
    /// of the CTA must call it.
    #[track_caller]
    pub fn mean(&self, value: F32<'k>) -> F32<'k> {
        let sum = self.sum(value);
        match self.place {
            Place::Registers { features, .. } => sum / features as f32,
            Place::Loop { features, .. } => sum / features.max(1).to_f32(),
        }
    }

    /// The maximum over the threads of this row, in all of them; NaN if any value is NaN. All
    /// threads of the CTA must call it.
    #[track_caller]
    pub fn max(&self, value: F32<'k>) -> F32<'k> {
        self.reduce(value, F32::max)
    }

    #[track_caller]
    fn reduce(&self, value: F32<'k>, merge: impl Fn(F32<'k>, F32<'k>) -> F32<'k>) -> F32<'k> {
        match self.lanes {
            lanes @ ..=32 => group_reduce(self.k, value, lanes, merge),
            _ => block_reduce(self.k, value, merge),
        }
    }

    /// The thread's values of a row in registers; `None` if the row is read in loops.
    pub fn kept(&self, values: &Values<'k>) -> Option<Vec<F32<'k>>> {
        match &self.place {
            Place::Registers { all, .. } => Some(values.of(all)),
            Place::Loop { .. } => None,
        }
    }

    /// Values that are computed from others, once or in each pass.
    pub(crate) fn values(&self, compute: impl Fn(&Step<'k>) -> Vec<F32<'k>> + 'k) -> Values<'k> {
        Values::new(matches!(self.place, Place::Registers { .. }), compute)
    }

    /// Calls `body` with each step of a pass over the row.
    fn pass(&self, body: &dyn Fn(&Step<'k>)) {
        match &self.place {
            Place::Registers { all, .. } => body(all),
            Place::Loop { pass, .. } => pass(body),
        }
    }

    /// Issues the loads of a row in registers, whose elements are widened at their first use; loops
    /// load in each pass. `start` is an address as for [`Step::load`].
    #[track_caller]
    fn load_or_later(&self, start: GlobalAddress<'k>, other: Option<f32>) -> Values<'k> {
        match &self.place {
            Place::Registers { all, .. } => {
                let loaded = all.load(start);
                self.values(move |all| all.widen(&loaded, other))
            }
            Place::Loop { .. } => self.values(move |step| step.widen(&step.load(start), None)),
        }
    }

    /// The address of this row of a matrix, as for [`Step::load`].
    #[track_caller]
    fn of_matrix(&self, matrix: GlobalAddress<'k>) -> GlobalAddress<'k> {
        let size = u64::from(self.dtype.size());
        match self.place {
            Place::Registers {
                index: Index::Wide(index),
                features,
                first: Index::Wide(first),
                ..
            } => matrix.byte_add((index * u64::from(features) + first) * size),
            Place::Registers { index, features, .. } => {
                let start = matrix.byte_add(index.times(features) * size);
                self.own(start, self.dtype.size())
            }
            Place::Loop { index, features, .. } => matrix.byte_add(index.mul_wide(features) * size),
        }
    }

    /// The address of this row's element of an f32 vector.
    #[track_caller]
    fn of_vector(&self, vector: GlobalAddress<'k>) -> GlobalAddress<'k> {
        let bytes = match self.place {
            Place::Registers { index, .. } => index.times(4),
            Place::Loop { index, .. } => index.mul_wide(4),
        };
        vector.byte_add(bytes)
    }

    /// The address of this thread's first element of the row at `start` with elements of `size`
    /// bytes; `start` itself if loops read the row.
    #[track_caller]
    pub(crate) fn own(&self, start: GlobalAddress<'k>, size: u32) -> GlobalAddress<'k> {
        match self.place {
            Place::Registers { first, .. } => start.byte_add(first.times(size)),
            Place::Loop { .. } => start,
        }
    }
}
