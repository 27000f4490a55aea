//! The elements of a row that belong to one thread: loaded once, or again in each pass.

use std::cell::OnceCell;
use std::rc::Rc;

use crate::assembler::{F32, GlobalAddress, Pred, U32};
use crate::dtype::{Dtype, Loaded};

/// Numbers that belong to the elements of a row, one for each element of the thread.
///
/// If the row is in registers, they are computed at their first use and kept. The first use must
/// not be in a branch. If the row is read in loops, each pass computes them again.
#[derive(Clone)]
pub struct Values<'k>(Rc<Source<'k>>);

struct Source<'k> {
    /// The numbers, if the row is in registers.
    kept: Option<OnceCell<Vec<F32<'k>>>>,
    compute: Box<Compute<'k>>,
}

/// Computes the numbers of a step.
type Compute<'k> = dyn Fn(&Step<'k>) -> Vec<F32<'k>> + 'k;

impl<'k> Values<'k> {
    pub(super) fn new(
        in_registers: bool,
        compute: impl Fn(&Step<'k>) -> Vec<F32<'k>> + 'k,
    ) -> Values<'k> {
        Values(Rc::new(Source {
            kept: in_registers.then(OnceCell::new),
            compute: Box::new(compute),
        }))
    }

    /// The numbers of a step.
    pub(crate) fn of(&self, step: &Step<'k>) -> Vec<F32<'k>> {
        let Source { kept, compute } = &*self.0;
        match kept {
            Some(kept) => kept.get_or_init(|| compute(step)).clone(),
            None => compute(step),
        }
    }

    /// Keeps the numbers of the step of a row in registers, which are known before their first use.
    pub(super) fn keep(&self, numbers: Vec<F32<'k>>) {
        if let Some(kept) = &self.0.kept {
            kept.get_or_init(|| numbers);
        }
    }
}

/// The elements of a row that a thread processes together: all of its elements if the row is in
/// registers, otherwise those of one iteration.
pub(crate) struct Step<'k> {
    pub(crate) dtype: Dtype,
    pub(crate) accesses: Vec<Access<'k>>,
    /// The index of the pair, if the elements are a pair that RoPE rotates.
    pub(crate) pair: Option<U32<'k>>,
}

/// Consecutive elements of a row in one access.
pub(crate) struct Access<'k> {
    pub(crate) first: First<'k>,
    /// The number of elements: a vector, or one.
    pub(crate) width: u32,
    pub(crate) exists: Pred<'k>,
}

/// Where an access begins.
pub(crate) enum First<'k> {
    /// This many elements after the first element of the thread.
    Offset(u32),
    /// At an index in the row.
    Index(U32<'k>),
}

impl<'k> Step<'k> {
    /// Loads the elements from the row at `start`. If the row is in registers, `start` is the
    /// address of the thread's first element.
    #[track_caller]
    pub(super) fn load(&self, start: GlobalAddress<'k>) -> Vec<Loaded<'k>> {
        let accesses = self.accesses.iter();
        let load =
            |it: &Access<'k>| Loaded::new(self.dtype, it.width, it.exists, self.address(start, it));
        accesses.map(load).collect()
    }

    /// Whether each element exists.
    pub(super) fn existing(&self) -> Vec<Pred<'k>> {
        let of = |access: &Access<'k>| vec![access.exists; access.width as usize];
        self.accesses.iter().flat_map(of).collect()
    }

    /// Loaded elements as f32. Elements outside the row are 0, or `other` if there is one.
    #[track_caller]
    pub(super) fn widen(&self, loaded: &[Loaded<'k>], other: Option<f32>) -> Vec<F32<'k>> {
        let widen = |(access, loaded): (&Access<'k>, &Loaded<'k>)| {
            let values = loaded.widen();
            match other {
                None => values,
                Some(other) => {
                    let values = values.into_iter();
                    values.map(|it| access.exists.select(it, other)).collect()
                }
            }
        };
        self.accesses.iter().zip(loaded).flat_map(widen).collect()
    }

    /// Rounds and stores the elements of the row at `start`, as in [`Step::load`]; returns them as
    /// stored.
    #[track_caller]
    pub(super) fn store(
        &self,
        start: GlobalAddress<'k>,
        value: impl Fn(usize) -> F32<'k>,
    ) -> Vec<Loaded<'k>> {
        let mut first = 0;
        let store = |it: &Access<'k>| {
            let rounded = Loaded::rounded(self.dtype, it.width, |i| value(first + i));
            rounded.store_if(it.exists, self.address(start, it));
            first += it.width as usize;
            rounded
        };
        self.accesses.iter().map(store).collect()
    }

    #[track_caller]
    fn address(&self, start: GlobalAddress<'k>, access: &Access<'k>) -> GlobalAddress<'k> {
        match access.first {
            First::Offset(elements) => start.offset(i64::from(elements * self.dtype.size())),
            First::Index(index) => element(self.dtype, start, index),
        }
    }
}

/// The address of an element of a row or vector.
#[track_caller]
pub(crate) fn element<'k>(
    dtype: Dtype,
    row: GlobalAddress<'k>,
    index: U32<'k>,
) -> GlobalAddress<'k> {
    row.byte_add(index.mul_wide(dtype.size()))
}
