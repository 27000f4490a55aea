//! Which text is held out for validation: a pure function of the documents and the fraction.
//!
//! Whole documents are taken in the order of the hash of their names, so that the held-out part
//! looks like the rest and does not depend on how documents are ordered. If none fit (one big
//! file), the end of the largest is cut off at a line.

use std::ops::Range;

use twox_hash::XxHash3_64;

use crate::corpus::Document;

/// A document or a piece of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Index of the document.
    pub document: usize,
    /// Bytes of its text, on character borders; never empty.
    pub bytes: Range<usize>,
}

impl Piece {
    /// The text of this piece.
    pub fn text<'d>(&self, documents: &'d [Document]) -> &'d str {
        &documents[self.document].text[self.bytes.clone()]
    }
}

/// The two parts of a text: together every byte once, each in document order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Split {
    /// To learn from.
    pub training: Vec<Piece>,
    /// Held out.
    pub validation: Vec<Piece>,
}

impl Split {
    /// Holds out about `fraction` of the bytes, in [0, 1), and never more than that; nothing if it
    /// is 0.
    pub fn new(documents: &[Document], fraction: f64) -> Self {
        let total: usize = documents.iter().map(|document| document.text.len()).sum();
        let wanted = (total as f64 * fraction) as usize;

        let held_out = choose(documents, wanted);
        let held_out_bytes: usize = (0..documents.len())
            .filter(|&at| held_out[at])
            .map(|at| documents[at].text.len())
            .sum();
        let cut = if held_out_bytes * 2 < wanted {
            cut_largest(documents, &held_out, wanted - held_out_bytes)
        } else {
            None
        };

        let mut split = Self::default();
        for (document, held_out) in held_out.into_iter().enumerate() {
            let end = documents[document].text.len();
            let border = match cut {
                _ if held_out => 0,
                Some((at, border)) if at == document => border,
                _ => end,
            };
            split.push(document, border, end);
        }
        split
    }

    fn push(&mut self, document: usize, border: usize, end: usize) {
        if border > 0 {
            self.training.push(Piece {
                document,
                bytes: 0..border,
            });
        }
        if border < end {
            self.validation.push(Piece {
                document,
                bytes: border..end,
            });
        }
    }
}

/// Documents in hashed order, each that still fits.
fn choose(documents: &[Document], wanted: usize) -> Vec<bool> {
    let mut order: Vec<usize> = (0..documents.len()).collect();
    order.sort_by_cached_key(|&at| (XxHash3_64::oneshot(documents[at].name.as_bytes()), at));

    let mut chosen = vec![false; documents.len()];
    let mut left = wanted;
    for at in order {
        let size = documents[at].text.len();
        if size <= left {
            chosen[at] = true;
            left -= size;
        }
    }
    chosen
}

/// The largest document that stays and the byte at which at most `wanted` bytes of it are cut off:
/// behind a line end if there is one in the cut part, else between two characters.
fn cut_largest(documents: &[Document], taken: &[bool], wanted: usize) -> Option<(usize, usize)> {
    let largest = (0..documents.len())
        .filter(|&at| !taken[at])
        .max_by_key(|&at| (documents[at].text.len(), std::cmp::Reverse(at)))?;

    let text = &documents[largest].text;
    let earliest = text.len().saturating_sub(wanted);
    let at_char = (earliest..text.len()).find(|&at| text.is_char_boundary(at))?;
    let at_line = text[at_char..]
        .find('\n')
        .map(|newline| at_char + newline + 1);
    let border = at_line
        .filter(|&border| border < text.len())
        .unwrap_or(at_char);
    Some((largest, border))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn documents(texts: &[String]) -> Vec<Document> {
        let named = |(at, text): (usize, &String)| Document {
            name: format!("{at}"),
            text: text.clone(),
        };
        texts.iter().enumerate().map(named).collect()
    }

    fn size(pieces: &[Piece]) -> usize {
        pieces.iter().map(|piece| piece.bytes.len()).sum()
    }

    #[test]
    fn one_document_is_cut_at_a_line() {
        let text: String = (0..1000).map(|line| format!("line {line}\n")).collect();
        let one = documents(&[text]);
        let split = Split::new(&one, 0.1);

        let held_out = split.validation[0].text(&one);
        assert!(held_out.starts_with("line "));
        assert!((870..=889).contains(&held_out.len()), "{}", held_out.len());
    }

    #[test]
    fn many_documents_stay_whole_and_come_near_the_fraction() {
        let texts: Vec<String> = (0..500).map(|at| "x".repeat(10 + at % 90)).collect();
        let many = documents(&texts);
        let split = Split::new(&many, 0.2);

        assert_eq!(split.training.len() + split.validation.len(), many.len());
        let total = size(&split.training) + size(&split.validation);
        let share = size(&split.validation) as f64 / total as f64;
        assert!((0.19..=0.2).contains(&share), "{share}");
    }

    proptest! {
        /// Both parts together are every byte once; the held-out part never exceeds its share; no
        /// fraction, nothing.
        #[test]
        fn parts_are_the_whole(
            texts in prop::collection::vec("[a-z\\n\u{e9}\u{1f980}]{1,40}", 0..20),
            fraction in 0.0f64..1.0,
        ) {
            let all = documents(&texts);
            let split = Split::new(&all, fraction);

            let mut pieces = [split.training.clone(), split.validation.clone()].concat();
            pieces.sort_by_key(|piece| (piece.document, piece.bytes.start));
            let joined: String = pieces.iter().map(|piece| piece.text(&all)).collect();
            prop_assert_eq!(joined, texts.concat());

            let total: usize = texts.iter().map(String::len).sum();
            prop_assert!(size(&split.validation) as f64 <= total as f64 * fraction);
            prop_assert!(pieces.iter().all(|piece| !piece.bytes.is_empty()));
            prop_assert!(Split::new(&all, 0.0).validation.is_empty());
        }
    }
}
