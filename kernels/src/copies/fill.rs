//! Filling a tensor with one value.

use super::{Raw, Unit};
use crate::assembler::{Arguments, Kernel, Launch, Pred, Ptx, Target, U64, Variant};
use crate::elementwise::THREADS;

/// Stores per thread.
const PER_THREAD: u32 = 4;

/// `y[i] = value` for contiguous elements. If they are aligned, each store writes 16 bytes, and the
/// first CTA also stores the remaining elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fill {
    element: Unit,
    aligned: bool,
}

/// Arguments of [`Fill`].
#[derive(Clone, Copy, Debug)]
pub struct FillArguments {
    /// The address of the first element.
    pub y: u64,
    /// The number of elements.
    pub elements: u64,
    /// The bits of the value, repeated to fill 64 bits.
    pub bits: u64,
}

impl FillArguments {
    /// The bytes of the parameters.
    pub fn arguments(&self, variant: &Fill) -> Arguments {
        let mut arguments = Arguments::new();
        arguments.push_pointer(self.y);
        let [units, rest] = variant.parts(self.elements);
        arguments.push_u64(units).push_u64(rest).push_u64(self.bits);
        arguments
    }
}

impl Fill {
    /// The kernel for elements of up to 8 bytes. `aligned`: whether the first is 16-byte aligned.
    pub fn new(element: Unit, aligned: bool) -> Fill {
        Fill { element, aligned }
    }

    /// The launch; `None` if there are no elements.
    pub fn launch(&self, elements: u64) -> Option<Launch> {
        let [units, rest] = self.parts(elements);
        let ctas = units
            .div_ceil(u64::from(THREADS * PER_THREAD))
            .max(rest.min(1));
        Launch::new([u32::try_from(ctas).unwrap_or(u32::MAX), 1, 1], THREADS)
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

impl Variant for Fill {
    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let y = k.pointer("y");
        let (units, rest, bits) = (
            k.u64_param("units"),
            k.u64_param("rest"),
            k.u64_param("bits"),
        );

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
    fn arguments_fill_the_parameter_space() {
        for aligned in [true, false] {
            let variant = Fill::new(Unit::B2, aligned);
            let arguments = FillArguments {
                y: 256,
                elements: 77,
                bits: 1,
            };
            let bytes = arguments.arguments(&variant);
            assert_eq!(bytes.bytes().len(), variant.ptx().parameter_bytes());
        }
        assert_eq!(Fill::new(Unit::B2, true).launch(0), None);
        assert_eq!(Fill::new(Unit::B2, true).launch(3).unwrap().grid, [1, 1, 1]);
    }
}
