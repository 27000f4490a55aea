//! Prepares the data of `[data]`: reads and splits the text, and creates the tokenizer and the
//! token cache. Both are reused while they are valid.

use twox_hash::XxHash3_128;

use crate::Result;
use crate::config::{DataConfig, TokenizerChoice};
use crate::corpus::Corpus;
use crate::run_folder::RunFolder;
use crate::split::{Span, Split};
use crate::tokenizer::Tokenizer;
use crate::tokens::{CacheKey, Part, TokenCache};

/// The data of a run.
pub struct Data {
    /// A short description of the text.
    pub title: String,
    /// Number of documents.
    pub documents: usize,
    /// XXH3-128 of the text.
    pub digest: u128,
    /// Invalid UTF-8 bytes that were replaced by U+FFFD.
    pub replaced_bytes: u64,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// All ids.
    pub tokens: TokenCache,
}

impl Data {
    /// Reads the text, and creates the tokenizer and the token cache in the run folder unless they
    /// exist and were made from the same text with the same settings.
    ///
    /// # Errors
    /// [`crate::TrainError`] of the part that failed.
    pub fn prepare(config: &DataConfig, folder: &RunFolder) -> Result<Self> {
        Data::prepare_checked(config, folder, |_, _| Ok(()))
    }

    /// As [`Data::prepare`]. `check` gets the digest of the text and the tokenizer before anything
    /// is written.
    ///
    /// # Errors
    /// As [`Data::prepare`], and those of `check`.
    pub fn prepare_checked(
        config: &DataConfig,
        folder: &RunFolder,
        check: impl FnOnce(u128, &Tokenizer) -> Result<()>,
    ) -> Result<Self> {
        let corpus = Corpus::load(&config.paths)?;
        let split = Split::new(&corpus.documents, config.val_fraction);
        let training = texts(&split.training, &corpus);
        let recipe = recipe(&corpus, config);

        let tokenizer = tokenizer(config, recipe, &training, folder)?;
        check(corpus.digest, &tokenizer)?;
        tokenizer.save(&folder.tokenizer())?;
        let key = CacheKey {
            recipe,
            tokenizer: tokenizer.digest()?,
        };
        let tokens = match TokenCache::open(&folder.tokens(), key)? {
            Some(tokens) => tokens,
            None => write_tokens(
                key,
                &tokenizer,
                &training,
                &texts(&split.validation, &corpus),
                folder,
            )?,
        };

        Ok(Self {
            documents: corpus.documents.len(),
            digest: corpus.digest,
            replaced_bytes: corpus.replaced_bytes,
            title: corpus.title,
            tokenizer,
            tokens,
        })
    }
}

fn texts<'c>(spans: &[Span], corpus: &'c Corpus) -> Vec<&'c str> {
    spans
        .iter()
        .map(|span| span.text(&corpus.documents))
        .collect()
}

fn recipe(corpus: &Corpus, config: &DataConfig) -> u128 {
    let choice = String::from(config.tokenizer.clone());
    let recipe = format!("{:x} {} {choice}", corpus.digest, config.val_fraction);
    XxHash3_128::oneshot(recipe.as_bytes())
}

fn tokenizer(
    config: &DataConfig,
    recipe: u128,
    training: &[&str],
    folder: &RunFolder,
) -> Result<Tokenizer> {
    let size = match &config.tokenizer {
        TokenizerChoice::Byte => return Ok(Tokenizer::byte()),
        TokenizerChoice::File(path) => return Ok(Tokenizer::from_file(path)?),
        TokenizerChoice::Bpe(size) => *size,
    };

    // The token cache records the text that the tokenizer was trained on.
    let made = TokenCache::key(&folder.tokens())?.filter(|made| made.recipe == recipe);
    if let (Some(made), Ok(tokenizer)) = (made, Tokenizer::from_file(&folder.tokenizer()))
        && tokenizer.digest()? == made.tokenizer
    {
        return Ok(tokenizer);
    }
    Ok(Tokenizer::train_bpe(training, size)?)
}

fn write_tokens(
    key: CacheKey,
    tokenizer: &Tokenizer,
    training: &[&str],
    validation: &[&str],
    folder: &RunFolder,
) -> Result<TokenCache> {
    let bytes = |texts: &[&str]| texts.iter().map(|text| text.len() as u64).sum();
    let (training_ids, validation_ids) = (
        tokenizer.encode_documents(training)?,
        tokenizer.encode_documents(validation)?,
    );

    let training = Part {
        ids: &training_ids,
        text_bytes: bytes(training),
    };
    let validation = Part {
        ids: &validation_ids,
        text_bytes: bytes(validation),
    };
    Ok(TokenCache::write(
        &folder.tokens(),
        key,
        training,
        validation,
    )?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn text(seed: usize) -> String {
        (0..400)
            .map(|line| format!("line {line} of {seed}, {}\n", line * seed % 97))
            .collect()
    }

    /// A second run reuses the tokenizer and the cache. Another text or vocabulary size creates new
    /// ones.
    #[test]
    fn a_valid_tokenizer_and_cache_are_reused() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("text.txt");
        fs::write(&file, text(3)).unwrap();
        let folder = RunFolder::open(&place.path().join("run")).unwrap();
        let mut config = DataConfig {
            paths: vec![file.to_string_lossy().into_owned()],
            tokenizer: TokenizerChoice::Bpe(300),
            val_fraction: 0.1,
        };
        let modified = || fs::metadata(folder.tokens()).unwrap().modified().unwrap();

        let first = Data::prepare(&config, &folder).unwrap();
        assert_eq!(first.tokenizer.vocab_size(), 300);
        let written = modified();
        let second = Data::prepare(&config, &folder).unwrap();
        assert_eq!(modified(), written);
        assert_eq!(
            second.tokenizer.digest().unwrap(),
            first.tokenizer.digest().unwrap()
        );

        config.tokenizer = TokenizerChoice::Bpe(320);
        let larger = Data::prepare(&config, &folder).unwrap();
        assert_eq!(larger.tokenizer.vocab_size(), 320);

        fs::write(&file, text(5)).unwrap();
        let other = Data::prepare(&config, &folder).unwrap();
        assert_ne!(other.digest, larger.digest);
        let ids = |data: &Data| data.tokens.training().iter().collect::<Vec<_>>();
        assert_ne!(ids(&other), ids(&larger));
    }

    #[test]
    fn tokens_decode_to_the_text() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("text.txt");
        fs::write(&file, text(3)).unwrap();
        let folder = RunFolder::open(&place.path().join("run")).unwrap();
        let config = DataConfig {
            paths: vec![file.to_string_lossy().into_owned()],
            tokenizer: TokenizerChoice::Byte,
            val_fraction: 0.1,
        };

        let data = Data::prepare(&config, &folder).unwrap();
        let (training, validation) = (data.tokens.training(), data.tokens.validation());
        let ids: Vec<u32> = training.iter().chain(validation.iter()).collect();
        assert_eq!(data.tokenizer.decode(&ids).unwrap(), text(3));
        assert_eq!(
            training.text_bytes() + validation.text_bytes(),
            text(3).len() as u64
        );
    }
}
