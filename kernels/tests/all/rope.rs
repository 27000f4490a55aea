//! Angle tables, and what rotations of heads read and write.

use meshgrad_emulator::Counters;
use meshgrad_kernel_catalogue as catalogue;
use meshgrad_kernels::rope::{
    Direction, HeadStrides, Heads, PositionFormat, Rope, RopeArguments, RopeTables,
    RopeTablesArguments, Style, TableStrides,
};
use meshgrad_kernels::{Dtype, In, Out, Variant};

use crate::device::{Device, encoded, values};
use crate::traffic::{assert_moved, assert_whole_sectors, assert_whole_sectors_of};

/// Tables on a device: one per sequence, or one for all.
pub(crate) struct Tables {
    /// Elements of each table.
    pub(crate) elements: usize,
    pub(crate) on_device: [u64; 2],
    pub(crate) strides: TableStrides,
}

impl Tables {
    pub(crate) fn new(device: &Device, heads: &Heads, one_for_all: bool) -> Tables {
        let (pairs, positions) = (heads.pairs as usize, heads.positions as usize);
        let batch = heads.rows as usize / (positions * heads.heads as usize);
        let sequences = if one_for_all { 1 } else { batch };
        let angles: Vec<f32> =
            (0..sequences * positions * pairs).map(|i| (i as f32 * 0.37).rem_euclid(6.0)).collect();
        let on_device = [f32::cos, f32::sin].map(|function| {
            let table: Vec<f32> = angles.iter().map(|angle| function(*angle)).collect();
            device.put_floats(Dtype::F32, &table)
        });
        let strides = TableStrides {
            batch: if one_for_all { 0 } else { (positions * pairs) as i64 },
            position: pairs as i64,
        };
        Tables { elements: angles.len(), on_device, strides }
    }
}

/// The strides of heads. Each token also has `others` other heads, such as keys and values after
/// the queries.
pub(crate) fn strides(heads: &Heads, others: u32) -> HeadStrides {
    let position = i64::from(heads.heads + others) * i64::from(heads.features);
    HeadStrides {
        batch: i64::from(heads.positions) * position,
        position,
        head: heads.features.into(),
    }
}

/// Heads on a device.
pub(crate) struct Strided {
    pub(crate) address: u64,
    pub(crate) strides: HeadStrides,
}

impl Strided {
    pub(crate) fn new(
        device: &Device,
        dtype: Dtype,
        heads: &Heads,
        others: u32,
        seed: u64,
    ) -> Self {
        let strides = strides(heads, others);
        let tokens = i64::from(heads.rows / heads.heads);
        let values = values(dtype, (tokens * strides.position) as usize, seed);
        let address = device.put_floats(dtype, &values);
        Strided { address, strides }
    }
}

/// Whether heads and rows of tables are whole sectors, and so is a lane's access to a table. (Eight
/// angles are two accesses of half a sector each.)
pub(crate) fn moves_whole_sectors(dtype: Dtype, style: Style, heads: &Heads) -> bool {
    let halves = dtype == Dtype::Bf16 && style == Style::Half;
    // Half of a table's row belongs to the first half of the features.
    let lines = [heads.features * dtype.size(), heads.pairs * dtype.size(), heads.pairs * 2];
    !halves && lines.iter().all(|bytes| bytes.is_multiple_of(32))
}

/// Operands of a rotation.
struct Problem {
    dtype: Dtype,
    style: Style,
    heads: Heads,
    x: Strided,
    tables: Tables,
}

impl Problem {
    fn run(&self, device: &Device, direction: Direction, aligned: bool) -> Vec<u8> {
        let bytes = self.bytes();
        let y = device.room(bytes);
        let variant = Rope::new(self.dtype, self.style, direction, &self.heads, aligned);
        let arguments = RopeArguments {
            x: In(self.x.address),
            cos: In(self.tables.on_device[0]),
            sin: In(self.tables.on_device[1]),
            y: Out(y),
            heads: self.heads,
            of_x: self.x.strides,
            of_cos: self.tables.strides,
            of_sin: self.tables.strides,
        };
        let launch = variant.launch(&self.heads).unwrap();
        let counters = device.run(&variant, launch, &arguments);
        self.assert_traffic(&counters, !variant.entry().ends_with("loop"));
        device.bytes(y, bytes)
    }

    /// Bytes of x, and of y.
    fn bytes(&self) -> usize {
        (self.heads.rows * self.heads.features * self.dtype.size()) as usize
    }

    /// Asserts that x and y move once. The tables are read once per head, from caches after the
    /// first.
    #[track_caller]
    fn assert_traffic(&self, counters: &Counters, in_registers: bool) {
        let (moved, pairs) = (self.bytes(), self.heads.pairs as usize);
        let tables = 8 * pairs * self.heads.rows as usize;
        let distinct = 8 * self.tables.elements;
        assert_moved(counters, [moved + tables, moved], [moved + distinct, moved]);
        if in_registers && moves_whole_sectors(self.dtype, self.style, &self.heads) {
            assert_whole_sectors(counters);
        }
    }
}

/// Aligned and unaligned kernels give the same bits. Covers every form, style and direction; dense
/// heads and heads interleaved with others; one table for all sequences and one per sequence.
#[test]
fn alignment_changes_no_bit() {
    let device = Device::plain();
    for dtype in Dtype::ALL {
        for style in Style::ALL {
            for extents in [[128, 64], [640, 320], [120, 24], [9, 3], [2, 1], [5, 0]] {
                for one_for_all in [true, false] {
                    let heads = catalogue::heads(extents);
                    let x = Strided::new(&device, dtype, &heads, u32::from(one_for_all), 1);
                    let tables = Tables::new(&device, &heads, one_for_all);
                    let problem = Problem { dtype, style, heads, x, tables };
                    for direction in [Direction::Forward, Direction::Inverse] {
                        let [aligned, unaligned] =
                            [true, false].map(|it| problem.run(&device, direction, it));
                        assert!(aligned == unaligned, "{dtype:?} {style:?} {heads:?}");
                    }
                }
            }
        }
    }
}

fn tables(
    device: &Device,
    format: PositionFormat,
    positions: &[i64],
    factor: f64,
) -> [Vec<f32>; 2] {
    let inv_freq: Vec<f32> = (0..7).map(|i| 1e6f32.powf(-(i as f32) / 7.0)).collect();
    let bytes: Vec<u8> = match format {
        PositionFormat::I64 => positions.iter().flat_map(|x| x.to_le_bytes()).collect(),
        _ => positions.iter().flat_map(|x| (*x as i32).to_le_bytes()).collect(),
    };
    let pairs = inv_freq.len();
    let elements = positions.len() * pairs;
    let (cos, sin) = (device.room(4 * elements), device.room(4 * elements));
    let arguments = RopeTablesArguments {
        positions: In(device.put(&bytes)),
        inv_freq: In(device.put_floats(Dtype::F32, &inv_freq)),
        cos: Out(cos),
        sin: Out(sin),
        elements: elements as u32,
        pairs: pairs as u32,
        factor,
    };
    let variant = RopeTables::new(format);
    let launch = variant.launch(elements as u32).unwrap();
    let counters = device.run(&variant, launch, &arguments);
    // Each angle reads its position and its frequency, mostly from caches.
    let (written, of_angle) = (8 * elements, bytes.len() / positions.len() + 4);
    let different = bytes.len() + 4 * pairs;
    assert_moved(&counters, [of_angle * elements, written], [different, written]);
    assert_whole_sectors_of(&counters, "st.global");

    let found = [cos, sin].map(|table| device.floats(Dtype::F32, table, elements));
    for (row, position) in positions.iter().enumerate() {
        for (pair, inv_freq) in inv_freq.iter().enumerate() {
            let angle = *position as f64 * f64::from(*inv_freq);
            let at = row * pairs + pair;
            let known = angle.abs() < (1u64 << 50) as f64;
            let angle = if known { angle } else { 0.0 };
            for (found, expected) in [(found[0][at], angle.cos()), (found[1][at], angle.sin())] {
                let expected = (expected * factor) as f32;
                let apart = found.to_bits().abs_diff(expected.to_bits());
                assert!(apart <= 1, "position {position}: {found}, not {expected}");
            }
        }
    }
    found
}

/// The error is at most one ulp at any position. Angles of 2^50 or more count as 0.
#[test]
fn tables_are_exact_at_large_positions() {
    let near = [0, 1, 2, 3, 4, 5, 11, 22, 355, 1000, 4095, 131_071, 103_993, 1_146_408, 1 << 30];
    let far = [i64::from(i32::MAX), -1, -710, -(1 << 31)];
    let farther = [1 << 40, 6_134_899_525_417_045, (1 << 50) - 1, 1 << 53, i64::MIN, i64::MAX];
    let device = Device::plain();
    tables(&device, PositionFormat::U32, &near, 1.0);
    let positions = [&near[..], &far].concat();
    tables(&device, PositionFormat::I32, &positions, 1.3);
    let positions = [&near[..], &far, &farther].concat();
    tables(&device, PositionFormat::I64, &positions, 1.0);
}

/// Runs every kernel of the catalogue, with more heads than one CTA processes.
pub(crate) fn exercise(device: &Device) -> Vec<u8> {
    let mut bits = Vec::new();
    for format in PositionFormat::ALL {
        let positions: Vec<i64> = (0..50).map(|i| i * 77).collect();
        for table in tables(device, format, &positions, 1.0) {
            bits.extend(encoded(Dtype::F32, &table));
        }
    }
    for dtype in Dtype::ALL {
        for style in Style::ALL {
            for extents in catalogue::HEADS {
                let heads = catalogue::heads(extents);
                let problem = Problem {
                    dtype,
                    style,
                    heads,
                    x: Strided::new(device, dtype, &heads, 1, 1),
                    tables: Tables::new(device, &heads, true),
                };
                for direction in [Direction::Forward, Direction::Inverse] {
                    bits.extend(problem.run(device, direction, true));
                }
            }
        }
    }
    bits
}
