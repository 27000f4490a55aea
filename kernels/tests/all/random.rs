//! Random values and dropout have the same bits as the same formulas on the host.

use meshgrad_emulator::Counters;
use meshgrad_kernel_catalogue as catalogue;
use meshgrad_kernels::elementwise::Layout;
use meshgrad_kernels::random::{
    Distribution, DistributionParams, Random, RandomArguments, RandomSpace, quantile,
};
use meshgrad_kernels::{Dtype, In, Out, Variant};

use crate::device::{Device, decoded, encoded, values};
use crate::philox::{KEY, word};

/// The quantile function, in f32 on the host.
fn normal(word: u32) -> f32 {
    let horner = |x: f32, coefficients: &[f32]| {
        let (last, lower) = coefficients.split_last().unwrap();
        lower.iter().rev().fold(*last, |sum, c| sum * x + c)
    };
    let ln = |x: f32| {
        let bits = x.to_bits();
        let exponent = (bits.wrapping_sub(quantile::SQRT_HALF) as i32) >> 23;
        let r = f32::from_bits(bits.wrapping_sub((exponent as u32) << 23)) - 1.0;
        exponent as f32 * std::f32::consts::LN_2 + (r + r * r * horner(r, &quantile::LN_TAIL))
    };
    let upper = word >= 1 << 31;
    let from_end = if upper { !word } else { word };
    let p = (from_end as f32 + 0.5) * quantile::STEP;
    let q = ((0x7fff_ffff - from_end) as f32 + 0.5) * (2.0 * quantile::STEP);
    let w = -ln(2.0 * p * (1.0 + q));
    let size = q * (horner(w, &quantile::NUMERATOR) / horner(w, &quantile::DENOMINATOR));
    if upper { size } else { -size }
}

fn rounded(dtype: Dtype, value: f32) -> f32 {
    decoded(dtype, &encoded(dtype, &[value]))[0]
}

/// The value of an element before it is rounded.
fn expected(values: DistributionParams, dtype: Dtype, word: u32, x: f32) -> f32 {
    match values {
        DistributionParams::Uniform { low, length, last } => {
            let value = (word >> 8) as f32 * (1.0 / 16_777_216.0) * length + low;
            rounded(dtype, value).min(last)
        }
        DistributionParams::Normal { mean, std } => normal(word) * std + mean,
        DistributionParams::Dropout { threshold, scale } if word >= threshold => x * scale,
        DistributionParams::Mask { threshold } if word >= threshold => 1.0,
        DistributionParams::Dropout { .. } | DistributionParams::Mask { .. } => 0.0,
    }
}

const ALL: [DistributionParams; 4] = [
    DistributionParams::Uniform { low: -1.0, length: 3.0, last: 1.992_187_5 },
    DistributionParams::Normal { mean: 0.5, std: 2.0 },
    DistributionParams::Dropout { threshold: 0x4000_0000, scale: 4.0 / 3.0 },
    DistributionParams::Mask { threshold: 0xc000_0000 },
];

/// The elements of a shape: first global index and strides of the indices, strides of the operand,
/// and the number of elements stored for it.
struct Case {
    extents: Vec<usize>,
    places: (u64, Vec<isize>),
    operand: Vec<isize>,
    stored: usize,
}

impl Case {
    fn dense(count: usize, first: u64) -> Case {
        Case { extents: vec![count], places: (first, vec![1]), operand: vec![1], stored: count }
    }

    /// The operand's offset and the global index of each element, in row-major order.
    fn elements(&self) -> Vec<(usize, u64)> {
        let count = self.extents.iter().product();
        let one = |mut at: usize| {
            let (mut operand, mut place) = (0, self.places.0);
            for (dim, extent) in self.extents.iter().enumerate().rev() {
                let coordinate = at % extent;
                operand += coordinate * self.operand[dim] as usize;
                place += (coordinate as isize * self.places.1[dim]) as u64;
                at /= extent;
            }
            (operand, place)
        };
        (0..count).map(one).collect()
    }

    fn space(&self, dropout: bool) -> RandomSpace {
        let mut strides = vec![1; self.extents.len()];
        for dim in (1..strides.len()).rev() {
            strides[dim - 1] = strides[dim] * self.extents[dim] as isize;
        }
        let places = (self.places.0, &self.places.1[..]);
        let operand = dropout.then_some(&self.operand[..]);
        RandomSpace::new(&self.extents, &strides, places, operand).unwrap()
    }
}

/// Runs one kernel, with `layout` or the one that the space needs, and compares every bit.
fn check(
    device: &Device,
    case: &Case,
    dtype: Dtype,
    values_of: DistributionParams,
    layout: Option<Layout>,
) -> (Vec<u8>, Counters) {
    let distribution = values_of.distribution();
    let (dropout, mask) =
        (distribution == Distribution::Dropout, distribution == Distribution::Mask);
    let space = case.space(dropout);
    let variant = Random::new(distribution, dtype, layout.unwrap_or(space.form(true)));
    let elements = case.elements();
    let x = values(dtype, case.stored, 7);
    let size = if mask { 1 } else { dtype.size() as usize };
    let result = device.room(elements.len() * size);
    let arguments = RandomArguments {
        operand: dropout.then(|| In(device.put_floats(dtype, &x))),
        result: Out(result),
        key: KEY,
        values: values_of,
        space,
    };
    let launch = variant.launch(elements.len() as u64).unwrap();
    let counters = device.run(&variant, launch, &arguments);

    let values = elements.iter().map(|(at, place)| {
        let word = word(KEY, *place);
        expected(values_of, dtype, word, x[*at])
    });
    let values: Vec<f32> = values.collect();
    let expected = match mask {
        true => values.iter().map(|x| *x as u8).collect(),
        false => encoded(dtype, &values),
    };
    let found = device.bytes(result, expected.len());
    assert!(found == expected, "{variant:?}");
    (found, counters)
}

/// Whole tiles with and without a remainder, less than a tile, one element; indices beyond 32 bits.
#[test]
fn blocks_equal_the_host() {
    let device = Device::plain();
    for dtype in Dtype::ALL {
        for values in ALL {
            for (count, first) in [(4099, 0), (4096, (1 << 40) + 8), (5, 4), (1, 0)] {
                let case = Case::dense(count, first);
                let (result, counters) = check(&device, &case, dtype, values, None);
                let read = match values {
                    DistributionParams::Dropout { .. } => count * dtype.size() as usize,
                    _ => 0,
                };
                let total = counters.total;
                let moved = [total.bytes_read, total.bytes_written];
                assert_eq!(moved, [read as u64, result.len() as u64], "{values:?}");
                if count % 4096 == 0 {
                    assert_eq!(total.sectors, total.ideal_sectors, "{values:?}");
                }
            }
        }
    }
}

/// A box of a larger tensor, a transposed operand, a first index that is not a multiple of 4, and
/// indices beyond 32 bits.
fn strided_cases() -> [Case; 4] {
    let stretched = |places: Vec<isize>, operand: Vec<isize>| Case {
        extents: vec![7, 11],
        places: (13, places),
        operand,
        stored: 77,
    };
    [
        stretched(vec![100, 1], vec![11, 1]),
        stretched(vec![1 << 33, 1 << 20], vec![1, 7]),
        Case::dense(1030, 2),
        Case {
            extents: vec![2, 3, 5],
            places: (1 << 33, vec![300, 20, 1]),
            operand: vec![1, 10, 2],
            stored: 30,
        },
    ]
}

#[test]
fn strided_elements_equal_the_host() {
    let device = Device::plain();
    for dtype in Dtype::ALL {
        for values in ALL {
            for case in strided_cases() {
                check(&device, &case, dtype, values, None);
            }
        }
    }
}

/// The host's formula, which the other tests compare with, gives known quantiles of the normal
/// distribution.
#[test]
fn quantiles_are_close_to_those_of_the_distribution() {
    for (word, quantile) in [(0x4000_0000u32, -0.674_489_75f32), (0xf000_0000, 1.534_120_5)] {
        assert!((normal(word) / quantile - 1.0).abs() < 1e-6);
    }
}

/// Runs every kernel of the catalogue, on whole and partial tiles.
pub(crate) fn exercise(device: &Device) -> Vec<u8> {
    let families = catalogue::families();
    let (_, kernels) = families.iter().find(|(name, _)| *name == "random").unwrap();
    let entries: Vec<&str> = kernels.iter().map(|ptx| &ptx.entry[..]).collect();

    let mut bits = Vec::new();
    let strided = |dims, wide| Some(Layout::Strided { dims, wide });
    let [two, far, one, three] = strided_cases();
    let cases = [
        (Case::dense(4099, 8), Some(Layout::Contiguous)),
        (one, strided(1, false)),
        (two, strided(2, false)),
        (far, strided(2, true)),
        (three, strided(3, false)),
    ];
    for dtype in Dtype::ALL {
        for values in ALL {
            for (case, layout) in &cases {
                let kernel = Random::new(values.distribution(), dtype, layout.unwrap());
                if entries.contains(&&kernel.entry()[..]) {
                    bits.extend(check(device, case, dtype, values, *layout).0);
                }
            }
        }
    }
    bits
}
