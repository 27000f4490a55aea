//! The split into training and validation text: a pure function of the documents and the fraction.
//!
//! Whole documents are held out in the order of the hash of their names. The held-out part then
//! resembles the rest and does not depend on the order of the documents. If these documents are
//! less than half of the fraction (with one large file, for example), the last lines of the largest
//! remaining document are held out too. Conversations stay whole.

use std::ops::Range;

use twox_hash::XxHash3_64;

use crate::corpus::Document;

/// A document or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentSpan {
    /// Index of the document.
    pub document: usize,
    /// Byte range of its text, on character boundaries; never empty.
    pub bytes: Range<usize>,
}

impl DocumentSpan {
    /// The text of this span.
    pub fn text<'d>(&self, documents: &'d [Document]) -> &'d str {
        &documents[self.document].text[self.bytes.clone()]
    }
}

/// The two parts of a text, each in document order. Together they contain every byte once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Split {
    /// The training part.
    pub training: Vec<DocumentSpan>,
    /// The held-out part.
    pub validation: Vec<DocumentSpan>,
}

impl Split {
    /// Holds out at most `fraction` of the bytes, and usually nearly that much. `fraction` is in
    /// [0, 1).
    pub fn new(documents: &[Document], fraction: f64) -> Self {
        let total: usize = documents.iter().map(|document| document.text.len()).sum();
        let max_bytes = (total as f64 * fraction) as usize;

        let held_out = choose(documents, max_bytes);
        let held_out_bytes: usize = (0..documents.len())
            .filter(|&at| held_out[at])
            .map(|at| documents[at].text.len())
            .sum();
        let split_at = if held_out_bytes * 2 < max_bytes {
            split_largest(documents, &held_out, max_bytes - held_out_bytes)
        } else {
            None
        };

        let mut split = Self::default();
        for (document, held_out) in held_out.into_iter().enumerate() {
            let end = documents[document].text.len();
            let boundary = match split_at {
                _ if held_out => 0,
                Some((at, boundary)) if at == document => boundary,
                _ => end,
            };
            split.push(document, boundary, end);
        }
        split
    }

    fn push(&mut self, document: usize, boundary: usize, end: usize) {
        if boundary > 0 {
            self.training.push(DocumentSpan { document, bytes: 0..boundary });
        }
        if boundary < end {
            self.validation.push(DocumentSpan { document, bytes: boundary..end });
        }
    }
}

/// The documents to hold out: in hash order, every document that still fits.
fn choose(documents: &[Document], max_bytes: usize) -> Vec<bool> {
    let mut order: Vec<usize> = (0..documents.len()).collect();
    order.sort_by_cached_key(|&at| (XxHash3_64::oneshot(documents[at].name.as_bytes()), at));

    let mut chosen = vec![false; documents.len()];
    let mut left = max_bytes;
    for at in order {
        let size = documents[at].text.len();
        if size <= left {
            chosen[at] = true;
            left -= size;
        }
    }
    chosen
}

/// The largest remaining document that is not a conversation, and the byte offset at which to split
/// it. At most `max_bytes` follow that offset. The split is after a newline if possible, otherwise
/// between two characters.
fn split_largest(
    documents: &[Document],
    taken: &[bool],
    max_bytes: usize,
) -> Option<(usize, usize)> {
    let largest = (0..documents.len())
        .filter(|&at| !taken[at] && documents[at].turns.is_empty())
        .max_by_key(|&at| (documents[at].text.len(), std::cmp::Reverse(at)))?;

    let text = &documents[largest].text;
    let earliest = text.len().saturating_sub(max_bytes);
    let at_char = (earliest..text.len()).find(|&at| text.is_char_boundary(at))?;
    let at_line = text[at_char..].find('\n').map(|newline| at_char + newline + 1);
    let boundary = at_line.filter(|&boundary| boundary < text.len()).unwrap_or(at_char);
    Some((largest, boundary))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn documents(texts: &[String]) -> Vec<Document> {
        let named = |(at, text): (usize, &String)| Document::new(format!("{at}"), text.clone());
        texts.iter().enumerate().map(named).collect()
    }

    fn size(spans: &[DocumentSpan]) -> usize {
        spans.iter().map(|span| span.bytes.len()).sum()
    }

    #[test]
    fn one_document_is_split_at_a_line() {
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

    #[test]
    fn conversations_stay_whole() {
        let mut one = documents(&["x\n".repeat(1000)]);
        one[0].turns = vec![crate::corpus::Turn { role: "assistant".to_owned(), bytes: 0..2000 }];
        assert!(Split::new(&one, 0.1).validation.is_empty());
    }

    proptest! {
        /// Both parts together contain every byte once. The held-out part never exceeds its
        /// fraction, and is empty for 0.
        #[test]
        fn parts_concatenate_to_the_whole(
            texts in prop::collection::vec("[a-z\\n\u{e9}\u{1f980}]{1,40}", 0..20),
            fraction in 0.0f64..1.0,
        ) {
            let all = documents(&texts);
            let split = Split::new(&all, fraction);

            let mut spans = [split.training.clone(), split.validation.clone()].concat();
            spans.sort_by_key(|span| (span.document, span.bytes.start));
            let joined: String = spans.iter().map(|span| span.text(&all)).collect();
            prop_assert_eq!(joined, texts.concat());

            let total: usize = texts.iter().map(String::len).sum();
            prop_assert!(size(&split.validation) as f64 <= total as f64 * fraction);
            prop_assert!(spans.iter().all(|span| !span.bytes.is_empty()));
            prop_assert!(Split::new(&all, 0.0).validation.is_empty());
        }
    }
}
