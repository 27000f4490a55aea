//! Statistics of tensors: min, max, mean, standard deviation, zeros, NaN.
//!
//! Blocks are summed in two passes and merged by the formulas of Chan, Golub and LeVeque (1979),
//! which are stable for numbers far from zero.

use std::fmt;

use serde::{Serialize, Serializer};

use super::super::catalog::Entry;
use super::decode::{BLOCK, Decoder};
use super::segments::Workers;

/// Statistics of some elements. Min, max, mean and deviation cover the finite ones.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Statistics {
    pub(crate) min: Option<Value>,
    pub(crate) max: Option<Value>,
    pub(crate) mean: Option<f64>,
    /// The population standard deviation: divides by the number of elements.
    pub(crate) std: Option<f64>,
    /// Counts both signs.
    pub(crate) zeros: u64,
    pub(crate) nan: u64,
    /// Counts both signs.
    pub(crate) infinite: u64,
    #[serde(skip)]
    finite: Sum,
}

/// A number of a float or integer dtype.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub(crate) enum Value {
    Float(f64),
    Integer(i128),
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Sum {
    count: u64,
    mean: f64,
    /// The sum of squared distances from the mean.
    squares: f64,
}

impl Sum {
    fn of(values: &[f64]) -> Sum {
        if values.is_empty() {
            return Sum::default();
        }
        let count = values.len() as f64;
        let mean = match sum(values, |value| value) / count {
            mean if mean.is_finite() => mean,
            // The sum overflows f64.
            _ => sum(values, |value| value / count),
        };
        Sum {
            count: values.len() as u64,
            mean,
            squares: sum(values, |value| (value - mean) * (value - mean)),
        }
    }

    fn join(&mut self, other: Sum) {
        if other.count == 0 {
            return;
        }
        let (ours, theirs) = (self.count as f64, other.count as f64);
        let apart = other.mean - self.mean;
        let share = theirs / (ours + theirs);
        self.count += other.count;
        self.mean += apart * share;
        self.squares += other.squares + apart * apart * ours * share;
    }
}

/// The number of independent partial sums, so that additions do not wait for each other.
const LANES: usize = 8;

fn sum(values: &[f64], term: impl Fn(f64) -> f64) -> f64 {
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut lanes = [0.0; LANES];
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane += term(*value);
        }
    }
    lanes.iter().sum::<f64>() + rest.iter().map(|value| term(*value)).sum::<f64>()
}

/// The least and greatest of finite numbers.
fn range(values: &[f64]) -> Option<(f64, f64)> {
    let first = *values.first()?;
    let (chunks, rest) = values.as_chunks::<LANES>();
    let (mut least, mut greatest) = ([first; LANES], [first; LANES]);
    for chunk in chunks {
        for (at, &value) in chunk.iter().enumerate() {
            least[at] = if value < least[at] { value } else { least[at] };
            greatest[at] = if value > greatest[at] { value } else { greatest[at] };
        }
    }
    let all = |lanes: [f64; LANES]| lanes.into_iter().chain(rest.iter().copied());
    Some((all(least).reduce(f64::min)?, all(greatest).reduce(f64::max)?))
}

impl Statistics {
    fn add_floats(&mut self, values: &mut Vec<f64>) {
        self.zeros += values.iter().filter(|value| **value == 0.0).count() as u64;
        let finite = values.iter().filter(|value| value.is_finite()).count();
        if finite < values.len() {
            let nan = values.iter().filter(|value| value.is_nan()).count();
            self.nan += nan as u64;
            self.infinite += (values.len() - finite - nan) as u64;
            values.retain(|value| value.is_finite());
        }

        if let Some((least, greatest)) = range(values) {
            self.add_range(Some(Value::Float(least)), Some(Value::Float(greatest)));
        }
        self.add_sum(Sum::of(values));
    }

    fn add_integers(&mut self, integers: &[i128]) {
        self.zeros += integers.iter().filter(|&&value| value == 0).count() as u64;
        let (min, max) = (integers.iter().min().copied(), integers.iter().max().copied());
        self.add_range(min.map(Value::Integer), max.map(Value::Integer));

        let values: Vec<f64> = integers.iter().map(|&value| value as f64).collect();
        self.add_sum(Sum::of(&values));
    }

    fn add_range(&mut self, min: Option<Value>, max: Option<Value>) {
        let least = |a: Value, b: Value| if b < a { b } else { a };
        let greatest = |a: Value, b: Value| if b > a { b } else { a };
        self.min = self.min.into_iter().chain(min).reduce(least);
        self.max = self.max.into_iter().chain(max).reduce(greatest);
    }

    fn add_sum(&mut self, sum: Sum) {
        self.finite.join(sum);
        if self.finite.count > 0 {
            self.mean = Some(self.finite.mean);
            self.std = Some((self.finite.squares / self.finite.count as f64).sqrt());
        }
    }

    /// Adds the elements that `other` covers.
    pub(crate) fn merge(&mut self, other: &Statistics) {
        self.zeros += other.zeros;
        self.nan += other.nan;
        self.infinite += other.infinite;
        self.add_range(other.min, other.max);
        self.add_sum(other.finite);
    }
}

/// Reads all elements of `entries`; returns `None` for dtypes that are not decoded.
pub(crate) fn statistics(
    entries: &[Entry],
    workers: Workers,
) -> anyhow::Result<Vec<Option<Statistics>>> {
    let decoders: Vec<Option<Decoder>> =
        entries.iter().map(|entry| Decoder::new(entry.info.dtype)).collect();
    let decoded = || entries.iter().zip(&decoders).filter(|(_, decoder)| decoder.is_some());

    let elements = entries.iter().zip(&decoders).map(|(entry, decoder)| match decoder {
        Some(_) => entry.elements(),
        None => 0,
    });
    let elements: Vec<u64> = elements.collect();
    let bytes = decoded().map(|(entry, _)| entry.bytes()).sum();

    let worker = || {
        let mut buffer = vec![0; workers.buffer_bytes()];
        let (mut floats, mut integers) = (Vec::new(), Vec::new());
        let (entries, decoders) = (&entries, &decoders);
        move |segment: super::segments::Segment, progress: &indicatif::ProgressBar| {
            let mut statistics = Statistics::default();
            let Some(decoder) = &decoders[segment.tensor] else {
                return Ok(statistics);
            };
            let entry = &entries[segment.tensor];
            let size = entry.info.dtype.bits() / 8;

            let (mut at, end) = (segment.start as usize * size, segment.end as usize * size);
            while at < end {
                let data = &mut buffer[..(end - at).min(workers.buffer_bytes())];
                entry.read(at, data)?;
                for block in data.chunks(BLOCK * size) {
                    if decoder.integers(block, &mut integers) {
                        statistics.add_integers(&integers);
                    } else {
                        decoder.floats(block, &mut floats);
                        statistics.add_floats(&mut floats);
                    }
                }
                at += data.len();
                progress.inc(data.len() as u64);
            }
            Ok(statistics)
        }
    };
    let all = workers.run(&elements, bytes, worker, Statistics::merge)?;
    let known = all.into_iter().zip(&decoders);
    Ok(known.map(|(statistics, decoder)| decoder.as_ref().map(|_| statistics)).collect())
}

impl Value {
    /// Formats a float with five digits, an integer with all digits.
    fn text(self) -> String {
        match self {
            Value::Integer(integer) => integer.to_string(),
            Value::Float(value) => float_text(value),
        }
    }
}

/// Formats a number with five digits, as in `0`, `-1.2346`, `123.46`, `1.2346e-7`.
pub(crate) fn float_text(value: f64) -> String {
    let exponent = match value {
        0.0 => return "0".to_owned(),
        value => value.abs().log10().floor(),
    };
    if (-4.0..6.0).contains(&exponent) {
        let decimals = (4.0 - exponent).max(0.0) as usize;
        format!("{value:.decimals$}")
    } else {
        format!("{value:.4e}")
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match *self {
            Value::Float(value) => serializer.serialize_f64(value),
            Value::Integer(integer) => match (i64::try_from(integer), u64::try_from(integer)) {
                (Ok(integer), _) => serializer.serialize_i64(integer),
                (_, Ok(integer)) => serializer.serialize_u64(integer),
                _ => serializer.serialize_f64(integer as f64),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_have_five_digits() {
        for (value, wanted) in [
            (0.0, "0"),
            (-0.0, "0"),
            (1.0, "1.0000"),
            (-123.456, "-123.46"),
            (99_999.0, "99999"),
            (1e6, "1.0000e6"),
            (0.000_123_456, "0.00012346"),
            (0.000_012_345_6, "1.2346e-5"),
            (f64::MAX, "1.7977e308"),
            (f64::INFINITY, "inf"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(float_text(value), wanted);
        }
    }

    /// Merging statistics of any split equals the statistics of the whole.
    #[test]
    fn merged_statistics_equal_the_whole() {
        let values: Vec<f64> = (0..100).map(|at| f64::from(at * at % 17) - 5.0).collect();
        let of = |values: &[f64]| {
            let mut statistics = Statistics::default();
            statistics.add_floats(&mut values.to_vec());
            statistics
        };
        let whole = of(&values);
        for cut in 0..=values.len() {
            let mut merged = of(&values[..cut]);
            merged.merge(&of(&values[cut..]));
            let near = |a: Option<f64>, b: Option<f64>| {
                a.zip(b).is_some_and(|(a, b)| (a - b).abs() < 1e-14 * b.abs().max(1.0))
            };
            assert!(near(merged.mean, whole.mean) && near(merged.std, whole.std), "{cut}");
            assert_eq!((merged.min, merged.max), (whole.min, whole.max));
            assert_eq!(merged.zeros, whole.zeros);
        }
    }
}
