//! Products of every tile in every storage order, of which ops launch only a few, compared with f64
//! results.

use meshgrad_emulator::Counters;
use meshgrad_kernels::gemm::{
    GemmArguments, GemmBf16, GemmF32, Order, Output, SplitKArguments, SplitKReduce,
    SplitKReduceArguments, Tile,
};
use meshgrad_kernels::{Dtype, In, Launch, Out, Variant};

use crate::device::{Device, encoded, values};

/// The extents of a batch of matrix products.
#[derive(Clone, Copy)]
struct Problem {
    m: usize,
    n: usize,
    k: usize,
    batch: usize,
}

/// Ragged in all extents; a single element; whole tiles; nothing to sum.
const PROBLEMS: [Problem; 4] = [
    Problem { m: 70, n: 137, k: 83, batch: 2 },
    Problem { m: 1, n: 3, k: 1, batch: 1 },
    Problem { m: 128, n: 64, k: 160, batch: 1 },
    Problem { m: 5, n: 5, k: 0, batch: 1 },
];

/// Storage orders and dtypes of a product.
#[derive(Clone, Copy)]
struct Formats {
    orders: [Order; 2],
    operands: Dtype,
    result: Dtype,
    accumulate: bool,
    /// Whether rows (columns if column-major) begin at multiples of 16 bytes.
    aligned: bool,
}

/// A batch of matrices with padding after each row (column if column-major).
struct Matrices {
    order: Order,
    rows: usize,
    columns: usize,
    leading: usize,
    values: Vec<f32>,
    address: u64,
}

impl Matrices {
    fn new(
        device: &Device,
        (dtype, order): (Dtype, Order),
        [batch, rows, columns]: [usize; 3],
        (aligned, seed): (bool, u64),
    ) -> Matrices {
        let (lines, along) = match order {
            Order::RowMajor => (rows, columns),
            Order::ColumnMajor => (columns, rows),
        };
        let leading = if aligned { along.next_multiple_of(8) + 8 } else { along + 3 };
        let values = values(dtype, batch * lines * leading, seed);
        let address = device.put_floats(dtype, &values);
        Matrices { order, rows, columns, leading, values, address }
    }

    /// Elements from one matrix of the batch to the next.
    fn stride(&self) -> usize {
        match self.order {
            Order::RowMajor => self.rows * self.leading,
            Order::ColumnMajor => self.columns * self.leading,
        }
    }

    fn index(&self, batch: usize, row: usize, column: usize) -> usize {
        let in_matrix = match self.order {
            Order::RowMajor => row * self.leading + column,
            Order::ColumnMajor => column * self.leading + row,
        };
        batch * self.stride() + in_matrix
    }

    fn at(&self, batch: usize, row: usize, column: usize) -> f64 {
        f64::from(self.values[self.index(batch, row, column)])
    }
}

/// Runs a product and compares every element of C and the padding between its rows. Returns C.
fn check(
    device: &Device,
    variant: &impl Variant<Arguments = SplitKArguments>,
    launch: Launch,
    (tile, formats, problem): (Tile, Formats, Problem),
) -> (Vec<f32>, Counters) {
    let Problem { m, n, k, batch } = problem;
    let [of_a, of_b] = formats.orders.map(|order| (formats.operands, order));
    let of_c = (formats.result, Order::RowMajor);
    let a = Matrices::new(device, of_a, [batch, m, k], (formats.aligned, 1));
    let b = Matrices::new(device, of_b, [batch, k, n], (formats.aligned, 2));
    let c = Matrices::new(device, of_c, [batch, m, n], (formats.aligned, 3));
    let arguments = GemmArguments {
        a: In(a.address),
        b: In(b.address),
        c: Out(c.address),
        m: m as u32,
        n: n as u32,
        k: k as u32,
        lda: a.leading as u64,
        ldb: b.leading as u64,
        ldc: c.leading as u64,
        batch_a: a.stride() as u64,
        batch_b: b.stride() as u64,
        batch_c: c.stride() as u64,
    };
    let arguments = SplitKArguments::whole(arguments, batch as u32);
    let counters = device.run(variant, launch, &arguments);
    assert_traffic(&counters, tile, formats, problem);
    let result = device.floats(formats.result, c.address, c.values.len());

    let mut expected: Vec<(f64, f64)> = c.values.iter().map(|x| (f64::from(*x), 0.0)).collect();
    for z in 0..batch {
        for row in 0..m {
            for column in 0..n {
                let index = c.index(z, row, column);
                let terms = (0..k).map(|i| a.at(z, row, i) * b.at(z, i, column));
                let before = if formats.accumulate { c.at(z, row, column) } else { 0.0 };
                let sum = before + terms.clone().sum::<f64>();
                let bound = match formats.result {
                    Dtype::F32 => 1e-6 * (1.0 + terms.map(f64::abs).sum::<f64>()),
                    Dtype::Bf16 => 5e-3 * (1.0 + sum.abs()),
                };
                expected[index] = (sum, bound);
            }
        }
    }
    for (found, (expected, bound)) in result.iter().zip(expected) {
        let error = (f64::from(*found) - expected).abs();
        assert!(error <= bound, "{}: {found}, not {expected}", variant.entry());
    }
    (result, counters)
}

/// Asserts that A is read once per column of tiles, and B once per row of tiles. C is written once,
/// and read once if the product is added to it.
fn assert_traffic(counters: &Counters, tile: Tile, formats: Formats, problem: Problem) {
    let Problem { m, n, k, batch } = problem;
    let tiles_m = m.div_ceil(tile.rows() as usize);
    let tiles_n = n.div_ceil(tile.columns() as usize);
    let bytes = |elements: usize, dtype: Dtype| (batch * elements) as u64 * u64::from(dtype.size());
    let of_operands = bytes(m * k * tiles_n + k * n * tiles_m, formats.operands);
    let of_c = bytes(m * n, formats.result);
    let before = if formats.accumulate { of_c } else { 0 };
    let moved = [counters.total.bytes_read, counters.total.bytes_written];
    assert_eq!(moved, [of_operands + before, of_c], "{}", counters.kernel);
}

fn all_orders() -> impl Iterator<Item = [Order; 2]> {
    Order::ALL.into_iter().flat_map(|a| Order::ALL.map(|b| [a, b]))
}

/// Formats of the f32 kernels.
fn formats_f32() -> impl Iterator<Item = Formats> {
    all_orders().flat_map(|orders| {
        [false, true].map(|accumulate| Formats {
            orders,
            operands: Dtype::F32,
            result: Dtype::F32,
            accumulate,
            aligned: false,
        })
    })
}

/// Formats of the bf16 kernels.
fn formats_bf16() -> impl Iterator<Item = Formats> {
    let outputs = || Output::ALL.into_iter().flat_map(|it| [(it, true), (it, false)]);
    all_orders().flat_map(move |orders| {
        outputs().map(move |(output, aligned)| Formats {
            orders,
            operands: Dtype::Bf16,
            result: match output {
                Output::Bf16 => Dtype::Bf16,
                Output::F32 | Output::AddF32 => Dtype::F32,
            },
            accumulate: output == Output::AddF32,
            aligned,
        })
    })
}

/// Runs the kernel for these formats and this tile. Returns C.
fn product(device: &Device, tile: Tile, formats: Formats, problem: Problem) -> Vec<f32> {
    let [a, b] = formats.orders;
    let [m, n, batch] = [problem.m, problem.n, problem.batch].map(|extent| extent as u32);
    let case = (tile, formats, problem);
    let (c, counters) = match formats.operands {
        Dtype::F32 => {
            let variant = GemmF32 { a, b, tile, accumulate: formats.accumulate };
            let launch = variant.launch(m, n, batch).unwrap();
            check(device, &variant, launch, case)
        }
        Dtype::Bf16 => {
            let variant = GemmBf16 {
                a,
                b,
                tile,
                output: match (formats.result, formats.accumulate) {
                    (Dtype::Bf16, _) => Output::Bf16,
                    (Dtype::F32, false) => Output::F32,
                    (Dtype::F32, true) => Output::AddF32,
                },
                aligned: formats.aligned,
            };
            let launch = variant.launch(m, n, batch).unwrap();
            check(device, &variant, launch, case)
        }
    };
    assert_eq!(counters.total.wavefronts, counters.total.ideal_wavefronts);
    c
}

/// The tiles that have a kernel for these formats. For unaligned operands two suffice, because the
/// others share their code.
fn tiles(formats: Formats) -> &'static [Tile] {
    match (formats.operands, formats.aligned) {
        (Dtype::F32, _) => &Tile::OF_F32,
        (Dtype::Bf16, true) => &Tile::ALL,
        (Dtype::Bf16, false) => &[Tile::Large, Tile::Small],
    }
}

/// All tiles give the same bits, without bank conflicts. `exercise` covers other thread orders.
#[test]
fn tiles_agree() {
    let device = Device::plain();
    for formats in formats_f32().chain(formats_bf16()) {
        for problem in PROBLEMS {
            let [first, others @ ..] = tiles(formats) else { panic!("no tile") };
            let c = product(&device, *first, formats, problem);
            for tile in others {
                assert_eq!(product(&device, *tile, formats, problem), c);
            }
        }
    }
}

/// Runs every f32 kernel.
pub(crate) fn exercise_f32(device: &Device) -> Vec<u8> {
    exercise(device, formats_f32())
}

/// Runs every bf16 kernel.
pub(crate) fn exercise_bf16(device: &Device) -> Vec<u8> {
    exercise(device, formats_bf16())
}

/// Runs products with several steps along k and ragged extents.
fn exercise(device: &Device, formats: impl Iterator<Item = Formats>) -> Vec<u8> {
    let problem = Problem { m: 67, n: 66, k: 70, batch: 1 };
    let each = formats.flat_map(|formats| tiles(formats).iter().map(move |tile| (formats, tile)));
    each.flat_map(|(formats, tile)| {
        let c = product(device, *tile, formats, problem);
        encoded(formats.result, &c)
    })
    .collect()
}

/// Computes a batch of products in parts of 32 k. Returns the workspace that holds the parts.
fn parts(device: &Device, operands: Dtype, [a, b]: [Order; 2], problem: Problem) -> u64 {
    let Problem { m, n, k, batch } = problem;
    let (depth, count) = (32, k.div_ceil(32));
    let of_a = Matrices::new(device, (operands, a), [batch, m, k], (true, 1));
    let of_b = Matrices::new(device, (operands, b), [batch, k, n], (true, 2));
    let workspace = device.room(4 * count * batch * m * n);
    let arguments = SplitKArguments {
        product: GemmArguments {
            a: In(of_a.address),
            b: In(of_b.address),
            c: Out(workspace),
            m: m as u32,
            n: n as u32,
            k: k as u32,
            lda: of_a.leading as u64,
            ldb: of_b.leading as u64,
            ldc: n as u64,
            batch_a: of_a.stride() as u64,
            batch_b: of_b.stride() as u64,
            batch_c: (m * n) as u64,
        },
        products: batch as u32,
        depth,
    };
    let (m32, n32, products) = (m as u32, n as u32, (batch * count) as u32);
    let counters = match operands {
        Dtype::F32 => {
            let variant = GemmF32 { a, b, tile: Tile::Small, accumulate: false };
            let launch = variant.launch(m32, n32, products).unwrap();
            device.run(&variant, launch, &arguments)
        }
        Dtype::Bf16 => {
            let variant = GemmBf16 { a, b, tile: Tile::Flat, output: Output::F32, aligned: true };
            let launch = variant.launch(m32, n32, products).unwrap();
            device.run(&variant, launch, &arguments)
        }
    };
    let written = 4 * count * batch * m * n;
    assert_eq!(counters.unique_bytes_written, written as u64);
    assert_eq!(counters.total.bytes_written, written as u64);

    workspace
}

/// Adds `count` parts of `elements` each. Returns the bytes of C.
fn sum_of_parts(
    device: &Device,
    variant: SplitKReduce,
    (workspace, count): (u64, usize),
    elements: usize,
) -> Vec<u8> {
    let dtype = match variant.output {
        Output::Bf16 => Dtype::Bf16,
        Output::F32 | Output::AddF32 => Dtype::F32,
    };
    let adds = variant.output == Output::AddF32;
    let c = device.put_floats(dtype, &values(dtype, elements, 5));
    let arguments = SplitKReduceArguments {
        parts: In(workspace),
        c: Out(c),
        elements: elements as u64,
        count: count as u32,
    };
    let launch = variant.launch(elements as u64).unwrap();
    let counters = device.run(&variant, launch, &arguments);

    // Every part is read once, and C if the sum is added to it.
    let of_c = elements * dtype.size() as usize;
    let read = 4 * count * elements + if adds { of_c } else { 0 };
    let moved = [counters.total.bytes_read, counters.total.bytes_written];
    assert_eq!(moved, [read as u64, of_c as u64], "{}", counters.kernel);
    if elements.is_multiple_of(32) {
        let total = counters.total;
        assert_eq!(total.sectors, total.ideal_sectors, "{}", counters.kernel);
    }

    device.bytes(c, of_c)
}

/// Runs split-K products in every storage order and format; the last part is shorter.
pub(crate) fn exercise_parts(device: &Device) -> Vec<u8> {
    let problem = Problem { m: 5, n: 32, k: 135, batch: 2 };
    let elements = problem.batch * problem.m * problem.n;
    let mut bits = Vec::new();
    for operands in Dtype::ALL {
        for orders in all_orders() {
            let workspace = parts(device, operands, orders, problem);
            for output in Output::ALL {
                for vectors in [true, false] {
                    let variant = SplitKReduce { output, vectors };
                    let parts = (workspace, problem.k.div_ceil(32));
                    bits.extend(sum_of_parts(device, variant, parts, elements));
                }
            }
        }
    }
    bits
}
