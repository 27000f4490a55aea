//! Filling a tensor with one value.

use super::{Raw, Unit};
use crate::assembler::{Kernel, Launch, Out, Pred, Ptx, Target, U64, Variant};
use crate::elementwise::THREADS;
use crate::params;

/// Stores per thread.
const PER_THREAD: u32 = 4;

/// `y[i] = value` for contiguous elements. If they are aligned, each store writes 16 bytes, and the
/// first CTA also stores the remaining elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fill {
    element: Unit,
    aligned: bool,
}

impl Fill {
    /// The kernel for elements of up to 8 bytes. `aligned`: whether the first is 16-byte aligned.
    pub fn new(element: Unit, aligned: bool) -> Fill {
        Fill { element, aligned }
    }

    /// The launch; `None` if there are no elements.
    pub fn launch(&self, elements: u64) -> Option<Launch> {
        let [units, rest] = self.parts(elements);
        let ctas = units.div_ceil(u64::from(THREADS * PER_THREAD)).max(rest.min(1));
        Launch::new([u32::try_from(ctas).unwrap_or(u32::MAX), 1, 1], THREADS)
    }

    /// The arguments for `elements` elements at `y`. `bits` is the value, repeated to fill 64 bits.
    pub fn arguments(&self, y: Out, elements: u64, bits: u64) -> FillArguments {
        let [units, rest] = self.parts(elements);
        FillArguments { y, units, rest, bits }
    }

    /// The number of units that are stored, and of elements after them.
    fn parts(&self, elements: u64) -> [u64; 2] {
        let of_unit = u64::from(self.unit().bytes() / self.element.bytes());
        [elements / of_unit, elements % of_unit]
    }

    fn unit(&self) -> Unit {
        match self.aligned {
            true => Unit::B16,
            false => self.element,
        }
    }

    #[track_caller]
    fn store<'k>(
        unit: Unit,
        exists: Pred<'k>,
        to: crate::assembler::GlobalAddress<'k>,
        bits: U64<'k>,
    ) {
        let raw = match unit {
            Unit::B16 => {
                let (low, high) = (bits.low(), (bits >> 32).low());
                Raw::Vector([low, high, low, high])
            }
            Unit::B8 => Raw::Wide(bits),
            _ => Raw::Word(bits.low()),
        };
        unit.store_if(exists, to, raw);
    }
}

params! {
    /// Arguments of [`Fill`].
    pub struct FillArguments => Call {
        /// The address of the first element.
        y: Out,
        /// The number of 16-byte vectors, or of elements that are not in one.
        units: u64,
        /// The number of elements after them.
        rest: u64,
        /// The bits of the value, repeated to fill 64 bits.
        bits: u64,
    }
}

impl Variant for Fill {
    type Arguments = FillArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let Call { y, units, rest, bits } = self.parameters(k);

        let (unit, size) = (self.unit(), u64::from(self.unit().bytes()));
        let first = k.cta().mul_wide(THREADS * PER_THREAD);
        for i in 0..PER_THREAD {
            let index = first + (k.thread() + i * THREADS).wide();
            Fill::store(unit, index.lt(units), y.byte_add(index * size), bits);
        }
        if self.aligned {
            let thread = k.thread().wide();
            let exists = k.cta().equals(0) & thread.lt(rest);
            let behind = units * size + thread * u64::from(self.element.bytes());
            Fill::store(self.element, exists, y.byte_add(behind), bits);
        }
        k.finish()
    }

    fn entry(&self) -> String {
        let aligned = if self.aligned { "_aligned" } else { "" };
        format!("fill_b{}{aligned}", self.element.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_elements_nothing_is_launched() {
        assert_eq!(Fill::new(Unit::B2, true).launch(0), None);
        assert_eq!(Fill::new(Unit::B2, true).launch(3).unwrap().grid, [1, 1, 1]);
    }
}
