//! The integers 0, 1, 2, ...

use super::{Raw, Unit};
use crate::assembler::{Kernel, Launch, Out, Ptx, Target, Variant};
use crate::elementwise::THREADS;
use crate::params;

/// `y[i] = i` for 4-byte or 8-byte integers that are 16-byte aligned. Each thread stores one vector
/// of 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Arange {
    wide: bool,
}

impl Arange {
    /// The kernel for integers of 8 bytes if `wide`, otherwise of 4.
    pub fn new(wide: bool) -> Arange {
        Arange { wide }
    }

    /// The launch; `None` if there are no elements.
    pub fn launch(&self, elements: u64) -> Option<Launch> {
        let ctas = elements.div_ceil(u64::from(THREADS * self.per_vector()));
        Launch::new([u32::try_from(ctas).unwrap_or(u32::MAX), 1, 1], THREADS)
    }

    fn per_vector(&self) -> u32 {
        16 / self.element().bytes()
    }

    fn element(&self) -> Unit {
        match self.wide {
            true => Unit::B8,
            false => Unit::B4,
        }
    }
}

params! {
    /// Arguments of [`Arange`].
    pub struct ArangeArguments => Call {
        /// The address of the first element.
        y: Out,
        /// The number of elements.
        elements: u64,
    }
}

impl Variant for Arange {
    type Arguments = ArangeArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let Call { y, elements } = self.parameters(k);

        let vector = k.cta().mul_wide(THREADS) + k.thread().wide();
        let first = vector * u64::from(self.per_vector());
        let to = y.byte_add(vector * 16);
        let values: Vec<_> = (0..u64::from(self.per_vector())).map(|i| first + i).collect();

        let whole = values[values.len() - 1].lt(elements);
        let words = match self.wide {
            true => [values[0], values[0] >> 32, values[1], values[1] >> 32].map(|x| x.low()),
            false => [values[0], values[1], values[2], values[3]].map(|x| x.low()),
        };
        Unit::B16.store_if(whole, to, Raw::Vector(words));

        // The last vector may be incomplete.
        for (i, value) in (0..).zip(&values[..values.len() - 1]) {
            let exists = !whole & value.lt(elements);
            let raw = match self.wide {
                true => Raw::Wide(*value),
                false => Raw::Word(value.low()),
            };
            let place = to.offset(i * i64::from(self.element().bytes()));
            self.element().store_if(exists, place, raw);
        }
        k.finish()
    }

    fn entry(&self) -> String {
        format!("arange_b{}", self.element().bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_elements_nothing_is_launched() {
        assert_eq!(Arange::new(true).launch(0), None);
        assert_eq!(Arange::new(true).launch(513).unwrap().grid, [2, 1, 1]);
    }
}
