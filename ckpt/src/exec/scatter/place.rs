//! The memory that elements are written to, and the loops around the writes.

use std::ops::Range;

use crate::plan::ByteLoop;

/// The memory of a target.
pub(crate) trait Destination {
    /// Borrows a range for writing. No other caller may request these bytes.
    fn bytes(&mut self, range: Range<u64>) -> &mut [u8];
}

impl Destination for &mut [u8] {
    fn bytes(&mut self, range: Range<u64>) -> &mut [u8] {
        &mut self[range.start as usize..range.end as usize]
    }
}

/// Calls `visit` for each iteration of nested loops, the first loop innermost.
pub(super) fn each(loops: &[ByteLoop], from: u64, to: u64, visit: &mut impl FnMut(u64, u64)) {
    match loops {
        [] => visit(from, to),
        [inner @ .., outer] => {
            for iteration in 0..outer.count {
                each(inner, from + iteration * outer.from, to + iteration * outer.to, visit);
            }
        }
    }
}
