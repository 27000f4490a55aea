//! The texts of `[data]`: sources with their weights, and what is held out of them.

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

use crate::Result;
use crate::config::{DataConfig, SourceConfig};
use crate::corpus::Corpus;
use crate::encoded::Piece;
use crate::split::{DocumentSpan, Split};

/// What is known of the texts of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TextInfo {
    /// A short description.
    pub title: String,
    /// Number of documents.
    pub documents: usize,
    /// XXH3-128 of the text. With several sources or a separate validation text, of all texts and
    /// the weights.
    pub digest: u128,
    /// Invalid UTF-8 bytes that were replaced by U+FFFD.
    pub replaced_bytes: u64,
    /// Files that were skipped because they have no text.
    pub empty_files: u64,
    /// The weight of each source.
    pub weights: Vec<f64>,
    /// Of a training text with conversations: each document that has more tokens than all before it.
    pub longest: Vec<LongDocument>,
    /// As `longest`, of the validation text.
    pub longest_held_out: Vec<LongDocument>,
}

/// A document that may be too long for a sequence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LongDocument {
    /// Its name ([`Document::name`](crate::corpus::Document::name)).
    pub name: String,
    /// Its tokens.
    pub tokens: usize,
}

/// The texts of `[data]`.
pub(crate) struct Texts {
    /// Each source with its weight.
    sources: Vec<(Corpus, f64)>,
    /// The held-out text, if it is not a part of the sources.
    validation: Option<Corpus>,
    /// Whether the sources are those of `data.sources`.
    is_mixed: bool,
}

impl Texts {
    pub(crate) fn load(config: &DataConfig) -> Result<Texts> {
        let is_mixed = !config.sources.is_empty();
        let sources = match is_mixed {
            false => vec![(Corpus::load(&config.paths)?, 1.0)],
            true => {
                let sources = config.sources.iter();
                let load =
                    |it: &SourceConfig| -> Result<_> { Ok((Corpus::load(&it.paths)?, it.weight)) };
                sources.map(load).collect::<Result<_>>()?
            }
        };
        let validation = match config.validation.is_empty() {
            true => None,
            false => Some(Corpus::load(&config.validation)?),
        };
        Ok(Texts { sources, validation, is_mixed })
    }

    fn all(&self) -> impl Iterator<Item = &Corpus> {
        let sources = self.sources.iter().map(|(corpus, _)| corpus);
        sources.chain(&self.validation)
    }

    /// The pieces of each source for training, and those for validation.
    pub(crate) fn split(&self, fraction: f64) -> (Vec<Vec<Piece<'_>>>, Vec<Piece<'_>>) {
        let mut held_out = Vec::new();
        let mut sources = Vec::with_capacity(self.sources.len());
        for (corpus, _) in &self.sources {
            // With a separate validation text, the sources are not split.
            let fraction = if self.validation.is_some() { 0.0 } else { fraction };
            let split = Split::new(&corpus.documents, fraction);
            sources.push(pieces(&split.training, corpus));
            held_out.extend(pieces(&split.validation, corpus));
        }
        if let Some(corpus) = &self.validation {
            let all = Split::new(&corpus.documents, 0.0).training;
            held_out = pieces(&all, corpus);
        }
        (sources, held_out)
    }

    pub(crate) fn info(&self) -> TextInfo {
        TextInfo {
            title: self.title(),
            documents: self.all().map(|corpus| corpus.documents.len()).sum(),
            digest: self.digest(),
            replaced_bytes: self.all().map(|corpus| corpus.replaced_bytes).sum(),
            empty_files: self.all().map(|corpus| corpus.empty_files).sum(),
            weights: self.sources.iter().map(|(_, weight)| *weight).collect(),
            longest: Vec::new(),
            longest_held_out: Vec::new(),
        }
    }

    /// The digest of the only text, or of all texts and the weights.
    pub(crate) fn digest(&self) -> u128 {
        if let ([(only, _)], None, false) = (&self.sources[..], &self.validation, self.is_mixed) {
            return only.digest;
        }
        let mut hash = XxHash3_128::new();
        for (corpus, weight) in &self.sources {
            hash.write(&corpus.digest.to_le_bytes());
            hash.write(&weight.to_le_bytes());
        }
        if let Some(validation) = &self.validation {
            // Each source adds 24 bytes, so these 16 are not mistaken for a source.
            hash.write(&validation.digest.to_le_bytes());
        }
        hash.finish_128()
    }

    fn title(&self) -> String {
        let source = |(corpus, weight): &(Corpus, f64)| match self.is_mixed {
            true => format!("{} (weight {weight})", corpus.title),
            false => corpus.title.clone(),
        };
        let sources: Vec<String> = self.sources.iter().map(source).collect();
        let validation = self.validation.iter();
        let validation = validation.map(|corpus| format!("; held out {}", corpus.title));
        sources.join(", ") + &validation.collect::<String>()
    }
}

fn pieces<'c>(spans: &[DocumentSpan], corpus: &'c Corpus) -> Vec<Piece<'c>> {
    let piece = |span: &DocumentSpan| Piece {
        document: &corpus.documents[span.document],
        text: span.text(&corpus.documents),
    };
    spans.iter().map(piece).collect()
}
