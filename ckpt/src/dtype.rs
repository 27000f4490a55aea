//! The element types of the safetensors format, by name and size only.

use std::fmt;
use std::str::FromStr;

use meshgrad_error::{Error, Result, error};
use serde::{Deserialize, Serialize};

/// An element type of the safetensors format (all 22 of version 0.8).
///
/// The order is the format's order of alignment. Writers place tensors from the largest alignment
/// to the smallest, so that each offset is a multiple of the tensor's element size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
#[non_exhaustive]
pub enum Dtype {
    /// One byte, 0 or 1.
    Bool,
    /// OCP MX 4-bit float, two in a byte.
    F4,
    /// OCP MX 6-bit float, 2 exponent and 3 mantissa bits, four in three bytes.
    F6E2M3,
    /// OCP MX 6-bit float, 3 exponent and 2 mantissa bits, four in three bytes.
    F6E3M2,
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 8-bit integer.
    I8,
    /// OCP 8-bit float, 5 exponent and 2 mantissa bits.
    F8E5M2,
    /// OCP 8-bit float, 4 exponent and 3 mantissa bits.
    F8E4M3,
    /// OCP MX scale: 8 exponent bits only.
    F8E8M0,
    /// 8-bit float, 4 exponent and 3 mantissa bits, finite, without negative zero.
    F8E4M3Fnuz,
    /// 8-bit float, 5 exponent and 2 mantissa bits, finite, without negative zero.
    F8E5M2Fnuz,
    /// Signed 16-bit integer.
    I16,
    /// Unsigned 16-bit integer.
    U16,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    BF16,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 32-bit integer.
    U32,
    /// IEEE single precision.
    F32,
    /// Complex number of two `F32`.
    C64,
    /// IEEE double precision.
    F64,
    /// Signed 64-bit integer.
    I64,
    /// Unsigned 64-bit integer.
    U64,
}

/// Each dtype with its name in a file and its size in bits, in the order of the enum.
const TABLE: [(Dtype, &str, usize); 22] = [
    (Dtype::Bool, "BOOL", 8),
    (Dtype::F4, "F4", 4),
    (Dtype::F6E2M3, "F6_E2M3", 6),
    (Dtype::F6E3M2, "F6_E3M2", 6),
    (Dtype::U8, "U8", 8),
    (Dtype::I8, "I8", 8),
    (Dtype::F8E5M2, "F8_E5M2", 8),
    (Dtype::F8E4M3, "F8_E4M3", 8),
    (Dtype::F8E8M0, "F8_E8M0", 8),
    (Dtype::F8E4M3Fnuz, "F8_E4M3FNUZ", 8),
    (Dtype::F8E5M2Fnuz, "F8_E5M2FNUZ", 8),
    (Dtype::I16, "I16", 16),
    (Dtype::U16, "U16", 16),
    (Dtype::F16, "F16", 16),
    (Dtype::BF16, "BF16", 16),
    (Dtype::I32, "I32", 32),
    (Dtype::U32, "U32", 32),
    (Dtype::F32, "F32", 32),
    (Dtype::C64, "C64", 64),
    (Dtype::F64, "F64", 64),
    (Dtype::I64, "I64", 64),
    (Dtype::U64, "U64", 64),
];

impl Dtype {
    /// Every dtype, from the smallest alignment to the largest.
    pub fn all() -> impl Iterator<Item = Dtype> {
        TABLE.into_iter().map(|(dtype, _, _)| dtype)
    }

    /// Size of one element in bits: 4, 6, 8, 16, 32 or 64.
    pub fn bits(self) -> usize {
        TABLE[self as usize].2
    }

    /// The name a file's header uses, such as `BF16`.
    pub fn name(self) -> &'static str {
        TABLE[self as usize].1
    }

    /// Bytes of a row-major tensor of this shape. As in the reference crate, an overflow is an
    /// error even if a later extent is 0.
    pub(crate) fn byte_len(self, shape: &[usize]) -> Result<usize, BadSize> {
        let elements =
            shape.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent));

        let bits = elements
            .and_then(|elements| elements.checked_mul(self.bits()))
            .ok_or(BadSize::Overflow)?;

        if bits % 8 == 0 { Ok(bits / 8) } else { Err(BadSize::PartOfAByte { bits }) }
    }
}

/// Why a dtype and a shape have no size in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadSize {
    Overflow,
    PartOfAByte { bits: usize },
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Dtype {
    type Err = Error;

    fn from_str(text: &str) -> Result<Dtype> {
        let found = TABLE.iter().find(|(_, name, _)| *name == text);
        found.map(|(dtype, _, _)| *dtype).ok_or_else(|| {
            let (text, names) = (text.escape_debug(), TABLE.map(|(_, name, _)| name).join(" "));
            error!(Invalid, "`{text}` is not a safetensors dtype; they are {names}")
        })
    }
}

impl From<Dtype> for String {
    fn from(dtype: Dtype) -> String {
        dtype.name().to_owned()
    }
}

impl TryFrom<String> for Dtype {
    type Error = Error;

    fn try_from(text: String) -> Result<Dtype> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table is indexed by discriminant; names, sizes and order match the reference crate.
    #[test]
    fn table_matches_the_reference_crate() {
        let mut reference = Vec::new();

        for (at, dtype) in Dtype::all().enumerate() {
            assert_eq!(dtype as usize, at);
            assert_eq!(dtype.name().parse::<Dtype>(), Ok(dtype));

            let quoted = format!("\"{dtype}\"");
            let theirs: safetensors::Dtype = serde_json::from_str(&quoted).unwrap();
            assert_eq!(theirs.bitsize(), dtype.bits());
            reference.push(theirs);
        }

        assert!(reference.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn overflow_is_checked_dim_by_dim() {
        assert_eq!(Dtype::F32.byte_len(&[0, usize::MAX, 2]), Ok(0));
        assert_eq!(Dtype::F32.byte_len(&[usize::MAX, 2, 0]), Err(BadSize::Overflow));
        assert_eq!(Dtype::F32.byte_len(&[usize::MAX / 8]), Err(BadSize::Overflow));
        assert_eq!(Dtype::F4.byte_len(&[3]), Err(BadSize::PartOfAByte { bits: 12 }));
        assert_eq!(Dtype::F6E2M3.byte_len(&[4]), Ok(3));
        assert_eq!(Dtype::F64.byte_len(&[]), Ok(8));
    }
}
