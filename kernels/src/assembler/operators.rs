//! Arithmetic, comparisons, bits and conversions: one instruction each.

use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Rem, Shl, Shr, Sub};

use super::{B16, F32, F64, Operand, Pair, Pred, Register, S32, S64, Scalar, U32, U64};

/// A type that one can calculate with.
pub trait Number: Scalar {
    /// The suffix of its instructions.
    #[doc(hidden)]
    const TYPE: &'static str;
    #[doc(hidden)]
    const ADD: &'static str;
    #[doc(hidden)]
    const SUB: &'static str;
    #[doc(hidden)]
    const MUL: &'static str;
    #[doc(hidden)]
    const DIV: &'static str;
    /// The comparison that holds when two values differ or are unordered.
    #[doc(hidden)]
    const NE: &'static str;
}

/// f32 and f64. All operations round to nearest even and keep subnormals.
pub trait Float: Number {}

/// Integers of 32 and 64 bits, which wrap around.
pub trait Integer: Number + Bits {}

/// Numbers with a sign.
pub trait Signed: Number {}

/// Types whose bits one can combine.
pub trait Bits: Scalar {
    /// The suffix of a shift to the right: arithmetic for signed types.
    #[doc(hidden)]
    const SHIFT_RIGHT: &'static str;
}

macro_rules! numbers {
    ($($type:ty: $suffix:literal, $rounding:literal, $mul:literal, $ne:literal;)+) => {
        $(
            impl Number for $type {
                const TYPE: &'static str = $suffix;
                const ADD: &'static str = concat!("add", $rounding, ".", $suffix);
                const SUB: &'static str = concat!("sub", $rounding, ".", $suffix);
                const MUL: &'static str = concat!("mul", $mul, ".", $suffix);
                const DIV: &'static str = concat!("div", $rounding, ".", $suffix);
                const NE: &'static str = concat!("setp.", $ne, ".", $suffix);
            }
        )+
    };
}

// With an explicit rounding, ptxas never fuses a multiplication with an addition.
numbers! {
    f32: "f32", ".rn", ".rn", "neu";
    f64: "f64", ".rn", ".rn", "neu";
    u32: "u32", "", ".lo", "ne";
    i32: "s32", "", ".lo", "ne";
    u64: "u64", "", ".lo", "ne";
    i64: "s64", "", ".lo", "ne";
}

macro_rules! bits {
    ($($type:ty: $shift:literal;)+) => {
        $(impl Bits for $type {
            const SHIFT_RIGHT: &'static str = $shift;
        })+
    };
}

bits! {
    u32: "shr.u32";
    i32: "shr.s32";
    u64: "shr.u64";
    i64: "shr.s64";
    bool: "";
}

macro_rules! marked {
    ($($mark:ident: $($type:ty),+;)+) => {
        $($(impl $mark for $type {})+)+
    };
}

marked! {
    Float: f32, f64;
    Integer: u32, i32, u64, i64;
    Signed: f32, f64, i32, i64;
}

/// An operator on two registers, and on a register and a constant.
macro_rules! operators {
    ($($trait:ident, $method:ident, $bound:ident, |$T:ident| $opcode:expr;)+) => {
        $(
            impl<'k, $T: $bound> $trait for Register<'k, $T> {
                type Output = Self;

                #[track_caller]
                fn $method(self, other: Self) -> Self {
                    self.k.compute(&$opcode, &[&self, &other])
                }
            }

            impl<'k, $T: $bound> $trait<$T> for Register<'k, $T> {
                type Output = Self;

                #[track_caller]
                fn $method(self, other: $T) -> Self {
                    self.k.compute(&$opcode, &[&self, &other.immediate()])
                }
            }
        )+
    };
}

operators! {
    Add, add, Number, |T| T::ADD;
    Sub, sub, Number, |T| T::SUB;
    Mul, mul, Number, |T| T::MUL;
    Div, div, Number, |T| T::DIV;
    Rem, rem, Integer, |T| format!("rem.{}", T::TYPE);
    BitAnd, bitand, Bits, |T| format!("and.{}", T::BITS);
    BitOr, bitor, Bits, |T| format!("or.{}", T::BITS);
    BitXor, bitxor, Bits, |T| format!("xor.{}", T::BITS);
}

impl<T: Signed> Neg for Register<'_, T> {
    type Output = Self;

    #[track_caller]
    fn neg(self) -> Self {
        self.k.compute(&format!("neg.{}", T::TYPE), &[&self])
    }
}

impl<T: Bits> Not for Register<'_, T> {
    type Output = Self;

    #[track_caller]
    fn not(self) -> Self {
        self.k.compute(&format!("not.{}", T::BITS), &[&self])
    }
}

/// Shift by a constant; all bits are shifted out from the type's width on.
impl<T: Integer> Shl<u32> for Register<'_, T> {
    type Output = Self;

    #[track_caller]
    fn shl(self, by: u32) -> Self {
        self.k.compute(&format!("shl.{}", T::BITS), &[&self, &by])
    }
}

/// Shift by a register; all bits are shifted out from the type's width on.
impl<'k, T: Integer> Shl<U32<'k>> for Register<'k, T> {
    type Output = Self;

    #[track_caller]
    fn shl(self, by: U32<'k>) -> Self {
        self.k.compute(&format!("shl.{}", T::BITS), &[&self, &by])
    }
}

/// Shift by a constant; a signed type keeps its sign.
impl<T: Integer> Shr<u32> for Register<'_, T> {
    type Output = Self;

    #[track_caller]
    fn shr(self, by: u32) -> Self {
        self.k.compute(T::SHIFT_RIGHT, &[&self, &by])
    }
}

/// Shift by a register; a signed type keeps its sign.
impl<'k, T: Integer> Shr<U32<'k>> for Register<'k, T> {
    type Output = Self;

    #[track_caller]
    fn shr(self, by: U32<'k>) -> Self {
        self.k.compute(T::SHIFT_RIGHT, &[&self, &by])
    }
}

impl<'k, T: Number> Register<'k, T> {
    #[track_caller]
    fn compare(self, relation: &str, other: impl Operand<T>) -> Pred<'k> {
        let opcode = format!("setp.{relation}.{}", T::TYPE);
        self.k.compute(&opcode, &[&self, &other.written()])
    }

    /// self < other; false when unordered.
    #[track_caller]
    pub fn lt(self, other: impl Operand<T>) -> Pred<'k> {
        self.compare("lt", other)
    }

    /// self <= other; false when unordered.
    #[track_caller]
    pub fn le(self, other: impl Operand<T>) -> Pred<'k> {
        self.compare("le", other)
    }

    /// self > other; false when unordered.
    #[track_caller]
    pub fn gt(self, other: impl Operand<T>) -> Pred<'k> {
        self.compare("gt", other)
    }

    /// self >= other; false when unordered.
    #[track_caller]
    pub fn ge(self, other: impl Operand<T>) -> Pred<'k> {
        self.compare("ge", other)
    }

    /// self == other; false when unordered.
    #[track_caller]
    pub fn equals(self, other: impl Operand<T>) -> Pred<'k> {
        self.compare("eq", other)
    }

    /// self != other; true when unordered.
    #[track_caller]
    pub fn differs(self, other: impl Operand<T>) -> Pred<'k> {
        self.k.compute(T::NE, &[&self, &other.written()])
    }
}

impl<'k, T: Integer> Register<'k, T> {
    /// The smaller one.
    #[track_caller]
    pub fn min(self, other: impl Operand<T>) -> Self {
        self.k
            .compute(&format!("min.{}", T::TYPE), &[&self, &other.written()])
    }

    /// The larger one.
    #[track_caller]
    pub fn max(self, other: impl Operand<T>) -> Self {
        self.k
            .compute(&format!("max.{}", T::TYPE), &[&self, &other.written()])
    }

    /// self * factor + addend.
    #[track_caller]
    pub fn mad(self, factor: impl Operand<T>, addend: impl Operand<T>) -> Self {
        let operands: [&dyn std::fmt::Display; 3] = [&self, &factor.written(), &addend.written()];
        self.k.compute(&format!("mad.lo.{}", T::TYPE), &operands)
    }
}

impl<T: Float> Register<'_, T> {
    /// self * factor + addend, rounded once.
    #[track_caller]
    pub fn fma(self, factor: impl Operand<T>, addend: impl Operand<T>) -> Self {
        let operands: [&dyn std::fmt::Display; 3] = [&self, &factor.written(), &addend.written()];
        self.k.compute(&format!("fma.rn.{}", T::TYPE), &operands)
    }

    /// The square root, correctly rounded.
    #[track_caller]
    pub fn sqrt(self) -> Self {
        self.k.compute(&format!("sqrt.rn.{}", T::TYPE), &[&self])
    }

    /// 1 / self, correctly rounded.
    #[track_caller]
    pub fn reciprocal(self) -> Self {
        self.k.compute(&format!("rcp.rn.{}", T::TYPE), &[&self])
    }

    /// The absolute value.
    #[track_caller]
    pub fn abs(self) -> Self {
        self.k.compute(&format!("abs.{}", T::TYPE), &[&self])
    }
}

impl<'k> F32<'k> {
    /// The smaller one; NaN where either is.
    #[track_caller]
    pub fn min(self, other: impl Operand<f32>) -> Self {
        self.k.compute("min.NaN.f32", &[&self, &other.written()])
    }

    /// The larger one; NaN where either is.
    #[track_caller]
    pub fn max(self, other: impl Operand<f32>) -> Self {
        self.k.compute("max.NaN.f32", &[&self, &other.written()])
    }

    /// Its magnitude with the sign of `sign`.
    #[track_caller]
    pub fn with_sign_of(self, sign: F32<'k>) -> Self {
        let magnitude = self.to_bits() & 0x7fff_ffff;
        (magnitude | (sign.to_bits() & 0x8000_0000)).to_f32_bits()
    }

    /// Its bits.
    #[track_caller]
    pub fn to_bits(self) -> U32<'k> {
        self.k.compute("mov.b32", &[&self])
    }

    /// Rounded to bf16, to nearest even.
    #[track_caller]
    pub fn to_bf16(self) -> B16<'k> {
        self.k.compute("cvt.rn.bf16.f32", &[&self])
    }

    /// Two values rounded to bf16, to nearest even; `self` has the lower address in memory.
    #[track_caller]
    pub fn pack(self, high: F32<'k>) -> Pair<'k> {
        self.k.compute("cvt.rn.bf16x2.f32", &[&high, &self])
    }
}

impl<'k> F64<'k> {
    /// Rounded to f32, to nearest even.
    #[track_caller]
    pub fn to_f32(self) -> F32<'k> {
        self.k.compute("cvt.rn.f32.f64", &[&self])
    }
}

impl<'k> Pair<'k> {
    /// Both halves; the one with the lower address first.
    #[track_caller]
    pub fn split(self) -> [B16<'k>; 2] {
        let halves = [self.k.register(), self.k.register()];
        let [low, high] = halves;
        self.k
            .emit(format_args!("mov.b32 {{{low}, {high}}}, {self}"));
        halves
    }

    /// Both values as f32, exactly; the one with the lower address first.
    #[track_caller]
    pub fn unpack(self) -> [F32<'k>; 2] {
        let bits: U32<'k> = Register::new(self.k, self.id);
        [
            (bits << 16).to_f32_bits(),
            (bits & 0xffff_0000).to_f32_bits(),
        ]
    }
}

impl<'k> B16<'k> {
    /// Two in one register; `self` has the lower address in memory.
    #[track_caller]
    pub fn pack(self, high: B16<'k>) -> Pair<'k> {
        self.k
            .compute("mov.b32", &[&format_args!("{{{self}, {high}}}")])
    }

    /// As f32, exactly.
    #[track_caller]
    pub fn to_f32(self) -> F32<'k> {
        let bits: U32<'k> = self.k.compute("cvt.u32.u16", &[&self]);
        (bits << 16).to_f32_bits()
    }
}

impl<'k> U32<'k> {
    /// With 64 bits.
    #[track_caller]
    pub fn wide(self) -> U64<'k> {
        self.k.compute("cvt.u64.u32", &[&self])
    }

    /// The product with all its 64 bits.
    #[track_caller]
    pub fn mul_wide(self, factor: impl Operand<u32>) -> U64<'k> {
        self.k.compute("mul.wide.u32", &[&self, &factor.written()])
    }

    /// The upper half of the 64-bit product.
    #[track_caller]
    pub fn mul_high(self, factor: impl Operand<u32>) -> U32<'k> {
        self.k.compute("mul.hi.u32", &[&self, &factor.written()])
    }

    /// As f32, rounded to nearest even.
    #[track_caller]
    pub fn to_f32(self) -> F32<'k> {
        self.k.compute("cvt.rn.f32.u32", &[&self])
    }

    /// The float with these bits.
    #[track_caller]
    pub fn to_f32_bits(self) -> F32<'k> {
        self.k.compute("mov.b32", &[&self])
    }

    /// The same bits, signed. No instruction.
    pub fn signed(self) -> S32<'k> {
        Register::new(self.k, self.id)
    }
}

impl<'k> S32<'k> {
    /// The product with all its 64 bits.
    #[track_caller]
    pub fn mul_wide(self, factor: impl Operand<i32>) -> S64<'k> {
        self.k.compute("mul.wide.s32", &[&self, &factor.written()])
    }

    /// With 64 bits.
    #[track_caller]
    pub fn wide(self) -> S64<'k> {
        self.k.compute("cvt.s64.s32", &[&self])
    }

    /// The same bits, unsigned. No instruction.
    pub fn unsigned(self) -> U32<'k> {
        Register::new(self.k, self.id)
    }
}

impl<'k> U64<'k> {
    /// The lower 32 bits.
    #[track_caller]
    pub fn low(self) -> U32<'k> {
        self.k.compute("cvt.u32.u64", &[&self])
    }

    /// The same bits, signed. No instruction.
    pub fn signed(self) -> S64<'k> {
        Register::new(self.k, self.id)
    }
}

impl<'k> S64<'k> {
    /// As f64, rounded to nearest even.
    #[track_caller]
    pub fn to_f64(self) -> F64<'k> {
        self.k.compute("cvt.rn.f64.s64", &[&self])
    }

    /// The same bits, unsigned. No instruction.
    pub fn unsigned(self) -> U64<'k> {
        Register::new(self.k, self.id)
    }
}

impl<'k> Pred<'k> {
    /// `a` where it holds, `b` elsewhere. Both are computed.
    #[track_caller]
    pub fn select<T: Scalar>(self, a: impl Operand<T>, b: impl Operand<T>) -> Register<'k, T> {
        let operands: [&dyn std::fmt::Display; 3] = [&a.written(), &b.written(), &self];
        self.k.compute(&format!("selp.{}", T::BITS), &operands)
    }
}
