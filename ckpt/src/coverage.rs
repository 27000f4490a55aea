//! Checks that the parts of several writers cover each byte of a file exactly once.

use std::ops::Range;

use crate::blocks::Block;

/// Why parts do not form a whole file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CoverageError {
    /// No writer wrote these bytes.
    #[error(
        "bytes {}..{} were not written (writer before: {}, writer after: {})", range.start, range.end,
        writer_text(.before), writer_text(.after)
    )]
    Gap {
        /// The bytes.
        range: Range<u64>,
        /// The writer of the bytes before.
        before: Option<String>,
        /// The writer of the bytes after.
        after: Option<String>,
    },
    /// Two parts contain these bytes.
    #[error(
        "bytes {}..{} were written twice, by `{}` and by `{}`", range.start, range.end,
        writers[0], writers[1]
    )]
    Overlap {
        /// The bytes.
        range: Range<u64>,
        /// The writers.
        writers: [String; 2],
    },
}

impl CoverageError {
    /// The bytes that were not written, or were written twice.
    pub fn range(&self) -> &Range<u64> {
        match self {
            CoverageError::Gap { range, .. } | CoverageError::Overlap { range, .. } => range,
        }
    }
}

fn writer_text(writer: &Option<String>) -> String {
    match writer {
        Some(writer) => format!("`{writer}`"),
        None => "none".to_owned(),
    }
}

/// Sorts the parts and checks that they are exactly bytes `0..len`.
pub(crate) fn check_coverage(
    len: u64,
    mut parts: Vec<(&str, Block)>,
) -> Result<Vec<Block>, CoverageError> {
    parts.sort_by_key(|&(writer, block)| (block.offset, block.bytes, writer));

    let mut end = 0;
    let mut last: Option<&str> = None;
    for &(writer, block) in &parts {
        if block.offset > end {
            return Err(gap(end..block.offset, last, Some(writer)));
        }
        if block.offset < end {
            let writers = [last.unwrap_or_default(), writer].map(str::to_owned);
            let range = block.offset..end.min(block.end());
            return Err(CoverageError::Overlap { range, writers });
        }
        end = block.end();
        last = Some(writer);
    }

    if end < len {
        return Err(gap(end..len, last, None));
    }
    Ok(parts.into_iter().map(|(_, block)| block).collect())
}

fn gap(range: Range<u64>, before: Option<&str>, after: Option<&str>) -> CoverageError {
    CoverageError::Gap { range, before: before.map(str::to_owned), after: after.map(str::to_owned) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Digest;

    fn block(range: Range<u64>) -> Block {
        Block { offset: range.start, bytes: range.end - range.start, xxh3: Digest(range.start) }
    }

    #[test]
    fn gaps_and_overlaps_name_bytes_and_writers() {
        let error = |len, parts: &[(&'static str, Range<u64>)]| {
            let parts = parts.iter().map(|(writer, range)| (*writer, block(range.clone())));
            check_coverage(len, parts.collect()).unwrap_err().to_string()
        };

        assert_eq!(
            error(9, &[("b", 5..9), ("a", 0..3)]),
            "bytes 3..5 were not written (writer before: `a`, writer after: `b`)"
        );
        assert_eq!(
            error(9, &[("a", 0..3)]),
            "bytes 3..9 were not written (writer before: `a`, writer after: none)"
        );
        assert_eq!(
            error(9, &[("a", 0..6), ("b", 4..9)]),
            "bytes 4..6 were written twice, by `a` and by `b`"
        );
        assert_eq!(
            error(9, &[("a", 0..9), ("a", 2..3)]),
            "bytes 2..3 were written twice, by `a` and by `a`"
        );
        assert_eq!(check_coverage(0, vec![]), Ok(vec![]));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        /// Parts of a file in any order cover it; with one part missing or duplicated, they do not.
        #[test]
        fn only_exact_covers_pass(
            sizes in prop::collection::vec(1..9u64, 1..20),
            order in any::<u64>(),
            pick in any::<prop::sample::Index>(),
        ) {
            let mut blocks = Vec::new();
            let mut end = 0;
            for size in sizes {
                blocks.push(("w", block(end..end + size)));
                end += size;
            }
            let sorted: Vec<Block> = blocks.iter().map(|(_, block)| *block).collect();
            meshgrad_ckpt_crash::SplitMix64::new(order).shuffle(&mut blocks);
            prop_assert_eq!(check_coverage(end, blocks.clone()), Ok(sorted));

            let picked = pick.index(blocks.len());
            let mut fewer = blocks.clone();
            fewer.remove(picked);
            let is_gap = matches!(check_coverage(end, fewer), Err(CoverageError::Gap { .. }));
            prop_assert!(is_gap);
            blocks.push(blocks[picked]);
            let is_overlap = matches!(check_coverage(end, blocks), Err(CoverageError::Overlap { .. }));
            prop_assert!(is_overlap);
        }
    }
}
