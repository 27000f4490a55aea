//! Casts between element types.

use crate::assembler::{
    B16, F32, F64, GlobalAddress, In, Integer, Kernel, Launch, Out, Pred, Ptx, S64, Target, Variant,
};
use crate::elementwise::strided::{self, Index, Space, SpaceForm, Strides};
use crate::elementwise::{IterationSpace, THREADS};
use crate::params;

/// An element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// IEEE 754 binary64.
    F64,
    /// IEEE 754 binary32.
    F32,
    /// The upper half of an f32.
    Bf16,
    /// IEEE 754 binary16.
    F16,
    /// Signed, 64 bits.
    I64,
    /// Signed, 32 bits.
    I32,
    /// Unsigned, 32 bits.
    U32,
    /// Unsigned, 8 bits.
    U8,
    /// A byte, 0 for false.
    Bool,
}

/// An element during conversion.
#[derive(Clone, Copy)]
enum Value<'k> {
    F32(F32<'k>),
    F64(F64<'k>),
    Whole(S64<'k>),
}

impl Format {
    /// All variants.
    pub const ALL: [Format; 9] = [
        Format::F64,
        Format::F32,
        Format::Bf16,
        Format::F16,
        Format::I64,
        Format::I32,
        Format::U32,
        Format::U8,
        Format::Bool,
    ];

    /// Bytes per element.
    pub fn size(self) -> u32 {
        match self {
            Format::F64 | Format::I64 => 8,
            Format::F32 | Format::I32 | Format::U32 => 4,
            Format::Bf16 | Format::F16 => 2,
            Format::U8 | Format::Bool => 1,
        }
    }

    /// Its name, as in the names of kernels.
    pub fn name(self) -> &'static str {
        match self {
            Format::F64 => "f64",
            Format::F32 => "f32",
            Format::Bf16 => "bf16",
            Format::F16 => "f16",
            Format::I64 => "i64",
            Format::I32 => "i32",
            Format::U32 => "u32",
            Format::U8 => "u8",
            Format::Bool => "bool",
        }
    }

    /// Loads an element and widens it, if the predicate is true; otherwise returns 0.
    #[track_caller]
    fn load_if<'k>(self, condition: Pred<'k>, from: GlobalAddress<'k>) -> Value<'k> {
        let k = condition.kernel();
        match self {
            Format::F64 => Value::F64(from.load_if(condition)),
            Format::F32 => Value::F32(from.load_if(condition)),
            Format::Bf16 => Value::F32(from.load_if::<crate::assembler::Bf16>(condition).to_f32()),
            Format::F16 => {
                let half: B16<'k> = from.load_if(condition);
                Value::F32(k.compute("cvt.f32.f16", &[&half]))
            }
            Format::I64 => Value::Whole(from.load_if(condition)),
            Format::I32 => Value::Whole(from.load_if::<i32>(condition).wide()),
            Format::U32 => Value::Whole(from.load_if::<u32>(condition).wide().signed()),
            Format::U8 => Value::Whole(from.load_byte_if(condition).wide().signed()),
            Format::Bool => {
                let holds = from.load_byte_if(condition).differs(0);
                Value::Whole(holds.select(1i64, 0i64))
            }
        }
    }

    /// Converts and stores an element if the predicate is true.
    #[track_caller]
    fn store_if<'k>(self, condition: Pred<'k>, to: GlobalAddress<'k>, value: Value<'k>) {
        match self {
            Format::F64 => to.store_if(condition, value.to_f64()),
            Format::F32 => to.store_if(condition, value.to_f32()),
            Format::Bf16 => to.store_if(condition, value.to_f32().to_bf16()),
            Format::F16 => {
                let half: B16<'k> =
                    condition.kernel().compute("cvt.rn.f16.f32", &[&value.to_f32()]);
                to.store_if(condition, half);
            }
            Format::I64 => to.store_if(condition, value.to_whole("cvt.rzi.s64.f64")),
            Format::I32 => to.store_if(condition, low(value.to_whole("cvt.rzi.s32.f64"))),
            Format::U32 => to.store_if(condition, low(value.to_whole("cvt.rzi.u32.f64"))),
            Format::U8 => {
                // Integers keep the low bits; other values saturate.
                let whole = match value {
                    Value::Whole(whole) => whole,
                    _ => value.to_whole("cvt.rzi.u32.f64").min(255),
                };
                to.store_byte_if(condition, low(whole));
            }
            Format::Bool => to.store_byte_if(condition, value.holds().select(1u32, 0u32)),
        }
    }
}

#[track_caller]
fn low(whole: S64<'_>) -> crate::assembler::U32<'_> {
    whole.unsigned().low()
}

impl<'k> Value<'k> {
    #[track_caller]
    fn to_f64(self) -> F64<'k> {
        match self {
            Value::F32(x) => x.kernel().compute("cvt.f64.f32", &[&x]),
            Value::F64(x) => x,
            Value::Whole(x) => x.to_f64(),
        }
    }

    #[track_caller]
    fn to_f32(self) -> F32<'k> {
        match self {
            Value::F32(x) => x,
            Value::F64(x) => x.to_f32(),
            Value::Whole(x) => x.to_f32(),
        }
    }

    /// Truncates a float toward zero and saturates, by the instruction `conversion` from f64. NaN
    /// becomes 0. Integers are unchanged.
    #[track_caller]
    fn to_whole(self, conversion: &str) -> S64<'k> {
        let x = match self {
            Value::Whole(whole) => return whole,
            _ => self.to_f64(),
        };
        let k = x.kernel();
        let whole: S64<'k> = match conversion.split('.').nth(2) {
            Some("s64") => k.compute(conversion, &[&x]),
            Some("s32") => k.compute::<i32>(conversion, &[&x]).wide(),
            _ => k.compute::<u32>(conversion, &[&x]).wide().signed(),
        };
        x.equals(x).select(whole, 0i64)
    }

    /// Whether the value is nonzero; true for NaN.
    #[track_caller]
    fn holds(self) -> Pred<'k> {
        match self {
            Value::F32(x) => x.differs(0.0),
            Value::F64(x) => x.differs(0.0),
            Value::Whole(x) => x.differs(0),
        }
    }
}

/// `y[c] = x[c]`, converted to another type:
///
/// - To float: rounds to nearest even, to 16 bits via f32.
/// - Float to integer: truncates toward zero and saturates.
/// - Between integers: keeps the low bits.
/// - To bool: `x != 0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cast {
    from: Format,
    to: Format,
    dims: u8,
    wide: bool,
}

impl Cast {
    /// The kernel for an iteration space over y and x.
    pub fn new(from: Format, to: Format, space: &IterationSpace) -> Cast {
        Cast { from, to, dims: space.extents().len() as u8, wide: space.is_wide() }
    }

    /// The launch over elements; `None` if there are none.
    pub fn launch(&self, elements: u64) -> Option<Launch> {
        strided::launch(elements)
    }

    fn write<'k, I: Index<O>, O: Integer>(
        &self,
        k: &'k Kernel,
        [x, y]: [GlobalAddress<'k>; 2],
        space: &Strides<'k, I, O>,
    ) {
        let load = |index| {
            let exists = I::is_below(index, space.elements);
            let coordinates = space.coordinates(index);
            let from = space.address(1, x, self.from.size(), &coordinates);
            let to = space.address(0, y, self.to.size(), &coordinates);
            (exists, to, self.from.load_if(exists, from))
        };
        let indices = strided::indices::<I, O>(k).into_iter();
        let loaded: Vec<_> = indices.map(load).collect();
        for (exists, to, value) in loaded {
            self.to.store_if(exists, to, value);
        }
    }
}

params! {
    /// Arguments of [`Cast`].
    pub struct CastArguments => Call for variant: Cast {
        /// The address of the first element of x.
        x: In,
        /// The address of the first element of y.
        y: Out,
        /// Extents and strides of both.
        space: IterationSpace = SpaceForm { dims: variant.dims, wide: variant.wide, tensors: 2 },
    }
}

impl Variant for Cast {
    type Arguments = CastArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let Call { x, y, space } = self.parameters(k);
        match space {
            Space::Narrow(space) => self.write(k, [x, y], &space),
            Space::Wide(space) => self.write(k, [x, y], &space),
        }
        k.finish()
    }

    fn entry(&self) -> String {
        let (from, to, dims) = (self.from.name(), self.to.name(), self.dims);
        let wide = if self.wide { "_wide" } else { "" };
        format!("cast_{from}_to_{to}_strided{dims}{wide}")
    }
}
