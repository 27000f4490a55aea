//! f16 and bf16: `half.cu`. References are exact in f64 and rounded once.

use half::{bf16, f16};

use crate::conformance::corpus;
use crate::conformance::data::{Noise, assert_near, assert_same};
use crate::conformance::gpu::arguments;
use crate::conformance::rounding::{BF16, F16, Format, Rounding};

const N: usize = 200;

/// Three operands of different magnitudes.
fn operands(seed: u64, format: Format) -> [Vec<f64>; 3] {
    let mut noise = Noise::new(seed);
    [(); 3].map(|()| {
        noise.vector(N, |noise| {
            let scale = 2f64.powi(noise.integer(-5, 5) as i32);
            format.nearest(noise.f64(-1.0, 1.0) * scale)
        })
    })
}

fn to_f16(values: &[f64]) -> Vec<f16> {
    values.iter().map(|value| f16::from_f64(*value)).collect()
}

fn to_bf16(values: &[f64]) -> Vec<bf16> {
    values.iter().map(|value| bf16::from_f64(*value)).collect()
}

/// The smaller and the larger number; a NaN is ignored.
fn extremes(x: f64, y: f64) -> (f64, f64) {
    (x.min(y), x.max(y))
}

#[test]
fn half_arithmetic_rounds_once() {
    let gpu = corpus("half");
    let [mut a, mut b, c] = operands(1, F16);
    // Overflow, subnormal results and NaN.
    (a[0], b[0]) = (60000.0, 60000.0);
    (a[1], b[1]) = (2f64.powi(-14), 2f64.powi(-8));
    a[2] = f64::NAN;
    b[3] = f64::NAN;
    let [x, y, z] = [&a, &b, &c].map(|values| gpu.upload(&to_f16(values)));
    let out = gpu.uninitialized(2 * 16 * N);
    let arguments = arguments![x, y, z, out, N as i32];
    gpu.launch("half_arithmetic", [4, 1, 1], [64, 1, 1], 0, arguments);

    let got = gpu.download::<f16>(&out);
    for i in 0..N {
        let (x, y, z) = (a[i], b[i], c[i]);
        let (low, high) = extremes(x, y);
        let (low_nan, high_nan) = match x.is_nan() || y.is_nan() {
            true => (f64::NAN, f64::NAN),
            false => (low, high),
        };
        let times = f64::from(x as f32 * 1.1);
        let fused = F16.nearest(x * y + z);
        let saturated = F16.nearest(x + y);
        let want = [
            F16.nearest(x + y),
            F16.nearest(x - y),
            F16.nearest(x * y),
            fused,
            -x,
            x.abs(),
            low,
            high,
            if fused.is_nan() { fused } else { fused.max(0.0) },
            if saturated.is_nan() { 0.0 } else { saturated.clamp(0.0, 1.0) },
            f64::NAN, // division: see below
            F16.nearest(times),
            F16.round(times, Rounding::Zero),
            if x < y { x } else { y },
            low_nan,
            high_nan,
        ];
        for (k, want) in want.into_iter().enumerate() {
            let got = got[16 * i + k].to_f64();
            match k {
                10 => assert_near(got, x / y, F16.ulp(x / y), (i, k, x, y)),
                _ => assert_same(got, want, (i, k, x, y)),
            }
        }
    }
}

#[test]
fn halves_in_pairs() {
    let gpu = corpus("half");
    let [a, b, c] = operands(2, F16);
    let [x, y, z] = [&a, &b, &c].map(|values| gpu.upload(&to_f16(values)));
    let out = gpu.uninitialized(2 * 8 * N);
    let arguments = arguments![x, y, z, out, (N / 2) as i32];
    gpu.launch("half2_arithmetic", [1, 1, 1], [128, 1, 1], 0, arguments);

    let got = gpu.download::<f16>(&out);
    for i in 0..N {
        let (x, y, z, beside) = (a[i], b[i], c[i], a[i ^ 1]);
        let sum = F16.nearest(f64::from(x as f32 + beside as f32));
        let difference = F16.nearest(f64::from(beside as f32 - x as f32));
        let want = [
            F16.nearest(x + y),
            F16.nearest(x - y),
            F16.nearest(x * y),
            F16.nearest(x * y + z),
            x.max(y),
            f64::from(u8::from(x > y)),
            beside,
            if i % 2 == 0 { sum } else { difference },
        ];
        for (k, want) in want.into_iter().enumerate() {
            let got = got[(i / 2 * 8 + k) * 2 + i % 2].to_f64();
            assert_same(got, want, (i, k, x, y));
        }
    }
}

#[test]
fn bfloat_arithmetic_rounds_once() {
    let gpu = corpus("half");
    let [a, b, c] = operands(3, BF16);
    let [x, y, z] = [&a, &b, &c].map(|values| gpu.upload(&to_bf16(values)));
    let out = gpu.uninitialized(2 * 12 * N);
    let arguments = arguments![x, y, z, out, N as i32];
    gpu.launch("bfloat_arithmetic", [4, 1, 1], [64, 1, 1], 0, arguments);

    let got = gpu.download::<bf16>(&out);
    for i in 0..N {
        let (x, y, z) = (a[i], b[i], c[i]);
        let times = f64::from(x as f32 * 1.1);
        let want = [
            BF16.nearest(x + y),
            BF16.nearest(x - y),
            BF16.nearest(x * y),
            BF16.nearest(x * y + z),
            -x,
            x.abs(),
            x.min(y),
            x.max(y),
            BF16.nearest(times),
            BF16.round(times, Rounding::Zero),
            if x >= y { x } else { y },
            BF16.nearest(x * y + z).max(0.0),
        ];
        for (k, want) in want.into_iter().enumerate() {
            assert_same(got[12 * i + k].to_f64(), want, (i, k, x, y));
        }
    }
}

#[test]
fn bfloats_in_pairs() {
    let gpu = corpus("half");
    let [a, b, c] = operands(4, BF16);
    let [x, y, z] = [&a, &b, &c].map(|values| gpu.upload(&to_bf16(values)));
    let out = gpu.uninitialized(2 * 6 * N);
    let arguments = arguments![x, y, z, out, (N / 2) as i32];
    gpu.launch("bfloat2_arithmetic", [1, 1, 1], [128, 1, 1], 0, arguments);

    let got = gpu.download::<bf16>(&out);
    for i in 0..N {
        let (x, y, z, beside) = (a[i], b[i], c[i], a[i ^ 1]);
        let sum = BF16.nearest(f64::from(x as f32 + beside as f32));
        let difference = BF16.nearest(f64::from(beside as f32 - x as f32));
        let want = [
            BF16.nearest(x + y),
            BF16.nearest(x * y),
            BF16.nearest(x * y + z),
            x.min(y),
            if i % 2 == 0 { sum } else { difference },
            -x,
        ];
        for (k, want) in want.into_iter().enumerate() {
            let got = got[(i / 2 * 6 + k) * 2 + i % 2].to_f64();
            assert_same(got, want, (i, k, x, y));
        }
    }
}

/// The CUDA header guarantees at most two ulps.
#[test]
fn functions_of_halves() {
    let gpu = corpus("half");
    let values = Noise::new(5).vector(N, |noise| F16.nearest(noise.f64(0.01, 8.0)));
    let (from, out) = (gpu.upload(&to_f16(&values)), gpu.uninitialized(2 * 8 * N));
    gpu.launch("half_functions", [4, 1, 1], [64, 1, 1], 0, arguments![from, out, N as i32]);

    let got = gpu.download::<f16>(&out);
    for (i, x) in values.into_iter().enumerate() {
        let want = [
            x.exp(),
            x.ln(),
            x.sqrt(),
            1.0 / x.sqrt(),
            1.0 / x,
            x.sin(),
            x.exp2(),
            x.round_ties_even(),
        ];
        for (k, want) in want.into_iter().enumerate() {
            // `hsin` uses `sin.approx.f32`, whose error bound is absolute, so the tolerance has an
            // absolute part.
            let tolerance = 2.0 * F16.ulp(want) + 2f64.powi(-20);
            assert_near(got[8 * i + k].to_f64(), want, tolerance, (k, x));
        }
    }
}

#[test]
fn halves_and_integers() {
    let gpu = corpus("half");
    let values = Noise::new(6).vector(N, |noise| F16.nearest(noise.f64(-300.0, 300.0)));
    let (from, out) = (gpu.upload(&to_f16(&values)), gpu.uninitialized(4 * 6 * N));
    gpu.launch("half_conversions", [4, 1, 1], [64, 1, 1], 0, arguments![from, out, N as i32]);

    let got = gpu.download::<i32>(&out);
    for (i, x) in values.into_iter().enumerate() {
        let whole = i as f64;
        let want = [
            x.round_ties_even() as i32,
            x.trunc() as i32,
            x.floor() as i32,
            f16::from_f64(F16.nearest(whole * 37.0)).to_bits().into(),
            f16::from_f64(F16.nearest(whole * 91.0)).to_bits().into(),
            bf16::from_f64(BF16.nearest(whole * 1001.0)).to_bits().into(),
        ];
        assert_eq!(got[6 * i..6 * i + 6], want, "{i} {x}");
    }
}
