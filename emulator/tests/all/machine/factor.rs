//! Factors of `wgmma` in shared memory: where each element is, from the definition of the layouts.

/// A factor with `lines` rows of A or columns of B, and 16 elements of K.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Factor {
    pub(crate) lines: usize,
    /// Units of 16 bytes that the swizzle permutes: 1 for none, 2, 4 or 8.
    pub(crate) swizzled: usize,
    /// Whether adjacent elements differ in M or N.
    pub(crate) transposed: bool,
    /// Elements of K before the factor, in a larger tile.
    pub(crate) skipped: usize,
}

impl Factor {
    /// Every layout.
    pub(crate) fn all(lines: usize) -> Vec<Factor> {
        let mut all = Vec::new();
        for swizzled in [1, 2, 4, 8] {
            for transposed in [false, true] {
                for skipped in (0..64).step_by(16) {
                    let factor = Factor { lines, swizzled, transposed, skipped };
                    if skipped < factor.depth() {
                        all.push(factor);
                    }
                }
            }
        }
        all
    }

    /// Elements of K in the tile.
    pub(crate) fn depth(&self) -> usize {
        match (self.transposed, self.swizzled) {
            (false, 1) => 32,
            (false, width) => 8 * width,
            (true, _) => 32,
        }
    }

    /// Lines that are adjacent in a transposed layout.
    fn width(&self) -> usize {
        8 * self.swizzled
    }

    /// The leading and the stride distance in bytes. Without a swizzle they are larger than needed.
    pub(crate) fn distances(&self) -> (usize, usize) {
        match (self.transposed, self.swizzled) {
            (false, 1) => (16 * self.lines + 64, 128),
            (false, width) => (16, 8 * 16 * width),
            (true, 1) => (128, 128 * self.depth() / 8 + 32),
            (true, width) => {
                let eight = 8 * 16 * width;
                (eight * self.depth() / 8, eight)
            }
        }
    }

    /// The byte of an element in the tile, which starts at a multiple of 1024.
    pub(crate) fn byte(&self, line: usize, k: usize) -> usize {
        let (leading, stride) = self.distances();
        let k = k + self.skipped;
        let (row, unit, at) = match (self.transposed, self.swizzled) {
            (false, 1) => {
                let tile = line / 8 * stride + k / 8 * leading;
                return tile + line % 8 * 16 + k % 8 * 2;
            }
            (true, 1) => {
                let tile = line / 8 * stride + k / 8 * leading;
                return tile + k % 8 * 16 + line % 8 * 2;
            }
            (false, _) => (line, k / 8, line / 8 * stride + k % 8 * 2),
            (true, _) => {
                let tile = line / self.width() * leading + k / 8 * stride;
                (k, line % self.width() / 8, tile + line % 8 * 2)
            }
        };
        // Eight rows of the swizzled layout permute their units differently, in pairs or fours if
        // there are fewer units.
        let row = row % 8;
        let swapped = unit ^ (row * self.swizzled / 8);
        at + row * 16 * self.swizzled + swapped * 16
    }

    /// Bytes of the tile.
    pub(crate) fn bytes(&self) -> usize {
        let whole = Factor { skipped: 0, ..*self };
        let lines = self.lines.next_multiple_of(self.width());
        let last = (0..lines).flat_map(|line| (0..self.depth()).map(move |k| (line, k)));
        let last = last.map(|(line, k)| whole.byte(line, k)).max().unwrap();
        (last + 2).next_multiple_of(1024)
    }

    /// The descriptor without its start, and the start relative to the tile.
    pub(crate) fn descriptor(&self) -> (u64, usize) {
        let (leading, stride) = self.distances();
        let swizzle = match self.swizzled {
            8 => 1,
            4 => 2,
            2 => 3,
            _ => 0,
        };
        let start = match (self.transposed, self.swizzled) {
            (false, 1) => self.skipped / 8 * leading,
            (false, _) => self.skipped * 2,
            (true, 1) => self.skipped / 8 * leading,
            (true, _) => self.skipped / 8 * stride,
        };
        let bits = (leading as u64 >> 4) << 16 | (stride as u64 >> 4) << 32 | swizzle << 62;
        (bits, start)
    }
}
