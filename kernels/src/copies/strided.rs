//! Copies between layouts.

use super::{Raw, Unit};
use crate::assembler::{
    GlobalAddress, In, Integer, Kernel, Launch, Out, Pred, Ptx, Registers, Target, Variant,
};
use crate::elementwise::strided::{self, Index, Space, SpaceForm, Strides};
use crate::elementwise::{IterationSpace, THREADS};
use crate::faults::FaultSite;
use crate::params;

/// `y[c] = x[c]` for every coordinate c, with any strides. If there is a position (an i64 in device
/// memory), y begins `position * stride` bytes further on. An out-of-range position writes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Copy {
    unit: Unit,
    dims: u8,
    wide: bool,
    positioned: bool,
}

params! {
    /// The position of y, which the kernel reads from device memory.
    pub struct At {
        /// An i64.
        position: In,
        /// Bytes from one position to the next; a multiple of the unit.
        stride: u64,
        /// Number of positions.
        extent: u64,
        /// The fault site for out-of-range positions.
        faults: FaultSite,
    }
}

impl Copy {
    /// The kernel for an iteration space over y and x, in units.
    pub fn new(unit: Unit, space: &IterationSpace, positioned: bool) -> Copy {
        Copy { unit, dims: space.extents().len() as u8, wide: space.is_wide(), positioned }
    }

    /// The launch over units; `None` if there are none.
    pub fn launch(&self, units: u64) -> Option<Launch> {
        strided::launch(units)
    }

    fn write<'k, I: Index<O>, O: Integer>(
        &self,
        k: &'k Kernel,
        [x, y]: [GlobalAddress<'k>; 2],
        at: Option<Registers<'k, At>>,
        space: &Strides<'k, I, O>,
    ) {
        let (y, inside) = match at {
            Some(at) => positioned(k, y, at),
            None => (y, k.constant(true)),
        };

        let size = self.unit.bytes();
        let load = |index| {
            let exists = I::is_below(index, space.elements) & inside;
            let coordinates = space.coordinates(index);
            let raw = self.unit.load_if(exists, space.address(1, x, size, &coordinates));
            (exists, space.address(0, y, size, &coordinates), raw)
        };
        let indices = strided::indices::<I, O>(k).into_iter();
        let loaded: Vec<(Pred<'_>, GlobalAddress<'_>, Raw<'_>)> = indices.map(load).collect();
        for (exists, to, raw) in loaded {
            self.unit.store_if(exists, to, raw);
        }
    }
}

/// The start of y, and whether the position is in range. One thread reports an out-of-range
/// position.
#[track_caller]
fn positioned<'k>(
    k: &'k Kernel,
    y: GlobalAddress<'k>,
    at: Registers<'k, At>,
) -> (GlobalAddress<'k>, Pred<'k>) {
    let position = at.position.load::<i64>();
    let inside = position.unsigned().lt(at.extent);
    let first = k.cta().equals(0) & k.thread().equals(0);
    at.faults.report(first & !inside, position);
    (y.byte_add(position.unsigned() * at.stride), inside)
}

params! {
    /// Arguments of [`struct@Copy`].
    pub struct CopyArguments => Call for variant: Copy {
        /// The address of the first element of x.
        x: In,
        /// The address of the first element of y.
        y: Out,
        /// Extents and strides of both, in units.
        space: IterationSpace = SpaceForm { dims: variant.dims, wide: variant.wide, tensors: 2 },
        /// The position of y, for a copy with one.
        at: Option<At> = variant.positioned,
    }
}

impl Variant for Copy {
    type Arguments = CopyArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let Call { x, y, space, at } = self.parameters(k);
        match space {
            Space::Narrow(space) => self.write(k, [x, y], at, &space),
            Space::Wide(space) => self.write(k, [x, y], at, &space),
        }
        k.finish()
    }

    fn entry(&self) -> String {
        let positioned = if self.positioned { "_positioned" } else { "" };
        let wide = if self.wide { "_wide" } else { "" };
        let (unit, dims) = (self.unit.bytes(), self.dims);
        format!("copy{positioned}_b{unit}_strided{dims}{wide}")
    }
}
