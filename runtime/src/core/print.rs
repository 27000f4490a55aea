//! Tensors as text: `{}` is dtype, shape and device; `{:?}` adds the values.

use std::fmt;

use crate::{DType, Element, ErrorKind, Result, Tensor};

/// A tensor with more elements is printed as its corners.
const MOST_ELEMENTS: usize = 64;
/// The number of indices at each end of a dim that a corner has.
const EDGE: usize = 3;
/// Decimals of a float.
const DECIMALS: usize = 4;
/// Floats are printed with an exponent if the largest is at least this ...
const LARGE: f64 = 1e8;
/// ... or the smallest, except zero, is below this.
const SMALL: f64 = 1e-4;

/// Dtype, shape, device and sharding, such as `f32[2, 3] on cpu`. For messages; it does not read
/// the tensor.
impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{} on {}", self.dtype(), self.shape(), self.device())?;
        match self.sharding() {
            Some(sharding) => write!(f, ", of {:?} ({sharding})", sharding.shape()),
            None => Ok(()),
        }
    }
}

/// As `Display`, followed by the values. A tensor of more than 64 elements prints three at each end
/// of each dim. Waits for work on a GPU. Values that cannot be read, such as on a meta device, are
/// left out.
impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")?;
        match values(&self.local()) {
            Ok(text) if self.shape().len() < 2 => write!(f, " {text}"),
            Ok(text) => write!(f, "\n{text}"),
            Err(error) if error.kind() == ErrorKind::NoValues => Ok(()),
            Err(error) => write!(f, " (values not read: {error})"),
        }
    }
}

/// The values to print.
enum Values<T> {
    One(T),
    List(Vec<Values<T>>),
    /// Values that are left out.
    Gap,
}

fn values(tensor: &Tensor) -> Result<String> {
    if tensor.elements() == 0 {
        return Ok("[]".into());
    }
    let whole = tensor.elements() <= MOST_ELEMENTS;
    crate::for_any!(tensor.dtype(), T => {
        let values = match whole {
            true => nested(tensor.shape(), &mut tensor.to_vec::<T>()?.into_iter()),
            false => corner::<T>(tensor)?,
        };
        let notation = Notation::of(tensor.dtype(), &values);
        let values = values.map(&|value| notation.text(value));
        Ok(values.text(values.width(), 0))
    })
}

/// All `elements` of a tensor of `shape`, in row-major order.
fn nested<T>(shape: &[usize], elements: &mut impl Iterator<Item = T>) -> Values<T> {
    match shape {
        [] => elements.next().map_or(Values::Gap, Values::One),
        [extent, rest @ ..] => Values::List((0..*extent).map(|_| nested(rest, elements)).collect()),
    }
}

/// The ends of each dim.
fn corner<T: Element>(tensor: &Tensor) -> Result<Values<T>> {
    let Some((&extent, rest)) = tensor.shape().split_first() else {
        return Ok(Values::One(tensor.item()?));
    };
    let at = |range: std::ops::Range<usize>| -> Result<Vec<Values<T>>> {
        if rest.is_empty() {
            let values = tensor.slice(0, range)?.to_vec()?;
            return Ok(values.into_iter().map(Values::One).collect());
        }
        // Removing a dim of extent 1 never needs a copy.
        let part = |index| tensor.slice(0, index..index + 1)?.view(rest);
        let each = range.map(|index| part(index)?.map_or(Ok(Values::Gap), |part| corner(&part)));
        each.collect()
    };
    if extent <= 2 * EDGE {
        return Ok(Values::List(at(0..extent)?));
    }
    let mut list = at(0..EDGE)?;
    list.push(Values::Gap);
    list.extend(at(extent - EDGE..extent)?);
    Ok(Values::List(list))
}

impl<T> Values<T> {
    fn map<U>(&self, f: &impl Fn(&T) -> U) -> Values<U> {
        match self {
            Values::One(value) => Values::One(f(value)),
            Values::List(list) => Values::List(list.iter().map(|values| values.map(f)).collect()),
            Values::Gap => Values::Gap,
        }
    }

    fn visit(&self, f: &mut impl FnMut(&T)) {
        match self {
            Values::One(value) => f(value),
            Values::List(list) => list.iter().for_each(|values| values.visit(f)),
            Values::Gap => {}
        }
    }
}

impl Values<String> {
    fn width(&self) -> usize {
        let mut width = 0;
        self.visit(&mut |text| width = width.max(text.len()));
        width
    }

    /// Nested lists; rows of numbers on one line each, numbers `width` wide, `depth` lists deep.
    fn text(&self, width: usize, depth: usize) -> String {
        let list = match self {
            Values::One(text) => return format!("{text:>width$}"),
            Values::Gap => return "...".into(),
            Values::List(list) => list,
        };
        let separator = match list.iter().any(|values| matches!(values, Values::List(_))) {
            true => format!(",\n{}", " ".repeat(depth + 1)),
            false => ", ".into(),
        };
        let texts = list.iter().map(|values| values.text(width, depth + 1));
        format!("[{}]", texts.collect::<Vec<_>>().join(&separator))
    }
}

/// How all numbers of a tensor are written.
enum Notation {
    Bool,
    Integer,
    /// Floats that are all whole numbers, such as `2.`.
    Whole,
    Decimal,
    Exponent,
}

impl Notation {
    fn of<T: Element>(dtype: DType, values: &Values<T>) -> Notation {
        if dtype == DType::Bool {
            return Notation::Bool;
        }
        if !dtype.is_float() {
            return Notation::Integer;
        }
        let (mut largest, mut smallest, mut whole) = (0.0f64, f64::INFINITY, true);
        values.visit(&mut |value| {
            let value = value.to_f64().abs();
            if value.is_finite() && value != 0.0 {
                largest = largest.max(value);
                smallest = smallest.min(value);
                whole &= value.fract() == 0.0;
            }
        });
        match whole {
            _ if largest >= LARGE || smallest < SMALL => Notation::Exponent,
            true => Notation::Whole,
            false => Notation::Decimal,
        }
    }

    fn text(&self, value: &impl Element) -> String {
        let float = value.to_f64();
        match self {
            Notation::Bool => (value.to_i64() != 0).to_string(),
            Notation::Integer => value.to_i64().to_string(),
            _ if !float.is_finite() => float.to_string(),
            Notation::Whole => format!("{float:.0}."),
            Notation::Decimal => format!("{float:.DECIMALS$}"),
            Notation::Exponent => format!("{float:.DECIMALS$e}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bool, Device, Kind};

    fn text<T: Element>(shape: &[usize], elements: &[T]) -> String {
        let tensor = Tensor::from_slice(&Device::cpu(), shape, elements).unwrap();
        format!("{tensor:?}")
    }

    #[test]
    fn values_follow_dtype_shape_and_device() {
        assert_eq!(text(&[], &[2.5f32]), "f32[] on cpu 2.5000");
        assert_eq!(
            text(&[3], &[1i64 << 62, -1, 0]),
            format!("i64[3] on cpu [{}, {:>19}, {:>19}]", 1i64 << 62, -1, 0)
        );
        assert_eq!(text::<f32>(&[0], &[]), "f32[0] on cpu []");
        assert_eq!(text::<f32>(&[99, 0], &[]), "f32[99, 0] on cpu\n[]");
        assert_eq!(
            text(&[2], &[Bool::from_i64(1), Bool::from_i64(0)]),
            "bool[2] on cpu [ true, false]"
        );
        assert_eq!(
            text(&[2, 2, 2], &[0.5f64, 1.0, -2.25, 3.0, f64::NAN, f64::INFINITY, 0.0, 10.0]),
            "f64[2, 2, 2] on cpu\n\
             [[[ 0.5000,  1.0000],\n  [-2.2500,  3.0000]],\n [[    NaN,     inf],\n  [ 0.0000, 10.0000]]]"
        );
    }

    #[test]
    fn the_notation_fits_all_values() {
        assert_eq!(text(&[2], &[2.0f32, -10.0]), "f32[2] on cpu [  2., -10.]");
        assert_eq!(text(&[2], &[2.0f32, 0.00001]), "f32[2] on cpu [ 2.0000e0, 1.0000e-5]");
        assert_eq!(text(&[1], &[1e9f32]), "f32[1] on cpu [1.0000e9]");
    }

    /// A large tensor is printed as its corners, even if its elements are not contiguous.
    #[test]
    fn a_large_tensor_is_printed_as_its_corners() {
        let elements: Vec<i32> = (0..2 * 8 * 100).collect();
        let tensor = Tensor::from_slice(&Device::cpu(), &[2, 100, 8], &elements).unwrap();
        let tensor = tensor.transpose(1, 2).unwrap();
        let text = format!("{tensor:?}");
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(rows[0], "i32[2, 8, 100] on cpu");
        assert_eq!(rows[1], "[[[   0,    8,   16, ...,  776,  784,  792],");
        assert_eq!(rows[4], "  ...,");
        assert_eq!(rows[14], "  [ 807,  815,  823, ..., 1583, 1591, 1599]]]");
        assert_eq!(rows.len(), 15);
    }

    #[test]
    fn values_that_cannot_be_read_are_left_out() {
        let meta = Device::meta(Device::cpu().properties());
        let tensor = Tensor::zeros(&meta, &[2], DType::F32, Kind::Cache).unwrap();
        assert_eq!(format!("{tensor:?}"), tensor.to_string());

        let tensor = Tensor::zeros(&Device::cpu(), &[2], DType::F32, Kind::Cache).unwrap();
        let _writer = tensor.write::<f32>("write").unwrap();
        let text = format!("{tensor:?}");
        assert!(text.starts_with("f32[2] on cpu (values not read: "), "{text}");
    }
}
