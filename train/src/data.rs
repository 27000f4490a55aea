//! Prepares the data of `[data]`: reads and splits the text, and creates the tokenizer and the
//! token cache. Both are reused while they are valid.

use std::fs;
use std::path::Path;

use meshgrad_error::ensure;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};
use twox_hash::XxHash3_128;

use crate::Result;
use crate::config::{DataConfig, SourceConfig, TokenizerChoice};
use crate::corpus::Corpus;
use crate::encoded::{Encoded, Piece};
use crate::run_folder::RunFolder;
use crate::run_folder::not_shared;
use crate::sampler::{Order, Windows};
use crate::split::{DocumentSpan, Split};
use crate::tokenizer::Tokenizer;
use crate::tokens::{CacheKey, Part, TokenCache};

/// The data of a run.
pub struct Data {
    /// What is known of the texts.
    pub texts: TextInfo,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// All ids.
    pub tokens: TokenCache,
}

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
}

impl Data {
    /// Reads the text, and creates the tokenizer and the token cache in the run folder unless they
    /// exist and were made from the same text with the same settings.
    ///
    /// # Errors
    /// When the text, the tokenizer or a file of the folder fails.
    pub fn prepare(config: &DataConfig, folder: &RunFolder) -> Result<Self> {
        Data::prepare_checked(config, folder, |_, _| Ok(()))
    }

    /// As [`Data::prepare`]. `check` gets the digest of the text and the tokenizer before anything
    /// is written.
    ///
    /// # Errors
    /// As [`Data::prepare`]; errors of `check`.
    pub fn prepare_checked(
        config: &DataConfig,
        folder: &RunFolder,
        check: impl FnOnce(u128, &Tokenizer) -> Result<()>,
    ) -> Result<Self> {
        let texts = Texts::load(config)?;
        let (sources, validation) = texts.split(config.val_fraction);
        let digest = texts.digest();
        let recipe = recipe(digest, config);

        let training: Vec<&str> = sources.iter().flatten().map(Piece::text).collect();
        let tokenizer = tokenizer(config, recipe, &training, folder)?;
        check(digest, &tokenizer)?;
        tokenizer.save(&folder.tokenizer())?;
        let key = CacheKey { recipe, tokenizer: tokenizer.digest()? };
        let tokens = match TokenCache::open(&folder.tokens(), key)? {
            Some(tokens) => tokens,
            None => write_tokens(key, &tokenizer, &sources, &validation, folder)?,
        };

        Ok(Data { texts: texts.info(), tokenizer, tokens })
    }

    /// The data that another rank has prepared in `folder`.
    ///
    /// # Errors
    /// When the files cannot be read, or are not there.
    pub(crate) fn of_other_rank(
        texts: TextInfo,
        key: CacheKey,
        folder: &RunFolder,
    ) -> Result<Data> {
        let path = folder.tokens();
        let tokens = TokenCache::open(&path, key)?;
        Ok(Data {
            texts,
            tokenizer: Tokenizer::from_file(&folder.tokenizer())?,
            tokens: tokens.ok_or_else(|| not_shared(&path))?,
        })
    }

    /// The order of the training windows `windows`. Each source has its share, and windows without
    /// a trained token are left out.
    ///
    /// # Errors
    /// For a source without windows, or without a trained token in them.
    pub fn order(&self, windows: Windows, batch_size: usize, seed: u64) -> Result<Order> {
        let tokens = self.tokens.training();
        let weights = &self.texts.weights;
        let mut sources = Vec::with_capacity(weights.len());
        for (source, (range, weight)) in self.tokens.sources().iter().zip(weights).enumerate() {
            let seq_len = windows.seq_len();
            ensure!(
                !windows.within(range).is_empty(),
                Invalid,
                "source {} of data.sources has {} training tokens but train.seq_len = {seq_len} needs \
                 about {}; add text to it, or lower train.seq_len",
                source + 1,
                range.len(),
                2 * seq_len
            );
            let text = || match weights.len() {
                1 => "the training text".to_owned(),
                _ => format!("source {} of data.sources", source + 1),
            };
            let trained = windows.trained_within(range.clone(), tokens, text)?;
            sources.push((trained, *weight));
        }
        Ok(Order::mixed(sources, batch_size, seed))
    }

    /// The windows of the validation text; `None` if no text is held out.
    ///
    /// # Errors
    /// For a text without windows, or without a trained token in them.
    pub fn validation_windows(&self, seq_len: usize) -> Result<Option<Windows>> {
        let tokens = self.tokens.validation();
        if tokens.is_empty() {
            return Ok(None);
        }
        let windows = Windows::new("validation", tokens.len(), seq_len)?;
        let text = || "the validation text".to_owned();
        windows.trained_within(0..tokens.len(), tokens, text)?;
        Ok(Some(windows))
    }
}

/// The texts of `[data]`.
struct Texts {
    /// Each source with its weight.
    sources: Vec<(Corpus, f64)>,
    /// The held-out text, if it is not a part of the sources.
    validation: Option<Corpus>,
    /// Whether the sources are those of `data.sources`.
    is_mixed: bool,
}

impl Texts {
    fn load(config: &DataConfig) -> Result<Texts> {
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
    fn split(&self, fraction: f64) -> (Vec<Vec<Piece<'_>>>, Vec<Piece<'_>>) {
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

    fn info(&self) -> TextInfo {
        TextInfo {
            title: self.title(),
            documents: self.all().map(|corpus| corpus.documents.len()).sum(),
            digest: self.digest(),
            replaced_bytes: self.all().map(|corpus| corpus.replaced_bytes).sum(),
            empty_files: self.all().map(|corpus| corpus.empty_files).sum(),
            weights: self.sources.iter().map(|(_, weight)| *weight).collect(),
        }
    }

    /// The digest of the only text, or of all texts and the weights.
    fn digest(&self) -> u128 {
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

fn recipe(digest: u128, config: &DataConfig) -> u128 {
    let choice = String::from(config.tokenizer.clone());
    let recipe = format!("{digest:x} {} {choice}", config.val_fraction);
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
        TokenizerChoice::File(path) => {
            // A run can continue without the file, because its folder has a copy.
            let copy = folder.tokenizer();
            let is_gone = !path.exists() && copy.exists() && is_tokenizer_of(folder, path);
            let path = if is_gone { &copy } else { path };
            return Tokenizer::from_file(path);
        }
        TokenizerChoice::Bpe(size) => *size,
    };

    // The token cache records the text that the tokenizer was trained on.
    let made = TokenCache::key(&folder.tokens())?.filter(|made| made.recipe == recipe);
    if let (Some(made), Ok(tokenizer)) = (made, Tokenizer::from_file(&folder.tokenizer()))
        && tokenizer.digest()? == made.tokenizer
    {
        return Ok(tokenizer);
    }
    Tokenizer::train_bpe(training, size)
}

/// Whether the configuration in `folder` has `path` as its tokenizer.
fn is_tokenizer_of(folder: &RunFolder, path: &Path) -> bool {
    let config = fs::read_to_string(folder.config()).unwrap_or_default();
    let config: Table = config.parse().unwrap_or_default();
    let choice = config.get("data").and_then(|data| data.get("tokenizer"));
    choice.and_then(Value::as_str).map(Path::new) == Some(path)
}

fn write_tokens(
    key: CacheKey,
    tokenizer: &Tokenizer,
    sources: &[Vec<Piece<'_>>],
    validation: &[Piece<'_>],
    folder: &RunFolder,
) -> Result<TokenCache> {
    let sources = sources.iter().map(|pieces| Encoded::new(tokenizer, pieces));
    let sources = sources.collect::<Result<Vec<Encoded>>>()?;
    let validation = Encoded::new(tokenizer, validation)?;

    let parts: Vec<Part<'_>> = sources.iter().map(Encoded::part).collect();
    let path = folder.tokens();
    TokenCache::write(&path, key, &parts, validation.part())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use meshgrad_models::IGNORE_INDEX;
    use meshgrad_runtime::Device;

    use super::*;
    use crate::batches::TokenBatches;
    use crate::tokens::Tokens;

    fn text(seed: usize) -> String {
        (0..400).map(|line| format!("line {line} of {seed}, {}\n", line * seed % 97)).collect()
    }

    /// A second run reuses the tokenizer and the cache. Another text or vocabulary size creates new
    /// ones.
    #[cfg(feature = "tokenizers")]
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
            ..DataConfig::default()
        };
        let modified = || fs::metadata(folder.tokens()).unwrap().modified().unwrap();

        let first = Data::prepare(&config, &folder).unwrap();
        assert_eq!(first.tokenizer.vocab_size(), 300);
        let written = modified();
        let second = Data::prepare(&config, &folder).unwrap();
        assert_eq!(modified(), written);
        assert_eq!(second.tokenizer.digest().unwrap(), first.tokenizer.digest().unwrap());

        config.tokenizer = TokenizerChoice::Bpe(320);
        let larger = Data::prepare(&config, &folder).unwrap();
        assert_eq!(larger.tokenizer.vocab_size(), 320);

        fs::write(&file, text(5)).unwrap();
        let other = Data::prepare(&config, &folder).unwrap();
        assert_ne!(other.texts.digest, larger.texts.digest);
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
            ..DataConfig::default()
        };

        let data = Data::prepare(&config, &folder).unwrap();
        let (training, validation) = (data.tokens.training(), data.tokens.validation());
        let ids: Vec<u32> = training.iter().chain(validation.iter()).collect();
        assert_eq!(data.tokenizer.decode(&ids).unwrap(), text(3));
        assert_eq!(training.text_bytes() + validation.text_bytes(), text(3).len() as u64);
    }

    fn write(folder: &Path, name: &str, text: &str) -> String {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        path.to_string_lossy().into_owned()
    }

    fn byte(sources: Vec<SourceConfig>) -> DataConfig {
        DataConfig {
            tokenizer: TokenizerChoice::Byte,
            val_fraction: 0.0,
            sources,
            ..DataConfig::default()
        }
    }

    fn source(path: &str, weight: f64) -> SourceConfig {
        let paths = vec![path.to_owned()];
        SourceConfig { paths, weight }
    }

    /// A sequence has tokens of one source only, and the sources have their shares.
    #[test]
    fn sources_have_their_shares() {
        let place = tempfile::tempdir().unwrap();
        let long = write(place.path(), "a.txt", &"a".repeat(1000));
        let short = write(place.path(), "b.txt", &"b".repeat(100));
        let folder = RunFolder::open(&place.path().join("run")).unwrap();
        let config = byte(vec![source(&long, 1.0), source(&short, 3.0)]);
        let data = Data::prepare(&config, &folder).unwrap();

        let tokens = data.tokens.training();
        let windows = Windows::new("training", tokens.len(), 9).unwrap();
        let order = data.order(windows, 8, 1).unwrap();
        let device = Device::cpu();
        let batches = TokenBatches::new(windows, tokens, &device);
        for step in 1..20 {
            let batch = batches.of_step(&order, step, 8, 8).next().unwrap().unwrap();
            let ids = batch.ids.to_vec::<i64>().unwrap();
            let rows = ids.chunks(9).map(|row| {
                assert!(row.iter().all(|id| *id == row[0] || *id == 256), "{row:?}");
                row[0]
            });
            let of_short = rows.filter(|first| *first == i64::from(b'b')).count();
            assert_eq!(of_short, 6);
        }

        let swapped = byte(vec![source(&long, 3.0), source(&short, 1.0)]);
        let other = Data::prepare(&swapped, &folder).unwrap();
        assert_ne!(other.texts.digest, data.texts.digest, "weights decide the order");
        let long_windows = Windows::new("training", tokens.len(), 200).unwrap();
        let error = data.order(long_windows, 8, 1).unwrap_err().to_string();
        assert!(error.starts_with("source 2 of data.sources has 101 "), "{error}");
    }

    /// With a separate validation text, the training text is not split.
    #[test]
    fn a_validation_text_of_its_own_is_held_out() {
        let place = tempfile::tempdir().unwrap();
        let folder = RunFolder::open(&place.path().join("run")).unwrap();
        let paths = vec![write(place.path(), "a.txt", &text(3))];
        let validation = vec![write(place.path(), "b.txt", &text(5))];
        let config = DataConfig {
            tokenizer: TokenizerChoice::Byte,
            paths,
            validation,
            ..DataConfig::default()
        };
        let data = Data::prepare(&config, &folder).unwrap();
        let decoded = |tokens: Tokens<'_>| {
            let ids: Vec<u32> = tokens.iter().collect();
            data.tokenizer.decode(&ids).unwrap()
        };
        assert_eq!(decoded(data.tokens.training()), text(3));
        assert_eq!(decoded(data.tokens.validation()), text(5));
        let title = &data.texts.title;
        assert!(title.contains("; held out "), "{title}");

        let without = DataConfig { validation: Vec::new(), ..config };
        assert_ne!(Data::prepare(&without, &folder).unwrap().texts.digest, data.texts.digest);
    }

    /// Only answers are labels, in training and validation.
    #[test]
    fn only_answers_are_labels() {
        let place = tempfile::tempdir().unwrap();
        let folder = RunFolder::open(&place.path().join("run")).unwrap();
        let line = |question: &str, answer: &str| {
            let message = |role, content| serde_json::json!({ "role": role, "content": content });
            let messages = [message("user", question), message("assistant", answer)];
            serde_json::json!({ "messages": messages }).to_string() + "\n"
        };
        let long = "q".repeat(100);
        let lines: String = (0..50).map(|_| line(&long, "AB") + &line("q", "ABAB")).collect();
        let config = DataConfig {
            paths: vec![write(place.path(), "a.jsonl", &lines)],
            tokenizer: TokenizerChoice::Byte,
            val_fraction: 0.1,
            ..DataConfig::default()
        };
        let data = Data::prepare(&config, &folder).unwrap();
        let answer = |label: &i64| [i64::from(b'A'), i64::from(b'B'), 256].contains(label);
        for tokens in [data.tokens.training(), data.tokens.validation()] {
            assert!(tokens.is_masked());
            let windows = Windows::new("training", tokens.len(), 16).unwrap();
            let device = Device::cpu();
            let batches = TokenBatches::new(windows, tokens, &device);
            let mut counted = 0;
            for batch in batches.in_order(1, 0) {
                let labels = batch.unwrap().labels.to_vec::<i64>().unwrap();
                let trained: Vec<_> = labels.iter().filter(|id| **id != IGNORE_INDEX).collect();
                assert!(!trained.is_empty() && trained.iter().all(|label| answer(label)));
                counted += trained.len();
            }
            let all = (1..=windows.count() * 16).filter(|at| tokens.is_trained(*at)).count();
            assert_eq!(counted, all);
        }
        let windows = Windows::new("training", data.tokens.training().len(), 16).unwrap();
        let order = data.order(windows, 1, 1).unwrap();
        let (tokens, device) = (data.tokens.training(), Device::cpu());
        let batches = TokenBatches::new(windows, tokens, &device);
        for step in 1..100 {
            let batch = batches.of_step(&order, step, 1, 1).next().unwrap().unwrap();
            let labels = batch.labels.to_vec::<i64>().unwrap();
            assert!(labels.iter().any(answer), "step {step} trains nothing");
        }
    }
}
