//! AdamW moves no byte twice, and nothing if a step is not finite.

use meshgrad_emulator::Counters;
use meshgrad_kernels::adamw::{
    AdamWArguments, AdamWConstants, AdamWEntry, GlobalIndices, Rounding, chunk_words,
};
use meshgrad_kernels::{Dtype, In};

use crate::device::{Device, encoded, values};
use crate::philox::KEY;

const LEARNING_RATE: f32 = 0.01;

/// Allocates a parameter of `count` elements that begin `skip` elements after a 16-byte boundary.
fn parameter(device: &Device, count: usize, skip: usize, rounding: Rounding) -> AdamWEntry {
    let array = |dtype: Dtype, x: &[f32]| {
        device.put_floats(dtype, x) + skip as u64 * u64::from(dtype.size())
    };
    let of = |dtype, seed| values(dtype, skip + count, seed);
    let squares: Vec<f32> = of(Dtype::F32, 4).iter().map(|x| x.abs()).collect();
    let param = dtype(&rounding);
    AdamWEntry {
        addresses: [
            array(param, &of(param, 1)),
            array(Dtype::F32, &of(Dtype::F32, 2)),
            array(Dtype::F32, &of(Dtype::F32, 3)),
            array(Dtype::F32, &squares),
        ],
        elements: count as u64,
        rounding,
        constants: AdamWConstants { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 },
    }
}

/// Parameter, exp_avg and exp_avg_sq.
fn on_device(device: &Device, one: &AdamWEntry) -> [Vec<f32>; 3] {
    let [param, _, mean, square] = one.addresses;
    let of = [(dtype(&one.rounding), param), (Dtype::F32, mean), (Dtype::F32, square)];
    of.map(|(dtype, address)| device.floats(dtype, address, one.elements as usize))
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

fn run(device: &Device, entries: &[AdamWEntry], step: f32, scale: f32) -> Counters {
    let words = |words: Vec<u64>| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        device.put(&bytes)
    };
    let chunks = chunk_words(entries);
    let count = chunks.len() as u32;
    let scalar = |x: f32| device.put(&x.to_le_bytes());
    let arguments = AdamWArguments {
        table: In(words(entries.iter().flat_map(AdamWEntry::words).collect())),
        chunks: In(words(chunks)),
        learning_rate: In(scalar(LEARNING_RATE)),
        step: In(scalar(step)),
        scale: In(scalar(scale)),
    };
    let variant = AdamWEntry::variant(entries);
    let launch = variant.launch(count).unwrap();
    device.run(&variant, launch, &arguments)
}

/// Whole tiles with a remainder, a few elements, none; aligned and unaligned; with global indices
/// of rows, of columns, and of a box.
fn of_all_kinds(device: &Device) -> Vec<AdamWEntry> {
    let new = |count, skip, rounding| parameter(device, count, skip, rounding);
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
            let parameters = [parameter(&device, count, 0, rounding(count))];
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
    let mut step = |parameters: Vec<AdamWEntry>| {
        run(device, &parameters, 5.0, 0.5);
        for array in parameters.iter().flat_map(|one| on_device(device, one)) {
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
        step(of_kind.filter(|one| is_one(&one.rounding)).collect());
    }
    bits
}
