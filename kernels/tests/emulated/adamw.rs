//! AdamW gives the same bits as the formulas on the host, and moves no byte twice.

use half::bf16;
use meshgrad_emulator::Counters;
use meshgrad_kernels::adamw::{
    AdamWArguments, AdamWConstants, AdamWEntry, CHUNK, GlobalIndices, Rounding, chunk_words,
};
use meshgrad_kernels::{Dtype, In};

use crate::device::{Device, encoded, values};
use crate::philox::{KEY, fold, word};

const LEARNING_RATE: f32 = 0.01;

/// A parameter on the host and on a device.
struct Parameter {
    /// Parameter, gradient, exp_avg and exp_avg_sq.
    arrays: [Vec<f32>; 4],
    entry: AdamWEntry,
}

impl Parameter {
    /// `count` elements that begin `skip` elements after a 16-byte boundary.
    fn new(device: &Device, count: usize, skip: usize, rounding: Rounding) -> Parameter {
        let dtype = dtype(&rounding);
        let mut arrays = [dtype, Dtype::F32, Dtype::F32, Dtype::F32].map(|of| values(of, count, 0));
        for (salt, array) in arrays.iter_mut().enumerate() {
            let of = if salt == 0 { dtype } else { Dtype::F32 };
            *array = values(of, count, 1 + salt as u64);
        }
        arrays[3].iter_mut().for_each(|x| *x = x.abs());

        let mut addresses = [0; 4];
        for (at, (address, array)) in addresses.iter_mut().zip(&arrays).enumerate() {
            let of = if at == 0 { dtype } else { Dtype::F32 };
            let padded: Vec<f32> = vec![0.0; skip].into_iter().chain(array.clone()).collect();
            *address = device.put_floats(of, &padded) + skip as u64 * u64::from(of.size());
        }
        let constants = AdamWConstants { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 };
        let entry = AdamWEntry { addresses, elements: count as u64, rounding, constants };
        Parameter { arrays, entry }
    }

    /// Parameter, exp_avg and exp_avg_sq after a step.
    fn stepped(&self, step: u32, scale: f32) -> [Vec<f32>; 3] {
        let of = self.entry.constants;
        let rate = f64::from(LEARNING_RATE);
        let power = |base: f64| {
            let bits = (0..32).map(|bit| (step >> bit) & 1);
            let (mut product, mut base) = (1.0, base);
            for bit in bits {
                product *= if bit == 1 { base } else { 1.0 };
                base *= base;
            }
            product
        };
        let keep = (1.0 - rate * of.weight_decay) as f32;
        let unbias = (1.0 / (1.0 - power(of.beta2)).sqrt()) as f32;
        let rate = (rate / (1.0 - power(of.beta1))) as f32;
        let gains = [1.0 - of.beta1, of.beta2, 1.0 - of.beta2].map(|x| x as f32);

        let mut after = [vec![], vec![], vec![]];
        let [p, g, m, v] = &self.arrays;
        for (at, (p, g)) in p.iter().zip(g).enumerate() {
            let g = g * scale;
            let m = m[at] + gains[0] * (g - m[at]);
            let v = gains[1] * v[at] + gains[2] * g * g;
            let p = p * keep - rate * m / (v.sqrt() * unbias + of.eps as f32);
            after[0].push(self.rounded(p, at, step));
            after[1].push(m);
            after[2].push(v);
        }
        after
    }

    fn rounded(&self, value: f32, at: usize, step: u32) -> f32 {
        match &self.entry.rounding {
            Rounding::F32 => value,
            Rounding::Bf16 => bf16::from_f32(value).to_f32(),
            Rounding::Bf16Stochastic { key, indices } => {
                let (mut rest, mut index) = (at as u64, indices.first);
                for (extent, stride) in &indices.dims {
                    index += rest % extent * stride;
                    rest /= extent;
                }
                let word = word(fold(*key, step.into()), index);
                let bits = value.to_bits();
                let moved = bits.wrapping_add(word >> 16) & 0xffff_0000;
                f32::from_bits(if value.is_finite() { moved } else { bits })
            }
        }
    }

    fn on_device(&self, device: &Device) -> [Vec<f32>; 3] {
        let [param, _, mean, square] = self.entry.addresses;
        let count = self.arrays[0].len();
        let of = [(dtype(&self.entry.rounding), param), (Dtype::F32, mean), (Dtype::F32, square)];
        of.map(|(dtype, address)| device.floats(dtype, address, count))
    }
}

fn dtype(rounding: &Rounding) -> Dtype {
    match rounding {
        Rounding::F32 => Dtype::F32,
        Rounding::Bf16 | Rounding::Bf16Stochastic { .. } => Dtype::Bf16,
    }
}

fn random(first: u64, dims: &[(u64, u64)]) -> Rounding {
    let dims = dims.to_vec();
    Rounding::Bf16Stochastic { key: KEY, indices: GlobalIndices { first, dims } }
}

fn run(device: &Device, parameters: &[Parameter], step: f32, scale: f32) -> Counters {
    let entries: Vec<AdamWEntry> = parameters.iter().map(|one| one.entry.clone()).collect();
    let words = |words: Vec<u64>| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        device.put(&bytes)
    };
    let chunks = chunk_words(&entries);
    let count = chunks.len() as u32;
    let scalar = |x: f32| device.put(&x.to_le_bytes());
    let arguments = AdamWArguments {
        table: In(words(entries.iter().flat_map(AdamWEntry::words).collect())),
        chunks: In(words(chunks)),
        learning_rate: In(scalar(LEARNING_RATE)),
        step: In(scalar(step)),
        scale: In(scalar(scale)),
    };
    let variant = AdamWEntry::variant(&entries);
    let launch = variant.launch(count).unwrap();
    device.run(&variant, launch, &arguments)
}

#[track_caller]
fn assert_bits(found: &[Vec<f32>; 3], expected: &[Vec<f32>; 3]) {
    for (array, (found, expected)) in found.iter().zip(expected).enumerate() {
        for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
            let equal = found.to_bits() == expected.to_bits();
            assert!(equal, "array {array}, element {at}: {found:e}, not {expected:e}");
        }
    }
}

/// Whole tiles with a remainder, a few elements, none; aligned and unaligned; with global indices
/// of rows, of columns, and of a box.
fn of_all_kinds(device: &Device) -> Vec<Parameter> {
    let new = |count, skip, rounding| Parameter::new(device, count, skip, rounding);
    vec![
        new(2053, 0, Rounding::F32),
        new(0, 0, Rounding::F32),
        new(300, 3, Rounding::F32),
        new(2051, 0, Rounding::Bf16),
        new(7, 1, Rounding::Bf16),
        new(2051, 0, random(8, &[(2051, 1)])),
        new(48, 0, random((1 << 40) + 4, &[(8, 1), (3, 100), (2, 4000)])),
        new(35, 0, random(2, &[(5, 1), (7, 9)])),
        new(30, 8, random(0, &[(6, 7), (5, 1)])),
    ]
}

#[test]
fn many_parameters_in_one_launch() {
    for device in Device::all() {
        for (step, scale) in [(1, 0.5), (1001, 2.0)] {
            let parameters = of_all_kinds(&device);
            let counters = run(&device, &parameters, step as f32, scale);
            assert_eq!(counters.total.wavefronts, counters.total.ideal_wavefronts);
            for one in &parameters {
                assert_bits(&one.on_device(&device), &one.stepped(step, scale));
            }
        }
    }
}

/// A parameter with more elements than one CTA processes.
#[test]
fn a_parameter_may_span_several_chunks() {
    let device = Device::plain();
    let parameters = [Parameter::new(&device, CHUNK as usize + 5, 0, Rounding::F32)];
    run(&device, &parameters, 3.0, 1.0);
    assert_bits(&parameters[0].on_device(&device), &parameters[0].stepped(3, 1.0));
}

/// A non-finite scale, or a step below 1, changes nothing.
#[test]
fn non_finite_scale_or_step_zero_changes_nothing() {
    let device = Device::plain();
    let of = [(1.0, f32::NAN), (1.0, f32::INFINITY), (0.0, 1.0), (f32::NAN, 1.0)];
    for (step, scale) in of {
        let parameters = of_all_kinds(&device);
        let counters = run(&device, &parameters, step, scale);
        assert_eq!(counters.total.bytes_written, 0);
    }
}

/// A parameter is rounded to one of its two neighbors in bf16, without bias. NaN and infinities
/// pass through.
#[test]
fn stochastic_rounding_is_unbiased() {
    let device = Device::plain();
    let count = 20_000;
    let mut one = Parameter::new(&device, count, 0, random(0, &[(count as u64, 1)]));
    one.arrays = [vec![1.0; count], vec![0.0; count], vec![0.0; count], vec![0.0; count]];
    for (special, gradient) in [(0, f32::INFINITY), (1, f32::NAN)] {
        one.arrays[1][special] = gradient;
    }
    let largest = bf16::MAX.to_f32();
    let specials = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, largest, -largest];
    one.arrays[0][2..7].copy_from_slice(&specials);
    for (at, address) in one.entry.addresses.iter_mut().enumerate() {
        let dtype = if at == 0 { Dtype::Bf16 } else { Dtype::F32 };
        *address = device.put_floats(dtype, &one.arrays[at]);
    }

    // 1 decays to 0.999, a quarter of the way from 1 to its neighbor 0.99609375.
    let parameters = [one];
    run(&device, &parameters, 1.0, 1.0);
    let [p, ..] = parameters[0].on_device(&device);
    assert!(p[0].is_nan() && p[1].is_nan());
    assert_eq!(p[2..4], [f32::INFINITY, f32::NEG_INFINITY]);
    assert!(p[4].is_nan());
    // A finite value never becomes infinite.
    for (p, largest) in [(p[5], largest), (-p[6], largest)] {
        let below = f32::from_bits(largest.to_bits() - 0x1_0000);
        assert!(p == largest || p == below, "{p}");
    }
    let below = p.iter().filter(|x| **x == 0.996_093_75).count() as f64;
    let above = p.iter().filter(|x| **x == 1.0).count() as f64;
    assert_eq!(below + above + 7.0, count as f64);
    let share = 0.001 / 0.003_906_25;
    let deviation = (share * (1.0 - share) / count as f64).sqrt();
    assert!((below / count as f64 - share).abs() < 4.0 * deviation, "{below}");
}

/// Each byte is moved once, in whole sectors.
#[test]
fn every_element_is_moved_once() {
    let device = Device::plain();
    type Kind = fn(usize) -> Rounding;
    let kinds: [(Kind, [u64; 2]); 3] = [
        (|_| Rounding::F32, [16, 12]),
        (|_| Rounding::Bf16, [14, 10]),
        (|count| random(0, &[(count as u64, 1)]), [14, 10]),
    ];
    for (rounding, [read, written]) in kinds {
        let counted = |count: usize| {
            let parameters = [Parameter::new(&device, count, 0, rounding(count))];
            let counters = run(&device, &parameters, 1.0, 1.0);
            assert_eq!(counters.total.sectors, counters.total.ideal_sectors);
            assert_eq!(counters.unique_bytes_written, counters.total.bytes_written);
            counters
        };
        let (few, many) = (counted(2048), counted(6144));
        let more = |of: fn(&Counters) -> u64| of(&many) - of(&few);
        assert_eq!(more(|it| it.total.bytes_read), 4096 * read);
        assert_eq!(more(|it| it.unique_bytes_read), 4096 * read);
        assert_eq!(many.total.bytes_written, 6144 * written);
    }
}

/// Runs every kernel of the catalogue.
pub(crate) fn exercise(device: &Device) -> Vec<u8> {
    let mut bits = Vec::new();
    let mut step = |parameters: Vec<Parameter>| {
        run(device, &parameters, 5.0, 0.5);
        for array in parameters.iter().flat_map(|one| one.on_device(device)) {
            bits.extend(encoded(Dtype::F32, &array));
        }
    };
    step(of_all_kinds(device));
    type IsOne = fn(&Rounding) -> bool;
    let kinds: [IsOne; 3] = [
        |it| *it == Rounding::F32,
        |it| *it == Rounding::Bf16,
        |it| matches!(it, Rounding::Bf16Stochastic { .. }),
    ];
    for is_one in kinds {
        let of_kind = of_all_kinds(device).into_iter();
        step(of_kind.filter(|one| is_one(&one.entry.rounding)).collect());
    }
    bits
}
