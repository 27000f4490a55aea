//! Conversions between types: `conversions.cu`.

use bytemuck::{Pod, Zeroable};

use crate::conformance::corpus;
use crate::conformance::data::Noise;
use crate::conformance::gpu::arguments;
use crate::conformance::rounding::{F32, Rounding};

#[test]
fn floats_convert_to_all_types() {
    let gpu = corpus("conversions");
    let mut values = vec![
        0.0,
        -0.0,
        0.5,
        -0.5,
        1.5,
        2.5,
        -2.5,
        0.49999997,
        8388607.5,
        8388609.0,
        16777217.0,
        3e9,
        -3e9,
        5e9,
        1e-40,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];
    let mut noise = Noise::new(1);
    values.resize_with(200, || noise.f32(-1.0, 1.0) * 10f32.powi(noise.integer(-2, 9) as i32));
    let n = values.len();
    let (from, out) = (gpu.upload(&values), gpu.uninitialized(4 * 16 * n));
    gpu.launch("from_float", [4, 1, 1], [64, 1, 1], 0, arguments![from, out, n as i32]);

    let got = gpu.download::<i32>(&out);
    for (i, x) in values.into_iter().enumerate() {
        let got = &got[16 * i..16 * i + 16];
        // Conversions saturate, and a NaN becomes 0 (PTX ISA, cvt), as in Rust.
        let want = [
            x as i32,
            x.round_ties_even() as i32,
            x.floor() as i32,
            x.ceil() as i32,
            x as u32 as i32,
            x.round_ties_even() as u32 as i32,
            (x as i32 as i8).into(),
            (x as i32 as i16).into(),
            (x != 0.0).into(),
        ];
        assert_eq!(got[..9], want, "{x:e}");
        let rounded = [x.floor(), x.ceil(), x.trunc(), x.round_ties_even(), x.round()];
        for (k, want) in rounded.into_iter().enumerate().filter(|_| !x.is_nan()) {
            assert_eq!(got[9 + k], want.to_bits() as i32, "{x:e} {k}");
        }
        let saturated = if x > 0.0 { x.min(1.0) } else { 0.0 };
        assert_eq!(f32::from_bits(got[14] as u32), saturated, "{x:e}");
        let flags = [x.is_sign_negative(), x.is_nan(), x.is_infinite(), x.is_finite()];
        let flags = (0..4).map(|at| i32::from(flags[at]) << at).sum::<i32>();
        assert_eq!(got[15], flags, "{x:e}");
    }
}

#[test]
fn conversions_to_and_from_64_bits() {
    let gpu = corpus("conversions");
    let mut noise = Noise::new(2);
    let mut values = vec![0.0, -0.5, 0.5, 1.5, -7.5, 16777217.0, 1.5e15, -1.5e15];
    values.resize_with(200, || noise.f64(-1.0, 1.0) * 10f64.powi(noise.integer(0, 15) as i32));
    let n = values.len();
    let (from, out) = (gpu.upload(&values), gpu.uninitialized(8 * 10 * n));
    gpu.launch("to_and_from_long", [4, 1, 1], [64, 1, 1], 0, arguments![from, out, n as i32]);

    let bits = |value: f64| i64::from((value as f32).to_bits() as i32);
    let got = gpu.download::<i64>(&out);
    for (i, x) in values.into_iter().enumerate() {
        let whole = x as i64;
        let want = [
            whole,
            x as u64 as i64,
            x.round_ties_even() as i64,
            (x as f32).ceil() as i64,
            bits(whole as f64),
            ((whole * 3) as f64).to_bits() as i64,
            bits(F32.round((whole * 5) as f64, Rounding::Down)),
            i64::from((whole as u64 as f32).to_bits() as i32),
            (x.round_ties_even() as i32).into(),
            bits(F32.round(x, Rounding::Zero)),
        ];
        assert_eq!(got[10 * i..10 * i + 10], want, "{x:e}");
    }
}

#[test]
fn narrow_integers_keep_their_sign_and_width() {
    let gpu = corpus("conversions");
    let mut noise = Noise::new(3);
    let bytes: Vec<i8> = (0..256).map(|i| i as u8 as i8).collect();
    let halves = noise.vector(256, |noise| noise.u32() as u16);
    let (from, from_halves) = (gpu.upload(&bytes), gpu.upload(&halves));
    let out = gpu.uninitialized(4 * 12 * 256);
    let arguments = arguments![from, from_halves, out, 256i32];
    gpu.launch("narrow", [4, 1, 1], [64, 1, 1], 0, arguments);

    let got = gpu.download::<i32>(&out);
    for i in 0..256 {
        let (b, h) = (bytes[i], halves[i]);
        let want = [
            b.into(),
            (b as u8).into(),
            (h as i16).into(),
            b.wrapping_mul(3).into(),
            h.wrapping_add(0x8001).into(),
            ((h << 3) as i16 >> 2).into(),
            if b != 0 { i32::from(h) } else { -i32::from(h) },
            f32::from(b).to_bits() as i32,
            (f32::from(h) * 0.1).to_bits() as i32,
            i32::from(h & 0x100 != 0) + 2 * i32::from(b != 0),
            (h as i16 / 7).into(),
            ((h >> 4) as u8 % 11).into(),
        ];
        assert_eq!(got[12 * i..12 * i + 12], want, "{b} {h:#x}");
    }
}

/// As laid out in C++; the last byte is padding.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Packed {
    letter: u8,
    flag: u8,
    number: i16,
    tail: [u8; 3],
    padding: u8,
}

#[test]
fn structures_with_padding() {
    let gpu = corpus("conversions");
    let mut noise = Noise::new(4);
    let items = noise.vector(100, |noise| Packed {
        letter: noise.integer(32, 126) as u8,
        flag: noise.integer(0, 1) as u8,
        number: noise.u32() as i16,
        tail: noise.u32().to_le_bytes()[..3].try_into().unwrap(),
        padding: 0,
    });
    let buffer = gpu.upload(&items);
    gpu.launch("structures", [2, 1, 1], [64, 1, 1], 0, arguments![buffer, 100i32]);

    for (got, was) in gpu.download::<Packed>(&buffer).into_iter().zip(items) {
        let change = match was.flag {
            0 => i16::from(was.tail[0]),
            _ => -i16::from(was.tail[1]),
        };
        let [first, second, third] = was.tail;
        let want = Packed {
            letter: was.letter.to_ascii_uppercase(),
            flag: 1 - was.flag,
            number: was.number.wrapping_add(change),
            tail: [first, second, third ^ 0x5a],
            padding: got.padding,
        };
        assert_eq!(got, want);
    }
}

/// `Settings` of the kernel: 48 bytes; the array index differs between threads.
#[test]
fn a_structure_as_parameter() {
    let gpu = corpus("conversions");
    let values = Noise::new(5).vector(64, |noise| noise.integer(-1000, 1000) as i32);
    let (from, out) = (gpu.upload(&values), gpu.uninitialized(4 * 64));
    let shifts = [0i32, 3, 1, 7, 2];
    let mut settings = 2.5f64.to_le_bytes().to_vec();
    settings.extend(shifts.iter().flat_map(|shift| shift.to_le_bytes()));
    settings.extend([b'x', 0, 0, 0]);
    settings.extend(from.address().to_le_bytes());
    settings.extend(out.address().to_le_bytes());
    gpu.launch("by_value", [1, 1, 1], [64, 1, 1], 0, arguments![settings, 200u8]);

    let want = values.iter().enumerate().map(|(i, value)| {
        let shifted = value << shifts[i % 5];
        (f64::from(shifted) * 2.5) as i32 + 200
    });
    assert_eq!(gpu.download::<i32>(&out), want.collect::<Vec<_>>());
}
