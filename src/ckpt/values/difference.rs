//! Compares the elements of two tensors of equal shape.

use meshgrad::ckpt::Dtype;
use serde::Serialize;

use super::super::catalog::Entry;
use super::decode::{BLOCK, Decoder};
use super::segments::{Segment, Workers};

/// Names and inclusive upper ends of the buckets of the histogram of units in the last place.
pub(crate) const ULP_BUCKETS: [(&str, u64); 6] =
    [("0", 0), ("1", 1), ("2-10", 10), ("11-100", 100), ("101-1000", 1000), ("more", u64::MAX)];

/// How many elements differ, and by how much.
///
/// Elements of equal dtypes are compared by bits, others by value, where NaN equals NaN.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Difference {
    pub(crate) differing: u64,
    /// The row-major index of the first difference.
    pub(crate) first: Option<u64>,
    /// Greatest |a - b| over the finite pairs that differ.
    pub(crate) max_abs: Option<f64>,
    /// Greatest |a - b| / max(|a|, |b|) over the same pairs.
    pub(crate) max_relative: Option<f64>,
    /// Pairs with NaN or infinity that differ.
    pub(crate) not_finite: u64,
    /// A histogram of the finite pairs that differ, by units in the last place ([`ULP_BUCKETS`]).
    /// Only for floats of equal dtype.
    pub(crate) ulps: Option<[u64; ULP_BUCKETS.len()]>,
}

impl Difference {
    pub(crate) fn merge(&mut self, other: &Difference) {
        self.differing += other.differing;
        self.first = self.first.into_iter().chain(other.first).min();
        self.max_abs = greatest(self.max_abs, other.max_abs);
        self.max_relative = greatest(self.max_relative, other.max_relative);
        self.not_finite += other.not_finite;
        for (at, count) in other.ulps.into_iter().flatten().enumerate() {
            self.ulps.get_or_insert_default()[at] += count;
        }
    }

    fn add(&mut self, at: u64, distance: Option<Distance>) {
        self.differing += 1;
        self.first = self.first.into_iter().chain([at]).min();
        let Some(distance) = distance else {
            self.not_finite += 1;
            return;
        };
        self.max_abs = greatest(self.max_abs, Some(distance.absolute));
        self.max_relative = greatest(self.max_relative, Some(distance.relative));
        if let Some(ulps) = distance.ulps {
            let range = ULP_BUCKETS.iter().position(|(_, end)| ulps <= *end);
            self.ulps.get_or_insert_default()[range.unwrap_or_default()] += 1;
        }
    }
}

fn greatest(kept: Option<f64>, new: Option<f64>) -> Option<f64> {
    kept.into_iter().chain(new).reduce(f64::max)
}

/// The distance of two finite numbers.
struct Distance {
    absolute: f64,
    relative: f64,
    ulps: Option<u64>,
}

impl Distance {
    /// The distance of two numbers; `None` if one is not finite.
    fn of(a: f64, b: f64) -> Option<Distance> {
        let distance = Distance {
            absolute: (a - b).abs(),
            relative: relative((a - b).abs(), a.abs().max(b.abs())),
            ulps: None,
        };
        (a.is_finite() && b.is_finite()).then_some(distance)
    }

    fn of_integers(a: i128, b: i128) -> Distance {
        let absolute = a.abs_diff(b) as f64;
        Distance {
            absolute,
            relative: relative(absolute, a.unsigned_abs().max(b.unsigned_abs()) as f64),
            ulps: None,
        }
    }
}

/// The distance relative to the larger magnitude; 0 for two zeros.
fn relative(distance: f64, largest: f64) -> f64 {
    if largest == 0.0 { 0.0 } else { distance / largest }
}

/// The distance of two floats in units in the last place, from their bits. The magnitude bits, read
/// as an integer, grow with the value.
fn ulps_between(a: u64, b: u64, bits: usize) -> u64 {
    let sign = 1u64 << (bits - 1);
    let (magnitude_a, magnitude_b) = (a & !sign, b & !sign);
    if (a ^ b) & sign == 0 {
        magnitude_a.abs_diff(magnitude_b)
    } else {
        magnitude_a.saturating_add(magnitude_b)
    }
}

/// Whether the dtype is a float with a sign bit and a magnitude.
fn has_ulps(dtype: Dtype) -> bool {
    let floats = [Dtype::F64, Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::F8E4M3, Dtype::F8E5M2];
    floats.contains(&dtype)
}

/// Whether two dtypes can be compared: they are equal, or both are decoded.
pub(crate) fn comparable(a: Dtype, b: Dtype) -> bool {
    a == b || Decoder::new(a).is_some() && Decoder::new(b).is_some()
}

/// Compares pairs of tensors of equal shape and comparable dtypes, element by element.
///
/// Dtypes that are not decoded (less than a byte, complex) are compared byte by byte.
pub(crate) fn differences(
    pairs: &[(Entry, Entry)],
    workers: Workers,
) -> anyhow::Result<Vec<Difference>> {
    let comparisons: Vec<Comparison> = pairs.iter().map(|(a, b)| Comparison::new(a, b)).collect();
    let elements: Vec<u64> = comparisons.iter().map(|comparison| comparison.elements).collect();
    let bytes = pairs.iter().map(|(a, b)| a.bytes() + b.bytes()).sum();

    let worker = || {
        let mut scratch = Scratch::new(workers.buffer_bytes());
        let comparisons = &comparisons;
        move |segment: Segment, progress: &indicatif::ProgressBar| {
            comparisons[segment.tensor].segment(segment, &mut scratch, |bytes| progress.inc(bytes))
        }
    };
    workers.run(&elements, bytes, worker, Difference::merge)
}

/// The buffers of a thread.
struct Scratch {
    data: [Vec<u8>; 2],
    floats: [Vec<f64>; 2],
    integers: [Vec<i128>; 2],
}

impl Scratch {
    fn new(bytes: usize) -> Scratch {
        Scratch {
            data: [vec![0; bytes], vec![0; bytes]],
            floats: [Vec::new(), Vec::new()],
            integers: [Vec::new(), Vec::new()],
        }
    }
}

/// A pair of tensors and how to compare them.
struct Comparison<'a> {
    sides: [Side<'a>; 2],
    elements: u64,
    same_dtype: bool,
    ulp_bits: Option<usize>,
}

struct Side<'a> {
    entry: &'a Entry<'a>,
    decoder: Option<Decoder>,
    /// Bytes of an element; 1 if it is not decoded.
    size: usize,
}

impl<'a> Side<'a> {
    fn new(entry: &'a Entry<'a>) -> Side<'a> {
        let dtype = entry.info.dtype;
        let decoder = Decoder::new(dtype);
        Side { entry, size: if decoder.is_some() { dtype.bits() / 8 } else { 1 }, decoder }
    }
}

impl<'a> Comparison<'a> {
    fn new(a: &'a Entry<'a>, b: &'a Entry<'a>) -> Comparison<'a> {
        let dtype = a.info.dtype;
        let same_dtype = dtype == b.info.dtype;
        let sides = [Side::new(a), Side::new(b)];
        Comparison {
            elements: a.bytes() / sides[0].size as u64,
            sides,
            same_dtype,
            ulp_bits: (same_dtype && has_ulps(dtype)).then(|| dtype.bits()),
        }
    }

    fn segment(
        &self,
        segment: Segment,
        scratch: &mut Scratch,
        progress: impl Fn(u64),
    ) -> anyhow::Result<Difference> {
        let [a, b] = &self.sides;
        let most = scratch.data[0].len() / a.size.max(b.size);
        let mut difference = Difference::default();

        let mut at = segment.start;
        while at < segment.end {
            let count = ((segment.end - at) as usize).min(most);
            for (side, data) in self.sides.iter().zip(&mut scratch.data) {
                let data = &mut data[..count * side.size];
                side.entry.read(at as usize * side.size, data)?;
                progress(data.len() as u64);
            }

            let equal = self.same_dtype
                && scratch.data[0][..count * a.size] == scratch.data[1][..count * b.size];
            if !equal {
                for start in (0..count).step_by(BLOCK) {
                    let block = start..count.min(start + BLOCK);
                    self.block(at, block, scratch, &mut difference);
                }
            }
            at += count as u64;
        }
        Ok(difference)
    }

    /// Compares a block of the elements in `scratch`, the first of which is element `base`.
    fn block(
        &self,
        base: u64,
        block: std::ops::Range<usize>,
        scratch: &mut Scratch,
        difference: &mut Difference,
    ) {
        let [a, b] = &self.sides;
        let Scratch {
            data: [data_a, data_b],
            floats: [floats_a, floats_b],
            integers: [integers_a, integers_b],
        } = scratch;
        let bytes_a = &data_a[block.start * a.size..block.end * a.size];
        let bytes_b = &data_b[block.start * b.size..block.end * b.size];
        let base = base + block.start as u64;

        let (Some(decode_a), Some(decode_b)) = (&a.decoder, &b.decoder) else {
            let bits = a.entry.info.dtype.bits() as u64;
            for (at, (byte_a, byte_b)) in bytes_a.iter().zip(bytes_b).enumerate() {
                if byte_a != byte_b {
                    difference.add_undecoded((base + at as u64) * 8 / bits);
                }
            }
            return;
        };

        let integers =
            decode_a.integers(bytes_a, integers_a) && decode_b.integers(bytes_b, integers_b);
        decode_a.floats(bytes_a, floats_a);
        decode_b.floats(bytes_b, floats_b);
        for at in 0..block.len() {
            let bits_a = bits(&bytes_a[at * a.size..][..a.size]);
            let bits_b = bits(&bytes_b[at * b.size..][..b.size]);
            let (value_a, value_b) = (floats_a[at], floats_b[at]);
            let equal = match (self.same_dtype, integers) {
                (true, _) => bits_a == bits_b,
                (false, true) => integers_a[at] == integers_b[at],
                (false, false) => value_a == value_b || value_a.is_nan() && value_b.is_nan(),
            };
            if equal {
                continue;
            }

            let mut distance = match integers {
                true => Some(Distance::of_integers(integers_a[at], integers_b[at])),
                false => Distance::of(value_a, value_b),
            };
            if let (Some(distance), Some(width)) = (&mut distance, self.ulp_bits) {
                distance.ulps = Some(ulps_between(bits_a, bits_b, width));
            }
            difference.add(base + at as u64, distance);
        }
    }
}

impl Difference {
    /// Counts a differing byte of element `at`, whose dtype is not decoded.
    fn add_undecoded(&mut self, at: u64) {
        self.differing += 1;
        self.first = self.first.into_iter().chain([at]).min();
    }
}

/// Up to 8 little-endian bytes as an integer.
fn bits(bytes: &[u8]) -> u64 {
    let with = |bits: u64, byte: &u8| bits << 8 | u64::from(*byte);
    bytes.iter().rev().fold(0, with)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A float and its successor are one unit apart, across binades and zero.
    #[test]
    fn adjacent_floats_are_one_ulp_apart() {
        for value in [0.0f32, 1.0, 1.5, f32::MIN_POSITIVE, f32::MAX.next_down(), -1.0, -2.0] {
            let (a, b) = (value.to_bits().into(), value.next_up().to_bits().into());
            assert_eq!(ulps_between(a, b, 32), 1, "{value}");
            assert_eq!(ulps_between(b, a, 32), 1, "{value}");
        }
        let bits = |value: f32| u64::from(value.to_bits());
        assert_eq!(ulps_between(bits(0.0), bits(-0.0), 32), 0);
        let (down, up) = (0f32.next_down(), 0f32.next_up());
        assert_eq!(ulps_between(bits(down), bits(up), 32), 2);
        assert_eq!(ulps_between(bits(1.0), bits(2.0), 32), 1 << 23);
        let (least, greatest) = (f64::MIN.to_bits(), f64::MAX.to_bits());
        assert_eq!(ulps_between(least, greatest, 64), 2 * greatest);
    }

    #[test]
    fn distances_of_large_integers_are_exact() {
        let distance = Distance::of_integers(i64::MAX.into(), (i64::MAX - 1).into());
        assert_eq!(distance.absolute, 1.0);
        assert_eq!(Distance::of_integers(0, 0).relative, 0.0);
    }

    /// Merging differences of any split equals the difference of the whole.
    #[test]
    fn merged_differences_equal_the_whole() {
        let pairs = [(1.0, 2.0), (0.0, -0.0), (f64::NAN, 1.0), (3.0, f64::INFINITY), (5.0, 4.5)];
        let of = |pairs: &[(f64, f64)], from: u64| {
            let mut difference = Difference::default();
            for (at, (a, b)) in pairs.iter().enumerate() {
                difference.add(from + at as u64, Distance::of(*a, *b));
            }
            difference
        };
        let whole = of(&pairs, 7);
        for cut in 0..=pairs.len() {
            let mut merged = of(&pairs[..cut], 7);
            merged.merge(&of(&pairs[cut..], 7 + cut as u64));
            assert_eq!(merged, whole);
        }
        assert_eq!((whole.first, whole.not_finite), (Some(7), 2));
        assert_eq!((whole.max_abs, whole.max_relative), (Some(1.0), Some(0.5)));
    }
}
