//! Mathematical functions: `math.cu`, `fast_math.cu`, `rounding.cu`.
//!
//! Tolerances are taken from the CUDA programming guide ("Mathematical functions"), in ulps, plus
//! one ulp for rounding. References are f64 functions, with an error below two f64 ulps.

use std::f64::consts::PI;

use crate::conformance::corpus;
use crate::conformance::data::{Noise, assert_near, assert_same, ulp_f32, ulp_f64};
use crate::conformance::gpu::arguments;
use crate::conformance::rounding::{F32, Rounding, directed, error_of_sum};

/// erf by a series of positive terms: 2/sqrt(pi) e^(-x^2) sum_n 2^n x^(2n+1) / (2n+1)!!.
fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum, mut n) = (x, x, 0);
    while term.abs() > 1e-20 * sum.abs() {
        n += 1;
        term *= 2.0 * x * x / f64::from(2 * n + 1);
        sum += term;
    }
    2.0 / PI.sqrt() * (-x * x).exp() * sum
}

/// 1 - erf(x). For large x, Laplace's continued fraction.
fn erfc(x: f64) -> f64 {
    if x < 2.0 {
        return 1.0 - erf(x);
    }
    let fraction = (1..200).rev().fold(x, |tail, k| x + f64::from(k) / 2.0 / tail);
    (-x * x).exp() / PI.sqrt() / fraction
}

/// The remainder of x and y (IEEE 754 remainder), for exact f64 quotients.
fn remainder(x: f64, y: f64) -> f64 {
    let rest = x % y;
    let above = rest - y.copysign(rest);
    let is_odd = (x - rest) / y % 2.0 != 0.0;
    let goes_up = rest.abs() > above.abs() || rest.abs() == above.abs() && is_odd;
    if goes_up { above } else { rest }
}

#[test]
fn functions_of_floats() {
    let gpu = corpus("math");
    let mut noise = Noise::new(1);
    let mut x = vec![
        0.25, 1e-3, 3.0, 105_615.0, 105_616.5, 1e6, -4e7, 3.7e15, 2e30, 1e-40, -1e-42, 87.9, 88.9,
        -87.5, -103.5, 9.1,
    ];
    x.resize_with(256, || noise.f32(-1.0, 1.0) * 10f32.powi(noise.integer(-3, 2) as i32));
    let y = noise.vector(256, |noise| noise.f32(-4.0, 4.0));
    let (a, b, out) = (gpu.upload(&x), gpu.upload(&y), gpu.uninitialized(4 * 24 * 256));
    gpu.launch("math_f32", [4, 1, 1], [64, 1, 1], 0, arguments![a, b, out, 256i32]);

    for (i, row) in gpu.download::<f32>(&out).chunks(24).enumerate() {
        let (narrow, x, y) = (x[i], f64::from(x[i]), f64::from(y[i]));
        let size = x.abs();
        let want = [
            ("sinf", x.sin(), 2.0),
            ("cosf", x.cos(), 2.0),
            ("tanf", x.tan(), 4.0),
            ("expf", x.exp(), 2.0),
            ("exp2f", x.exp2(), 2.0),
            ("expm1f", x.exp_m1(), 1.0),
            ("logf", size.ln(), 1.0),
            ("log2f", size.log2(), 1.0),
            ("log1pf", size.ln_1p(), 1.0),
            ("powf", size.powf(y), 4.0),
            ("tanhf", x.tanh(), 2.0),
            ("erff", erf(x), 2.0),
            ("fmodf", x % y, 0.0),
            ("sqrtf", size.sqrt(), 0.0),
            ("cbrtf", x.cbrt(), 1.0),
            ("atan2f", x.atan2(y), 3.0),
            ("asinf", f64::from(row[10]).asin(), 4.0),
            ("sinhf", x.sinh(), 3.0),
            ("rsqrtf", 1.0 / size.sqrt(), 2.0),
            ("hypotf", x.hypot(y), 3.0),
            ("division", x / y, 0.0),
            ("remainderf", remainder(x, y), 0.0),
            ("ldexpf", f64::from(narrow * 128.0), 0.0),
            ("erfcf", erfc(x), 4.0),
        ];
        for (k, (name, want, ulps)) in want.into_iter().enumerate() {
            let tolerance = if ulps == 0.0 { 0.0 } else { (ulps + 1.0) * ulp_f32(want) };
            assert_near(row[k].into(), (want as f32).into(), tolerance, (name, x, y));
        }
    }
}

#[test]
fn functions_of_doubles() {
    let gpu = corpus("math");
    let mut noise = Noise::new(2);
    let mut x = vec![1e-3, 3.0, 1e6, -4e9, 2e20, 1e-310, 600.0, -700.0, 1e300];
    x.resize_with(128, || noise.f64(-1.0, 1.0) * 10f64.powi(noise.integer(-3, 2) as i32));
    let y = noise.vector(128, |noise| noise.f64(-4.0, 4.0));
    let (a, b, out) = (gpu.upload(&x), gpu.upload(&y), gpu.uninitialized(8 * 12 * 128));
    gpu.launch("math_f64", [2, 1, 1], [64, 1, 1], 0, arguments![a, b, out, 128i32]);

    let got = gpu.download::<f64>(&out);
    for (i, row) in got.chunks(12).enumerate() {
        let (x, y) = (x[i], y[i]);
        let size = x.abs();
        let want = [
            ("exp", x.exp(), 1.0),
            ("log", size.ln(), 1.0),
            ("sin", x.sin(), 2.0),
            ("cos", x.cos(), 2.0),
            ("pow", size.powf(y), 2.0),
            ("tanh", x.tanh(), 2.0),
            ("atan2", x.atan2(y), 2.0),
            ("fmod", x % y, 0.0),
            ("rsqrt", 1.0 / size.sqrt(), 1.0),
            ("cbrt", x.cbrt(), 1.0),
            // The series above has an error of some ulps itself.
            ("erf", erf(x), 20.0),
            ("hypot", x.hypot(y), 2.0),
        ];
        for (k, (name, want, ulps)) in want.into_iter().enumerate() {
            let tolerance = if ulps == 0.0 { 0.0 } else { (ulps + 2.0) * ulp_f64(want) };
            assert_near(row[k], want, tolerance, (name, x, y));
        }
    }
}

/// Errors of the fast instructions, as bounded by the programming guide and the PTX ISA.
#[test]
fn fast_functions() {
    let gpu = corpus("fast_math");
    let mut noise = Noise::new(3);
    let x = noise.vector(256, |noise| noise.f32(-3.0, 3.0));
    let y = noise.vector(256, |noise| noise.f32(0.25, 3.0));
    let (a, b, out) = (gpu.upload(&x), gpu.upload(&y), gpu.uninitialized(4 * 12 * 256));
    gpu.launch("fast_functions", [4, 1, 1], [64, 1, 1], 0, arguments![a, b, out, 256i32]);

    for (i, row) in gpu.download::<f32>(&out).chunks(12).enumerate() {
        let (x, y) = (f64::from(x[i]), f64::from(y[i]));
        let size = x.abs();
        let ulps = |count: f64, of: f64| count * ulp_f32(of);
        // The error of a base-2 logarithm, and of its product with the exponent.
        let logarithm = |of: f64| 2f64.powi(-21) + ulps(3.0, of);
        let power = size.powf(y);
        let want = [
            ("sin", x.sin(), 2f64.powi(-20)),
            ("cos", x.cos(), 2f64.powi(-20)),
            ("exp", x.exp(), ulps(3.0 + (1.173 * size).floor(), x.exp())),
            ("log", size.ln(), logarithm(size.ln())),
            ("division", x / y, ulps(3.0, x / y)),
            ("sqrt", size.sqrt(), ulps(3.0, size.sqrt())),
            ("pow", power, power * y * logarithm(size.log2()) + ulps(4.0, power)),
            ("tanh", x.tanh(), x.tanh().abs() * 2f64.powf(-10.9)),
            ("rsqrt", 1.0 / size.sqrt(), ulps(4.0, 1.0 / size.sqrt())),
            ("exp2", x.exp2(), ulps(3.0, x.exp2())),
            ("log2", y.log2(), logarithm(y.log2())),
            ("difference", x.max(y) - size, ulps(0.5, x.max(y) - size)),
        ];
        for (k, (name, want, tolerance)) in want.into_iter().enumerate() {
            assert_near(row[k].into(), want, tolerance, (name, x, y));
        }
    }
}

/// Subnormal operands and results become zeros of the same sign.
#[test]
fn fast_math_flushes_subnormals() {
    let gpu = corpus("fast_math");
    let small = f32::MIN_POSITIVE;
    let numbers = [1e-40, -1e-40, small, -small, 1.5 * small, 1.25 * small, 0.5, -3.0, 1e-20, 0.0];
    let pairs = numbers.iter().flat_map(|x| numbers.iter().map(move |y| (*x, *y)));
    let (x, y): (Vec<f32>, Vec<f32>) = pairs.unzip();
    let n = x.len();
    let (a, b, out) = (gpu.upload(&x), gpu.upload(&y), gpu.uninitialized(4 * 6 * n));
    gpu.launch("flushed", [2, 1, 1], [64, 1, 1], 0, arguments![a, b, out, n as i32]);

    let flush = |value: f32| {
        if value.is_subnormal() { 0f32.copysign(value) } else { value }
    };
    for (i, row) in gpu.download::<f32>(&out).chunks(6).enumerate() {
        let (x, y) = (flush(x[i]), flush(y[i]));
        let want = [
            flush(x + y),
            flush(x * y),
            flush(x.mul_add(y, y)),
            flush(x - y),
            if x == y { row[4] } else { x.min(y) },
            if x < y { 1.0 } else { 2.0 },
        ];
        for (k, want) in want.into_iter().enumerate() {
            assert_same(row[k].into(), want.into(), (k, x, y));
        }
    }
}

#[test]
fn gelu_in_its_tanh_form() {
    let gpu = corpus("fast_math");
    let values = Noise::new(4).vector(128, |noise| noise.f32(-5.0, 5.0));
    let (from, out) = (gpu.upload(&values), gpu.uninitialized(4 * 128));
    gpu.launch("gelu", [2, 1, 1], [64, 1, 1], 0, arguments![from, out, 128i32]);
    for (got, x) in gpu.download::<f32>(&out).into_iter().zip(values) {
        let x = f64::from(x);
        let want = 0.5 * x * (1.0 + (0.7978845608 * (x + 0.044715 * x * x * x)).tanh());
        // tanh.approx: 2^-10.9 of its result.
        assert_near(got.into(), want, 0.5 * x.abs() * 2f64.powf(-10.8), x);
    }
}

/// Operands of 24 bits with a common scale: f64 represents their sums and products exactly.
#[test]
fn f32_arithmetic_rounds_in_all_directions() {
    let gpu = corpus("rounding");
    let mut noise = Noise::new(5);
    let mut draw = |scale: i32| {
        noise.vector(256, |noise| {
            let whole = noise.integer(1, (1 << 24) - 1) as f64 * 2f64.powi(scale);
            if noise.u32() & 1 == 0 { whole } else { -whole }
        })
    };
    let (x, y) = (draw(-12), draw(-20));
    let [a, b] = [&x, &y]
        .map(|values| gpu.upload(&values.iter().map(|value| *value as f32).collect::<Vec<f32>>()));
    let out = gpu.uninitialized(4 * 16 * 256);
    gpu.launch("roundings", [4, 1, 1], [64, 1, 1], 0, arguments![a, b, out, 256i32]);

    use Rounding::*;
    for (i, row) in gpu.download::<f32>(&out).chunks(16).enumerate() {
        let (x, y) = (x[i], y[i]);
        let root = x.abs().sqrt();
        // An f32 quotient or root is never close enough to a rounding boundary for f64 to decide
        // wrongly.
        let want = [
            (x + y, Zero),
            (x + y, Up),
            (x + y, Down),
            (x + y, Nearest),
            (x * y, Zero),
            (x * y, Up),
            (x * y, Down),
            (x * y + x, Zero),
            (x * y + x, Up),
            (x * y + x, Down),
            (x / y, Zero),
            (x / y, Up),
            (root, Down),
            (root, Up),
            (1.0 / x, Nearest),
            (1.0 / y, Down),
        ];
        for (k, (exact, rounding)) in want.into_iter().enumerate() {
            assert_same(row[k].into(), F32.round(exact, rounding), (k, x, y));
        }
    }
}

/// The error of rounding to nearest is itself an f64 and locates the exact result.
#[test]
fn f64_arithmetic_rounds_in_all_directions() {
    let gpu = corpus("rounding");
    let mut noise = Noise::new(6);
    // With 26-bit operands the product is exact, which the fused operation needs here.
    let mut draw = || {
        noise.vector(200, |noise| {
            let whole = noise.integer(1 - (1 << 26), (1 << 26) - 1) | 1;
            whole as f64 * 2f64.powi(noise.integer(-20, 20) as i32)
        })
    };
    let (mut x, mut y) = (draw(), draw());
    let long = |value: &mut f64| *value = f64::from_bits(value.to_bits() | 0x2b5a5);
    x[100..].iter_mut().for_each(long);
    y[100..].iter_mut().for_each(long);
    let (a, b, out) = (gpu.upload(&x), gpu.upload(&y), gpu.uninitialized(8 * 8 * 200));
    gpu.launch("double_roundings", [4, 1, 1], [50, 1, 1], 0, arguments![a, b, out, 200i32]);

    use Rounding::*;
    for (i, row) in gpu.download::<f64>(&out).chunks(8).enumerate() {
        let (x, y) = (x[i], y[i]);
        let (sum, product, quotient) = (x + y, x * y, x / y);
        let root = x.abs().sqrt();
        let of_product = x.mul_add(y, -product);
        let of_quotient = (-quotient).mul_add(y, x) * y.signum();
        let of_root = (-root).mul_add(root, x.abs());
        let (fused, of_fused) = (product + x, error_of_sum(product, x));
        let want = [
            directed(sum, error_of_sum(x, y), Up),
            directed(sum, error_of_sum(x, y), Zero),
            directed(product, of_product, Down),
            directed(product, of_product, Up),
            directed(fused, of_fused, Down),
            directed(fused, of_fused, Up),
            directed(quotient, of_quotient, Down),
            directed(root, of_root, Up),
        ];
        for (k, want) in want.into_iter().enumerate() {
            if i < 100 || !(4..6).contains(&k) {
                assert_same(row[k], want, (k, x, y));
            }
        }
    }
}

#[test]
fn arithmetic_of_doubles() {
    let gpu = corpus("dot");
    let mut noise = Noise::new(7);
    let mut draw = || noise.f64(-1.0, 1.0) * 10f64.powi(noise.integer(-4, 8) as i32);
    let x: Vec<f64> = (0..150).map(|_| draw()).collect();
    let y: Vec<f64> = (0..150).map(|_| draw()).collect();
    let (a, b, out) = (gpu.upload(&x), gpu.upload(&y), gpu.uninitialized(8 * 12 * 150));
    gpu.launch("double_arithmetic", [3, 1, 1], [64, 1, 1], 0, arguments![a, b, out, 150i32]);

    for (i, row) in gpu.download::<f64>(&out).chunks(12).enumerate() {
        let (x, y) = (x[i], y[i]);
        let want = [
            x / y,
            x.abs().sqrt(),
            x.min(y),
            x.copysign(y),
            x.floor(),
            x.round_ties_even(),
            f64::from(x as f32),
            (x as i64) as f64,
            f64::from(y.abs() as u32),
            1.0 / y,
            y.trunc(),
            F32.round(x, Rounding::Up),
        ];
        for (k, want) in want.into_iter().enumerate() {
            assert_same(row[k], want, (k, x, y));
        }
    }
}

#[test]
fn intrinsics_by_name() {
    let gpu = corpus("rounding");
    let values = Noise::new(8).vector(128, |noise| noise.f32(0.125, 3.0));
    let (from, out) = (gpu.upload(&values), gpu.uninitialized(4 * 8 * 128));
    gpu.launch("intrinsics", [2, 1, 1], [64, 1, 1], 0, arguments![from, out, 128i32]);

    for (i, row) in gpu.download::<f32>(&out).chunks(8).enumerate() {
        let x = f64::from(values[i]);
        let ulps = |count: f64, of: f64| count * ulp_f32(of);
        let (decay, decade) = ((-x).exp(), 10f64.powf(-x));
        let want = [
            ("__sinf", x.sin(), 2f64.powi(-20)),
            ("__cosf", x.cos(), 2f64.powi(-20)),
            ("__expf", decay, ulps(3.0 + (1.173 * x).floor(), decay)),
            ("__logf", x.ln(), 2f64.powi(-21) + ulps(3.0, x.ln())),
            ("__fdividef", x / 3.0, ulps(3.0, x / 3.0)),
            ("__powf", x.powf(1.5), 2f64.powi(-19) * x.powf(1.5) + ulps(4.0, x.powf(1.5))),
            ("__frsqrt_rn", F32.nearest(1.0 / x.sqrt()), 0.0),
            ("__exp10f", decade, ulps(3.0 + (2.97 * x).floor(), decade)),
        ];
        for (k, (name, want, tolerance)) in want.into_iter().enumerate() {
            assert_near(row[k].into(), want, tolerance, (name, x));
        }
    }
}
