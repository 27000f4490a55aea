//! The byte ranges of files that are read, and their division into reads.
//!
//! Copies become byte ranges of files. Nearby ranges become one extent, because reading a gap is
//! cheaper than another request. Extents are cut into chunks of the window's size. A long range
//! that is contiguous in both file and target is not part of an extent: it is read directly into
//! the target.

use std::ops::Range;

use super::copy::ByteCopy;

/// The maximum number of ranges; with more, the gap is increased.
const MAX_RANGES: u64 = 1 << 20;

/// A part of a file that is read with one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) file: u32,
    /// The bytes that are read.
    pub(crate) read: Range<u64>,
    /// Copies of elements that start in this range belong to this chunk.
    pub(crate) own: Range<u64>,
    /// For a read directly into the target: the offset in the copy's target.
    pub(crate) in_place: Option<u64>,
    /// The copies that use it: a range of `touched`.
    pub(crate) touched: Range<u32>,
    /// Bytes of the targets that this chunk is the first to use.
    pub(crate) opening: u64,
}

/// All chunks in the order of files and offsets, and the copies that use them.
pub(super) struct Cut {
    pub(super) chunks: Vec<Chunk>,
    pub(super) touched: Vec<u32>,
}

/// Parameters of the division.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// Ranges at most this far apart are read together.
    pub(super) gap: u64,
    /// Bytes of a chunk.
    pub(super) window: u64,
    /// Ranges of at least this many bytes are read directly into the target.
    pub(super) in_place: u64,
}

/// A file, or a computed tensor, which is treated like a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) bytes: u64,
    /// Reads start and end at multiples of this, or at the end of the file.
    pub(super) alignment: u64,
    pub(super) is_computed: bool,
}

/// Bytes that a copy needs.
#[derive(Clone, Debug)]
struct Needed {
    file: u32,
    bytes: Range<u64>,
    copy: u32,
    /// The destination of the first byte, if the range can be read directly into the target.
    in_place: Option<u64>,
}

pub(super) fn cut(copies: &[ByteCopy], files: &[Origin], rules: &Rules) -> Cut {
    let mut needed = needed(copies, files, rules);
    needed.sort_unstable_by_key(|it| (it.file, it.bytes.start, it.bytes.end, it.copy));
    not_shared(&mut needed);

    let mut cutting = Cutting {
        rules,
        files,
        overhang: overhang(copies, rules),
        chunks: Vec::new(),
        users: Vec::new(),
    };
    let mut last_chunk = vec![0; copies.len()];
    let mut rest = &needed[..];
    while let [first, ..] = rest {
        let (together, end) = extent(rest, rules.gap);
        let (here, later) = rest.split_at(together);
        cutting.add(here, first.file, first.bytes.start..end, &mut last_chunk);
        rest = later;
    }
    cutting.finish()
}

/// The ranges of all copies.
fn needed(copies: &[ByteCopy], files: &[Origin], rules: &Rules) -> Vec<Needed> {
    let mut gap = rules.gap;
    let count = |gap: u64| {
        let counts = copies.iter().map(|copy| copy.range_count(gap));
        counts.fold(0, u64::saturating_add)
    };
    while count(gap) > MAX_RANGES + copies.len() as u64 {
        gap = gap.saturating_mul(2).max(1);
    }

    let mut needed = Vec::with_capacity(copies.len());
    for (copy, number) in copies.iter().zip(0..) {
        let is_in_place = copy.conversion.is_none()
            && !files[copy.file as usize].is_computed
            && copy.run() >= rules.in_place
            && copy.run_count() <= MAX_RANGES;
        let add = |bytes: Range<u64>, to: u64| {
            needed.push(Needed {
                file: copy.file,
                bytes,
                copy: number,
                in_place: is_in_place.then_some(to),
            });
        };
        match is_in_place {
            true => copy.runs(add),
            false => copy.ranges(gap, add),
        }
    }
    needed
}

/// Clears `in_place` of ranges that several copies need: they are read once, into a window.
fn not_shared(needed: &mut [Needed]) {
    let mut furthest = 0;
    for at in 1..needed.len() {
        let (before, here) = (&needed[furthest], &needed[at]);
        if before.file == here.file && before.bytes.end > here.bytes.start {
            needed[furthest].in_place = None;
            needed[at].in_place = None;
        }
        let (before, here) = (&needed[furthest], &needed[at]);
        if (here.file, here.bytes.end) > (before.file, before.bytes.end) {
            furthest = at;
        }
    }
}

/// The number of sorted ranges that form the next extent, and the extent's end.
fn extent(needed: &[Needed], gap: u64) -> (usize, u64) {
    let first = &needed[0];
    let (mut end, mut count) = (first.bytes.end, 1);
    if first.in_place.is_some() {
        return (count, end);
    }
    for next in &needed[1..] {
        let far = next.file != first.file || next.bytes.start > end.saturating_add(gap);
        if far || next.in_place.is_some() {
            break;
        }
        end = end.max(next.bytes.end);
        count += 1;
    }
    (count, end)
}

/// How many bytes an element can extend past the end of the chunk in which it starts. Zero if
/// elements are at multiples of their size, as writers place them, because chunks end at such
/// multiples too.
fn overhang(copies: &[ByteCopy], rules: &Rules) -> u64 {
    let torn = |copy: &&ByteCopy| {
        let element = u64::from(copy.element);
        !copy.from.is_multiple_of(element) || rules.window < LARGEST_ELEMENT
    };
    let elements = copies.iter().filter(torn).map(|copy| copy.element);
    u64::from(elements.max().unwrap_or(1)) - 1
}

/// Windows of at least this size end at multiples of it.
const LARGEST_ELEMENT: u64 = 16;

struct Cutting<'a> {
    rules: &'a Rules,
    files: &'a [Origin],
    overhang: u64,
    chunks: Vec<Chunk>,
    /// Pairs of a chunk and a copy that uses it.
    users: Vec<(u32, u32)>,
}

impl Cutting<'_> {
    /// Adds the chunks of an extent.
    fn add(&mut self, needed: &[Needed], file: u32, extent: Range<u64>, last_chunk: &mut [u32]) {
        let first_chunk = self.chunks.len();
        let in_place = needed[0].in_place;
        let mut start = extent.start;
        while start < extent.end {
            let end = self.cut_after(file, start).min(extent.end);
            let own = start..end;
            self.chunks.push(Chunk {
                file,
                read: match in_place {
                    Some(_) => own.clone(),
                    None => self.around(file, &own, extent.end),
                },
                own,
                in_place: in_place.map(|to| to + (start - extent.start)),
                touched: 0..0,
                opening: 0,
            });
            start = end;
        }

        for it in needed {
            let new = &self.chunks[first_chunk..];
            let from = first_chunk + new.partition_point(|chunk| chunk.own.end <= it.bytes.start);
            let to = first_chunk + new.partition_point(|chunk| chunk.own.start < it.bytes.end);
            // An earlier range of the same copy may have already added the first of these chunks.
            let named = last_chunk[it.copy as usize] as usize;
            self.users.extend((from.max(named)..to).map(|chunk| (chunk as u32, it.copy)));
            last_chunk[it.copy as usize] = to as u32;
        }
    }

    /// The largest possible end of the chunk that starts at `start`.
    fn cut_after(&self, file: u32, start: u64) -> u64 {
        let Origin { alignment, .. } = self.files[file as usize];
        let grain = match self.rules.window {
            LARGEST_ELEMENT.. => alignment.max(LARGEST_ELEMENT),
            _ => alignment,
        };
        let end = start.saturating_add(self.rules.window.max(grain));
        (end - end % grain).max(start + 1)
    }

    /// The range that is read for a chunk.
    fn around(&self, file: u32, own: &Range<u64>, end_of_extent: u64) -> Range<u64> {
        let Origin { alignment, bytes, .. } = self.files[file as usize];
        let end = (own.end + self.overhang).min(end_of_extent);
        let end = end.next_multiple_of(alignment);
        let start = own.start - own.start % alignment;
        start..end.min(bytes)
    }

    fn finish(mut self) -> Cut {
        self.users.sort_unstable();
        let mut begin = 0;
        for users in self.users.chunk_by(|a, b| a.0 == b.0) {
            let end = begin + users.len() as u32;
            self.chunks[users[0].0 as usize].touched = begin..end;
            begin = end;
        }
        Cut { chunks: self.chunks, touched: self.users.into_iter().map(|(_, copy)| copy).collect() }
    }
}
