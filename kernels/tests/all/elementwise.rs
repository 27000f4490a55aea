//! Compares each function of expressions with f64 results, and each layout with the host.

use meshgrad_kernel_catalogue as catalogue;
use meshgrad_kernels::assembler::List;
use meshgrad_kernels::elementwise::{
    Element, Elementwise, ElementwiseArguments, IterationSpace, Layout,
};
use meshgrad_kernels::expression::{Expression, Node, Unary};
use meshgrad_kernels::{Dtype, In, Out};

use crate::device::{Device, encoded, values};

const F32: Element = Element::Float(Dtype::F32);
const BF16: Element = Element::Float(Dtype::Bf16);

/// The function in f64, and the error bound of its kernel in ulp.
fn reference(function: Unary, x: f64) -> (f64, f64) {
    match function {
        Unary::Neg => (-x, 0.0),
        Unary::Abs => (x.abs(), 0.0),
        Unary::Sqrt => (x.sqrt(), 0.5),
        Unary::Exp => (x.exp(), 1.0),
        Unary::Ln => (x.ln(), 0.9),
        Unary::Sin => (x.sin(), 1.6),
        Unary::Cos => (x.cos(), 1.6),
        Unary::Tanh => (x.tanh(), 1.5),
        Unary::Sigmoid => (1.0 / (1.0 + (-x).exp()), 2.5),
        Unary::Erf => (libm::erf(x), 1.2),
    }
}

/// The distance between neighboring f32 at a value.
fn ulp(value: f64) -> f64 {
    let exponent = (value.abs().log2().floor() as i32).max(-126);
    2f64.powi(exponent - 23)
}

/// Values from the whole range of f32, and special values.
fn arguments() -> Vec<f32> {
    let spread = (0..100_000u32).map(|i| f32::from_bits(i.wrapping_mul(42_949)));
    let special = [0.0, 1.0, -1.0, 1e-40, 105_615.0, f32::MAX, f32::INFINITY, f32::NEG_INFINITY];
    spread.filter(|x| !x.is_nan()).chain(special).chain([f32::NAN]).collect()
}

#[test]
fn functions_are_within_their_documented_error() {
    let x = arguments();
    for function in Unary::ALL {
        let expression = Expression::from(Node::Unary(*function, Expression::operand(0)));
        for (x, y) in x.iter().zip(computed(expression, &x)) {
            let (expected, bound) = reference(*function, f64::from(*x));
            // 1 + e^-x overflows before its reciprocal underflows to 0.
            let flushes = *function == Unary::Sigmoid && *x < -87.0;
            let ordinary = expected.is_finite() && expected.abs() <= f64::from(f32::MAX);
            let good = match ordinary {
                _ if expected.is_nan() => y.is_nan(),
                true if flushes => y.abs() < 1e-35,
                true if expected == 0.0 => y == 0.0,
                true => (f64::from(y) - expected).abs() <= bound * ulp(expected),
                false => y == expected as f32,
            };
            assert!(good, "{function:?}({x:e}) = {y:e}, not {expected:e}");
        }
    }
}

/// A reciprocal has its own instruction, which gives the same bits as a division.
#[test]
fn reciprocals_equal_divisions() {
    let x = arguments();
    for (x, y) in x.iter().zip(computed(Expression::constant(1.0) / Expression::operand(0), &x)) {
        let expected = 1.0 / x;
        let equal = y.to_bits() == expected.to_bits() || y.is_nan() && expected.is_nan();
        assert!(equal, "1 / {x:e} = {y:e}, not {expected:e}");
    }
}

/// Applies an expression to these values. Asserts that each is read once.
fn computed(expression: Expression, x: &[f32]) -> Vec<f32> {
    let device = Device::plain();
    let from = device.put_floats(Dtype::F32, x);
    let to = device.room(4 * x.len());
    let space = IterationSpace::new(&[x.len()], &[1], &[&[1]]).unwrap();
    let arguments = ElementwiseArguments {
        operands: List::new(&[In(from)]),
        result: Out(to),
        space,
        scalars: List::new(&[]),
    };
    let variant = Elementwise::new(expression, &[F32], F32, Layout::Contiguous).unwrap();
    let launch = variant.launch(x.len() as u64).unwrap();
    let counters = device.run(&variant, launch, &arguments);
    assert_eq!(counters.unique_bytes_read, counters.total.bytes_read, "{variant:?}");
    device.floats(Dtype::F32, to, x.len())
}

/// Strides, in elements, of a dense tensor whose dims are stored in this order, innermost last.
fn strides(shape: &[usize], order: impl DoubleEndedIterator<Item = usize>) -> Vec<isize> {
    let mut strides = vec![0; shape.len()];
    let mut next = 1;
    for dim in order.rev() {
        strides[dim] = next;
        next *= shape[dim] as isize;
    }
    strides
}

/// The offset of element `index` of a tensor of this shape.
fn place(mut index: usize, shape: &[usize], strides: &[isize]) -> usize {
    let mut place = 0;
    for (extent, stride) in shape.iter().zip(strides).rev() {
        place += (index % extent) as isize * stride;
        index /= extent;
    }
    place as usize
}

struct Operand {
    values: Vec<f32>,
    address: u64,
}

fn operand(device: &Device, format: Element, count: usize, seed: u64) -> Operand {
    let values = match format {
        Element::Float(dtype) => values(dtype, count, seed),
        Element::Bool => {
            let signs = values(Dtype::F32, count, seed);
            signs.iter().map(|x| f32::from(u8::from(*x > 0.0))).collect()
        }
    };
    let bytes = match format {
        Element::Float(dtype) => encoded(dtype, &values),
        Element::Bool => values.iter().map(|x| *x as u8).collect(),
    };
    let address = device.put(&bytes);
    Operand { values, address }
}

/// The stored value: rounded, or 1 if it is not 0.
fn stored(format: Element, value: f32) -> Vec<u8> {
    match format {
        Element::Float(dtype) => encoded(dtype, &[value]),
        Element::Bool => vec![u8::from(value != 0.0)],
    }
}

/// Every layout and every mix of formats gives the bits that the host computes for a b + s + 1 or
/// a b + s - 1, depending on a comparison. Each element is moved once.
#[test]
fn every_layout_gives_the_same_bits() {
    use Element::Bool;
    let (a, b) = (Expression::operand(0), Expression::operand(1));
    let expression = &a * &b + Expression::scalar(0) + b.lt(&a).select(1.0, -1.0);
    let formats = [
        [F32, F32, F32],
        [BF16, F32, BF16],
        [Bool, BF16, F32],
        [F32, Bool, Bool],
        [F32, F32, Bool],
    ];
    let shapes: [&[usize]; 6] = [&[], &[7], &[6149], &[33, 129], &[3, 5, 7], &[2, 3, 1, 4, 5, 3]];

    let device = Device::plain();
    for [of_a, of_b, of_y] in formats {
        for shape in shapes {
            let count: usize = shape.iter().product();
            let dense = strides(shape, 0..shape.len());
            let transposed = strides(shape, (0..shape.len()).rev());
            let mut broadcast = dense.clone();
            if let Some(first) = broadcast.first_mut() {
                *first = 0;
            }

            let a = operand(&device, of_a, count, 3);
            let b = operand(&device, of_b, count, 5);
            for strides in [[&dense, &dense], [&transposed, &broadcast]] {
                let space = IterationSpace::new(shape, &dense, &strides.map(|s| &s[..])).unwrap();
                for layout in layouts(&space) {
                    let expression = expression.clone();
                    let variant = Elementwise::new(expression, &[of_a, of_b], of_y, layout);
                    let variant = variant.unwrap();
                    let to = device.room(count * of_y.size() as usize);
                    let arguments = ElementwiseArguments {
                        operands: List::new(&[In(a.address), In(b.address)]),
                        result: Out(to),
                        space,
                        scalars: List::new(&[0.25]),
                    };
                    let launch = variant.launch(count as u64).unwrap();
                    let counters = device.run(&variant, launch, &arguments);
                    let moved = [counters.total.bytes_read, counters.total.bytes_written];
                    let least = [of_a.size() + of_b.size(), of_y.size()];
                    assert_eq!(moved, least.map(|size| u64::from(size) * count as u64));

                    let expected = (0..count).flat_map(|i| {
                        let a = a.values[place(i, shape, strides[0])];
                        let b = b.values[place(i, shape, strides[1])];
                        let y = a * b + 0.25 + if b < a { 1.0 } else { -1.0 };
                        stored(of_y, y)
                    });
                    let expected: Vec<u8> = expected.collect();
                    let y = device.bytes(to, expected.len());
                    assert!(y == expected, "{variant:?} {shape:?}");
                }
            }
        }
    }
}

/// The layouts that an iteration space can use.
fn layouts(space: &IterationSpace) -> Vec<Layout> {
    let unaligned = space.layout(false);
    let Layout::Strided { dims, .. } = unaligned else {
        return vec![unaligned];
    };
    vec![space.layout(true), unaligned, Layout::Strided { dims, wide: true }]
}

/// Runs every expression of the catalogue, in its layout.
pub(crate) fn exercise(device: &Device) -> Vec<u8> {
    let variants = catalogue::elementwise_variants().into_iter();
    variants.flat_map(|variant| run(device, &variant.unwrap())).collect()
}

/// Runs an expression on operands that include large and negative values; returns the result.
fn run(device: &Device, variant: &Elementwise) -> Vec<u8> {
    let formats: Vec<Element> = variant.operands().collect();
    // Whole tiles and a ragged end; or dims that cannot be merged.
    let shape = match variant.layout() {
        Layout::Contiguous => vec![8341],
        Layout::Strided { dims, .. } => [43, 3, 2, 5, 2, 3][..dims.into()].to_vec(),
    };
    let count: usize = shape.iter().product();
    let dense = strides(&shape, 0..shape.len());
    let of_operand = match variant.layout() {
        Layout::Contiguous => dense.clone(),
        Layout::Strided { .. } => {
            let transposed = strides(&shape, (0..shape.len()).rev());
            transposed.iter().map(|stride| 2 * stride).collect()
        }
    };

    let operands: Vec<In> = (1..)
        .zip(&formats)
        .map(|(seed, format)| match format {
            Element::Float(dtype) => {
                let mut values = values(*dtype, 2 * count, seed);
                let large = values.iter_mut().step_by(7);
                large.for_each(|value| *value *= 1e6);
                In(device.put_floats(*dtype, &values))
            }
            Element::Bool => In(operand(device, *format, 2 * count, seed).address),
        })
        .collect();
    let space = IterationSpace::new(&shape, &dense, &vec![&of_operand[..]; formats.len()]).unwrap();
    let bytes = count * variant.result().size() as usize;
    let result = device.room(bytes);
    let arguments = ElementwiseArguments {
        operands: List::new(&operands),
        result: Out(result),
        space,
        scalars: List::new(&[0.25, -3.0]),
    };
    let launch = variant.launch(count as u64).unwrap();
    device.run(variant, launch, &arguments);
    device.bytes(result, bytes)
}
