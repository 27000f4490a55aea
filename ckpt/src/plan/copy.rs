//! Copies in bytes, for graph copies whose source file is known.
//!
//! A copy stays compact: a column of a matrix is two numbers and a loop, for any number of rows.
//! [`ByteCopy::clip`] computes the part of a copy in a given range of the file.

use std::ops::Range;

use smallvec::SmallVec;

/// Elements of a file and their offsets in a target. Offsets and strides are in bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ByteCopy {
    pub(crate) file: u32,
    /// The first byte in the file.
    pub(crate) from: u64,
    pub(crate) target: u32,
    /// The first byte in the target.
    pub(crate) to: u64,
    /// Bytes of an element, which is never split.
    pub(crate) element: u32,
    /// Bytes of an element in the target.
    pub(crate) to_element: u32,
    /// The loops, the one with the smallest stride in the file first.
    pub(crate) loops: Loops,
    /// The conversion of each element: an index into the plan's conversions.
    pub(crate) conversion: Option<u32>,
    /// The tensor that it reads: an index into the plan's names.
    pub(crate) tensor: u32,
}

/// Nearly every copy has one loop: a contiguous range, or a column.
pub(crate) type Loops = SmallVec<[ByteLoop; 2]>;

/// A loop of a copy, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ByteLoop {
    pub(crate) count: u64,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl ByteLoop {
    /// Distance from the first to the last iteration in the file.
    fn reach(&self) -> u64 {
        (self.count - 1) * self.from
    }
}

/// A part of a copy in which every element is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part<'a> {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) element: u32,
    pub(crate) to_element: u32,
    pub(crate) loops: &'a [ByteLoop],
}

impl Part<'_> {
    /// Bytes of the target that it writes.
    pub(crate) fn filled_bytes(&self) -> u64 {
        self.elements() * u64::from(self.to_element)
    }

    fn elements(&self) -> u64 {
        self.loops.iter().map(|it| it.count).product()
    }
}

impl ByteCopy {
    /// Bytes of the file that it reads.
    pub(crate) fn bytes(&self) -> u64 {
        self.whole().elements() * u64::from(self.element)
    }

    pub(crate) fn whole(&self) -> Part<'_> {
        Part {
            from: self.from,
            to: self.to,
            element: self.element,
            to_element: self.to_element,
            loops: &self.loops,
        }
    }

    /// Bytes that are contiguous in both file and target.
    pub(super) fn run(&self) -> u64 {
        self.innermost().0
    }

    /// The number of contiguous ranges.
    pub(super) fn run_count(&self) -> u64 {
        self.bytes() / self.run()
    }

    /// Its contiguous ranges, each with its offset in the target.
    pub(super) fn runs(&self, mut add: impl FnMut(Range<u64>, u64)) {
        let (run, joined) = self.innermost();
        ranges(&self.loops[joined..], self.from, self.to, run, &mut add);
    }

    /// The bytes of a contiguous range, and the number of loops in it.
    fn innermost(&self) -> (u64, usize) {
        let element = u64::from(self.element);
        match self.loops.first() {
            Some(it) if (it.from, it.to) == (element, u64::from(self.to_element)) => {
                (it.count * element, 1)
            }
            _ => (element, 0),
        }
    }

    /// The ranges of the file that it needs, in order, merged where they are at most `gap` apart.
    /// Each comes with the offset of its first byte in the target.
    pub(super) fn ranges(&self, gap: u64, mut add: impl FnMut(Range<u64>, u64)) {
        let (width, joined) = self.width(gap);
        ranges(&self.loops[joined..], self.from, self.to, width, &mut add);
    }

    /// The number of ranges that [`ByteCopy::ranges`] returns.
    pub(super) fn range_count(&self, gap: u64) -> u64 {
        let (_, joined) = self.width(gap);
        let iterations = self.loops[joined..].iter().map(|it| it.count);
        iterations.fold(1, u64::saturating_mul)
    }

    /// The bytes from the first to the last element of the innermost loops with gaps of at most
    /// `gap`, and the number of these loops.
    fn width(&self, gap: u64) -> (u64, usize) {
        let mut width = u64::from(self.element);
        for (joined, it) in self.loops.iter().enumerate() {
            if it.from > width + gap {
                return (width, joined);
            }
            width += it.reach();
        }
        (width, self.loops.len())
    }

    /// The parts whose elements start in `range` of the file. Splitting a file into ranges assigns
    /// each element to exactly one of them.
    pub(crate) fn clip(
        &self,
        range: &Range<u64>,
        scratch: &mut Vec<ByteLoop>,
        mut found: impl FnMut(Part<'_>),
    ) {
        let reach = self.loops.iter().map(ByteLoop::reach).sum();
        let mut clip = Clip { copy: self, range, scratch, found: &mut found };
        clip.cut(self.from, self.to, self.loops.len(), reach);
    }
}

fn ranges(
    outer: &[ByteLoop],
    from: u64,
    to: u64,
    width: u64,
    add: &mut impl FnMut(Range<u64>, u64),
) {
    match outer {
        [] => add(from..from + width, to),
        [inner @ .., it] => {
            for iteration in 0..it.count {
                let (from, to) = (from + iteration * it.from, to + iteration * it.to);
                ranges(inner, from, to, width, add);
            }
        }
    }
}

struct Clip<'a, F> {
    copy: &'a ByteCopy,
    range: &'a Range<u64>,
    scratch: &'a mut Vec<ByteLoop>,
    found: &'a mut F,
}

impl<F: FnMut(Part<'_>)> Clip<'_, F> {
    /// Finds the parts of the innermost `open` loops whose first element is at `from` and whose
    /// last element starts at `from + reach`.
    fn cut(&mut self, from: u64, to: u64, open: usize, reach: u64) {
        let Range { start, end } = *self.range;
        if from >= end || from + reach < start {
            return;
        }
        let copy = self.copy;
        let loops = &copy.loops[..open];
        if from >= start && from + reach < end {
            return self.emit(from, to, loops);
        }
        // Partly inside the range, so at least one loop is left.
        let [inner @ .., outer] = loops else {
            return;
        };
        let inner_reach = reach - outer.reach();
        let touching = iterations(from, outer, inner_reach, 0, self.range);
        let whole = iterations(from, outer, 0, inner_reach, self.range);
        let whole = match whole.is_empty() {
            true => touching.end..touching.end,
            false => whole,
        };
        for iteration in (touching.start..whole.start).chain(whole.end..touching.end) {
            let (from, to) = (from + iteration * outer.from, to + iteration * outer.to);
            self.cut(from, to, open - 1, inner_reach);
        }
        if !whole.is_empty() {
            let mut scratch = std::mem::take(self.scratch);
            scratch.clear();
            scratch.extend_from_slice(inner);
            scratch.push(ByteLoop { count: whole.end - whole.start, ..*outer });
            let (from, to) = (from + whole.start * outer.from, to + whole.start * outer.to);
            self.emit(from, to, &scratch);
            *self.scratch = scratch;
        }
    }

    fn emit(&mut self, from: u64, to: u64, loops: &[ByteLoop]) {
        (self.found)(Part {
            from,
            to,
            element: self.copy.element,
            to_element: self.copy.to_element,
            loops,
        });
    }
}

/// The iterations of a loop whose start is at least `range.start - before`, and whose start plus
/// `after` is below `range.end`.
fn iterations(
    from: u64,
    outer: &ByteLoop,
    before: u64,
    after: u64,
    range: &Range<u64>,
) -> Range<u64> {
    let first = range.start.saturating_sub(before).saturating_sub(from);
    let first = first.div_ceil(outer.from).min(outer.count);
    let room = range.end.checked_sub(from + after + 1);
    let end = room.map_or(0, |room| (room / outer.from + 1).min(outer.count));
    first..end.max(first)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn elements(part: Part<'_>, all: &mut Vec<(u64, u64)>) {
        let iterations: u64 = part.loops.iter().map(|it| it.count).product();
        for mut iteration in 0..iterations {
            let (mut from, mut to) = (part.from, part.to);
            for it in part.loops {
                from += iteration % it.count * it.from;
                to += iteration % it.count * it.to;
                iteration /= it.count;
            }
            all.push((from, to));
        }
    }

    proptest! {
        /// Splitting the file anywhere neither loses nor duplicates an element, and each element is
        /// found in the range where it starts. `ranges` covers all elements, in order, and returns
        /// as many ranges as `range_count`.
        #[test]
        fn clipping_partitions_the_elements(
            from in 0..50u64,
            element in 1..5u32,
            shape in proptest::collection::vec((1..6u64, 0..7u64, 0..200u64), 0..4),
            mut cuts in proptest::collection::vec(0..600u64, 0..6),
            gap in 0..40u64,
        ) {
            let mut stride = u64::from(element);
            let loops = shape.iter().map(|(count, pad, to)| {
                let it = ByteLoop { count: *count, from: stride + pad, to: *to };
                stride = it.from * it.count;
                it
            });
            let loops = loops.collect();
            let (to_element, conversion) = (element, None);
            let copy = ByteCopy {
                file: 0, from, target: 0, to: 3, element, to_element, loops, conversion, tensor: 0,
            };
            let mut all = Vec::new();
            elements(copy.whole(), &mut all);
            all.sort_unstable();

            cuts.extend([0, u64::MAX]);
            cuts.sort_unstable();
            let (mut found, mut scratch) = (Vec::new(), Vec::new());
            for cut in cuts.windows(2) {
                let range = cut[0]..cut[1];
                let mut here = Vec::new();
                copy.clip(&range, &mut scratch, |part| elements(part, &mut here));
                prop_assert!(here.iter().all(|(from, _)| range.contains(from)));
                found.extend(here);
            }
            found.sort_unstable();
            prop_assert_eq!(&found, &all);

            let mut ranges = Vec::new();
            copy.ranges(gap, |range, _| ranges.push(range));
            prop_assert_eq!(ranges.len() as u64, copy.range_count(gap));
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end + gap < pair[1].start));
            let held = |from: &u64| {
                let end = from + u64::from(element);
                ranges.iter().any(|range| range.start <= *from && end <= range.end)
            };
            prop_assert!(all.iter().all(|(from, _)| held(from)));
        }
    }
}
