//! Integers, bits and bytes: `integer.cu`.

use crate::conformance::corpus;
use crate::conformance::data::Noise;
use crate::conformance::gpu::arguments;

const N: usize = 300;

/// Pairs of words: edge cases and random words of all widths.
fn words(seed: u64) -> (Vec<u32>, Vec<u32>) {
    let corners =
        [0, 1, 2, 31, 32, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 0x0001_0000, 0x5555_5555];
    let pairs = corners.iter().flat_map(|x| corners.iter().map(move |y| (*x, *y)));
    let mut noise = Noise::new(seed);
    let mut draw = || noise.u32() >> noise.integer(0, 31);
    let mut pairs: Vec<(u32, u32)> = pairs.collect();
    pairs.resize_with(N, || (draw(), draw()));
    pairs.into_iter().unzip()
}

/// Four of eight bytes, selected by the selector's nibbles (PTX ISA, prmt without mode).
fn permute(x: u32, y: u32, selector: u32) -> u32 {
    let bytes = (u64::from(y) << 32 | u64::from(x)).to_le_bytes();
    u32::from_le_bytes([0, 4, 8, 12].map(|at| bytes[(selector >> at) as usize & 7]))
}

#[test]
fn counting_and_moving_bits() {
    let gpu = corpus("integer");
    let (a, b) = words(1);
    let (x, y, out) = (gpu.upload(&a), gpu.upload(&b), gpu.uninitialized(4 * 16 * N));
    gpu.launch("bits", [5, 1, 1], [64, 1, 1], 0, arguments![x, y, out, N as i32]);

    let got = gpu.download::<u32>(&out);
    for i in 0..N {
        let (x, y) = (a[i], b[i]);
        let wide = u64::from(x) << 32 | u64::from(y);
        let joined = u64::from(y) << 32 | u64::from(x);
        let first_from = (y & 31..32).find(|at| x >> at & 1 == 1);
        let want = [
            x.count_ones(),
            x.leading_zeros(),
            x.reverse_bits(),
            if x == 0 { 0 } else { x.trailing_zeros() + 1 },
            permute(x, y, 0x7531),
            permute(x, y, y),
            ((joined << (y & 31)) >> 32) as u32,
            (joined >> (x & 31)) as u32,
            x,
            wide.count_ones(),
            wide.leading_zeros(),
            if wide == 0 { 0 } else { wide.trailing_zeros() + 1 },
            (wide.reverse_bits() >> 13) as u32,
            (x >> (y & 31)) & ((1 << (x & 15)) - 1),
            (x & y) | ((!x & 0x5555_5555) ^ (y << 3)),
            first_from.unwrap_or(!0),
        ];
        assert_eq!(got[16 * i..16 * i + 16], want, "{x:#x} {y:#x}");
    }
}

fn sign_extended_24(x: i32) -> i64 {
    i64::from(x << 8 >> 8)
}

#[test]
fn products_and_sums() {
    let gpu = corpus("integer");
    let (a, b) = words(2);
    let (x, y, out) = (gpu.upload(&a), gpu.upload(&b), gpu.uninitialized(4 * 16 * N));
    gpu.launch("products", [5, 1, 1], [64, 1, 1], 0, arguments![x, y, out, N as i32]);

    let got = gpu.download::<i32>(&out);
    for i in 0..N {
        let (ux, uy) = (a[i], b[i]);
        let (x, y) = (ux as i32, uy as i32);
        let (wide_x, wide_y) = (i64::from(x), i64::from(y));
        let (bytes_x, bytes_y) = (ux.to_le_bytes(), uy.to_le_bytes());
        let four = bytes_x.iter().zip(bytes_y);
        let signed_four = four.clone().map(|(p, q)| i32::from(*p as i8) * i32::from(q as i8));
        let two = [x as i16, (x >> 16) as i16].map(i32::from);
        let unsigned_two = [ux & 0xffff, ux >> 16];
        let product = wide_x * wide_y;
        let want = [
            (product >> 32) as i32,
            ((u64::from(ux) * u64::from(uy)) >> 32) as i32,
            (sign_extended_24(x) * sign_extended_24(y)) as i32,
            (x.abs_diff(y) as i32).wrapping_add(7),
            (ux.abs_diff(uy) as i32).wrapping_add(7),
            ((wide_x + wide_y) >> 1) as i32,
            ((wide_x + wide_y + 1) >> 1) as i32,
            5 + signed_four.sum::<i32>(),
            5 + four.map(|(p, q)| i32::from(*p) * i32::from(q)).sum::<i32>(),
            5 + two[0] * i32::from(bytes_y[0] as i8) + two[1] * i32::from(bytes_y[1] as i8),
            (5 + unsigned_two[0] * u32::from(bytes_y[2]) + unsigned_two[1] * u32::from(bytes_y[3]))
                as i32,
            x.wrapping_mul(y).wrapping_add(i as i32),
            x.wrapping_abs(),
            x.clamp(-1000, 1000),
            ((i128::from(product) * i128::from(wide_y << 32)) >> 64) as i32,
            (product >> 17) as i32,
        ];
        assert_eq!(got[16 * i..16 * i + 16], want, "{x:#x} {y:#x}");
    }
}

#[test]
fn quotients_truncate_towards_zero() {
    let gpu = corpus("integer");
    let mut noise = Noise::new(3);
    let mut draw = || noise.u64() as i64 >> noise.integer(0, 62);
    let mut pairs: Vec<(i64, i64)> = (0..N).map(|_| (draw(), draw())).collect();
    pairs[0] = (i64::MIN, 3);
    pairs[1] = (-7, 2);
    pairs[2] = (7, -2);
    pairs[3] = (i64::MAX, -1);
    // No division by zero, and no overflow.
    pairs.iter_mut().filter(|(_, y)| *y == 0).for_each(|(_, y)| *y = 5);
    pairs.iter_mut().filter(|(x, y)| *x == i64::MIN && *y == -1).for_each(|(x, _)| *x = 1);
    let (a, b): (Vec<i64>, Vec<i64>) = pairs.iter().copied().unzip();
    let (x, y, out) = (gpu.upload(&a), gpu.upload(&b), gpu.uninitialized(8 * 12 * N));
    gpu.launch("quotients", [5, 1, 1], [64, 1, 1], 0, arguments![x, y, out, N as i32]);

    let got = gpu.download::<i64>(&out);
    for (i, (x, y)) in pairs.into_iter().enumerate() {
        let (unsigned_x, unsigned_y) = (x as u64, y as u64);
        let (narrow, by) = (x as i32, (y | 1) as i32);
        let (unsigned_narrow, unsigned_by) = (narrow as u32, by as u32);
        let guarded = |value: i32| if by == -1 { 0 } else { i64::from(value) };
        let want = [
            x / y,
            x % y,
            (unsigned_x / unsigned_y) as i64,
            (unsigned_x % unsigned_y) as i64,
            guarded(narrow.wrapping_div(by)),
            guarded(narrow.wrapping_rem(by)),
            (unsigned_narrow / unsigned_by).into(),
            (unsigned_narrow % unsigned_by).into(),
            (narrow / 7).into(),
            (unsigned_narrow % 10).into(),
            x / 1_000_000_007,
            (narrow / 8).into(),
        ];
        assert_eq!(got[12 * i..12 * i + 12], want, "{x} {y}");
    }
}

fn bytewise(x: u32, y: u32, f: impl Fn(u8, u8) -> u8) -> u32 {
    let (x, y) = (x.to_le_bytes(), y.to_le_bytes());
    u32::from_le_bytes([0, 1, 2, 3].map(|i| f(x[i], y[i])))
}

fn by_halves(x: u32, y: u32, f: impl Fn(u16, u16) -> u16) -> u32 {
    let high = f((x >> 16) as u16, (y >> 16) as u16);
    u32::from(high) << 16 | u32::from(f(x as u16, y as u16))
}

#[test]
fn packed_bytes_and_halfwords() {
    let gpu = corpus("integer");
    let (a, b) = words(4);
    let (x, y, out) = (gpu.upload(&a), gpu.upload(&b), gpu.uninitialized(4 * 10 * N));
    gpu.launch("packed", [5, 1, 1], [64, 1, 1], 0, arguments![x, y, out, N as i32]);

    let got = gpu.download::<u32>(&out);
    for i in 0..N {
        let (x, y) = (a[i], b[i]);
        let differences = bytewise(x, y, u8::abs_diff);
        let want = [
            bytewise(x, y, u8::wrapping_add),
            bytewise(x, y, u8::wrapping_sub),
            differences,
            bytewise(x, y, |p, q| (p as i8).max(q as i8) as u8),
            by_halves(x, y, u16::min),
            bytewise(x, y, |p, q| ((u16::from(p) + u16::from(q) + 1) >> 1) as u8),
            bytewise(x, y, |p, q| if p > q { 0xff } else { 0 }),
            bytewise(x, y, u8::saturating_add),
            differences.to_le_bytes().map(u32::from).iter().sum(),
            by_halves(x, y, u16::wrapping_add),
        ];
        assert_eq!(got[10 * i..10 * i + 10], want, "{x:#x} {y:#x}");
    }
}

#[test]
fn integers_of_128_bits() {
    let gpu = corpus("integer");
    let mut noise = Noise::new(5);
    let draw = |noise: &mut Noise| {
        let all = u128::from(noise.u64()) << 64 | u128::from(noise.u64());
        all >> noise.integer(0, 127)
    };
    let a = noise.vector(N, draw);
    let mut b = noise.vector(N, draw);
    b[0] = 0;
    b[1] = u128::MAX;
    let (x, y) = (gpu.upload(&a), gpu.upload(&b));

    let out = gpu.uninitialized(16 * 3 * N);
    gpu.launch("wide", [5, 1, 1], [64, 1, 1], 0, arguments![x, y, out, N as i32]);
    let got = gpu.download::<u128>(&out);
    for i in 0..N {
        let (x, y) = (a[i], b[i]);
        let shifted = x.wrapping_sub(y) >> (y as u64 & 127);
        let want = [x.wrapping_add(y), x.wrapping_mul(y), shifted];
        assert_eq!(got[3 * i..3 * i + 3], want, "{x:#x} {y:#x}");
    }

    let (sum, difference) = (gpu.uninitialized(16 * N), gpu.uninitialized(16 * N));
    gpu.launch("carries", [5, 1, 1], [60, 1, 1], 0, arguments![x, y, sum, difference]);
    let sums = gpu.download::<u128>(&sum);
    let differences = gpu.download::<u128>(&difference);
    for i in 0..N {
        assert_eq!(sums[i], a[i].wrapping_add(b[i]));
        assert_eq!(differences[i], a[i].wrapping_sub(b[i]));
    }
}
