//! The processor's own arithmetic in all four rounding modes, as an independent reference.

use std::arch::asm;

use super::super::rounding::Rounding;

/// The SSE control word for a rounding mode, with all exceptions masked.
fn control_word(rounding: Rounding) -> u32 {
    let field = match rounding {
        Rounding::Nearest => 0,
        Rounding::Down => 1,
        Rounding::Up => 2,
        Rounding::Zero => 3,
    };
    0x1f80 | field << 13
}

/// A function that computes `$instruction a, b` for two operands of type `$float`.
macro_rules! binary {
    ($name:ident, $float:ty, $instruction:literal) => {
        pub(super) fn $name(a: $float, b: $float, rounding: Rounding) -> $float {
            let mut result = a;
            // SAFETY: reads two words of this frame; the control word is restored before any other
            // floating-point instruction runs.
            unsafe {
                asm!(
                    "ldmxcsr [{control}]",
                    concat!($instruction, " {a}, {b}"),
                    "ldmxcsr [{usual}]",
                    control = in(reg) &control_word(rounding),
                    usual = in(reg) &control_word(Rounding::Nearest),
                    a = inout(xmm_reg) result,
                    b = in(xmm_reg) b,
                    options(nostack),
                );
            }
            result
        }
    };
}

binary!(add, f32, "addss");
binary!(sub, f32, "subss");
binary!(mul, f32, "mulss");
binary!(div, f32, "divss");
binary!(sqrt_of_second, f32, "sqrtss");
binary!(add_f64, f64, "addsd");
binary!(sub_f64, f64, "subsd");
binary!(mul_f64, f64, "mulsd");
binary!(div_f64, f64, "divsd");
binary!(sqrt_of_second_f64, f64, "sqrtsd");

/// A function that computes a * b + c; the caller has checked that the processor supports FMA.
macro_rules! fused {
    ($name:ident, $float:ty, $instruction:literal) => {
        pub(super) fn $name(a: $float, b: $float, c: $float, rounding: Rounding) -> $float {
            assert!(std::is_x86_feature_detected!("fma"));
            let mut result = a;
            // SAFETY: as above, and the processor supports the instruction.
            unsafe {
                asm!(
                    "ldmxcsr [{control}]",
                    concat!($instruction, " {a}, {b}, {c}"),
                    "ldmxcsr [{usual}]",
                    control = in(reg) &control_word(rounding),
                    usual = in(reg) &control_word(Rounding::Nearest),
                    a = inout(xmm_reg) result,
                    b = in(xmm_reg) b,
                    c = in(xmm_reg) c,
                    options(nostack),
                );
            }
            result
        }
    };
}

fused!(fma, f32, "vfmadd213ss");
fused!(fma_f64, f64, "vfmadd213sd");

/// A function that converts `$from` to `$to`.
macro_rules! conversion {
    ($name:ident, $from:ty, $from_class:ident, $to:ty, $to_class:ident, $instruction:literal) => {
        pub(super) fn $name(x: $from, rounding: Rounding) -> $to {
            let result: $to;
            // SAFETY: as above.
            unsafe {
                asm!(
                    "ldmxcsr [{control}]",
                    concat!($instruction, " {out}, {x}"),
                    "ldmxcsr [{usual}]",
                    control = in(reg) &control_word(rounding),
                    usual = in(reg) &control_word(Rounding::Nearest),
                    x = in($from_class) x,
                    out = out($to_class) result,
                    options(nostack),
                );
            }
            result
        }
    };
}

conversion!(f64_to_f32, f64, xmm_reg, f32, xmm_reg, "cvtsd2ss");
conversion!(s64_to_f32, i64, reg, f32, xmm_reg, "cvtsi2ss");
conversion!(s64_to_f64, i64, reg, f64, xmm_reg, "cvtsi2sd");
conversion!(f32_to_s64, f32, xmm_reg, i64, reg, "cvtss2si");
conversion!(f64_to_s64, f64, xmm_reg, i64, reg, "cvtsd2si");
