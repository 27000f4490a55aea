//! Arithmetic, comparisons and bit operations: one instruction each.

use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Rem, Shl, Shr, Sub};

use super::{F32, Operand, Pred, Register, S32, S64, Scalar, U32, U64};

/// A number type.
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
    /// The comparison that is true if two values differ or are unordered.
    #[doc(hidden)]
    const NE: &'static str;
}

/// f32 and f64. All operations keep subnormals and round to nearest even.
pub trait Float: Number {}

/// 32-bit and 64-bit integers with wrapping arithmetic.
pub trait Integer: Number + Bits {}

/// Signed numbers.
pub trait Signed: Number {}

/// Types with bit operations.
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

// ptxas does not fuse a multiplication and an addition that have an explicit rounding mode.
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

/// Shift by a constant. A shift by the type's width or more gives 0.
impl<T: Integer> Shl<u32> for Register<'_, T> {
    type Output = Self;

    #[track_caller]
    fn shl(self, by: u32) -> Self {
        self.k.compute(&format!("shl.{}", T::BITS), &[&self, &by])
    }
}

/// Shift by a register. A shift by the type's width or more gives 0.
impl<'k, T: Integer> Shl<U32<'k>> for Register<'k, T> {
    type Output = Self;

    #[track_caller]
    fn shl(self, by: U32<'k>) -> Self {
        self.k.compute(&format!("shl.{}", T::BITS), &[&self, &by])
    }
}

/// Shift by a constant, arithmetic for signed types.
impl<T: Integer> Shr<u32> for Register<'_, T> {
    type Output = Self;

    #[track_caller]
    fn shr(self, by: u32) -> Self {
        self.k.compute(T::SHIFT_RIGHT, &[&self, &by])
    }
}

/// Shift by a register, arithmetic for signed types.
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
    /// The minimum.
    #[track_caller]
    pub fn min(self, other: impl Operand<T>) -> Self {
        self.k.compute(&format!("min.{}", T::TYPE), &[&self, &other.written()])
    }

    /// The maximum.
    #[track_caller]
    pub fn max(self, other: impl Operand<T>) -> Self {
        self.k.compute(&format!("max.{}", T::TYPE), &[&self, &other.written()])
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

impl F32<'_> {
    /// The minimum; NaN if either operand is NaN.
    #[track_caller]
    pub fn min(self, other: impl Operand<f32>) -> Self {
        self.k.compute("min.NaN.f32", &[&self, &other.written()])
    }

    /// The maximum; NaN if either operand is NaN.
    #[track_caller]
    pub fn max(self, other: impl Operand<f32>) -> Self {
        self.k.compute("max.NaN.f32", &[&self, &other.written()])
    }

    /// 2^self within 2 ulp, in one instruction of the special function unit; 0 for minus infinity.
    /// The bits can differ between GPU models.
    #[track_caller]
    pub fn exp2_approx(self) -> Self {
        self.k.compute("ex2.approx.ftz.f32", &[&self])
    }

    /// The magnitude of `self` with the sign of `sign`.
    #[track_caller]
    pub fn copysign(self, sign: Self) -> Self {
        let magnitude = self.to_bits() & 0x7fff_ffff;
        (magnitude | (sign.to_bits() & 0x8000_0000)).to_f32_bits()
    }
}

impl<'k> U32<'k> {
    /// The full 64-bit product.
    #[track_caller]
    pub fn mul_wide(self, factor: impl Operand<u32>) -> U64<'k> {
        self.k.compute("mul.wide.u32", &[&self, &factor.written()])
    }

    /// The upper half of the 64-bit product.
    #[track_caller]
    pub fn mul_high(self, factor: impl Operand<u32>) -> U32<'k> {
        self.k.compute("mul.hi.u32", &[&self, &factor.written()])
    }
}

impl<'k> S32<'k> {
    /// The full 64-bit product.
    #[track_caller]
    pub fn mul_wide(self, factor: impl Operand<i32>) -> S64<'k> {
        self.k.compute("mul.wide.s32", &[&self, &factor.written()])
    }
}

impl<'k> Pred<'k> {
    /// `a` if the predicate is true, otherwise `b`. Both are evaluated.
    #[track_caller]
    pub fn select<T: Scalar>(self, a: impl Operand<T>, b: impl Operand<T>) -> Register<'k, T> {
        let operands: [&dyn std::fmt::Display; 3] = [&a.written(), &b.written(), &self];
        self.k.compute(&format!("selp.{}", T::BITS), &operands)
    }
}

#[cfg(test)]
mod tests {
    use super::super::kernel::tests::body;
    use super::super::{Kernel, Target};

    /// The opcodes of a kernel, except for those that set constants.
    fn opcodes(k: &Kernel) -> Vec<String> {
        let body = body(k);
        let opcodes = body.iter().filter_map(|line| line.split_once(' '));
        let opcodes = opcodes.filter(|(opcode, _)| !opcode.starts_with("mov"));
        opcodes.map(|(opcode, _)| opcode.to_owned()).collect()
    }

    /// Types determine the rounding of floats and the signedness of shifts and divisions.
    #[test]
    fn types_choose_instructions() {
        let k = &Kernel::new("types", Target::Sm80, 32);
        let (x, d, p) = (k.constant(1.0_f32), k.constant(1.0_f64), k.constant(true));
        let (u32, s32) = (k.constant(1u32), k.constant(1i32));
        let (u64, s64) = (k.constant(1u64), k.constant(1i64));
        let _floats = [x + 2.0, x - x, x / 2.0, x.fma(2.0, 3.0), x.max(2.0), x.sqrt()];
        let _more = (d * 2.0, -d, p & false);
        let _integers = (u32 * 2, u32 / u32, s32 % 2, u32.max(2), s32.max(2), s32 << 2);
        let _shifts = (u32 >> 2, s32 >> 2, u64 >> 2, s64 >> u32);
        assert_eq!(
            opcodes(k).join(" "),
            "add.rn.f32 sub.rn.f32 div.rn.f32 fma.rn.f32 max.NaN.f32 sqrt.rn.f32 \
             mul.rn.f64 neg.f64 and.pred \
             mul.lo.u32 div.u32 rem.s32 max.u32 max.s32 shl.b32 \
             shr.u32 shr.s32 shr.u64 shr.s64"
        );
    }

    /// Comparisons with NaN are false, except `differs`.
    #[test]
    fn only_differs_is_true_for_nan() {
        let k = &Kernel::new("comparisons", Target::Sm80, 32);
        let (x, n) = (k.constant(1.0_f32), k.constant(1u64));
        let _results = [x.lt(2.0), x.equals(x), x.differs(2.0), n.differs(2), n.ge(n)];
        assert_eq!(
            opcodes(k).join(" "),
            "setp.lt.f32 setp.eq.f32 setp.neu.f32 setp.ne.u64 setp.ge.u64"
        );
    }
}
