//! Compares matrix products of ragged groups with f64 results.

use std::ops::Range;

use meshgrad_emulator::{Counters, Counts};
use meshgrad_kernels::faults::{Fault, FaultSite};
use meshgrad_kernels::gemm::{GemmArguments, GroupedArguments, GroupedK, GroupedM, Order, Tile};
use meshgrad_kernels::{Dtype, In, Launch, Out, Variant};

use crate::device::{Device, values};

/// Groups of rows, and the other two extents.
#[derive(Clone, Copy)]
struct Problem<'a> {
    rows: usize,
    offsets: &'a [i64],
    /// Columns of C.
    n: usize,
    /// k of `by_rows`; rows of C in `by_sums`, which sums over the rows of a group.
    inner: usize,
}

impl Problem<'_> {
    fn groups(&self) -> usize {
        self.offsets.len() - 1
    }

    /// The rows of each group; `None` if its offsets are invalid.
    fn groups_of_rows(&self) -> impl Iterator<Item = Option<Range<usize>>> {
        self.offsets.windows(2).enumerate().map(|(group, ends)| {
            let begins = if group == 0 { ends[0] == 0 } else { ends[0] >= 0 };
            let right = begins && ends[0] <= ends[1] && ends[1] <= self.rows as i64;
            right.then(|| ends[0] as usize..ends[1] as usize)
        })
    }

    fn is_right(&self) -> bool {
        self.groups_of_rows().all(|rows| rows.is_some()) && self.offsets[0] == 0
    }

    /// The rows of each group; all groups are empty if any offset is invalid.
    fn all_or_none(&self) -> Vec<Range<usize>> {
        let right = self.is_right();
        let groups = self.groups_of_rows();
        groups.map(|rows| rows.filter(|_| right).unwrap_or(0..0)).collect()
    }

    /// The rows of each group; groups with invalid offsets are empty.
    fn each_or_none(&self) -> Vec<Range<usize>> {
        self.groups_of_rows().map(Option::unwrap_or_default).collect()
    }
}

/// The total number of rows.
fn count(ranges: &[Range<usize>]) -> usize {
    ranges.iter().map(ExactSizeIterator::len).sum()
}

/// Groups of more rows than a tile, of none, of one and of a part of a tile, with rows that no
/// group owns; a group of whole tiles; no groups; k = 0; one element.
const PROBLEMS: [Problem<'static>; 5] = [
    Problem { rows: 250, offsets: &[0, 150, 150, 151, 240], n: 70, inner: 83 },
    Problem { rows: 128, offsets: &[0, 128], n: 64, inner: 64 },
    Problem { rows: 9, offsets: &[0], n: 5, inner: 8 },
    Problem { rows: 7, offsets: &[0, 0, 7, 7], n: 9, inner: 0 },
    Problem { rows: 1, offsets: &[0, 1], n: 1, inner: 1 },
];

/// Dtypes of the kernels, and whether operands are aligned.
const FORMATS: [(Dtype, bool); 3] = [(Dtype::F32, true), (Dtype::Bf16, true), (Dtype::Bf16, false)];

/// A matrix with padding after each row (column if column-major).
struct Lines {
    dtype: Dtype,
    leading: usize,
    values: Vec<f32>,
    address: u64,
}

impl Lines {
    fn new(device: &Device, (dtype, aligned): (Dtype, bool), lines: usize, along: usize) -> Lines {
        let leading = if aligned { along.next_multiple_of(8) + 8 } else { along + 3 };
        let values = values(dtype, lines * leading, (lines + 7 * along) as u64);
        let address = device.put_floats(dtype, &values);
        Lines { dtype, leading, values, address }
    }

    fn at(&self, line: usize, along: usize) -> f64 {
        f64::from(self.values[line * self.leading + along])
    }

    /// Compares the elements after a launch with the expected sums. Where `expected` is `None`, an
    /// element must be unchanged.
    fn check(&self, device: &Device, what: &str, expected: impl Fn(usize, usize) -> Option<Sum>) {
        let found = device.floats(self.dtype, self.address, self.values.len());
        for (index, (found, before)) in found.iter().zip(&self.values).enumerate() {
            let (line, along) = (index / self.leading, index % self.leading);
            let unchanged = Sum { value: f64::from(*before), bound: 0.0 };
            let sum = expected(line, along).unwrap_or(unchanged);
            let error = (f64::from(*found) - sum.value).abs();
            assert!(error <= sum.bound, "{what}: {found}, not {} at {line}, {along}", sum.value);
        }
    }
}

/// A sum and its error bound.
struct Sum {
    value: f64,
    bound: f64,
}

impl Sum {
    fn of(terms: impl Iterator<Item = f64> + Clone, before: f64, result: Dtype) -> Sum {
        let value = before + terms.clone().sum::<f64>();
        let bound = match result {
            Dtype::F32 => 1e-6 * (1.0 + terms.map(f64::abs).sum::<f64>()),
            Dtype::Bf16 => 5e-3 * (1.0 + value.abs()),
        };
        Sum { value, bound }
    }
}

/// Runs a kernel on these matrices, and asserts that there are no bank conflicts.
fn launch(
    device: &Device,
    (variant, launch): (&impl Variant<Arguments = GroupedArguments>, Option<Launch>),
    problem: Problem<'_>,
    product: GemmArguments,
) -> Option<Counters> {
    // Offsets have stride 2; the words between them are invalid.
    let offsets: Vec<i64> = problem.offsets.iter().flat_map(|x| [*x, -1]).collect();
    let offsets: Vec<u8> = offsets.iter().flat_map(|x| x.to_le_bytes()).collect();
    let word = device.put(&[0; 8]);
    let arguments = GroupedArguments {
        product,
        offsets: In(device.put(&offsets)),
        offsets_stride: 2,
        groups: problem.groups() as u32,
        faults: FaultSite::new(word, 7),
    };
    let counters = device.run(variant, launch?, &arguments);
    let reported = u64::from_le_bytes(device.bytes(word, 8).try_into().unwrap());
    let reported = Fault::from_word(reported);
    assert_eq!(reported.map(|fault| fault.site), (!problem.is_right()).then_some(7));
    let total = &counters.total;
    assert_eq!(total.wavefronts, total.ideal_wavefronts, "{}", counters.kernel);
    Some(counters)
}

/// C_rows = A_rows B_g. Returns the bytes of C.
fn by_rows(
    device: &Device,
    (format, order, tile): ((Dtype, bool), Order, Tile),
    problem: Problem<'_>,
) -> Vec<u8> {
    let Problem { rows, n, inner, .. } = problem;
    let (lines, along) = match order {
        Order::RowMajor => (inner, n),
        Order::ColumnMajor => (n, inner),
    };
    let a = Lines::new(device, format, rows, inner);
    let b = Lines::new(device, format, problem.groups() * lines, along);
    let c = Lines::new(device, format, rows, n);
    let variant = GroupedM::new(format.0, order, tile, format.1);
    let product = GemmArguments {
        a: In(a.address),
        b: In(b.address),
        c: Out(c.address),
        m: rows as u32,
        n: n as u32,
        k: inner as u32,
        lda: a.leading as u64,
        ldb: b.leading as u64,
        ldc: c.leading as u64,
        batch_a: 0,
        batch_b: (lines * b.leading) as u64,
        batch_c: 0,
    };
    let extents = variant.launch(rows as u32, n as u32, problem.groups() as u32);
    let counters = launch(device, (&variant, extents), problem, product);

    let owned = problem.all_or_none();
    c.check(device, &variant.entry(), |row, column| {
        let group = owned.iter().position(|rows| rows.contains(&row));
        let (group, depth) = group.map_or((0, 0), |group| (group, inner));
        let of_b = |i| match order {
            Order::RowMajor => b.at(group * lines + i, column),
            Order::ColumnMajor => b.at(group * lines + column, i),
        };
        let terms = (0..depth).map(|i| a.at(row, i) * of_b(i));
        (column < n).then(|| Sum::of(terms, 0.0, format.0))
    });

    // A is read once per column of tiles, and the B of a group once per row of tiles. C is written
    // once, including rows that no group owns.
    if let Some(counters) = counters {
        let tiles = |extent: usize| extent.div_ceil(tile.rows() as usize);
        let tiles_of_rows: usize = owned.iter().map(|rows| tiles(rows.len())).sum();
        let read = count(&owned) * inner * tiles(n) + inner * n * tiles_of_rows;
        let size = format.0.size() as usize;
        assert_traffic(&counters, [read * size, rows * n * size]);
    }
    device.bytes(c.address, c.values.len() * format.0.size() as usize)
}

/// C_g = A_rows^T B_rows, or C_g += that. Returns the bytes of C.
fn by_sums(
    device: &Device,
    (format, adds, tile): ((Dtype, bool), bool, Tile),
    problem: Problem<'_>,
) -> Vec<u8> {
    let Problem { rows, n, inner: m, .. } = problem;
    let a = Lines::new(device, format, rows, m);
    let b = Lines::new(device, format, rows, n);
    let c = Lines::new(device, (Dtype::F32, format.1), problem.groups() * m, n);
    let variant = GroupedK::new(format.0, tile, adds, format.1);
    let product = GemmArguments {
        a: In(a.address),
        b: In(b.address),
        c: Out(c.address),
        m: m as u32,
        n: n as u32,
        k: rows as u32,
        lda: a.leading as u64,
        ldb: b.leading as u64,
        ldc: c.leading as u64,
        batch_a: 0,
        batch_b: 0,
        batch_c: (m * c.leading) as u64,
    };
    let extents = variant.launch(m as u32, n as u32, problem.groups() as u32);
    let counters = launch(device, (&variant, extents), problem, product);

    let owned = problem.each_or_none();
    c.check(device, &variant.entry(), |line, column| {
        let (rows, row) = (owned[line / m].clone(), line % m);
        let before = if adds { c.at(line, column) } else { 0.0 };
        let terms = rows.map(|i| a.at(i, row) * b.at(i, column));
        (column < n).then(|| Sum::of(terms, before, Dtype::F32))
    });

    // A is read once per column of tiles, and B once per row of tiles. C is written once, and read
    // if it is added to. Empty groups do not add to C.
    if let Some(counters) = counters {
        let tiles = |extent: usize| extent.div_ceil(tile.rows() as usize);
        let read = count(&owned) * (m * tiles(n) + n * tiles(m)) * format.0.size() as usize;
        let groups = owned.iter();
        let changed = 4 * m * n * groups.filter(|rows| !adds || !rows.is_empty()).count();
        let before = if adds { changed } else { 0 };
        assert_traffic(&counters, [read + before, changed]);
    }
    device.bytes(c.address, c.values.len() * 4)
}

/// Asserts the bytes read and written, without offsets and the fault word.
fn assert_traffic(counters: &Counters, expected: [usize; 2]) {
    let others = ["ld.global.b64", "red.global.max"];
    let of_matrices =
        |(_, text, _): &&(u32, String, Counts)| !others.iter().any(|it| text.contains(it));
    let counts = counters.instructions.iter().filter(of_matrices).map(|it| it.2);
    let moved = counts.fold([0, 0], |[read, written], counts| {
        [read + counts.bytes_read, written + counts.bytes_written]
    });
    assert_eq!(moved, expected.map(|bytes| bytes as u64), "{}", counters.kernel);
}

/// Runs all kernels for one format and one tile; returns the bytes of their results.
fn all(device: &Device, format: (Dtype, bool), tile: Tile, problem: Problem<'_>) -> Vec<u8> {
    let by_rows = Order::ALL.map(|order| by_rows(device, (format, order, tile), problem));
    let by_sums = [false, true].map(|adds| by_sums(device, (format, adds, tile), problem));
    [by_rows.concat(), by_sums.concat()].concat()
}

/// The tiles of these operands' kernels.
fn tiles((dtype, aligned): (Dtype, bool)) -> impl Iterator<Item = Tile> {
    let tiles = Tile::grouped(aligned && dtype == Dtype::Bf16);
    tiles.iter().copied()
}

/// All tiles give the same bits, without bank conflicts.
#[test]
fn tiles_agree() {
    for (device, problems) in Device::all().zip([PROBLEMS.len(), 1, 1]) {
        for format in FORMATS {
            for problem in PROBLEMS.into_iter().take(problems) {
                let mut each = tiles(format).map(|tile| all(&device, format, tile, problem));
                let first = each.next().unwrap();
                assert!(each.all(|it| it == first), "{format:?}: tiles differ");
            }
        }
    }
}

/// Covers as many offsets as a CTA has threads, one more, and several times as many. Most groups
/// are empty.
#[test]
fn groups_are_found_among_many() {
    let device = Device::plain();
    for groups in [127, 128, 700] {
        let at = |group: i64| (group / 9 * 5 + group % 9 / 8).min(500);
        let offsets: Vec<i64> = (0..=groups).map(at).collect();
        let problem = Problem { rows: 510, offsets: &offsets, n: 1, inner: 1 };
        by_rows(&device, ((Dtype::Bf16, false), Order::RowMajor, Tile::Small), problem);
    }
}

/// Offsets that do not start at 0, decrease or exceed the rows are reported, and no row is owned by
/// two groups.
#[test]
fn invalid_offsets_are_reported() {
    let device = Device::plain();
    let cases = [
        [2, 4, 70],
        [-1, 3, 9],
        [0, 3, i64::MAX],
        [80, 80, 80],
        [0, -5, 70],
        [0, 60, 20],
        [0, i64::MAX, i64::MIN],
    ];
    for offsets in cases {
        let problem = Problem { rows: 70, offsets: &offsets, n: 9, inner: 5 };
        for format in FORMATS {
            all(&device, format, Tile::Small, problem);
        }
    }
}

/// Runs every kernel, on small groups with ragged ends and several steps along k, and with invalid
/// offsets.
pub(crate) fn exercise(device: &Device) -> Vec<u8> {
    let problem = Problem { rows: 45, offsets: &[0, 37, 37, 41], n: 21, inner: 43 };
    let wrong = Problem { rows: 2, offsets: &[0, 2, 1], n: 1, inner: 1 };
    let each = FORMATS.into_iter().flat_map(|format| tiles(format).map(move |tile| (format, tile)));
    let both = |(format, tile)| [problem, wrong].map(|it| all(device, format, tile, it)).concat();
    each.flat_map(both).collect()
}
