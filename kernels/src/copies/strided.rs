//! Copies between layouts.

use super::{Raw, Unit};
use crate::assembler::{
    Arguments, GlobalAddress, Integer, Kernel, Launch, Pred, Ptx, Target, Variant,
};
use crate::elementwise::strided::{self, Index, Strides};
use crate::elementwise::{IterationSpace, THREADS};
use crate::faults::{FaultSite, Faults};

/// `y[c] = x[c]` for every coordinate c, with any strides. If there is a position (an i64 in device
/// memory), y begins `position * stride` bytes further on. An out-of-range position writes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Copy {
    unit: Unit,
    dims: u8,
    wide: bool,
    positioned: bool,
}

/// The position of y, which the kernel reads from device memory.
#[derive(Clone, Copy, Debug)]
pub struct At {
    /// The address of an i64.
    pub position: u64,
    /// Bytes from one position to the next; a multiple of the unit.
    pub stride: u64,
    /// Number of positions.
    pub extent: u64,
    /// The fault site for out-of-range positions.
    pub faults: FaultSite,
}

/// Arguments of [`struct@Copy`].
#[derive(Clone, Copy, Debug)]
pub struct CopyArguments<'a> {
    /// The address of the first element of x.
    pub x: u64,
    /// The address of the first element of y.
    pub y: u64,
    /// Extents and strides of both, in units.
    pub space: &'a IterationSpace,
    /// The position of y, for a copy with one.
    pub at: Option<At>,
}

impl CopyArguments<'_> {
    /// The bytes of the parameters of `variant`.
    pub fn arguments(&self, variant: &Copy) -> Arguments {
        let mut arguments = Arguments::new();
        arguments.push_pointer(self.x).push_pointer(self.y);
        strided::push_space(&mut arguments, self.space, variant.wide);
        if let Some(at) = self.at {
            arguments.push_pointer(at.position);
            arguments.push_u64(at.stride).push_u64(at.extent);
            at.faults.push(&mut arguments);
        }
        arguments
    }
}

impl Copy {
    /// The kernel for an iteration space over y and x, in units.
    pub fn new(unit: Unit, space: &IterationSpace, positioned: bool) -> Copy {
        Copy {
            unit,
            dims: space.extents().len() as u8,
            wide: space.is_wide(),
            positioned,
        }
    }

    /// The launch over units; `None` if there are none.
    pub fn launch(&self, units: u64) -> Option<Launch> {
        strided::launch(units)
    }

    fn text<I: Index<O>, O: Integer>(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let (x, y) = (k.pointer("x"), k.pointer("y"));
        let space = Strides::<I, O>::parameters(k, self.dims.into(), 2);
        let (y, inside) = match self.positioned {
            true => positioned(k, y),
            false => (y, k.constant(true)),
        };

        let size = self.unit.bytes();
        let load = |index| {
            let exists = I::is_below(index, space.elements) & inside;
            let coordinates = space.coordinates(index);
            let raw = self
                .unit
                .load_if(exists, space.address(1, x, size, &coordinates));
            (exists, space.address(0, y, size, &coordinates), raw)
        };
        let indices = strided::indices::<I, O>(k).into_iter();
        let loaded: Vec<(Pred<'_>, GlobalAddress<'_>, Raw<'_>)> = indices.map(load).collect();
        for (exists, to, raw) in loaded {
            self.unit.store_if(exists, to, raw);
        }
        k.finish()
    }
}

/// The start of y, and whether the position is in range. One thread reports an out-of-range
/// position.
#[track_caller]
fn positioned<'k>(k: &'k Kernel, y: GlobalAddress<'k>) -> (GlobalAddress<'k>, Pred<'k>) {
    let position = k.pointer("position");
    let (stride, extent) = (k.u64_param("stride"), k.u64_param("positions"));
    let faults = Faults::parameters(k);
    let position = position.load::<i64>();
    let inside = position.unsigned().lt(extent);
    let first = k.cta().equals(0) & k.thread().equals(0);
    faults.report(first & !inside, position);
    (y.byte_add(position.unsigned() * stride), inside)
}

impl Variant for Copy {
    fn ptx(&self) -> Ptx {
        match self.wide {
            false => self.text::<u32, i32>(),
            true => self.text::<u64, i64>(),
        }
    }

    fn entry(&self) -> String {
        let positioned = if self.positioned { "_positioned" } else { "" };
        let wide = if self.wide { "_wide" } else { "" };
        let (unit, dims) = (self.unit.bytes(), self.dims);
        format!("copy{positioned}_b{unit}_strided{dims}{wide}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_fill_the_parameter_space() {
        let narrow = IterationSpace::new(&[3, 4], &[9, 1], &[&[1, 3]]).unwrap();
        let wide = IterationSpace::new(&[3, 4], &[9, 1], &[&[1, 1 << 40]]).unwrap();
        for space in [narrow, wide] {
            for at in [None, Some(())] {
                let variant = Copy::new(Unit::B4, &space, at.is_some());
                let at = at.map(|()| At {
                    position: 64,
                    stride: 4,
                    extent: 1,
                    faults: FaultSite::new(128, 1),
                });
                let (x, y) = (256, 512);
                let arguments = CopyArguments {
                    x,
                    y,
                    space: &space,
                    at,
                };
                let bytes = arguments.arguments(&variant);
                let declared = variant.ptx().parameter_bytes();
                assert_eq!(bytes.bytes().len(), declared, "{variant:?}");
            }
        }
    }
}
