//! Compares reductions over sources with the same operations on the host, bit for bit.

use half::{bf16, f16};
use meshgrad_kernel_catalogue as catalogue;
use meshgrad_kernels::assembler::List;
use meshgrad_kernels::copies::Format;
use meshgrad_kernels::tree_reduce::{TreeOp, TreeReduce, TreeReduceArguments};
use meshgrad_kernels::{In, Out};

use crate::device::Device;

/// More elements than a CTA has threads, and a ragged end.
const ELEMENTS: usize = 259;

/// Elements of every magnitude, from small integers that differ between sources.
fn source(format: Format, source: usize) -> Vec<u8> {
    let element = |at: usize| -> Vec<u8> {
        let hash = (at * 37 + source * 101 + at * source) as u64 % 509;
        let float = (hash as f64 - 250.0) * 1.37;
        match format {
            Format::F64 => float.to_le_bytes().into(),
            Format::F32 => (float as f32).to_le_bytes().into(),
            Format::Bf16 => bf16::from_f64(float).to_le_bytes().into(),
            Format::F16 => f16::from_f64(float).to_le_bytes().into(),
            Format::I64 => (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes().into(),
            Format::I32 | Format::U32 => {
                (hash as u32).wrapping_mul(0x9e37_79b9).to_le_bytes().into()
            }
            Format::U8 => vec![hash as u8],
            Format::Bool => vec![(hash % 2) as u8],
        }
    };
    (0..ELEMENTS).flat_map(element).collect()
}

/// The arithmetic of elements T, which are summed as W.
struct Arithmetic<T, W> {
    widen: fn(T) -> W,
    narrow: fn(W) -> T,
    add: fn(W, W) -> W,
    divide: fn(W, usize) -> W,
    is_below: fn(T, T) -> bool,
    is_nan: fn(T) -> bool,
}

/// The reduction of one element of each source.
fn reduced<T: Copy, W: Copy>(op: TreeOp, values: &[T], on: &Arithmetic<T, W>) -> T {
    let extreme = |is_better: &dyn Fn(T, T) -> bool| {
        let others = values[1..].iter();
        others.fold(values[0], |best, other| match (on.is_nan)(best) {
            false if (on.is_nan)(*other) || is_better(best, *other) => *other,
            _ => best,
        })
    };
    let sum = || {
        let mut level: Vec<W> = values.iter().map(|x| (on.widen)(*x)).collect();
        while level.len() > 1 {
            let pairs = level.chunks(2);
            let sums = pairs.map(|pair| pair[1..].iter().fold(pair[0], |a, b| (on.add)(a, *b)));
            level = sums.collect();
        }
        level[0]
    };
    match op {
        TreeOp::Sum => (on.narrow)(sum()),
        TreeOp::Mean => (on.narrow)((on.divide)(sum(), values.len())),
        TreeOp::Max => extreme(&on.is_below),
        TreeOp::Min => extreme(&|best, other| (on.is_below)(other, best)),
    }
}

macro_rules! of_type {
    ($op:expr, $sources:expr, $type:ty, $wide:ty, $widen:expr, $narrow:expr, $add:expr,
     $divide:expr, $is_nan:expr) => {{
        let arithmetic = Arithmetic::<$type, $wide> {
            widen: $widen,
            narrow: $narrow,
            add: $add,
            divide: $divide,
            is_below: |a, b| a < b,
            is_nan: $is_nan,
        };
        let element = |at: usize| {
            let of_source = |bytes: &Vec<u8>| <$type>::from_le_bytes(bytes.as_chunks().0[at]);
            let values: Vec<$type> = $sources.iter().map(of_source).collect();
            reduced($op, &values, &arithmetic).to_le_bytes()
        };
        (0..ELEMENTS).flat_map(element).collect()
    }};
}

macro_rules! of_float {
    ($op:expr, $sources:expr, $type:ty, $wide:ty, $widen:expr, $narrow:expr) => {
        of_type!(
            $op,
            $sources,
            $type,
            $wide,
            $widen,
            $narrow,
            |a, b| a + b,
            |sum, n| sum / n as $wide,
            |x| x.is_nan()
        )
    };
}

macro_rules! of_integer {
    ($op:expr, $sources:expr, $type:ty) => {
        of_type!(
            $op,
            $sources,
            $type,
            $type,
            |x| x,
            |x| x,
            <$type>::wrapping_add,
            |sum, _| sum,
            |_| false
        )
    };
}

fn expected(op: TreeOp, format: Format, sources: &[Vec<u8>]) -> Vec<u8> {
    match format {
        Format::F64 => of_float!(op, sources, f64, f64, |x| x, |x| x),
        Format::F32 => of_float!(op, sources, f32, f32, |x| x, |x| x),
        Format::Bf16 => of_float!(op, sources, bf16, f32, bf16::to_f32, bf16::from_f32),
        Format::F16 => of_float!(op, sources, f16, f32, f16::to_f32, f16::from_f32),
        Format::I64 => of_integer!(op, sources, i64),
        Format::I32 => of_integer!(op, sources, i32),
        Format::U32 => of_integer!(op, sources, u32),
        Format::U8 | Format::Bool => of_integer!(op, sources, u8),
    }
}

fn run(device: &Device, variant: TreeReduce, sources: &[Vec<u8>], in_place: bool) -> Vec<u8> {
    let addresses: Vec<In> = sources.iter().map(|bytes| In(device.put(bytes))).collect();
    let bytes = sources[0].len();
    let arguments = TreeReduceArguments {
        sources: List::new(&addresses),
        y: match in_place {
            true => Out(addresses[0].0),
            false => Out(device.room(bytes)),
        },
        elements: ELEMENTS as u64,
    };
    let launch = variant.launch(ELEMENTS as u64).unwrap();
    device.run(&variant, launch, &arguments);
    device.bytes(arguments.y.0, bytes)
}

#[test]
fn every_operation_on_every_format() {
    let device = Device::plain();
    for format in Format::ALL {
        let all: Vec<Vec<u8>> = (0..9).map(|at| source(format, at)).collect();
        for op in TreeOp::ALL {
            for n in [1, 2, 3, 5, 8, 9] {
                let variant = TreeReduce::new(op, format, n).unwrap();
                let found = run(&device, variant, &all[..n], n == 3);
                assert!(found == expected(op, format, &all[..n]), "{variant:?}");
            }
        }
    }
}

/// The extreme is the first NaN, with its bits, or without a NaN the first of the best elements.
#[test]
fn extremes_keep_the_first_nan_and_the_first_zero() {
    let device = Device::plain();
    let of = |bits: u16| bits.to_le_bytes().repeat(ELEMENTS);
    let (one, zero, minus_zero) = (of(0x3f80), of(0), of(0x8000));
    let (nan, other_nan) = (of(0x7fc1), of(0xffc2));
    let cases = [
        ([&one, &nan, &other_nan], &nan),
        ([&nan, &one, &other_nan], &nan),
        ([&zero, &minus_zero, &zero], &zero),
        ([&minus_zero, &zero, &zero], &minus_zero),
    ];
    for (sources, expected) in cases {
        let sources = sources.map(Vec::clone);
        for op in [TreeOp::Max, TreeOp::Min] {
            let variant = TreeReduce::new(op, Format::Bf16, 3).unwrap();
            assert_eq!(run(&device, variant, &sources, false), *expected, "{op:?}");
        }
    }
}

pub(crate) fn exercise(device: &Device) -> Vec<u8> {
    let bits = catalogue::TREES.map(|(op, format, n)| {
        let sources: Vec<Vec<u8>> = (0..n).map(|at| source(format, at)).collect();
        run(device, TreeReduce::new(op, format, n).unwrap(), &sources, false)
    });
    bits.concat()
}
