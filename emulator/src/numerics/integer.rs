//! Integer and logic instructions without a Rust operator.
//!
//! Implements PTX ISA, "Integer Arithmetic Instructions", "Extended-Precision Integer Arithmetic
//! Instructions" and "Logic and Shift Instructions". Where signed and unsigned integers differ,
//! there is a function for each, or it takes the type. Operations that wrap around (add, sub,
//! mul.lo, mad.lo, neg, abs of the smallest number) are Rust's `wrapping_*` and not repeated here.

/// `mul.hi.u32`.
#[inline(always)]
pub(crate) fn mul_hi_u32(a: u32, b: u32) -> u32 {
    ((u64::from(a) * u64::from(b)) >> 32) as u32
}

/// `mul.hi.s32`.
#[inline(always)]
pub(crate) fn mul_hi_s32(a: i32, b: i32) -> i32 {
    ((i64::from(a) * i64::from(b)) >> 32) as i32
}

/// `mul.hi.u64`.
#[inline(always)]
pub(crate) fn mul_hi_u64(a: u64, b: u64) -> u64 {
    ((u128::from(a) * u128::from(b)) >> 64) as u64
}

/// `mul.hi.s64`.
#[inline(always)]
pub(crate) fn mul_hi_s64(a: i64, b: i64) -> i64 {
    ((i128::from(a) * i128::from(b)) >> 64) as i64
}

/// `mul.hi.u16`.
#[inline(always)]
pub(crate) fn mul_hi_u16(a: u16, b: u16) -> u16 {
    ((u32::from(a) * u32::from(b)) >> 16) as u16
}

/// `mul.hi.s16`.
#[inline(always)]
pub(crate) fn mul_hi_s16(a: i16, b: i16) -> i16 {
    ((i32::from(a) * i32::from(b)) >> 16) as i16
}

/// The 48-bit product of two numbers' low 24 bits, for mul24 and mad24 of `.u32`.
#[inline(always)]
fn product24_u32(a: u32, b: u32) -> u64 {
    let low = |x: u32| u64::from(x & 0xff_ffff);
    low(a) * low(b)
}

/// The 48-bit product of two numbers' low 24 bits, for mul24 and mad24 of `.s32`.
#[inline(always)]
fn product24_s32(a: i32, b: i32) -> i64 {
    let low = |x: i32| i64::from(x << 8 >> 8);
    low(a) * low(b)
}

/// `mul24.lo.u32`: bits 31 to 0 of the product. `mad24` adds to it and wraps around.
#[inline(always)]
pub(crate) fn mul24_lo_u32(a: u32, b: u32) -> u32 {
    product24_u32(a, b) as u32
}

/// `mul24.hi.u32`: bits 47 to 16 of the product.
#[inline(always)]
pub(crate) fn mul24_hi_u32(a: u32, b: u32) -> u32 {
    (product24_u32(a, b) >> 16) as u32
}

/// `mul24.lo.s32`: bits 31 to 0 of the product.
#[inline(always)]
pub(crate) fn mul24_lo_s32(a: i32, b: i32) -> i32 {
    product24_s32(a, b) as i32
}

/// `mul24.hi.s32`: bits 47 to 16 of the product. `mad24.hi.sat` adds with [`i32::saturating_add`].
#[inline(always)]
pub(crate) fn mul24_hi_s32(a: i32, b: i32) -> i32 {
    (product24_s32(a, b) >> 16) as i32
}

/// `mad.hi.sat.s32`; `add.sat.s32` and `sub.sat.s32` are Rust's saturating operators.
#[inline(always)]
pub(crate) fn mad_hi_sat_s32(a: i32, b: i32, c: i32) -> i32 {
    mul_hi_s32(a, b).saturating_add(c)
}

/// `sad.u32`: c + |a - b|. The 16-bit forms extend their operands and call this.
#[inline(always)]
pub(crate) fn sad_u32(a: u32, b: u32, c: u32) -> u32 {
    c.wrapping_add(a.abs_diff(b))
}

/// `sad.s32`: c + |a - b|. The 16-bit forms extend their operands and call this.
#[inline(always)]
pub(crate) fn sad_s32(a: i32, b: i32, c: i32) -> i32 {
    c.wrapping_add_unsigned(a.abs_diff(b))
}

/// `sad.u64`: c + |a - b|.
#[inline(always)]
pub(crate) fn sad_u64(a: u64, b: u64, c: u64) -> u64 {
    c.wrapping_add(a.abs_diff(b))
}

/// `sad.s64`: c + |a - b|.
#[inline(always)]
pub(crate) fn sad_s64(a: i64, b: i64, c: i64) -> i64 {
    c.wrapping_add_unsigned(a.abs_diff(b))
}

/// `add.cc`, `addc`: a + b + carry and the carry out. `mad.cc` and `madc` pass a product as `a`.
#[inline(always)]
pub(crate) fn add_carry_u32(a: u32, b: u32, carry: bool) -> (u32, bool) {
    let sum = u64::from(a) + u64::from(b) + u64::from(carry);
    (sum as u32, sum >> 32 != 0)
}

/// `sub.cc`, `subc`: a - (b + borrow) and the borrow out.
#[inline(always)]
pub(crate) fn sub_borrow_u32(a: u32, b: u32, borrow: bool) -> (u32, bool) {
    let subtrahend = u64::from(b) + u64::from(borrow);
    let difference = u64::from(a).wrapping_sub(subtrahend);
    (difference as u32, u64::from(a) < subtrahend)
}

/// `add.cc`, `addc` of 64 bits: a + b + carry and the carry out.
#[inline(always)]
pub(crate) fn add_carry_u64(a: u64, b: u64, carry: bool) -> (u64, bool) {
    let (sum, first) = a.overflowing_add(b);
    let (sum, second) = sum.overflowing_add(u64::from(carry));
    (sum, first || second)
}

/// `sub.cc`, `subc` of 64 bits: a - (b + borrow) and the borrow out.
#[inline(always)]
pub(crate) fn sub_borrow_u64(a: u64, b: u64, borrow: bool) -> (u64, bool) {
    let (difference, first) = a.overflowing_sub(b);
    let (difference, second) = difference.overflowing_sub(u64::from(borrow));
    (difference, first || second)
}

/// Defines division and remainder of a signed and an unsigned type.
///
/// PTX does not specify division by zero. The code that ptxas emits returns all ones, for quotients
/// and remainders of both signs, and so does this. The one quotient that overflows, the smallest
/// number by -1, wraps around to the smallest number, with remainder 0.
macro_rules! division {
    ($signed:ty, $unsigned:ty, $div_s:ident, $rem_s:ident, $div_u:ident, $rem_u:ident) => {
        /// `div` of a signed type, toward zero; all ones if `b` is zero.
        #[inline(always)]
        pub(crate) fn $div_s(a: $signed, b: $signed) -> $signed {
            if b == 0 { -1 } else { a.wrapping_div(b) }
        }

        /// `rem` of a signed type, with the sign of `a`; all ones if `b` is zero.
        #[inline(always)]
        pub(crate) fn $rem_s(a: $signed, b: $signed) -> $signed {
            if b == 0 { -1 } else { a.wrapping_rem(b) }
        }

        /// `div` of an unsigned type; all ones if `b` is zero.
        #[inline(always)]
        pub(crate) fn $div_u(a: $unsigned, b: $unsigned) -> $unsigned {
            a.checked_div(b).unwrap_or(<$unsigned>::MAX)
        }

        /// `rem` of an unsigned type; all ones if `b` is zero.
        #[inline(always)]
        pub(crate) fn $rem_u(a: $unsigned, b: $unsigned) -> $unsigned {
            a.checked_rem(b).unwrap_or(<$unsigned>::MAX)
        }
    };
}

division!(i16, u16, div_s16, rem_s16, div_u16, rem_u16);
division!(i32, u32, div_s32, rem_s32, div_u32, rem_u32);
division!(i64, u64, div_s64, rem_s64, div_u64, rem_u64);

/// Defines the shifts of one width. Larger amounts count as the width.
macro_rules! shifts {
    ($signed:ty, $unsigned:ty, $shl:ident, $shr_u:ident, $shr_s:ident) => {
        /// `shl`; zero for amounts of at least the width.
        #[inline(always)]
        pub(crate) fn $shl(a: $unsigned, amount: u32) -> $unsigned {
            if amount < <$unsigned>::BITS { a << amount } else { 0 }
        }

        /// `shr` of an unsigned type; zero for amounts of at least the width.
        #[inline(always)]
        pub(crate) fn $shr_u(a: $unsigned, amount: u32) -> $unsigned {
            if amount < <$unsigned>::BITS { a >> amount } else { 0 }
        }

        /// `shr` of a signed type; all sign bits for amounts of at least the width.
        #[inline(always)]
        pub(crate) fn $shr_s(a: $signed, amount: u32) -> $signed {
            a >> amount.min(<$unsigned>::BITS - 1)
        }
    };
}

shifts!(i16, u16, shl_b16, shr_u16, shr_s16);
shifts!(i32, u32, shl_b32, shr_u32, shr_s32);
shifts!(i64, u64, shl_b64, shr_u64, shr_s64);

/// `dp4a`: c plus the dot product of four bytes, each operand signed or not.
#[inline(always)]
pub(crate) fn dp4a(a: u32, a_signed: bool, b: u32, b_signed: bool, c: u32) -> u32 {
    let product = |shift: u32| byte(a, shift, a_signed).wrapping_mul(byte(b, shift, b_signed));
    let sum = product(0) + product(8) + product(16) + product(24);
    c.wrapping_add_signed(sum)
}

/// `dp2a`: c plus the dot product of the two halves of a with two bytes of b: the upper two if
/// `high` (`.hi`), else the lower two.
#[inline(always)]
pub(crate) fn dp2a(a: u32, a_signed: bool, b: u32, b_signed: bool, high: bool, c: u32) -> u32 {
    let half = |shift: u32| match a_signed {
        true => i32::from((a >> shift) as i16),
        false => i32::from((a >> shift) as u16),
    };
    let first = if high { 16 } else { 0 };
    let sum = half(0) * byte(b, first, b_signed) + half(16) * byte(b, first + 8, b_signed);
    c.wrapping_add_signed(sum)
}

#[inline(always)]
fn byte(word: u32, shift: u32, signed: bool) -> i32 {
    let byte = (word >> shift) as u8;
    if signed { i32::from(byte as i8) } else { i32::from(byte) }
}
