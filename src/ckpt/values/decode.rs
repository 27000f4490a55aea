//! Decodes elements exactly, as f64 or i128. Supports all real dtypes of whole bytes.

use half::f16;
use meshgrad::ckpt::Dtype;

/// Elements that are decoded at a time.
pub(crate) const BLOCK: usize = 4096;

/// Decodes bytes of one dtype.
pub(crate) enum Decoder {
    Floats(Floats),
    Integers(fn(&[u8], &mut Vec<i128>)),
}

/// Decodes bytes of a float dtype into f64.
pub(crate) enum Floats {
    /// A lookup table for dtypes of one byte.
    Table(Box<[f64; 256]>),
    Wide(fn(&[u8], &mut Vec<f64>)),
}

impl Decoder {
    /// Returns `None` for complex dtypes and for elements of less than a byte.
    pub(crate) fn new(dtype: Dtype) -> Option<Decoder> {
        let wide = |decode| Decoder::Floats(Floats::Wide(decode));

        Some(match dtype {
            Dtype::F64 => wide(|b, out| each(b, out, f64::from_le_bytes)),
            Dtype::F32 => wide(|b, out| each(b, out, |b| f32::from_le_bytes(b).into())),
            Dtype::F16 => wide(|b, out| each(b, out, |b| f16::from_le_bytes(b).into())),
            Dtype::BF16 => wide(|b, out| each(b, out, |b| upper_half(b).into())),
            Dtype::Bool | Dtype::U8 => {
                Decoder::Integers(|b, out| each(b, out, |b| u8::from_le_bytes(b).into()))
            }
            Dtype::I8 => Decoder::Integers(|b, out| each(b, out, |b| i8::from_le_bytes(b).into())),
            Dtype::I16 => {
                Decoder::Integers(|b, out| each(b, out, |b| i16::from_le_bytes(b).into()))
            }
            Dtype::U16 => {
                Decoder::Integers(|b, out| each(b, out, |b| u16::from_le_bytes(b).into()))
            }
            Dtype::I32 => {
                Decoder::Integers(|b, out| each(b, out, |b| i32::from_le_bytes(b).into()))
            }
            Dtype::U32 => {
                Decoder::Integers(|b, out| each(b, out, |b| u32::from_le_bytes(b).into()))
            }
            Dtype::I64 => {
                Decoder::Integers(|b, out| each(b, out, |b| i64::from_le_bytes(b).into()))
            }
            Dtype::U64 => {
                Decoder::Integers(|b, out| each(b, out, |b| u64::from_le_bytes(b).into()))
            }
            _ => {
                dtype.float8_value(0)?;
                let value = |bits| dtype.float8_value(bits as u8).unwrap_or(f64::NAN);
                Decoder::Floats(Floats::Table(Box::new(std::array::from_fn(value))))
            }
        })
    }

    /// Decodes into `out`. Integers are rounded to the nearest f64.
    pub(crate) fn floats(&self, bytes: &[u8], out: &mut Vec<f64>) {
        out.clear();
        match self {
            Decoder::Floats(Floats::Table(table)) => {
                out.extend(bytes.iter().map(|&byte| table[usize::from(byte)]));
            }
            Decoder::Floats(Floats::Wide(decode)) => decode(bytes, out),
            Decoder::Integers(_) => {
                let mut integers = Vec::new();
                self.integers(bytes, &mut integers);
                out.extend(integers.into_iter().map(|value| value as f64));
            }
        }
    }

    /// Decodes integers into `out`; returns `false` for floats.
    pub(crate) fn integers(&self, bytes: &[u8], out: &mut Vec<i128>) -> bool {
        out.clear();
        match self {
            Decoder::Floats(_) => false,
            Decoder::Integers(decode) => {
                decode(bytes, out);
                true
            }
        }
    }
}

/// Decodes all elements, in a loop that is specialized for each dtype.
fn each<const N: usize, T>(bytes: &[u8], out: &mut Vec<T>, decode: impl Fn([u8; N]) -> T) {
    let (elements, _) = bytes.as_chunks::<N>();
    out.extend(elements.iter().map(|element| decode(*element)));
}

/// A bfloat16 is the upper half of an f32.
fn upper_half(bytes: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(dtype: Dtype, bits: u8) -> f64 {
        let mut out = Vec::new();
        Decoder::new(dtype).unwrap().floats(&[bits], &mut out);
        out[0]
    }

    /// Tables 1 and 2 of the OCP specification.
    #[test]
    fn eight_bit_floats_have_their_published_extremes() {
        let e4m3 = |bits| value(Dtype::F8E4M3, bits);
        assert_eq!([0x7e, 0x08, 0x07, 0x01].map(e4m3), [448.0, 0.015625, 0.013671875, 0.001953125]);
        assert_eq!(e4m3(0xfe), -448.0);
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
        assert!(e4m3(0x80) == 0.0 && e4m3(0x80).is_sign_negative());

        let e5m2 = |bits| value(Dtype::F8E5M2, bits);
        assert_eq!([0x7b, 0x7c, 0xfc].map(e5m2), [57344.0, f64::INFINITY, f64::NEG_INFINITY]);
        assert!(e5m2(0x7d).is_nan() && e5m2(0xff).is_nan());

        assert_eq!(value(Dtype::F8E4M3Fnuz, 0x7f), 240.0);
        assert_eq!(value(Dtype::F8E5M2Fnuz, 0x7f), 57344.0);
        assert!(value(Dtype::F8E4M3Fnuz, 0x80).is_nan());
        assert_eq!(value(Dtype::F8E8M0, 127), 1.0);
        assert!(value(Dtype::F8E8M0, 255).is_nan());
    }

    /// E5M2 is the upper half of an IEEE half precision float.
    #[test]
    fn e5m2_is_the_upper_byte_of_f16() {
        for bits in 0..=255u8 {
            let (ours, half) = (value(Dtype::F8E5M2, bits), f16::from_le_bytes([0, bits]).to_f64());
            assert!(ours == half || ours.is_nan() && half.is_nan(), "{bits}: {ours} {half}");
        }
    }

    #[test]
    fn integers_of_64_bits_are_exact() {
        let mut out = Vec::new();
        let bytes = [i64::MIN, i64::MAX].map(i64::to_le_bytes).concat();
        assert!(Decoder::new(Dtype::I64).unwrap().integers(&bytes, &mut out));
        assert_eq!(out, [i64::MIN.into(), i64::MAX.into()]);
        assert!(Decoder::new(Dtype::U64).unwrap().integers(&[255; 8], &mut out));
        assert_eq!(out, [u64::MAX.into()]);
        assert!(!Decoder::new(Dtype::F32).unwrap().integers(&[0; 4], &mut out));
    }

    #[test]
    fn all_real_dtypes_of_whole_bytes_are_decoded() {
        let undecoded = Dtype::all().filter(|&dtype| Decoder::new(dtype).is_none());
        let undecoded: Vec<Dtype> = undecoded.collect();
        assert_eq!(undecoded, [Dtype::F4, Dtype::F6E2M3, Dtype::F6E3M2, Dtype::C64]);
    }
}
