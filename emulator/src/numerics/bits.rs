//! Instructions on the bits of a register: fields, searches, permutations, funnel shifts.
//!
//! Implements PTX ISA: bfe, bfi, bfind, fns, bmsk, szext of "Integer Arithmetic Instructions",
//! lop3, shf of "Logic and Shift Instructions", prmt of "Data Movement". popc, clz, brev and not
//! are Rust's `count_ones`, `leading_zeros`, `reverse_bits` and `!`.
//!
//! Positions and lengths of fields are the low 8 bits of their registers, as the manual specifies.

/// `bfe.u32`: the field of `length` bits at `position`, zero-extended.
#[inline(always)]
pub(crate) fn bfe_u32(a: u32, position: u32, length: u32) -> u32 {
    bfe_u64(u64::from(a), position, length) as u32
}

/// `bfe.s32`: the field of `length` bits at `position`, extended by its highest bit, or by the
/// register's highest bit if the field extends beyond it.
#[inline(always)]
pub(crate) fn bfe_s32(a: u32, position: u32, length: u32) -> u32 {
    bfe_s64(a as i32 as i64 as u64, position, length) as u32
}

/// `bfe.u64`: the field of `length` bits at `position`, zero-extended.
#[inline(always)]
pub(crate) fn bfe_u64(a: u64, position: u32, length: u32) -> u64 {
    let (position, length) = (position & 0xff, length & 0xff);
    let shifted = if position < 64 { a >> position } else { 0 };
    if length < 64 { shifted & !(u64::MAX << length) } else { shifted }
}

/// `bfe.s64`: the field of `length` bits at `position`, extended by its highest bit, or by the
/// register's highest bit if the field extends beyond it.
#[inline(always)]
pub(crate) fn bfe_s64(a: u64, position: u32, length: u32) -> u64 {
    let (position, length) = (position & 0xff, length & 0xff);
    if length == 0 {
        return 0;
    }
    let shifted = a as i64 >> position.min(63);
    let unused = 64 - length.min(64);
    (shifted << unused >> unused) as u64
}

/// `bfi.b32`: `b` with the low `length` bits of `a` inserted at `position`.
#[inline(always)]
pub(crate) fn bfi_b32(a: u32, b: u32, position: u32, length: u32) -> u32 {
    bfi_b64(u64::from(a), u64::from(b), position, length) as u32
}

/// `bfi.b64`: `b` with the low `length` bits of `a` inserted at `position`.
#[inline(always)]
pub(crate) fn bfi_b64(a: u64, b: u64, position: u32, length: u32) -> u64 {
    let (position, length) = (position & 0xff, length & 0xff);
    if position >= 64 {
        return b;
    }
    let field = if length < 64 { !(u64::MAX << length) } else { u64::MAX };
    let mask = field << position;
    b & !mask | a << position & mask
}

/// The result of `bfind` and `fns` if there is no such bit.
pub(crate) const NOT_FOUND: u32 = u32::MAX;

/// `bfind.u32`: position of the highest set bit.
#[inline(always)]
pub(crate) fn bfind_u32(a: u32) -> u32 {
    31_u32.wrapping_sub(a.leading_zeros())
}

/// `bfind.u64`: position of the highest set bit.
#[inline(always)]
pub(crate) fn bfind_u64(a: u64) -> u32 {
    63_u32.wrapping_sub(a.leading_zeros())
}

/// `bfind.s32`: position of the highest bit that differs from the sign.
#[inline(always)]
pub(crate) fn bfind_s32(a: i32) -> u32 {
    bfind_u32((a ^ a >> 31) as u32)
}

/// `bfind.s64`: position of the highest bit that differs from the sign.
#[inline(always)]
pub(crate) fn bfind_s64(a: i64) -> u32 {
    bfind_u64((a ^ a >> 63) as u64)
}

/// `bfind.shiftamt`: the left shift that moves the found bit to bit `width - 1`.
#[inline(always)]
pub(crate) fn as_shift_amount(found: u32, width: u32) -> u32 {
    if found == NOT_FOUND { NOT_FOUND } else { width - 1 - found }
}

/// `fns.b32`: position of the n-th set bit in `mask`, counted from `base` upwards for positive n
/// and downwards for negative n. n = 0 tests the bit at `base` itself.
pub(crate) fn fns(mask: u32, base: u32, n: i32) -> u32 {
    let Some(at_base) = 1_u32.checked_shl(base) else {
        return NOT_FOUND;
    };
    let below = at_base - 1;
    match n {
        0 => {
            if mask & at_base != 0 {
                base
            } else {
                NOT_FOUND
            }
        }
        1.. => {
            let candidates = (0..n - 1).try_fold(mask & !below, |rest, _| drop_lowest(rest));
            candidates.map_or(NOT_FOUND, |rest| position_or_not_found(rest.trailing_zeros()))
        }
        _ => {
            // Counting down from the highest bit equals counting up in the reversed mask.
            match fns(mask.reverse_bits(), 31 - base, n.checked_neg().unwrap_or(i32::MAX)) {
                NOT_FOUND => NOT_FOUND,
                mirrored => 31 - mirrored,
            }
        }
    }
}

fn drop_lowest(mask: u32) -> Option<u32> {
    (mask != 0).then(|| mask & (mask - 1))
}

fn position_or_not_found(position: u32) -> u32 {
    if position < 32 { position } else { NOT_FOUND }
}

/// The mode of `prmt.b32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permutation {
    /// Four selectors of four bits; bit 3 replicates the sign of the byte instead.
    Selected,
    /// `.f4e`: four bytes from position c on, upwards.
    Forward4,
    /// `.b4e`: four bytes from position c on, downwards.
    Backward4,
    /// `.rc8`: byte c four times.
    Replicate8,
    /// `.ecl`: bytes 0 to 3, those below c replaced by byte c.
    EdgeClampLeft,
    /// `.ecr`: bytes 0 to 3, those above c replaced by byte c.
    EdgeClampRight,
    /// `.rc16`: half-word c mod 2 twice.
    Replicate16,
}

/// `prmt.b32`: four of the eight bytes of a (0 to 3) and b (4 to 7).
#[inline(always)]
pub(crate) fn prmt(a: u32, b: u32, control: u32, mode: Permutation) -> u32 {
    let bytes = u64::from(b) << 32 | u64::from(a);
    let c = control & 3;
    let mut result = 0;
    for i in 0..4 {
        let selector = match mode {
            Permutation::Selected => control >> (4 * i) & 0xf,
            Permutation::Forward4 => (c + i) & 7,
            Permutation::Backward4 => c.wrapping_sub(i) & 7,
            Permutation::Replicate8 => c,
            Permutation::EdgeClampLeft => i.max(c),
            Permutation::EdgeClampRight => i.min(c),
            Permutation::Replicate16 => (c & 1) * 2 + (i & 1),
        };
        let byte = (bytes >> (8 * (selector & 7))) as u8;
        let sign = (byte as i8 >> 7) as u8;
        let chosen = if selector & 8 != 0 { sign } else { byte };
        result |= u32::from(chosen) << (8 * i);
    }
    result
}

/// `lop3.b32`: the logical function of three bits with the truth table `table`. Bit 4a + 2b + c is
/// the value at (a, b, c).
#[inline(always)]
pub(crate) fn lop3(a: u32, b: u32, c: u32, table: u8) -> u32 {
    let row = |index: u32| (u32::from(table) >> index & 1).wrapping_neg();
    let of_c = |rows: u32| !c & row(rows) | c & row(rows + 1);
    let of_b = |rows: u32| !b & of_c(rows) | b & of_c(rows + 2);
    !a & of_b(0) | a & of_b(4)
}

/// How an instruction treats amounts above 31.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FunnelAmount {
    /// `.clamp`: at most 32.
    Clamp,
    /// `.wrap`: modulo 32.
    Wrap,
}

impl FunnelAmount {
    #[inline(always)]
    fn of(self, amount: u32) -> u32 {
        match self {
            FunnelAmount::Clamp => amount.min(32),
            FunnelAmount::Wrap => amount & 31,
        }
    }
}

/// `shf.l`: the upper word of the 64 bits of `high` and `low` shifted left.
#[inline(always)]
pub(crate) fn shf_l(low: u32, high: u32, amount: u32, beyond: FunnelAmount) -> u32 {
    let both = u64::from(high) << 32 | u64::from(low);
    (both << beyond.of(amount) >> 32) as u32
}

/// `shf.r`: the lower word of the 64 bits of `high` and `low` shifted right.
#[inline(always)]
pub(crate) fn shf_r(low: u32, high: u32, amount: u32, beyond: FunnelAmount) -> u32 {
    let both = u64::from(high) << 32 | u64::from(low);
    (both >> beyond.of(amount)) as u32
}

/// An operand clamped to 32, or modulo 32.
#[inline(always)]
fn bounded(amount: u32, beyond: FunnelAmount) -> u32 {
    match beyond {
        FunnelAmount::Clamp => amount.min(32),
        FunnelAmount::Wrap => amount & 31,
    }
}

/// A number whose lowest `count` bits are set.
#[inline(always)]
fn lowest(count: u32) -> u32 {
    1_u32.checked_shl(count).map_or(u32::MAX, |bit| bit - 1)
}

/// `bmsk`: up to `width` ones from `position`.
#[inline(always)]
pub(crate) fn bmsk(position: u32, width: u32, beyond: FunnelAmount) -> u32 {
    let (position, width) = (bounded(position, beyond), bounded(width, beyond));
    lowest((position + width).min(32)) & !lowest(position)
}

/// `szext.u32`: the lowest `count` bits.
#[inline(always)]
pub(crate) fn szext_u32(a: u32, count: u32, beyond: FunnelAmount) -> u32 {
    a & lowest(bounded(count, beyond))
}

/// `szext.s32`: the lowest `count` bits, extended by the highest of them.
#[inline(always)]
pub(crate) fn szext_s32(a: u32, count: u32, beyond: FunnelAmount) -> u32 {
    match bounded(count, beyond) {
        0 => 0,
        count => (((a << (32 - count)) as i32) >> (32 - count)) as u32,
    }
}
