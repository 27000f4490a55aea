//! Tests of matrix descriptors against the definition of the layouts, element by element.

use proptest::prelude::*;

use super::super::descriptor::*;

/// A layout of a factor, with distances in units of 16 bytes.
#[derive(Clone, Copy, Debug)]
struct Layout {
    /// Units that the swizzle permutes; 1 for none.
    width: u64,
    transposed: bool,
    leading: u64,
    stride: u64,
    /// The first byte of the tile.
    tile: u64,
    /// Elements of K before the factor.
    skipped: u64,
}

impl Layout {
    /// The byte of an element: its place among core matrices of 8 x 8 elements, each in 8 rows of 16
    /// bytes. In a row of the swizzled layouts, core matrices alternate.
    fn byte(&self, line: u64, k: u64) -> u64 {
        let k = k + self.skipped;
        let (row, core, within) = match self.transposed {
            false => (line % 8, [line / 8, k / 8], k % 8),
            true => (k % 8, [line / 8, k / 8], line % 8),
        };
        let [lines, ks] = core;
        let (group, unit) = match (self.transposed, self.width) {
            (_, 1) => (lines * self.stride + ks * self.leading, 0),
            (false, _) => (lines * self.stride, ks),
            (true, width) => (lines / width * self.leading + ks * self.stride, lines % width),
        };
        // The permutation of row r of 8: unit u is at u xor r, and the rows of narrower swizzles
        // share a permutation.
        let permuted = unit ^ (row / (8 / self.width));
        self.tile + 16 * (group + row * self.width + permuted) + 2 * within
    }

    fn descriptor(&self) -> u64 {
        let start = match (self.transposed, self.width) {
            (_, 1) => self.skipped / 8 * self.leading * 16,
            (false, _) => self.skipped * 2,
            (true, _) => self.skipped / 8 * self.stride * 16,
        };
        let swizzle = match self.width {
            8 => 1,
            4 => 2,
            2 => 3,
            _ => 0,
        };
        (self.tile + start) >> 4 | self.leading << 16 | self.stride << 32 | swizzle << 62
    }
}

fn layouts() -> impl Strategy<Value = Layout> {
    let shape = (0..4u32, any::<bool>(), 1..30u64, 1..30u64);
    (shape, 0..64u64, 0..4u64).prop_map(|((width, transposed, leading, stride), tile, part)| {
        let width = 1 << width;
        // Swizzled groups start at multiples of 8 rows.
        let unit = if width == 1 { 1 } else { 8 * width };
        let parts = if transposed { 4 } else { width / 2 };
        Layout {
            width,
            transposed,
            leading: leading * unit,
            stride: stride * unit,
            tile: tile * 1024,
            skipped: part.checked_rem(parts).unwrap_or(part) * 16,
        }
    })
}

proptest! {
    #[test]
    fn units_have_the_elements_of_the_definition(layout in layouts(), first in 0..4usize) {
        let descriptor = Descriptor::parse(layout.descriptor()).unwrap();
        let (first, blocks) = (16 * first, 3);
        let units = descriptor.units(layout.transposed, first, blocks);
        for (number, units) in units.chunks(UNITS).enumerate() {
            // The elements of a unit are the offsets of their bytes, as words.
            let loaded = |unit: u64| std::array::from_fn(|at| (unit / 2) as u16 + at as u16);
            let units: Vec<[u16; 8]> = units.iter().map(|unit| loaded(*unit)).collect();
            let block = block_of_units(units[..].try_into().unwrap(), layout.transposed);
            for (k, lines) in block.iter().enumerate() {
                for (line, got) in lines.iter().enumerate() {
                    let line = first + number * LINES + line;
                    let want = layout.byte(line as u64, k as u64) / 2;
                    prop_assert_eq!(*got, want as u16, "line {}, k {}", line, k);
                }
            }
        }
    }
}

#[test]
fn wrong_descriptors_are_refused() {
    let refused = |bits: u64| Descriptor::parse(bits).unwrap_err();
    for unused in [14, 15, 30, 31, 46, 48, 52, 61] {
        let wrong = refused(1 << unused);
        assert!(matches!(wrong, WrongDescriptor::Invalid(_)), "bit {unused}: {wrong:?}");
    }
    for bit in 49..52 {
        let wrong = refused(1 << bit);
        let named = matches!(&wrong, WrongDescriptor::Invalid(it) if it.contains("base offset"));
        assert!(named, "bit {bit}: {wrong:?}");
    }
    // The start may be within the first row of a swizzled tile.
    for (swizzle, period) in [(1, 1024), (2, 512), (3, 256)] {
        for start in (0..2048u64).step_by(16) {
            let parsed = Descriptor::parse(start >> 4 | swizzle << 62);
            assert_eq!(parsed.is_ok(), start % period < 128, "{start} {swizzle}");
        }
    }
    assert!(Descriptor::parse(0x3fff).is_ok());
}
