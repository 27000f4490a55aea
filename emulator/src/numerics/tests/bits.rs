//! Tests of bit instructions against transcriptions of the manual's pseudocode.

use proptest::prelude::*;

use super::super::bits::*;

/// The manual's loop for bfe of `width` bits.
fn extract(a: u64, position: u32, length: u32, signed: bool, width: u32) -> u64 {
    let (msb, position, length) = (width - 1, position & 0xff, length & 0xff);
    let bit = |index: u32| a >> index & 1;
    let sign = if !signed || length == 0 { 0 } else { bit((position + length - 1).min(msb)) };
    (0..=msb).fold(0, |d, i| {
        d | (if i < length && position + i <= msb { bit(position + i) } else { sign }) << i
    })
}

/// The manual's loop for bfi of `width` bits.
fn insert(a: u64, b: u64, position: u32, length: u32, width: u32) -> u64 {
    let (position, length) = (position & 0xff, length & 0xff);
    (0..length)
        .filter(|i| position + i < width)
        .fold(b, |f, i| f & !(1 << (position + i)) | (a >> i & 1) << (position + i))
}

/// The manual's loop for fns, whose base is below 32.
fn find_nth(mask: u32, base: u32, offset: i32) -> u32 {
    let is_set = |position: i64| mask >> position & 1 == 1;
    if offset == 0 {
        return if is_set(base.into()) { base } else { u32::MAX };
    }
    let (mut position, mut count) = (i64::from(base), offset.unsigned_abs() - 1);
    while (0..32).contains(&position) {
        if is_set(position) && count == 0 {
            return position as u32;
        }
        count -= u32::from(is_set(position));
        position += i64::from(offset.signum());
    }
    u32::MAX
}

fn field() -> impl Strategy<Value = u32> {
    prop_oneof![0_u32..70, any::<u32>()]
}

fn bounded(amount: u32, wraps: bool) -> u32 {
    if wraps { amount % 32 } else { amount.min(32) }
}

/// The manual's formulas for bmsk, in 64 bits.
fn mask(position: u32, width: u32, wraps: bool) -> u32 {
    let (position, width) = (bounded(position, wraps), bounded(width, wraps));
    let below = (1_u64 << position) - 1;
    let above = u64::MAX << (position + width).min(32);
    !(below | above) as u32
}

/// The manual's formulas for szext.
fn extend(a: u32, count: u32, wraps: bool, signed: bool) -> u32 {
    let count = bounded(count, wraps);
    let too_large = count == 32;
    let above = if too_large { 0 } else { u32::MAX << count };
    let is_negative = !too_large && count > 0 && signed && a >> (count - 1) & 1 == 1;
    if is_negative { a | above } else { a & !above }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn masks_and_extensions(a: u32, position in field(), count in field(), wraps: bool) {
        let beyond = if wraps { FunnelAmount::Wrap } else { FunnelAmount::Clamp };
        prop_assert_eq!(bmsk(position, count, beyond), mask(position, count, wraps));
        prop_assert_eq!(szext_u32(a, count, beyond), extend(a, count, wraps, false));
        prop_assert_eq!(szext_s32(a, count, beyond), extend(a, count, wraps, true));
    }

    #[test]
    fn fields(a: u64, b: u64, position in field(), length in field()) {
        let (a32, b32) = (a as u32, b as u32);
        let extract32 = |signed| extract(a32.into(), position, length, signed, 32) as u32;
        prop_assert_eq!(bfe_u32(a32, position, length), extract32(false));
        prop_assert_eq!(bfe_s32(a32, position, length), extract32(true));
        prop_assert_eq!(bfe_u64(a, position, length), extract(a, position, length, false, 64));
        prop_assert_eq!(bfe_s64(a, position, length), extract(a, position, length, true, 64));
        let expected = insert(a32.into(), b32.into(), position, length, 32) as u32;
        prop_assert_eq!(bfi_b32(a32, b32, position, length), expected);
        prop_assert_eq!(bfi_b64(a, b, position, length), insert(a, b, position, length, 64));
    }

    #[test]
    fn highest_bits(a: u64, shift in 0_u32..64) {
        let a = a as i64 >> shift;
        let highest = |bits: u64, width: u32| {
            (0..width).rev().find(|&i| bits >> i & 1 == 1).unwrap_or(u32::MAX)
        };
        prop_assert_eq!(bfind_u32(a as u32), highest(u64::from(a as u32), 32));
        prop_assert_eq!(bfind_u64(a as u64), highest(a as u64, 64));
        let magnitude = |x: i64| (if x < 0 { !x } else { x }) as u64;
        prop_assert_eq!(bfind_s64(a), highest(magnitude(a), 64));
        prop_assert_eq!(bfind_s32(a as i32), highest(magnitude((a as i32).into()), 32));

        let amount = as_shift_amount(bfind_u32(a as u32), 32);
        prop_assert!(amount == u32::MAX && a as u32 == 0 || (a as u32) << amount >> 31 == 1);
    }

    #[test]
    fn nth_bits(mask: u32, sparse: u32, base in 0_u32..32, n in -34_i32..=34) {
        for mask in [mask, mask & sparse, 0, u32::MAX] {
            prop_assert_eq!(fns(mask, base, n), find_nth(mask, base, n));
        }
    }

    #[test]
    fn truth_tables(a: u32, b: u32, c: u32, table: u8) {
        let result = lop3(a, b, c, table);
        for bit in 0..32 {
            let of = |word: u32| word >> bit & 1;
            let row = of(a) * 4 + of(b) * 2 + of(c);
            prop_assert_eq!(of(result), u32::from(table) >> row & 1);
        }
        // How the manual derives tables: the function of 0xf0, 0xcc and 0xaa.
        prop_assert_eq!(lop3(a, b, c, 0xf0 & 0xcc & 0xaa), a & b & c);
        prop_assert_eq!(lop3(a, b, c, 0xf0 | 0xcc & !0xaa), a | b & !c);
    }

    #[test]
    fn funnels(low: u32, high: u32, amount in field()) {
        let both = u128::from(high) << 32 | u128::from(low);
        let (clamped, wrapped) = (amount.min(32), amount % 32);
        let left = |amount: u32| (both << amount >> 32) as u32;
        let right = |amount: u32| (both >> amount) as u32;
        prop_assert_eq!(shf_l(low, high, amount, FunnelAmount::Clamp), left(clamped));
        prop_assert_eq!(shf_l(low, high, amount, FunnelAmount::Wrap), left(wrapped));
        prop_assert_eq!(shf_r(low, high, amount, FunnelAmount::Clamp), right(clamped));
        prop_assert_eq!(shf_r(low, high, amount, FunnelAmount::Wrap), right(wrapped));
    }
}

/// The manual's table of selected bytes for c = 0 to 3, from byte 3 of the result to byte 0.
#[test]
fn permutations_follow_the_table() {
    use Permutation::*;
    let table = [
        (Forward4, [[3, 2, 1, 0], [4, 3, 2, 1], [5, 4, 3, 2], [6, 5, 4, 3]]),
        (Backward4, [[5, 6, 7, 0], [6, 7, 0, 1], [7, 0, 1, 2], [0, 1, 2, 3]]),
        (Replicate8, [[0; 4], [1; 4], [2; 4], [3; 4]]),
        (EdgeClampLeft, [[3, 2, 1, 0], [3, 2, 1, 1], [3, 2, 2, 2], [3, 3, 3, 3]]),
        (EdgeClampRight, [[0, 0, 0, 0], [1, 1, 1, 0], [2, 2, 1, 0], [3, 2, 1, 0]]),
        (Replicate16, [[1, 0, 1, 0], [3, 2, 3, 2], [1, 0, 1, 0], [3, 2, 3, 2]]),
    ];
    // Byte i of the pair has the value 0x80 + i.
    let (a, b) = (0x8382_8180, 0x8786_8584);
    for (mode, rows) in table {
        for (control, row) in rows.into_iter().enumerate() {
            let expected = u32::from_be_bytes(row.map(|byte: u8| 0x80 + byte));
            assert_eq!(prmt(a, b, control as u32, mode), expected, "{mode:?} {control}");
        }
    }
    assert_eq!(prmt(a, b, 0x7531, Selected), 0x8785_8381);
    assert_eq!(prmt(0x0080, 0xff00_0000, 0xf980, Selected), 0xff00_ff80);
}
