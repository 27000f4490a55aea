//! Documents as ids, with where they start and a mask of the ids that the loss counts.

use rayon::prelude::*;

use crate::corpus::Document;
use crate::rows::TokenStream;
use crate::tokenizer::Tokenizer;
use crate::tokens::{Part, Trained};
use crate::{Result, chat};

/// A document, or a part of a document that is not a conversation.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'c> {
    pub(crate) document: &'c Document,
    pub(crate) text: &'c str,
}

impl<'c> Piece<'c> {
    pub(crate) fn whole(document: &'c Document) -> Piece<'c> {
        let text = &document.text;
        Piece { document, text }
    }

    pub(crate) fn text(&self) -> &'c str {
        self.text
    }

    /// The name of the document.
    pub(crate) fn name(&self) -> &'c str {
        &self.document.name
    }

    fn is_conversation(&self) -> bool {
        !self.document.turns.is_empty()
    }
}

/// The ids of some pieces.
pub(crate) struct Encoded {
    pub(crate) ids: Vec<u32>,
    /// The first id of each piece.
    starts: Vec<usize>,
    text_bytes: u64,
    /// If not all ids are trained: whether each one is, and the bytes of trained text.
    trained: Option<(Vec<bool>, u64)>,
}

impl Encoded {
    #[cfg(test)]
    pub(crate) fn of_ids(
        ids: Vec<u32>,
        starts: Vec<usize>,
        trained: Option<(Vec<bool>, u64)>,
    ) -> Encoded {
        let text_bytes = ids.len() as u64;
        Encoded { ids, starts, text_bytes, trained }
    }

    pub(crate) fn new(tokenizer: &Tokenizer, pieces: &[Piece<'_>]) -> Result<Encoded> {
        let text_bytes = pieces.iter().map(|piece| piece.text.len() as u64).sum();
        if !pieces.iter().any(Piece::is_conversation) {
            let texts: Vec<&str> = pieces.iter().map(Piece::text).collect();
            let (ids, starts) = tokenizer.encode_documents(&texts)?;
            return Ok(Encoded { ids, starts, text_bytes, trained: None });
        }

        let encoded = pieces.par_iter().map(|piece| match piece.is_conversation() {
            true => Ok(chat::encode(tokenizer, piece.document)?),
            false => {
                let (ids, _) = tokenizer.encode_documents(&[piece.text])?;
                Ok(chat::Conversation {
                    trained: vec![true; ids.len()],
                    ids,
                    trained_bytes: piece.text.len() as u64,
                })
            }
        });
        let encoded = encoded.collect::<Result<Vec<chat::Conversation>>>()?;
        let mut starts = Vec::with_capacity(encoded.len());
        let (mut ids, mut trained, mut trained_bytes) = (Vec::new(), Vec::new(), 0);
        for part in encoded {
            starts.push(ids.len());
            ids.extend(part.ids);
            trained.extend(part.trained);
            trained_bytes += part.trained_bytes;
        }
        Ok(Encoded { ids, starts, text_bytes, trained: Some((trained, trained_bytes)) })
    }

    pub(crate) fn part(&self) -> Part<'_> {
        let trained = self.trained.as_ref();
        Part {
            ids: &self.ids,
            starts: &self.starts,
            text_bytes: self.text_bytes,
            trained: trained.map(|(ids, text_bytes)| Trained { ids, text_bytes: *text_bytes }),
        }
    }

    /// Whether there are conversations.
    pub(crate) fn has_conversations(&self) -> bool {
        self.trained.is_some()
    }

    /// Whether there is more than one document, or rows are packed.
    pub(crate) fn has_documents(&self) -> bool {
        self.has_conversations() || self.starts.len() > 1
    }

    /// The number of ids that are trained.
    pub(crate) fn trained_ids(&self) -> usize {
        (0..self.ids.len()).filter(|at| self.is_trained(*at)).count()
    }

    /// Bytes of the text that is trained.
    pub(crate) fn trained_bytes(&self) -> u64 {
        self.trained.as_ref().map_or(self.text_bytes, |(_, bytes)| *bytes)
    }
}

impl TokenStream for Encoded {
    fn id(&self, index: usize) -> Option<u32> {
        self.ids.get(index).copied()
    }

    fn is_trained(&self, index: usize) -> bool {
        let trained = self.trained.as_ref();
        trained.is_none_or(|(trained, _)| trained.get(index) == Some(&true))
    }

    fn is_start(&self, index: usize) -> bool {
        self.starts.binary_search(&index).is_ok()
    }
}
