//! Tests of integer arithmetic against 128-bit integers.

use proptest::prelude::*;

use super::super::integer::*;

/// 64-bit integers, with powers of two and small numbers overrepresented; narrower ones are their
/// low bits.
fn any_bits() -> impl Strategy<Value = u64> {
    let near_power = (0_u32..64, -2_i64..=2)
        .prop_map(|(power, offset)| (1_u64 << power).wrapping_add(offset as u64));
    prop_oneof![any::<u64>(), near_power, any::<i8>().prop_map(|x| x as u64)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn high_halves_of_products(a in any_bits(), b in any_bits()) {
        let (a16, b16, a32, b32) = (a as u16, b as u16, a as u32, b as u32);
        let unsigned = |a: u32, b: u32| i128::from(a) * i128::from(b);
        let signed = |a: i64, b: i64| i128::from(a) * i128::from(b);
        prop_assert_eq!(mul_hi_u16(a16, b16), (unsigned(a16.into(), b16.into()) >> 16) as u16);
        prop_assert_eq!(mul_hi_u32(a32, b32), (unsigned(a32, b32) >> 32) as u32);
        let [sa16, sb16] = [a as i16, b as i16];
        prop_assert_eq!(mul_hi_s16(sa16, sb16), (signed(sa16.into(), sb16.into()) >> 16) as i16);
        let [sa32, sb32] = [a as i32, b as i32];
        prop_assert_eq!(mul_hi_s32(sa32, sb32), (signed(sa32.into(), sb32.into()) >> 32) as i32);
        prop_assert_eq!(mul_hi_s64(a as i64, b as i64), (signed(a as i64, b as i64) >> 64) as i64);
        // A product is its two halves.
        let whole = u128::from(mul_hi_u64(a, b)) << 64 | u128::from(a.wrapping_mul(b));
        prop_assert_eq!(whole, u128::from(a) * u128::from(b));
    }

    #[test]
    fn products_of_24_bits(a in any_bits(), b in any_bits()) {
        let (ua, ub) = (a as u32, b as u32);
        let unsigned = u64::from(ua % (1 << 24)) * u64::from(ub % (1 << 24));
        prop_assert_eq!(mul24_lo_u32(ua, ub), (unsigned & 0xffff_ffff) as u32);
        prop_assert_eq!(mul24_hi_u32(ua, ub), (unsigned >> 16 & 0xffff_ffff) as u32);
        let signed24 = |x: u32| {
            let low = i64::from(x % (1 << 24));
            if low < 1 << 23 { low } else { low - (1 << 24) }
        };
        let signed = signed24(ua) * signed24(ub);
        prop_assert_eq!(mul24_lo_s32(ua as i32, ub as i32), signed as i32);
        prop_assert_eq!(mul24_hi_s32(ua as i32, ub as i32), (signed >> 16) as i32);
    }

    #[test]
    fn sums(a in any_bits(), b in any_bits(), c in any_bits(), carry: bool) {
        let (a32, b32) = (a as u32, b as u32);
        let sum = u64::from(a32) + u64::from(b32) + u64::from(carry);
        let (low, out) = add_carry_u32(a32, b32, carry);
        prop_assert_eq!(u64::from(out) << 32 | u64::from(low), sum);
        let (low, out) = add_carry_u64(a, b, carry);
        let sum = u128::from(a) + u128::from(b) + u128::from(carry);
        prop_assert_eq!(u128::from(out) << 64 | u128::from(low), sum);

        let difference = i128::from(a32) - i128::from(b32) - i128::from(carry);
        prop_assert_eq!(sub_borrow_u32(a32, b32, carry), (difference as u32, difference < 0));
        let difference = i128::from(a) - i128::from(b) - i128::from(carry);
        prop_assert_eq!(sub_borrow_u64(a, b, carry), (difference as u64, difference < 0));

        let distance = (i128::from(a) - i128::from(b)).abs();
        prop_assert_eq!(sad_u64(a, b, c), (i128::from(c) + distance) as u64);
        let (sa, sb, sc) = (a as i64, b as i64, c as i64);
        let distance = (i128::from(sa) - i128::from(sb)).abs();
        prop_assert_eq!(sad_s64(sa, sb, sc), (i128::from(sc) + distance) as i64);
        let distance = (i128::from(a32) - i128::from(b32)).abs();
        prop_assert_eq!(sad_u32(a32, b32, c as u32), (i128::from(c as u32) + distance) as u32);
        let distance = (i128::from(a32 as i32) - i128::from(b32 as i32)).abs();
        let expected = (i128::from(c as i32) + distance) as i32;
        prop_assert_eq!(sad_s32(a32 as i32, b32 as i32, c as i32), expected);

        let high = (i128::from(a as i32) * i128::from(b as i32)) >> 32;
        let clamped = (high + i128::from(c as i32)).clamp(i32::MIN.into(), i32::MAX.into());
        prop_assert_eq!(mad_hi_sat_s32(a as i32, b as i32, c as i32), clamped as i32);
    }

    /// a = div * b + rem with |rem| < |b| and rem of a's sign, if the quotient exists.
    #[test]
    fn quotients_and_remainders(a in any_bits(), b in any_bits()) {
        if b != 0 {
            prop_assert_eq!(div_u64(a, b) * b + rem_u64(a, b), a);
            prop_assert!(rem_u64(a, b) < b);
        }
        let (sa, sb) = (a as i64, b as i64);
        if sb != 0 {
            let rem = rem_s64(sa, sb);
            prop_assert_eq!(div_s64(sa, sb).wrapping_mul(sb).wrapping_add(rem), sa);
            prop_assert!(rem.unsigned_abs() < sb.unsigned_abs());
            prop_assert!(rem == 0 || (rem < 0) == (sa < 0));
        }
        // The narrow functions agree with the wide ones.
        let (a32, b32) = (a as i32, b as i32);
        if b32 != 0 {
            prop_assert_eq!(div_s32(a32, b32), (i64::from(a32) / i64::from(b32)) as i32);
            prop_assert_eq!(rem_s32(a32, b32), (i64::from(a32) % i64::from(b32)) as i32);
            let (ua, ub) = (a32 as u32, b32 as u32);
            prop_assert_eq!(div_u32(ua, ub), (u64::from(ua) / u64::from(ub)) as u32);
            prop_assert_eq!(rem_u32(ua, ub), (u64::from(ua) % u64::from(ub)) as u32);
        }
        let (a16, b16) = (a as i16, b as i16);
        if b16 != 0 {
            prop_assert_eq!(div_s16(a16, b16), (i32::from(a16) / i32::from(b16)) as i16);
            prop_assert_eq!(rem_s16(a16, b16), (i32::from(a16) % i32::from(b16)) as i16);
            let (ua, ub) = (a16 as u16, b16 as u16);
            prop_assert_eq!((div_u16(ua, ub), rem_u16(ua, ub)), (ua / ub, ua % ub));
        }
    }

    #[test]
    fn shifts_multiply_and_divide(a in any_bits(), amount in prop_oneof![0_u32..70, any::<u32>()]) {
        let wide = u128::from(a);
        let small = amount.min(64);
        prop_assert_eq!(shl_b64(a, amount), (wide << small) as u64);
        prop_assert_eq!(shr_u64(a, amount), (wide >> small) as u64);
        prop_assert_eq!(shr_s64(a as i64, amount), (i128::from(a as i64) >> small) as i64);
        prop_assert_eq!(shl_b32(a as u32, amount), (wide << small) as u32);
        prop_assert_eq!(shr_u32(a as u32, amount), (u128::from(a as u32) >> small) as u32);
        prop_assert_eq!(shr_s32(a as i32, amount), (i128::from(a as i32) >> small) as i32);
        prop_assert_eq!(shl_b16(a as u16, amount), (wide << small) as u16);
        prop_assert_eq!(shr_u16(a as u16, amount), (u128::from(a as u16) >> small) as u16);
        prop_assert_eq!(shr_s16(a as i16, amount), (i128::from(a as i16) >> small) as i16);
    }

    #[test]
    fn dot_products_of_bytes(a: u32, b: u32, c: u32) {
        for (a_signed, b_signed) in [(false, false), (false, true), (true, false), (true, true)] {
            let bytes = |word: u32, signed: bool| {
                word.to_le_bytes().map(|x| if signed { i64::from(x as i8) } else { i64::from(x) })
            };
            let (a4, b4) = (bytes(a, a_signed), bytes(b, b_signed));
            let dot: i64 = a4.iter().zip(b4).map(|(a, b)| a * b).sum();
            let expected = (i64::from(c) + dot) as u32;
            prop_assert_eq!(dp4a(a, a_signed, b, b_signed, c), expected);

            let halves = [a & 0xffff, a >> 16]
                .map(|x| if a_signed { i64::from(x as i16) } else { i64::from(x) });
            for (high, bytes) in [(false, [b4[0], b4[1]]), (true, [b4[2], b4[3]])] {
                let dot = halves[0] * bytes[0] + halves[1] * bytes[1];
                let expected = (i64::from(c) + dot) as u32;
                prop_assert_eq!(dp2a(a, a_signed, b, b_signed, high, c), expected);
            }
        }
    }
}

#[test]
fn division_without_a_quotient() {
    assert_eq!((div_s32(7, 0), rem_s32(7, 0), div_s32(-7, 0)), (-1, -1, -1));
    assert_eq!((div_u32(7, 0), rem_u32(7, 0)), (u32::MAX, u32::MAX));
    assert_eq!((div_s64(7, 0), rem_u64(7, 0), div_u16(7, 0)), (-1, u64::MAX, u16::MAX));
    assert_eq!((div_s32(i32::MIN, -1), rem_s32(i32::MIN, -1)), (i32::MIN, 0));
    assert_eq!((div_s64(i64::MIN, -1), rem_s64(i64::MIN, -1)), (i64::MIN, 0));
}
