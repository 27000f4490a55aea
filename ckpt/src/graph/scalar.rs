//! Numbers of any dtype, and operations on single elements.

use half::{bf16, f16};

use crate::Dtype;

/// An element, as the bits of its dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scalar {
    dtype: Dtype,
    bits: u64,
}

impl Scalar {
    /// The element of a float dtype nearest to `value`, ties to even; `None` for dtypes other than
    /// F64, F32, F16 and BF16.
    pub fn nearest(dtype: Dtype, value: f64) -> Option<Scalar> {
        let bits = match dtype {
            Dtype::F64 => value.to_bits(),
            Dtype::F32 => u64::from((value as f32).to_bits()),
            Dtype::F16 => u64::from(f16::from_f32(to_odd(value)).to_bits()),
            Dtype::BF16 => u64::from(bf16::from_f32(to_odd(value)).to_bits()),
            _ => return None,
        };
        Some(Scalar { dtype, bits })
    }

    /// The element whose bits are the lowest ones of `bits`.
    pub fn from_bits(dtype: Dtype, bits: u64) -> Scalar {
        let used = u64::MAX >> (64 - dtype.bits());
        let bits = bits & used;
        Scalar { dtype, bits }
    }

    /// Its dtype.
    pub fn dtype(self) -> Dtype {
        self.dtype
    }

    /// Its bits, as the lowest bits of the result.
    pub fn bits(self) -> u64 {
        self.bits
    }

    /// Its exact value; `None` if the dtype is not a float of at least 8 bits.
    pub fn value(self) -> Option<f64> {
        let bits = self.bits;
        match self.dtype {
            Dtype::F64 => Some(f64::from_bits(bits)),
            Dtype::F32 => Some(f64::from(f32::from_bits(bits as u32))),
            Dtype::F16 => Some(f16::from_bits(bits as u16).to_f64()),
            Dtype::BF16 => Some(bf16::from_bits(bits as u16).to_f64()),
            // The graph does not support the `Fnuz` types.
            Dtype::F8E4M3 | Dtype::F8E5M2 | Dtype::F8E8M0 => self.dtype.float8_value(bits as u8),
            _ => None,
        }
    }
}

/// Converts to f32, rounded to odd: a second rounding to fewer bits then gives the same result as a
/// single one (Boldo and Melquiond 2008).
fn to_odd(value: f64) -> f32 {
    let near = value as f32;
    let back = f64::from(near);
    if back == value || value.is_nan() || near.to_bits() & 1 == 1 {
        return near;
    }
    match back.abs() < value.abs() {
        true => f32::from_bits(near.to_bits() + 1),
        false => f32::from_bits(near.to_bits() - 1),
    }
}

/// A real number in an expression. Two are equal if their bits are.
#[derive(Clone, Copy, Debug)]
pub struct Real(pub f64);

impl PartialEq for Real {
    fn eq(&self, other: &Real) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Real {}

impl std::hash::Hash for Real {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}

/// An operation on an element. Computed in f64, then rounded once to nearest even.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementOp {
    /// Conversion to another float dtype.
    Cast(Dtype),
    /// Multiplication with a number, in the element's dtype.
    Scale(Real),
    /// Addition of a number, in the element's dtype.
    Add(Real),
}

impl ElementOp {
    /// The name in messages.
    pub fn name(&self) -> &'static str {
        match self {
            ElementOp::Cast(_) => "cast",
            ElementOp::Scale(_) => "scale",
            ElementOp::Add(_) => "add",
        }
    }

    /// The result for an element; `None` if there is no such value ([`Scalar::value`],
    /// [`Scalar::nearest`]). A graph rejects such operations.
    pub fn apply(self, element: Scalar) -> Option<Scalar> {
        let (dtype, value) = (element.dtype, element.value()?);
        match self {
            ElementOp::Cast(to) if to == dtype => Some(element),
            ElementOp::Cast(to) => Scalar::nearest(to, value),
            ElementOp::Scale(by) => Scalar::nearest(dtype, value * by.0),
            ElementOp::Add(what) => Scalar::nearest(dtype, value + what.0),
        }
    }
}

/// Whether every value of `from` is a value of `to`.
pub(crate) fn widens(from: Dtype, to: Dtype) -> bool {
    use Dtype::{BF16, F8E4M3, F8E5M2, F16, F32, F64};
    match from {
        F32 => to == F64,
        F16 | BF16 => matches!(to, F32 | F64),
        F8E4M3 | F8E5M2 => matches!(to, F16 | BF16 | F32 | F64),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Casting to a wider dtype and back preserves the bits of every number.
    #[test]
    fn widening_and_back_is_exact() {
        let narrow = [Dtype::F8E4M3, Dtype::F8E5M2, Dtype::F16, Dtype::BF16];
        for from in narrow {
            for to in Dtype::all().filter(|to| widens(from, *to)) {
                for bits in 0..1u64 << from.bits() {
                    let element = Scalar::from_bits(from, bits);
                    let value = element.value().unwrap();
                    let wide = ElementOp::Cast(to).apply(element).unwrap();
                    let same = wide.value().unwrap().to_bits() == value.to_bits();
                    assert!(same || value.is_nan(), "{from} {bits:#x} as {to}");
                }
            }
        }
    }

    /// The value is just above the midpoint of two bf16 numbers. A conversion through f32 would
    /// round it to the midpoint, which ties to the even number below.
    #[test]
    fn casts_round_once() {
        let above = 1.0 + 2f64.powi(-8) + 2f64.powi(-40);
        let element = Scalar::nearest(Dtype::F64, above).unwrap();
        let cast = ElementOp::Cast(Dtype::BF16).apply(element).unwrap();
        assert_eq!(cast.value(), Some(1.0 + 2f64.powi(-7)));
        assert_eq!(bf16::from_f32(above as f32).to_f64(), 1.0);
    }

    #[test]
    fn integers_have_no_operations() {
        let seven = Scalar::from_bits(Dtype::I32, 7);
        assert_eq!(ElementOp::Cast(Dtype::F32).apply(seven), None);
        assert_eq!(Scalar::nearest(Dtype::I32, 7.0), None);
    }
}
