//! Matrix descriptors: where `wgmma.mma_async` finds a factor in shared memory.
//!
//! Implements PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout", for elements of
//! 16 bits. A factor has rows of M (A) or columns of N (B), both called lines here, and 16 elements
//! of K in each line. It consists of units of 16 bytes. Without transposition a unit has 8 elements
//! of K of one line, and with it 8 lines at one k. The swizzle of W = 1, 2, 4 or 8 units gives the
//! distances between units in bytes, where L and S are the descriptor's leading and stride
//! distances:
//!
//! ```text
//!                          next line    next 8 lines   next k    next 8 k
//! not transposed, W = 1    16           S              -         L
//! not transposed, W > 1    16 W         S              -         16
//! transposed, W = 1        -            S              16        L
//! transposed, W > 1        -            16, then L     16 W      S
//! ```
//!
//! In the last row, W times 8 lines are adjacent, and L is the distance to the next W times 8.
//! Finally, the bits of the address from 7 on select the unit among W: they are XORed into the bits
//! from 4 on.

/// The bytes of a unit.
pub(crate) const UNIT: u64 = 16;

/// Elements of K in a factor.
pub(crate) const DEPTH: usize = 16;

/// Lines of a block.
pub(crate) const LINES: usize = 8;

/// Units of a block: 8 lines of 16 elements.
pub(crate) const UNITS: usize = 16;

/// Bits without a meaning, which must be zero.
const UNUSED: u64 = 0x3 << 14 | 0x3 << 30 | 0x7 << 46 | 0x3ff << 52;

/// A matrix descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    /// The address of the first element in shared memory.
    start: u64,
    leading: u64,
    stride: u64,
    /// The binary logarithm of the units that the swizzle permutes, 0 to 3.
    swizzle: u32,
}

/// What is wrong with a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WrongDescriptor {
    Invalid(String),
    Misaligned(String),
}

impl Descriptor {
    pub(crate) fn parse(bits: u64) -> Result<Descriptor, WrongDescriptor> {
        let unused = bits & UNUSED;
        if unused != 0 {
            return Err(WrongDescriptor::Invalid(format!(
                "the descriptor {bits:#018x} has unused bits set ({unused:#018x}); keep 14 bits of \
                 each address and distance after the shift by 4"
            )));
        }
        let base_offset = bits >> 49 & 7;
        if base_offset != 0 {
            return Err(WrongDescriptor::Invalid(format!(
                "the descriptor {bits:#018x} has the base offset {base_offset}, which is not \
                 supported; align the swizzled tiles and use 0"
            )));
        }
        let bytes = |shift: u32| (bits >> shift & 0x3fff) * UNIT;
        let descriptor = Descriptor {
            start: bytes(0),
            leading: bytes(16),
            stride: bytes(32),
            swizzle: [0, 3, 2, 1][(bits >> 62) as usize],
        };
        let period = 128 << descriptor.swizzle;
        match descriptor.start % period {
            within if within >= 128 => Err(WrongDescriptor::Misaligned(format!(
                "the descriptor {bits:#018x} starts at {:#x}, {within} bytes after a multiple of \
                 {period}; with a swizzle of {} bytes and base offset 0 the distance must be less \
                 than 128",
                descriptor.start,
                UNIT << descriptor.swizzle,
            ))),
            _ => Ok(descriptor),
        }
    }

    /// The address of the unit that holds element `k` of a line.
    pub(crate) fn address(&self, transposed: bool, line: usize, k: usize) -> u64 {
        let by_eight = |index: usize| [index % 8, index / 8].map(|it| it as u64);
        let ([line, lines], [k, ks]) = (by_eight(line), by_eight(k));
        let width = 1 << self.swizzle;
        let distance = match (transposed, width) {
            (false, 1) => UNIT * line + self.stride * lines + self.leading * ks,
            (false, _) => UNIT * width * line + self.stride * lines + UNIT * ks,
            (true, 1) => self.stride * lines + UNIT * k + self.leading * ks,
            (true, _) => {
                let adjacent =
                    UNIT * (lines & (width - 1)) + self.leading * (lines >> self.swizzle);
                adjacent + UNIT * width * k + self.stride * ks
            }
        };
        let address = self.start + distance;
        address ^ ((address >> 7 & (width - 1)) * UNIT)
    }

    /// The addresses of the units of blocks of 8 lines, 16 per block; `first` is the first line.
    pub(crate) fn units(&self, transposed: bool, first: usize, blocks: usize) -> Vec<u64> {
        let lines = (first..first + LINES * blocks).step_by(LINES);
        let units = lines.flat_map(|line| (0..UNITS).map(move |unit| (line, unit)));
        let address = |(line, unit)| match transposed {
            false => self.address(false, line + unit / 2, unit % 2 * 8),
            true => self.address(true, line, unit),
        };
        units.map(address).collect()
    }
}

/// 8 lines of a factor, as `[k][line]`.
pub(crate) type Block = [[u16; LINES]; DEPTH];

/// The elements of a block, from those of its units in the order of [`Descriptor::units`].
#[inline(always)]
pub(crate) fn block_of_units(units: &[[u16; 8]; UNITS], transposed: bool) -> Block {
    if transposed {
        return *units;
    }
    let mut block = [[0; LINES]; DEPTH];
    for (index, unit) in units.iter().enumerate() {
        for (k, element) in unit.iter().enumerate() {
            block[index % 2 * 8 + k][index / 2] = *element;
        }
    }
    block
}
