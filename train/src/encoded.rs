//! Documents as ids, with a mask of the ids that the loss counts.

use rayon::prelude::*;

use crate::corpus::Document;
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

    fn is_conversation(&self) -> bool {
        !self.document.turns.is_empty()
    }
}

/// The ids of some pieces.
pub(crate) struct Encoded {
    pub(crate) ids: Vec<u32>,
    text_bytes: u64,
    /// If not all ids are trained: whether each one is, and the bytes of trained text.
    trained: Option<(Vec<bool>, u64)>,
}

impl Encoded {
    #[cfg(test)]
    pub(crate) fn of_ids(ids: Vec<u32>, trained: Option<(Vec<bool>, u64)>) -> Encoded {
        let text_bytes = ids.len() as u64;
        Encoded { ids, text_bytes, trained }
    }

    pub(crate) fn new(tokenizer: &Tokenizer, pieces: &[Piece<'_>]) -> Result<Encoded> {
        let text_bytes = pieces.iter().map(|piece| piece.text.len() as u64).sum();
        if !pieces.iter().any(Piece::is_conversation) {
            let texts: Vec<&str> = pieces.iter().map(Piece::text).collect();
            return Ok(Encoded {
                ids: tokenizer.encode_documents(&texts)?,
                text_bytes,
                trained: None,
            });
        }

        let encoded = pieces.par_iter().map(|piece| match piece.is_conversation() {
            true => Ok(chat::encode(tokenizer, piece.document)?),
            false => {
                let ids = tokenizer.encode_documents(&[piece.text])?;
                Ok(chat::Conversation {
                    trained: vec![true; ids.len()],
                    ids,
                    trained_bytes: piece.text.len() as u64,
                })
            }
        });
        let encoded = encoded.collect::<Result<Vec<chat::Conversation>>>()?;
        let (mut ids, mut trained, mut trained_bytes) = (Vec::new(), Vec::new(), 0);
        for part in encoded {
            ids.extend(part.ids);
            trained.extend(part.trained);
            trained_bytes += part.trained_bytes;
        }
        Ok(Encoded { ids, text_bytes, trained: Some((trained, trained_bytes)) })
    }

    pub(crate) fn part(&self) -> Part<'_> {
        let trained = self.trained.as_ref();
        Part {
            ids: &self.ids,
            text_bytes: self.text_bytes,
            trained: trained.map(|(ids, text_bytes)| Trained { ids, text_bytes: *text_bytes }),
        }
    }

    /// Whether the loss counts the prediction of the id at `position`.
    pub(crate) fn is_trained(&self, position: usize) -> bool {
        let trained = self.trained.as_ref();
        trained.is_none_or(|(trained, _)| trained.get(position) == Some(&true))
    }

    /// Bytes of the text that is trained.
    pub(crate) fn trained_bytes(&self) -> u64 {
        self.trained.as_ref().map_or(self.text_bytes, |(_, bytes)| *bytes)
    }
}
