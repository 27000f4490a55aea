//! Checks that the parts of several writers cover each byte of a file exactly once.

use std::ops::Range;

use crate::blocks::Block;

/// Bytes that were not written, or were written twice.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Uncovered {
    pub(crate) range: Range<u64>,
    /// The bytes and their writers.
    pub(crate) problem: String,
}

/// Sorts the parts and checks that they are exactly bytes `0..len`.
pub(crate) fn check_coverage(
    len: u64,
    mut parts: Vec<(&str, Block)>,
) -> Result<Vec<Block>, Uncovered> {
    parts.sort_by_key(|&(writer, block)| (block.offset, block.bytes, writer));

    let mut end = 0;
    let mut last: Option<&str> = None;
    for &(writer, block) in &parts {
        if block.offset > end {
            return Err(gap(end..block.offset, last, Some(writer)));
        }
        if block.offset < end {
            let range = block.offset..end.min(block.end());
            let (Range { start, end }, last) = (&range, last.unwrap_or_default());
            let problem =
                format!("bytes {start}..{end} were written twice, by `{last}` and by `{writer}`");
            return Err(Uncovered { range, problem });
        }
        end = block.end();
        last = Some(writer);
    }

    if end < len {
        return Err(gap(end..len, last, None));
    }
    Ok(parts.into_iter().map(|(_, block)| block).collect())
}

fn gap(range: Range<u64>, before: Option<&str>, after: Option<&str>) -> Uncovered {
    let text = |writer: Option<&str>| writer.map_or("none".to_owned(), |it| format!("`{it}`"));
    let problem = format!(
        "bytes {}..{} were not written (writer before: {}, writer after: {})",
        range.start,
        range.end,
        text(before),
        text(after)
    );
    Uncovered { range, problem }
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
            check_coverage(len, parts.collect()).unwrap_err().problem
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
            let gap = check_coverage(end, fewer).unwrap_err().problem;
            prop_assert!(gap.contains("were not written"), "{}", gap);
            blocks.push(blocks[picked]);
            let overlap = check_coverage(end, blocks).unwrap_err().problem;
            prop_assert!(overlap.contains("were written twice"), "{}", overlap);
        }
    }
}
