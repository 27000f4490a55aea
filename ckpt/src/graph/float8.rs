//! The values of 8-bit floats (OCP 8-bit Floating Point Specification 1.0; OCP Microscaling Formats
//! 1.0 for the scale). The `FNUZ` types of Micikevicius et al. and ONNX are not supported.

use crate::Dtype;

/// The value of an element; `None` for unsupported dtypes.
pub(super) fn value(dtype: Dtype, bits: u8) -> Option<f64> {
    match dtype {
        // No infinity: all exponent bits set are numbers too, except with the largest mantissa.
        Dtype::F8E4M3 if bits & 0x7f == 0x7f => Some(f64::NAN),
        Dtype::F8E4M3 => Some(number(bits, 4, 3, 7)),
        Dtype::F8E5M2 if bits & 0x7f == 0x7c => Some(f64::INFINITY.copysign(sign(bits))),
        Dtype::F8E5M2 if bits & 0x7f > 0x7c => Some(f64::NAN),
        Dtype::F8E5M2 => Some(number(bits, 5, 2, 15)),
        // Always a power of two.
        Dtype::F8E8M0 if bits == 0xff => Some(f64::NAN),
        Dtype::F8E8M0 => Some(2f64.powi(i32::from(bits) - 127)),
        _ => None,
    }
}

fn sign(bits: u8) -> f64 {
    if bits & 0x80 == 0 { 1.0 } else { -1.0 }
}

/// A finite number with these exponent and mantissa bits.
fn number(bits: u8, exponent_bits: u32, mantissa_bits: u32, bias: i32) -> f64 {
    let mantissa = f64::from(bits & ((1 << mantissa_bits) - 1)) / f64::from(1 << mantissa_bits);
    let exponent = i32::from((bits >> mantissa_bits) & ((1 << exponent_bits) - 1));
    match exponent {
        0 => sign(bits) * mantissa * 2f64.powi(1 - bias),
        _ => sign(bits) * (1.0 + mantissa) * 2f64.powi(exponent - bias),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limits in the specifications.
    #[test]
    fn limits_match_the_specifications() {
        let e4m3 = |bits| value(Dtype::F8E4M3, bits).unwrap();
        assert_eq!((e4m3(0x7e), e4m3(0xfe)), (448.0, -448.0));
        assert_eq!((e4m3(0x08), e4m3(0x01)), (2f64.powi(-6), 2f64.powi(-9)));
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());

        let e5m2 = |bits| value(Dtype::F8E5M2, bits).unwrap();
        assert_eq!((e5m2(0x7b), e5m2(0x01)), (57344.0, 2f64.powi(-16)));
        assert_eq!((e5m2(0x7c), e5m2(0xfc)), (f64::INFINITY, f64::NEG_INFINITY));
        assert!(e5m2(0x7d).is_nan() && e5m2(0xff).is_nan());
        assert!(e5m2(0x80) == 0.0 && e5m2(0x80).is_sign_negative());

        let e8m0 = |bits| value(Dtype::F8E8M0, bits).unwrap();
        assert_eq!((e8m0(127), e8m0(0)), (1.0, 2f64.powi(-127)));
        assert!(e8m0(0xff).is_nan());
    }
}
