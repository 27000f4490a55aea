//! Tensors of more than 2^31 elements, of which only the first and the last row are allocated.
//! Kernels must address both, and give the same bits as for adjacent rows.

use meshgrad_kernels::assembler::List;
use meshgrad_kernels::attention::{
    Attention, AttentionArguments, Extents, Form, Problem, Sequences, View,
};
use meshgrad_kernels::copies::{Cast, CastArguments, Copy, CopyArguments, Format, Transpose, Unit};
use meshgrad_kernels::cross_entropy::{
    Classes, CrossEntropyGradient, CrossEntropyGradientArguments, Label, Lanes,
};
use meshgrad_kernels::elementwise::{Element, Elementwise, ElementwiseArguments, IterationSpace};
use meshgrad_kernels::expression::Expression;
use meshgrad_kernels::faults::FaultSite;
use meshgrad_kernels::gemm::{
    GemmArguments, GemmBf16, GemmF32, Order, Output, SplitKArguments, Tile,
};
use meshgrad_kernels::indexing::{
    Gather, GatherArguments, IndexDtype, IndexSelect, IndexSelectArguments, IndexedDim, SegmentSum,
    Segments,
};
use meshgrad_kernels::rope::{
    Direction, HeadStrides, Heads, Rope, RopeArguments, Style, TableStrides,
};
use meshgrad_kernels::token_permute::{
    PermuteTokens, PermuteTokensArguments, UnpermuteTokens, UnpermuteTokensArguments,
};
use meshgrad_kernels::{Dtype, In, Launch, Out, Variant};

use crate::device::{Device, encoded, values};

/// Bytes between the rows: 2^31 elements of 4 bytes.
const HOLE: u64 = 1 << 33;

/// Bytes allocated on each side of the hole.
const ROOM: usize = 1 << 20;

/// Two rows of bytes, adjacent or far apart.
#[derive(Clone, Copy)]
struct Lines {
    address: u64,
    apart: u64,
    bytes: usize,
}

impl Lines {
    /// From the first row to the second, in elements of `size` bytes.
    fn stride(&self, size: usize) -> u64 {
        self.apart / size as u64
    }
}

/// Memory before and after the hole.
struct Sides {
    device: Device,
    start: [u64; 2],
}

impl Sides {
    fn new() -> Sides {
        let device = Device::plain();
        let near = device.room(ROOM);
        device.skip(HOLE);
        let start = [near, device.room(ROOM)];
        Sides { device, start }
    }

    /// Asserts that a kernel gives the same bits on arrays of two rows, adjacent and far apart.
    /// Compares all arrays, because any of them may be a result.
    #[track_caller]
    fn assert_same<const N: usize>(&self, arrays: [Vec<u8>; N], run: impl Fn(&Device, [Lines; N])) {
        let results = [false, true].map(|far| {
            let mut used = 0;
            let lines = arrays.each_ref().map(|array| {
                let bytes = array.len() / 2;
                let address = self.start[0] + used;
                let apart = if far { self.start[1] - self.start[0] } else { bytes as u64 };
                used += (array.len() as u64).next_multiple_of(512);
                for (line, values) in (0..).zip(array.chunks(bytes)) {
                    self.device.write(address + line * apart, values);
                }
                Lines { address, apart, bytes }
            });
            run(&self.device, lines);
            lines.map(|it| {
                let line = |at| self.device.bytes(at, it.bytes);
                [line(it.address), line(it.address + it.apart)].concat()
            })
        });
        assert!(results[0] == results[1]);
        assert!(results[0] != arrays, "the kernel wrote nothing");
    }

    fn run<V: Variant>(&self, variant: &V, launch: Option<Launch>, arguments: &V::Arguments) {
        self.device.run(variant, launch.unwrap(), arguments);
    }
}

fn floats(dtype: Dtype, count: usize, seed: u64) -> Vec<u8> {
    encoded(dtype, &values(dtype, count, seed))
}

fn zeros(bytes: usize) -> Vec<u8> {
    vec![0; bytes]
}

/// All cases use one device, because creating the hole takes a second.
#[test]
fn rows_2_pow_33_bytes_apart_are_addressed() {
    let sides = &Sides::new();
    strides(sides);
    indices(sides);
    tokens(sides);
    products(sides);
    batches(sides);
}

/// Large strides of operands and results: copies of several units, transposes, casts, expressions.
fn strides(sides: &Sides) {
    for unit in [Unit::B2, Unit::B4, Unit::B16] {
        let size = unit.bytes() as usize;
        let arrays = [floats(Dtype::F32, 2 * 24 * size / 4, 1), zeros(2 * 24 * size)];
        sides.assert_same(arrays, |_, [x, y]| {
            let [of_x, of_y] = [x, y].map(|it| [it.stride(size) as isize, 1]);
            let space = &IterationSpace::new(&[2, 24], &of_y, &[&of_x]).unwrap();
            let variant = Copy::new(unit, space, false);
            let (x, y, at) = (x.address, y.address, None);
            let arguments = CopyArguments { x: In(x), y: Out(y), space: *space, at };
            sides.run(&variant, variant.launch(48), &arguments);
        });
    }

    let arrays = [floats(Dtype::F32, 2 * 40 * 36, 1), zeros(4 * 2 * 40 * 36)];
    sides.assert_same(arrays, |_, [x, y]| {
        let (of_x, of_y) = ([x.stride(4) as isize, 1, 40], [y.stride(4) as isize, 36, 1]);
        let space = IterationSpace::new(&[2, 40, 36], &of_y, &[&of_x]).unwrap();
        let (variant, transposed) = Transpose::new(Unit::B4, &space).unwrap();
        let (x, y) = (x.address, y.address);
        let arguments = variant.arguments(In(x), Out(y), &transposed);
        sides.run(&variant, variant.launch(&transposed), &arguments);
    });

    let arrays = || [floats(Dtype::F32, 2 * 30, 1), zeros(2 * 2 * 30)];
    let space = |x: Lines, y: Lines| {
        let (of_x, of_y) = ([x.stride(4) as isize, 1], [y.stride(2) as isize, 1]);
        IterationSpace::new(&[2, 30], &of_y, &[&of_x]).unwrap()
    };
    sides.assert_same(arrays(), |_, [x, y]| {
        let space = &space(x, y);
        let variant = Cast::new(Format::F32, Format::Bf16, space);
        let (x, y) = (x.address, y.address);
        let arguments = CastArguments { x: In(x), y: Out(y), space: *space };
        sides.run(&variant, variant.launch(60), &arguments);
    });
    sides.assert_same(arrays(), |_, [x, y]| {
        let space = &space(x, y);
        let [from, to] = [Dtype::F32, Dtype::Bf16].map(Element::Float);
        let expression = -Expression::operand(0);
        let variant = Elementwise::new(expression, &[from], to, space.layout(true)).unwrap();
        let arguments = ElementwiseArguments {
            operands: List::new(&[In(x.address)]),
            result: Out(y.address),
            space: *space,
            scalars: List::new(&[]),
        };
        sides.run(&variant, variant.launch(60), &arguments);
    });
}

/// Large indices: rows of an embedding, elements along a dim, and segment sums.
fn indices(sides: &Sides) {
    let line = 512;
    let faults = |device: &Device| FaultSite::new(device.put(&[0; 8]), 1);
    let ids =
        |device: &Device, last: u64| device.put(&[0, last, last, 0].map(u64::to_le_bytes).concat());

    let arrays = || [floats(Dtype::F32, 2 * line / 4, 1), zeros(4 * line)];
    sides.assert_same(arrays(), |device, [x, y]| {
        let last = x.stride(line);
        let (variant, unit) =
            IndexSelect::new(Unit::B4, IndexDtype::I64, line as u64, 0, (last + 1) << 7);
        let inner = line as u64 / u64::from(unit.bytes());
        let arguments = IndexSelectArguments {
            x: In(x.address),
            ids: In(ids(device, last)),
            y: Out(device.room(4 * line)),
            units: IndexSelect::units([1, 4, inner]),
            chosen: 4,
            inner,
            indexed: IndexedDim {
                extent: last + 1,
                first: 0,
                total: last + 1,
                stride: inner as i64,
                faults: faults(device),
            },
        };
        let launch = variant.launch(arguments.units);
        sides.run(&variant, launch, &arguments);
        let chosen = device.bytes(arguments.y.0, 4 * line);
        device.write(y.address, &chosen[..2 * line]);
    });
    sides.assert_same(arrays(), |device, [x, y]| {
        let last = x.stride(4);
        let far = IterationSpace::new(&[4], &[1], &[&[1], &[0]]).unwrap();
        let variant = Gather::new(Unit::B4, IndexDtype::I64, &far);
        let arguments = GatherArguments {
            x: In(x.address),
            index: In(ids(device, last)),
            y: Out(y.address),
            space: far,
            indexed: IndexedDim {
                extent: last + 1,
                first: 0,
                total: last + 1,
                stride: 1,
                faults: faults(device),
            },
        };
        sides.run(&variant, variant.launch(4), &arguments);
    });
    sides.assert_same(arrays(), |device, [x, y]| {
        let variant = SegmentSum::new(Dtype::F32, Dtype::F32, line as u32 / 4, true, true);
        let positions = [0, x.stride(line) as u32].map(u32::to_le_bytes).concat();
        let segments = Segments {
            outer: 1,
            count: x.stride(line) as u32 + 1,
            rows: 1,
            inner: line as u32 / 4,
        };
        let arguments = variant.arguments(
            In(x.address),
            [In(device.put(&[0; 8])), In(device.put(&positions))],
            In(device.put(&[0, 2].map(u32::to_le_bytes).concat())),
            Out(y.address),
            &segments,
        );
        sides.run(&variant, variant.launch(&segments), &arguments);
    });
}

/// Permute and unpermute with large row numbers.
fn tokens(sides: &Sides) {
    let (line, features) = (512, 256);
    let new = || [floats(Dtype::Bf16, 2 * features, 1), zeros(2 * line)];
    sides.assert_same(new(), |device, [x, y]| {
        let last = x.stride(line);
        let order = [last as u32, 0, 0, last as u32].map(u32::to_le_bytes);
        let order = order.concat();
        let variant = PermuteTokens::new(Dtype::Bf16, features as u32, true, false);
        let to = device.room(4 * line);
        let arguments = PermuteTokensArguments {
            x: In(x.address),
            weights: In(0),
            order: In(device.put(&order)),
            end: In(device.put(&4u64.to_le_bytes())),
            y: Out(to),
            rows: 4,
            segments: 1,
            slots: last as u32 + 1,
            top_k: 1,
            features: features as u32,
            faults: FaultSite::new(device.put(&[0; 8]), 1),
            end_faults: FaultSite::new(device.put(&[0; 8]), 1),
        };
        sides.run(&variant, variant.launch(4, 1), &arguments);
        device.write(y.address, &device.bytes(to, line));
    });
    sides.assert_same(new(), |device, [y, out]| {
        let variant = UnpermuteTokens::new(Dtype::Bf16, features as u32, true, false);
        let to = device.room(2 * line);
        let arguments = UnpermuteTokensArguments {
            y: In(y.address),
            weights: In(0),
            row_of_slot: In(device.put(&[y.stride(line) as u32, 0].map(u32::to_le_bytes).concat())),
            out: Out(to),
            tokens: 2,
            rows: y.stride(line) as u32 + 1,
            top_k: 1,
            features: features as u32,
            faults: FaultSite::new(device.put(&[0; 8]), 1),
        };
        sides.run(&variant, variant.launch(2), &arguments);
        device.write(out.address, &device.bytes(to, line));
    });
}

/// Large leading dimensions of A and C, with and without tensor cores.
fn products(sides: &Sides) {
    let (n, k) = (16, 32);
    for dtype in Dtype::ALL {
        let size = dtype.size() as usize;
        let arrays = [floats(dtype, 2 * k, 1), floats(dtype, k * n, 2), zeros(2 * n * 4)];
        sides.assert_same(arrays, |device, [a, b, c]| {
            // B is contiguous in either case.
            let b = device.put(
                &[device.bytes(b.address, b.bytes), device.bytes(b.address + b.apart, b.bytes)]
                    .concat(),
            );
            let product = GemmArguments {
                a: In(a.address),
                b: In(b),
                c: Out(c.address),
                m: 2,
                n: n as u32,
                k: k as u32,
                lda: a.stride(size),
                ldb: n as u64,
                ldc: c.stride(4),
                batch_a: 0,
                batch_b: 0,
                batch_c: 0,
            };
            let arguments = SplitKArguments::whole(product, 1);
            let (a, b) = (Order::RowMajor, Order::RowMajor);
            let tile = Tile::Small;
            match dtype {
                Dtype::F32 => {
                    let accumulate = false;
                    let variant = GemmF32 { a, b, tile, accumulate };
                    sides.run(&variant, variant.launch(2, n as u32, 1), &arguments);
                }
                Dtype::Bf16 => {
                    let (output, aligned) = (Output::F32, true);
                    let variant = GemmBf16 { a, b, tile, output, aligned };
                    sides.run(&variant, variant.launch(2, n as u32, 1), &arguments);
                }
            }
        });
    }
}

/// Large strides between rows of a batch: attention, RoPE, and the gradient of cross-entropy.
fn batches(sides: &Sides) {
    for dtype in Dtype::ALL {
        let (count, head_dim) = (6, 16);
        let line = count * head_dim;
        let of_head = head_dim as u64 * u64::from(dtype.size());
        let of = |seed| floats(dtype, 2 * line, seed);
        let arrays = [of(1), of(2), of(3), zeros(2 * line * dtype.size() as usize)];
        sides.assert_same(arrays, |device, arrays| {
            let [q, k, v, out] = arrays
                .map(|it| View { address: Out(it.address), strides: [it.apart, of_head, of_head] });
            let problem = Problem {
                extents: Extents::new([2, count, count], [1, 1], head_dim).unwrap(),
                causal: true,
                window: None,
                sequences: Sequences::Rows,
                scale: 0.25,
            };
            let variant = Attention::new(Form::new(dtype, head_dim, true, false));
            let word = device.put(&[0; 8]);
            let arguments = AttentionArguments {
                q: q.written(),
                k: k.written(),
                v: v.written(),
                out,
                lse: Out(device.room(4 * 2 * count)),
                faults: [1, 2].map(|site| FaultSite::new(word, site)),
                problem,
            };
            sides.run(&variant, variant.launch(&problem), &arguments);
        });
    }

    let arrays = [floats(Dtype::F32, 2 * 64, 1), zeros(4 * 2 * 64)];
    sides.assert_same(arrays, |device, [x, y]| {
        let heads = Heads { rows: 2, heads: 1, positions: 1, features: 64, pairs: 32 };
        let [cos, sin] = [3, 4].map(|seed| device.put(&floats(Dtype::F32, 2 * 32, seed)));
        let tables = TableStrides { batch: 32, position: 32 };
        let of_x = HeadStrides { batch: x.stride(4) as i64, position: 64, head: 64 };
        let variant = Rope::new(Dtype::F32, Style::Half, Direction::Forward, &heads, true);
        let to = device.room(4 * 2 * 64);
        let arguments = RopeArguments {
            x: In(x.address),
            cos: In(cos),
            sin: In(sin),
            y: Out(to),
            heads,
            of_x,
            of_cos: tables,
            of_sin: tables,
        };
        sides.run(&variant, variant.launch(&heads), &arguments);
        device.write(y.address, &device.bytes(to, y.bytes));
        device.write(y.address + y.apart, &device.bytes(to + y.bytes as u64, y.bytes));
    });

    let arrays = [floats(Dtype::F32, 2 * 64, 1)];
    sides.assert_same(arrays, |device, [logits]| {
        let variant = CrossEntropyGradient {
            dtype: Dtype::F32,
            lanes: Lanes::choose(64).unwrap(),
            label: Label::I64,
        };
        let word = device.put(&[0; 8]);
        let arguments = CrossEntropyGradientArguments {
            logits: In(logits.address),
            labels: In(device.put(&[3u64, 40].map(u64::to_le_bytes).concat())),
            lse: In(device.put_floats(Dtype::F32, &[4.0, 4.5])),
            dloss: In(device.put_floats(Dtype::F32, &[1.0, 0.5])),
            dlogits: Out(logits.address),
            leading: logits.stride(4),
            vocabulary: Classes {
                first: 0,
                total: 64,
                ignore_index: -1,
                faults: FaultSite::new(word, 1),
            },
            rows: 2,
            classes: 64,
        };
        sides.run(&variant, variant.launch(2), &arguments);
    });
}
