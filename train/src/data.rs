//! Prepares the data of `[data]`: reads and splits the text, and creates the tokenizer and the
//! token cache. Both are reused while they are valid. Then, which rows a run trains on.

use std::fs;
use std::ops::Range;
use std::path::Path;

use meshgrad_error::{bail, ensure};
use toml::{Table, Value};
use twox_hash::XxHash3_128;

use crate::Result;
use crate::config::{DataConfig, TokenizerChoice, TooLong};
use crate::encoded::{Encoded, Piece};
use crate::packing::Pieces;
use crate::rows::{RowFormat, TokenStream};
use crate::run_folder::RunFolder;
use crate::run_folder::not_shared;
use crate::sampler::{Order, Rows, Units, Windows};
use crate::texts::Texts;
pub use crate::texts::{LongDocument, TextInfo};
use crate::tokenizer::Tokenizer;
use crate::tokens::{CacheKey, Part, TokenCache, Tokens};

/// The data of a run.
pub struct Data {
    /// What is known of the texts.
    pub texts: TextInfo,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// All ids.
    pub tokens: TokenCache,
    too_long: TooLong,
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

        let texts = TextInfo {
            longest: longest(tokens.training(), &sources.concat()),
            longest_held_out: longest(tokens.validation(), &validation),
            ..texts.info()
        };
        Ok(Data { texts, tokenizer, tokens, too_long: config.too_long })
    }

    /// The data that another rank has prepared in `folder`.
    ///
    /// # Errors
    /// When the files cannot be read, or are not there.
    pub(crate) fn of_other_rank(
        texts: TextInfo,
        key: CacheKey,
        config: &DataConfig,
        folder: &RunFolder,
    ) -> Result<Data> {
        let path = folder.tokens();
        let tokens = TokenCache::open(&path, key)?;
        Ok(Data {
            texts,
            tokenizer: Tokenizer::from_file(&folder.tokenizer())?,
            tokens: tokens.ok_or_else(|| not_shared(&path))?,
            too_long: config.too_long,
        })
    }

    /// The order of the training rows, each of `seq_len` tokens, with `batch_size` rows per step. Each
    /// source has its share. Rows are windows of the text or, if it has conversations, whole documents.
    /// What has no label is left out.
    ///
    /// # Errors
    /// For a source without rows; for a document that is longer than `seq_len`, if `data.too_long`
    /// refuses it.
    pub fn order(&self, seq_len: usize, batch_size: usize, seed: u64) -> Result<Order> {
        let tokens = self.tokens.training();
        let is_packed = tokens.is_masked();
        self.check_lengths(&self.texts.longest, seq_len)?;
        let weights = &self.texts.weights;
        let windows = match is_packed {
            true => None,
            false => Some(Windows::new("training", tokens.len(), seq_len)?),
        };
        let mut sources = Vec::with_capacity(weights.len());
        for (source, (range, weight)) in self.tokens.sources().iter().zip(weights).enumerate() {
            let text = match weights.len() {
                1 => "the training text".to_owned(),
                _ => format!("source {} of data.sources", source + 1),
            };
            if let Some(windows) = windows {
                check_windows(&text, windows, range)?;
            }
            sources.push((units(&text, tokens, range.clone(), windows, seq_len)?, *weight));
        }
        Ok(Order::new(self.format(tokens, is_packed, seq_len), sources, batch_size, seed))
    }

    /// The rows of the validation text, each of `seq_len` tokens; `None` if no text is held out. Whether
    /// they are windows depends on this text only.
    ///
    /// # Errors
    /// As [`Data::order`].
    pub fn validation_rows(&self, seq_len: usize) -> Result<Option<Rows>> {
        let tokens = self.tokens.validation();
        if tokens.is_empty() {
            return Ok(None);
        }
        let is_packed = tokens.is_masked();
        self.check_lengths(&self.texts.longest_held_out, seq_len)?;
        let windows = match is_packed {
            true => None,
            false => Some(Windows::new("validation", tokens.len(), seq_len)?),
        };
        let units = units("the validation text", tokens, 0..tokens.len(), windows, seq_len)?;
        Ok(Some(Rows::new(self.format(tokens, is_packed, seq_len), units)))
    }

    fn format(&self, tokens: Tokens<'_>, is_packed: bool, seq_len: usize) -> RowFormat {
        RowFormat {
            seq_len,
            has_documents: is_packed || tokens.has_documents(),
            padding: self.tokenizer.separator().unwrap_or(0),
        }
    }

    /// Refuses the first document of `longest` that is longer than `seq_len`, if `data.too_long` does.
    fn check_lengths(&self, longest: &[LongDocument], seq_len: usize) -> Result<()> {
        let first = longest.iter().find(|document| document.tokens > seq_len);
        let refused = first.filter(|_| self.too_long == TooLong::Refuse);
        if let Some(LongDocument { name, tokens }) = refused {
            bail!(
                Invalid,
                "{name} has {tokens} tokens but train.seq_len = {seq_len}, and conversations are not \
                 divided; raise train.seq_len, shorten the document, or set data.too_long = \"cut\" to \
                 make several documents of it"
            );
        }
        Ok(())
    }
}

/// Checks that `windows` has some in `range`.
fn check_windows(text: &str, windows: Windows, range: &Range<usize>) -> Result<()> {
    let seq_len = windows.seq_len();
    ensure!(
        !windows.within(range).is_empty(),
        Invalid,
        "{text} has {} training tokens but train.seq_len = {seq_len} needs about {}; add text to it, or \
         lower train.seq_len",
        range.len(),
        2 * seq_len
    );
    Ok(())
}

/// What the rows of the ids `range` are made of: those of `windows`, or whole documents.
fn units(
    text: &str,
    tokens: Tokens<'_>,
    range: Range<usize>,
    windows: Option<Windows>,
    seq_len: usize,
) -> Result<Units> {
    let (units, is_empty) = match windows {
        Some(windows) => {
            let choice = windows.with_labels(&range, &tokens);
            let is_empty = choice.count() == 0;
            (Units::Windows(windows, choice), is_empty)
        }
        None => {
            let pieces = Pieces::of(&tokens, range.clone(), seq_len);
            let is_empty = pieces.is_empty();
            (Units::Pieces(pieces), is_empty)
        }
    };
    ensure!(
        !is_empty,
        Invalid,
        "no sequence of {text}, which has {} tokens, has one that counts towards the loss; add longer \
         documents or conversations, or raise train.seq_len",
        range.len()
    );
    Ok(units)
}

/// Each document of a text with conversations that has more tokens than all before it. So the first
/// that is longer than a sequence is known for any length of sequences.
fn longest(tokens: Tokens<'_>, pieces: &[Piece<'_>]) -> Vec<LongDocument> {
    let mut longest: Vec<LongDocument> = Vec::new();
    if !tokens.is_masked() {
        return longest;
    }
    for (number, document) in tokens.documents(0..tokens.len()).enumerate() {
        if longest.last().is_none_or(|longest| document.len() > longest.tokens) {
            // Only a tokenizer without a separator can leave a document without tokens.
            let is_named = pieces.len() as u64 == tokens.document_count();
            let name = match pieces.get(number).filter(|_| is_named) {
                Some(piece) => piece.name().to_owned(),
                None => format!("document {}", number + 1),
            };
            longest.push(LongDocument { name, tokens: document.len() });
        }
    }
    longest
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

    use meshgrad_models::{IGNORE_INDEX, TokenBatch};
    use meshgrad_runtime::Device;

    use super::*;
    use crate::batches::TokenBatches;
    use crate::config::SourceConfig;
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
        let order = data.order(9, 8, 1).unwrap();
        let device = Device::cpu();
        let batches = TokenBatches::new(tokens, &device);
        for step in 1..20 {
            let batch = batches.of_step(&order, step, 8, 8).next().unwrap().unwrap();
            assert!(batch.documents.is_none(), "each source is one document");
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
        let error = data.order(200, 8, 1).unwrap_err().to_string();
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

    /// A line of JSON that is a conversation of a question and an answer.
    fn conversation(question: &str, answer: &str) -> String {
        let message = |role, content| serde_json::json!({ "role": role, "content": content });
        let messages = [message("user", question), message("assistant", answer)];
        serde_json::json!({ "messages": messages }).to_string() + "\n"
    }

    /// The data of some lines.
    fn of_lines(place: &Path, lines: &str, val_fraction: f64, too_long: TooLong) -> Data {
        let folder = RunFolder::open(&place.join("run")).unwrap();
        let paths = vec![write(place, "a.jsonl", lines)];
        let config = DataConfig { paths, val_fraction, too_long, ..byte(Vec::new()) };
        Data::prepare(&config, &folder).unwrap()
    }

    /// The rows of a batch of `seq_len` tokens: ids, labels, positions and documents.
    fn rows_of(batch: &TokenBatch, seq_len: usize) -> Vec<[Vec<i64>; 4]> {
        let documents = batch.documents.as_ref().unwrap();
        let all = [&batch.ids, &batch.labels, batch.positions.as_ref().unwrap(), documents];
        let all = all.map(|values| values.to_vec::<i64>().unwrap());
        let row = |row: usize| {
            all.each_ref().map(|values| values[row * seq_len..(row + 1) * seq_len].to_vec())
        };
        (0..all[0].len() / seq_len).map(row).collect()
    }

    /// The ids, labels and positions of each document of a row.
    fn documents_of([ids, labels, positions, documents]: &[Vec<i64>; 4]) -> Vec<[Vec<i64>; 3]> {
        assert!(documents.is_sorted() && documents[0] == 0);
        let count = documents[documents.len() - 1];
        let of = |document: i64| {
            let start = documents.partition_point(|it| *it < document);
            let end = documents.partition_point(|it| *it <= document);
            [ids, labels, positions].map(|values| values[start..end].to_vec())
        };
        (0..=count).map(of).collect()
    }

    /// With conversations, rows have whole documents: each conversation is in a row once, is a document
    /// of its own, and only its answer is a label. The rest of a row is padding.
    #[test]
    fn conversations_are_whole_documents() {
        let place = tempfile::tempdir().unwrap();
        let line = |at: usize| match at % 5 {
            0 => "{\"text\": \"plain\"}\n".to_owned(),
            _ => conversation(&"q".repeat(1 + at * 7 % 60), &format!("{at}.")),
        };
        let lines: String = (0..300).map(line).collect();
        let data = of_lines(place.path(), &lines, 0.1, TooLong::Refuse);
        let (seq_len, device) = (128, Device::cpu());
        let order = data.order(seq_len, 4, 1).unwrap();
        let rows = order.packing().unwrap().rows;
        let batches = TokenBatches::new(data.tokens.training(), &device);
        let steps = (1..=rows.div_ceil(4) as u64)
            .flat_map(|step| batches.of_step(&order, step, 4, 2).collect::<Vec<_>>());
        let held_out = data.validation_rows(seq_len).unwrap().unwrap();
        let validation = TokenBatches::new(data.tokens.validation(), &device);
        let validation = validation.in_order(&held_out, 3, 0);
        let parts: [(Vec<_>, Tokens<'_>, usize); 2] = [
            (steps.collect(), data.tokens.training(), rows),
            (validation.collect(), data.tokens.validation(), held_out.count()),
        ];
        for (batches, tokens, rows) in parts {
            let batches = batches.iter().map(|batch| rows_of(batch.as_ref().unwrap(), seq_len));
            let mut found = Vec::new();
            for row in batches.flatten().take(rows) {
                for [ids, labels, positions] in documents_of(&row) {
                    assert_eq!(positions, (0..ids.len() as i64).collect::<Vec<_>>());
                    if labels.iter().all(|label| *label == IGNORE_INDEX) {
                        assert!(ids.iter().all(|id| *id == 256), "not padding: {ids:?}");
                        continue;
                    }
                    found.push((ids, labels));
                }
            }
            let expected = tokens.documents(0..tokens.len()).map(|document| {
                let label = |at: usize| match at < document.end && tokens.is_trained(at) {
                    true => i64::from(tokens.get(at).unwrap()),
                    false => IGNORE_INDEX,
                };
                let ids = document.clone().map(|at| i64::from(tokens.get(at).unwrap()));
                (ids.collect::<Vec<_>>(), document.clone().map(|at| label(at + 1)).collect())
            });
            let mut expected: Vec<(Vec<i64>, Vec<i64>)> = expected.collect();
            expected.sort();
            found.sort();
            assert_eq!(found, expected);
        }
    }

    /// The metrics of a step are those of its batches.
    #[test]
    fn padding_and_trained_tokens_are_those_of_the_batches() {
        let place = tempfile::tempdir().unwrap();
        let lines: String =
            (0..40).map(|at| conversation(&"q".repeat(at % 30), &"a".repeat(at % 7))).collect();
        let data = of_lines(place.path(), &lines, 0.0, TooLong::Refuse);
        let device = Device::cpu();
        let order = data.order(100, 6, 1).unwrap();
        for step in 1..30 {
            let batches = TokenBatches::new(data.tokens.training(), &device);
            let (mut trained, mut padding) = (0, 0);
            for batch in batches.of_step(&order, step, 6, 3) {
                for row in rows_of(&batch.unwrap(), 100) {
                    trained += row[1].iter().filter(|label| **label != IGNORE_INDEX).count();
                    let documents = documents_of(&row).into_iter();
                    padding += documents
                        .filter(|[_, labels, _]| labels.iter().all(|it| *it == IGNORE_INDEX))
                        .map(|[ids, ..]| ids.len())
                        .sum::<usize>();
                }
            }
            let found = order.packing_of(step).unwrap();
            assert_eq!(found.trained, trained);
            assert!((found.padding - padding as f64 / 600.0).abs() < 1e-12, "{found:?} {padding}");
        }
    }

    /// A document that is longer than a sequence is refused by name, or cut without losing a label.
    #[test]
    fn long_conversations_are_refused_or_cut() {
        let place = tempfile::tempdir().unwrap();
        let sizes = [10, 50, 20, 70, 60];
        let lines: String = sizes.map(|size| conversation("q", &"a".repeat(size))).concat();
        let tokens = |size: usize| "user:\nq\n\nassistant:\n".len() + size + 1;
        let data = of_lines(place.path(), &lines, 0.0, TooLong::Refuse);
        assert!(data.order(tokens(70), 2, 1).is_ok());
        for (seq_len, line, size) in [(tokens(70) - 1, 4, 70), (tokens(50) - 1, 2, 50)] {
            let error = data.order(seq_len, 2, 1).unwrap_err().to_string();
            let expected = format!(
                "a.jsonl:{line} has {} tokens but train.seq_len = {seq_len}, and conversations are not \
                 divided; raise train.seq_len, shorten the document, or set data.too_long = \"cut\"",
                tokens(size)
            );
            assert!(error.contains(&expected), "{error}");
        }

        let data = of_lines(place.path(), &lines, 0.0, TooLong::Cut);
        let seq_len = tokens(50) - 1;
        let order = data.order(seq_len, 1, 1).unwrap();
        let info = order.packing().unwrap();
        assert_eq!(info.cut, 3);
        let labels = (1..=info.rows as u64).map(|step| order.packing_of(step).unwrap().trained);
        assert_eq!(labels.sum::<usize>(), sizes.iter().map(|size| size + 1).sum::<usize>());
    }

    /// A text with several documents says where they are, whatever its separator; one with a single
    /// document does not. This does not depend on the batch.
    #[test]
    fn batches_of_a_text_say_where_documents_are() {
        let place = tempfile::tempdir().unwrap();
        let lines = "{\"text\": \"ab\"}\n{\"text\": \"cde\"}\n".to_owned()
            + &format!("{{\"text\": \"{}\"}}\n", "f".repeat(50));
        let data = of_lines(place.path(), &lines, 0.0, TooLong::Refuse);
        let device = Device::cpu();
        let order = data.order(8, 1, 1).unwrap();
        assert_eq!((order.packing(), order.packing_digest()), (None, None));
        let batches = TokenBatches::new(data.tokens.training(), &device);
        let [a, b, c, d, e, f] = [b'a', b'b', b'c', b'd', b'e', b'f'].map(i64::from);
        let (mut seen, none) = (0, IGNORE_INDEX);
        for step in 1..=7 {
            let batch = batches.of_step(&order, step, 1, 1).next().unwrap().unwrap();
            let [ids, labels, positions, documents] = rows_of(&batch, 8).remove(0);
            seen += labels.iter().filter(|label| **label != none).count();
            if ids[0] == a {
                assert_eq!(ids, [a, b, 256, c, d, e, 256, f]);
                assert_eq!(labels, [b, 256, none, d, e, 256, none, f]);
                assert_eq!(positions, [0, 1, 2, 0, 1, 2, 3, 0]);
                assert_eq!(documents, [0, 0, 0, 1, 1, 1, 1, 2]);
            } else {
                assert_eq!((positions[7], documents), (7, vec![0; 8]));
            }
        }
        assert_eq!(seen, 2 + 3 + 49);

        let one = write(place.path(), "one.txt", &"g".repeat(100));
        let config = byte(vec![source(&one, 1.0)]);
        let data = Data::prepare(&config, &RunFolder::open(&place.path().join("b")).unwrap());
        let data = data.unwrap();
        let order = data.order(8, 1, 1).unwrap();
        let batches = TokenBatches::new(data.tokens.training(), &device);
        let batch = batches.of_step(&order, 1, 1, 1).next().unwrap().unwrap();
        assert!(batch.documents.is_none() && batch.positions.is_none());
    }

    /// The digest of a packing changes with everything that decides its rows.
    #[test]
    fn a_packing_has_a_digest() {
        let place = tempfile::tempdir().unwrap();
        let lines: String = (0..40).map(|at| conversation("q", &"a".repeat(at % 9))).collect();
        let data = of_lines(place.path(), &lines, 0.0, TooLong::Refuse);
        let digest = |data: &Data, seq_len, seed| {
            let order = data.order(seq_len, 4, seed).unwrap();
            order.packing_digest().unwrap()
        };
        let mut digests = vec![digest(&data, 90, 1), digest(&data, 91, 1), digest(&data, 90, 2)];
        assert_eq!(digest(&data, 90, 1), digests[0]);
        let longer = lines.replacen("aaaa", "aaa", 1);
        let data = of_lines(place.path(), &longer, 0.0, TooLong::Refuse);
        digests.push(digest(&data, 90, 1));
        digests.sort();
        digests.dedup();
        assert_eq!(digests.len(), 4);
    }

    /// A cache of an older version is rebuilt with the tokenizer that it was made with.
    #[cfg(feature = "tokenizers")]
    #[test]
    fn an_older_cache_keeps_its_tokenizer() {
        let place = tempfile::tempdir().unwrap();
        let file = write(place.path(), "text.txt", &text(3));
        let folder = RunFolder::open(&place.path().join("run")).unwrap();
        let config = DataConfig {
            paths: vec![file],
            tokenizer: TokenizerChoice::Bpe(300),
            ..DataConfig::default()
        };
        let ids = |data: &Data| data.tokens.training().iter().collect::<Vec<_>>();
        let first = Data::prepare(&config, &folder).unwrap();
        let expected = (first.texts.clone(), first.tokens.own_key(), ids(&first));
        drop(first);
        let mut bytes = fs::read(folder.tokens()).unwrap();
        bytes[8] = 2;
        fs::write(folder.tokens(), &bytes[..200]).unwrap();
        assert_eq!(TokenCache::key(&folder.tokens()).unwrap(), Some(expected.1));
        let again = Data::prepare(&config, &folder).unwrap();
        assert_eq!((again.texts.clone(), again.tokens.own_key(), ids(&again)), expected);
    }
}
