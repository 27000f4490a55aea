//! Dtypes of tensors, and the Rust types of their elements.

use std::fmt;

use half::{bf16, f16};
use meshgrad_error::error;

use crate::{Error, Number};

/// The dtype of a tensor's elements.
///
/// Sizes are in bits, to allow types narrower than a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DType {
    /// IEEE 754 binary64; for gradient checks.
    F64,
    /// IEEE 754 binary32.
    F32,
    /// bfloat16: binary32 with 7 fraction bits.
    BF16,
    /// IEEE 754 binary16; storage and casts only, no arithmetic.
    F16,
    /// Two's complement, 64 bits.
    I64,
    /// Two's complement, 32 bits.
    I32,
    /// Unsigned, 32 bits.
    U32,
    /// Unsigned, 8 bits.
    U8,
    /// A boolean in one byte: zero is false, any other value is true.
    Bool,
}

impl DType {
    /// Every dtype, widest float first.
    pub const ALL: [DType; 9] = [
        DType::F64,
        DType::F32,
        DType::BF16,
        DType::F16,
        DType::I64,
        DType::I32,
        DType::U32,
        DType::U8,
        DType::Bool,
    ];

    /// Bits of one element.
    pub const fn bits(self) -> usize {
        match self {
            DType::F64 | DType::I64 => 64,
            DType::F32 | DType::I32 | DType::U32 => 32,
            DType::BF16 | DType::F16 => 16,
            DType::U8 | DType::Bool => 8,
        }
    }

    /// Bytes of `elements` elements.
    pub const fn bytes(self, elements: usize) -> usize {
        (elements * self.bits()).div_ceil(8)
    }

    /// The lower-case name used in messages, configurations and signatures: `f32`, `bf16`, `i64`,
    /// ...
    pub const fn name(self) -> &'static str {
        match self {
            DType::F64 => "f64",
            DType::F32 => "f32",
            DType::BF16 => "bf16",
            DType::F16 => "f16",
            DType::I64 => "i64",
            DType::I32 => "i32",
            DType::U32 => "u32",
            DType::U8 => "u8",
            DType::Bool => "bool",
        }
    }

    /// The dtype with this name, if any.
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    /// Whether it is a floating-point type of any width.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F64 | DType::F32 | DType::BF16 | DType::F16)
    }

    /// Whether it is a float dtype with arithmetic: f64, f32 and bf16.
    pub const fn computes(self) -> bool {
        matches!(self, DType::F64 | DType::F32 | DType::BF16)
    }

    /// Whether it is an index dtype: i64, i32 and u32.
    pub const fn is_index(self) -> bool {
        matches!(self, DType::I64 | DType::I32 | DType::U32)
    }

    /// The dtype in which its elements are summed: f64 for f64, f32 for all others.
    pub const fn accumulator(self) -> DType {
        match self {
            DType::F64 => DType::F64,
            _ => DType::F32,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One element of a [`DType::Bool`] tensor.
#[derive(Clone, Copy, Debug, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct Bool(u8);

impl Bool {
    /// The value.
    pub fn get(self) -> bool {
        self.0 != 0
    }
}

impl From<bool> for Bool {
    fn from(value: bool) -> Bool {
        Bool(value.into())
    }
}

impl PartialEq for Bool {
    fn eq(&self, other: &Bool) -> bool {
        self.get() == other.get()
    }
}

/// The Rust type of one element of a dtype.
pub trait Element: bytemuck::Pod + Send + Sync + fmt::Debug + PartialEq {
    /// The dtype.
    const DTYPE: DType;

    /// The value as f64; exact except for integers beyond 2^53.
    fn to_f64(self) -> f64;
    /// The nearest element to `x`. Integers round towards zero and saturate; bool is `x != 0`.
    fn from_f64(x: f64) -> Self;
    /// The value as an integer; floats are rounded towards zero and saturate.
    fn to_i64(self) -> i64;
    /// The low bits of `x` for narrower integers, the nearest element for floats; bool is `x != 0`.
    fn from_i64(x: i64) -> Self;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident: |$x:ident| $to_f64:expr, $to_i64:expr; |$y:ident| $from:expr;)+) => {
        $(impl Element for $rust {
            const DTYPE: DType = DType::$dtype;

            #[inline(always)]
            fn to_f64(self) -> f64 {
                let $x = self;
                $to_f64
            }

            #[inline(always)]
            fn to_i64(self) -> i64 {
                let $x = self;
                $to_i64
            }

            #[inline(always)]
            fn from_f64($y: f64) -> $rust {
                $from
            }

            #[inline(always)]
            fn from_i64($y: i64) -> $rust {
                $from
            }
        })+
    };
}

elements! {
    f64 => F64: |x| x, x as i64; |y| y as f64;
    f32 => F32: |x| x.into(), x as i64; |y| y as f32;
    bf16 => BF16: |x| x.wide().into(), x.wide() as i64; |y| Float::narrow(y as f32);
    f16 => F16: |x| f16::to_f64(x), x.to_f32() as i64; |y| f16::from_f32(y as f32);
    i64 => I64: |x| x as f64, x; |y| y as i64;
    i32 => I32: |x| x.into(), x.into(); |y| y as i32;
    u32 => U32: |x| x.into(), x.into(); |y| y as u32;
    u8 => U8: |x| x.into(), x.into(); |y| y as u8;
    Bool => Bool: |x| u8::from(x.get()).into(), x.get().into(); |y| Bool::from(y as f64 != 0.0);
}

/// A float that kernels compute with. Arithmetic is in [`Float::Wide`]: an element is widened when
/// it is read, and rounded once, to nearest even, when it is written.
pub trait Float: Element {
    /// The type of sums: f64 for f64, f32 otherwise.
    type Wide: Wide;

    /// This element, exactly.
    fn wide(self) -> Self::Wide;

    /// The nearest element to `wide`.
    fn narrow(wide: Self::Wide) -> Self;

    /// For bf16, rounds `wide` stochastically: adds the upper half of the random word to the 16
    /// bits that bf16 drops, then truncates. The mean over all words is `wide`. NaN and infinities
    /// are unchanged. Other types round as [`Float::narrow`].
    #[inline(always)]
    fn narrow_at_random(wide: Self::Wide, _word: u32) -> Self {
        Self::narrow(wide)
    }
}

/// The arithmetic of CPU kernels: f32 or f64.
pub trait Wide:
    Float<Wide = Self>
    + Number
    + PartialOrd
    + std::ops::AddAssign
    + std::ops::MulAssign
    + std::iter::Sum
{
    /// Minus infinity.
    const NEG_INFINITY: Self;

    /// The larger of the two; `self` if either is NaN.
    fn larger(self, other: Self) -> Self;

    /// Runs `f`, which must be `#[inline(always)]`, compiled for the widest vectors of this
    /// machine. For f64, which only gradient checks use, runs it unchanged.
    fn vectorized<R>(f: impl FnOnce() -> R) -> R;
}

/// Runs `f` compiled for the widest vectors of this machine.
#[inline(always)]
fn vectorized<R>(f: impl FnOnce() -> R) -> R {
    struct Body<F>(F);

    impl<R, F: FnOnce() -> R> pulp::NullaryFnOnce for Body<F> {
        type Output = R;

        #[inline(always)]
        fn call(self) -> R {
            (self.0)()
        }
    }

    pulp::Arch::new().dispatch(Body(f))
}

macro_rules! wide_floats {
    ($($rust:ident: |$f:ident| $vectorized:expr;)+) => {
        $(
            impl Float for $rust {
                type Wide = $rust;

                #[inline(always)]
                fn wide(self) -> $rust {
                    self
                }

                #[inline(always)]
                fn narrow(wide: $rust) -> $rust {
                    wide
                }
            }

            impl Wide for $rust {
                const NEG_INFINITY: $rust = $rust::NEG_INFINITY;

                #[inline(always)]
                fn larger(self, other: $rust) -> $rust {
                    if other > self { other } else { self }
                }

                #[inline(always)]
                fn vectorized<R>($f: impl FnOnce() -> R) -> R {
                    $vectorized
                }
            }
        )+
    };
}

wide_floats! {
    f64: |f| f();
    f32: |f| vectorized(f);
}

impl Float for bf16 {
    type Wide = f32;

    #[inline(always)]
    fn wide(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    /// Round to nearest even; a NaN stays a NaN (its top fraction bit is set).
    ///
    /// Written without a branch so that loops over it become vector code.
    #[inline(always)]
    fn narrow(wide: f32) -> bf16 {
        let bits = wide.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        let quiet_nan = (bits >> 16) | 0x0040;
        bf16::from_bits(if wide.is_nan() { quiet_nan } else { rounded } as u16)
    }

    #[inline(always)]
    fn narrow_at_random(wide: f32, word: u32) -> bf16 {
        let bits = wide.to_bits();
        let moved = bits.wrapping_add(word >> 16) & 0xffff_0000;
        let is_finite = bits & 0x7fff_ffff < 0x7f80_0000;
        Self::narrow(f32::from_bits(if is_finite { moved } else { bits }))
    }
}

/// The error for a dtype that ops do not compute in.
pub(crate) fn not_a_float(dtype: DType) -> Error {
    error!(Invalid, "no arithmetic on {dtype}; cast to f64, f32 or bf16 first")
}

/// The error for a dtype that indices do not have.
pub(crate) fn not_an_index(dtype: DType) -> Error {
    error!(Invalid, "{dtype} is not an index dtype; use i64, i32 or u32")
}

/// Evaluates an expression with `$T` standing for the Rust type of a float dtype that computes.
///
/// The signature of the op has already rejected every other dtype; the last arm only satisfies the
/// compiler.
#[macro_export]
#[doc(hidden)]
macro_rules! for_float {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::DType::F64 => {
                type $T = f64;
                $body
            }
            $crate::DType::F32 => {
                type $T = f32;
                $body
            }
            $crate::DType::BF16 => {
                type $T = half::bf16;
                $body
            }
            other => Err($crate::core::dtype::not_a_float(other)),
        }
    };
}

/// Evaluates an expression with `$T` standing for the Rust type of any dtype.
#[macro_export]
#[doc(hidden)]
macro_rules! for_any {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::DType::F64 => {
                type $T = f64;
                $body
            }
            $crate::DType::F32 => {
                type $T = f32;
                $body
            }
            $crate::DType::BF16 => {
                type $T = half::bf16;
                $body
            }
            $crate::DType::F16 => {
                type $T = half::f16;
                $body
            }
            $crate::DType::I64 => {
                type $T = i64;
                $body
            }
            $crate::DType::I32 => {
                type $T = i32;
                $body
            }
            $crate::DType::U32 => {
                type $T = u32;
                $body
            }
            $crate::DType::U8 => {
                type $T = u8;
                $body
            }
            $crate::DType::Bool => {
                type $T = $crate::Bool;
                $body
            }
        }
    };
}

/// Evaluates an expression with `$T` standing for the Rust type of an index dtype (i64, i32, u32).
#[macro_export]
#[doc(hidden)]
macro_rules! for_index {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::DType::I64 => {
                type $T = i64;
                $body
            }
            $crate::DType::I32 => {
                type $T = i32;
                $body
            }
            $crate::DType::U32 => {
                type $T = u32;
                $body
            }
            other => Err($crate::core::dtype::not_an_index(other)),
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Our branch-free rounding is the same function as the `half` crate's, on every exponent and
    /// around every tie.
    #[test]
    fn bf16_rounding_equals_half() {
        for high in 0..=u16::MAX {
            for low in [0x0000, 0x0001, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let x = f32::from_bits(u32::from(high) << 16 | low);
                let (ours, theirs) = (<bf16 as Float>::narrow(x), bf16::from_f32(x));
                assert_eq!(ours.to_bits(), theirs.to_bits(), "{x:e} = {:#010x}", x.to_bits());
            }
        }
    }

    #[test]
    fn names_round_trip() {
        for dtype in DType::ALL {
            assert_eq!(DType::from_name(dtype.name()), Some(dtype));
        }
    }
}
