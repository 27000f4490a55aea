//! The values of 8-bit floats: OCP 8-bit Floating Point Specification 1.0; OCP Microscaling Formats
//! 1.0 for the scale; arXiv 2206.02915 for the `Fnuz` types.

use crate::Dtype;

/// A format with a sign, `7 - mantissa_bits` exponent bits, and mantissa bits.
struct Format {
    mantissa_bits: i32,
    bias: i32,
}

impl Dtype {
    /// The value of an element of an 8-bit float; `None` for other dtypes.
    pub fn float8_value(self, bits: u8) -> Option<f64> {
        let magnitude = bits & 0x7f;
        let value = match self {
            // No infinity: if all exponent bits are set, only the largest mantissa is not a number.
            Dtype::F8E4M3 if magnitude == 0x7f => f64::NAN,
            Dtype::F8E4M3 => Format::new(3, 7).value(bits),
            Dtype::F8E5M2 if magnitude == 0x7c => f64::INFINITY.copysign(sign(bits)),
            Dtype::F8E5M2 if magnitude > 0x7c => f64::NAN,
            Dtype::F8E5M2 => Format::new(2, 15).value(bits),
            // No infinity: the bits of negative zero are the only NaN.
            Dtype::F8E4M3Fnuz | Dtype::F8E5M2Fnuz if bits == 0x80 => f64::NAN,
            Dtype::F8E4M3Fnuz => Format::new(3, 8).value(bits),
            Dtype::F8E5M2Fnuz => Format::new(2, 16).value(bits),
            // Always a power of two.
            Dtype::F8E8M0 if bits == 0xff => f64::NAN,
            Dtype::F8E8M0 => 2f64.powi(i32::from(bits) - 127),
            _ => return None,
        };
        Some(value)
    }
}

fn sign(bits: u8) -> f64 {
    if bits & 0x80 == 0 { 1.0 } else { -1.0 }
}

impl Format {
    fn new(mantissa_bits: i32, bias: i32) -> Format {
        Format { mantissa_bits, bias }
    }

    /// A finite number.
    fn value(&self, bits: u8) -> f64 {
        let magnitude = i32::from(bits & 0x7f);
        let mantissa = magnitude & ((1 << self.mantissa_bits) - 1);
        let (significand, exponent) = match magnitude >> self.mantissa_bits {
            0 => (mantissa, 1),
            exponent => (mantissa + (1 << self.mantissa_bits), exponent),
        };
        sign(bits) * f64::from(significand) * 2f64.powi(exponent - self.bias - self.mantissa_bits)
    }
}

#[cfg(test)]
mod tests {
    use crate::Dtype;

    /// The greatest and least values, and the bits of NaN, are those of the specifications.
    #[test]
    fn limits_match_the_specifications() {
        let e4m3 = |bits| Dtype::F8E4M3.float8_value(bits).unwrap();
        assert_eq!((e4m3(0x7e), e4m3(0xfe)), (448.0, -448.0));
        assert_eq!((e4m3(0x08), e4m3(0x01)), (2f64.powi(-6), 2f64.powi(-9)));
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());

        let e5m2 = |bits| Dtype::F8E5M2.float8_value(bits).unwrap();
        assert_eq!((e5m2(0x7b), e5m2(0x01)), (57344.0, 2f64.powi(-16)));
        assert_eq!((e5m2(0x7c), e5m2(0xfc)), (f64::INFINITY, f64::NEG_INFINITY));
        assert!(e5m2(0x7d).is_nan() && e5m2(0xff).is_nan());
        assert!(e5m2(0x80) == 0.0 && e5m2(0x80).is_sign_negative());

        let e8m0 = |bits| Dtype::F8E8M0.float8_value(bits).unwrap();
        assert_eq!((e8m0(127), e8m0(0)), (1.0, 2f64.powi(-127)));
        assert!(e8m0(0xff).is_nan());
    }
}
