//! Tokenizers of the `tokenizers` library: byte-level BPE and any `tokenizer.json`.

use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, PreTokenizerWrapper, Tokenizer};

/// A tokenizer of the library. Errors are the library's messages.
pub(super) struct Library(Box<Tokenizer>);

type Result<T> = std::result::Result<T, String>;

fn message(error: tokenizers::Error) -> String {
    error.to_string()
}

impl Library {
    /// Trains a byte-level BPE with `size` ids on `sample`, with the special token `end`.
    pub(super) fn train_bpe(sample: Vec<&str>, size: usize, end: &str) -> Result<Library> {
        let trainer = BpeTrainer::builder()
            .vocab_size(size)
            .min_frequency(2)
            .show_progress(false)
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .special_tokens(vec![AddedToken::from(end, true)])
            .build();
        let mut trainer = TrainerWrapper::from(trainer);

        let mut tokenizer = byte_level(BPE::default());
        tokenizer.train(&mut trainer, sample.into_iter()).map_err(message)?;
        Ok(Library::new(tokenizer))
    }

    /// The tokenizer of a `tokenizer.json`.
    pub(super) fn from_json(json: &[u8]) -> Result<Library> {
        let mut tokenizer = Tokenizer::from_bytes(json).map_err(message)?;
        // Padding or truncation configured in the file would change documents.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(message)?;
        Ok(Library::new(tokenizer))
    }

    fn new(mut tokenizer: Tokenizer) -> Library {
        tokenizer.set_encode_special_tokens(true);
        Library(Box::new(tokenizer))
    }

    pub(super) fn to_json(&self) -> Result<String> {
        self.0.to_string(true).map_err(message)
    }

    pub(super) fn id(&self, token: &str) -> Option<u32> {
        self.0.token_to_id(token)
    }

    /// The largest id.
    pub(super) fn largest_id(&self) -> Option<u32> {
        self.0.get_vocab(true).into_values().max()
    }

    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self.0.encode_fast(text, false).map_err(message)?;
        Ok(encoding.get_ids().to_vec())
    }

    pub(super) fn decode(&self, ids: &[u32]) -> Result<String> {
        self.0.decode(ids, true).map_err(message)
    }

    /// Whether it splits like GPT-2's pre-tokenizer, as those trained here do.
    pub(super) fn splits_at_words(&self) -> bool {
        let pre_tokenizer = matches!(
            self.0.get_pre_tokenizer(),
            Some(PreTokenizerWrapper::ByteLevel(plain)) if plain.use_regex && !plain.add_prefix_space
        );
        let mut added = self.0.get_added_tokens_decoder().into_values();
        pre_tokenizer && self.0.get_normalizer().is_none() && added.all(|token| token.special)
    }
}

fn byte_level(model: BPE) -> Tokenizer {
    let plain = ByteLevel::new(false, false, true);
    let mut tokenizer = Tokenizer::new(model);
    tokenizer.with_pre_tokenizer(Some(plain));
    tokenizer.with_decoder(Some(plain));
    tokenizer
}

#[cfg(test)]
mod tests {
    use super::super::END_OF_TEXT;
    use super::*;

    /// GPT-2's printable character for a byte: the byte itself if printable in Latin-1, otherwise
    /// the next character from U+0100 on.
    fn byte_level_char(byte: u8) -> char {
        let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        if printable(byte) {
            return char::from(byte);
        }
        let before = (0..byte).filter(|&other| !printable(other)).count() as u32;
        char::from_u32(0x100 + before).unwrap()
    }

    /// `byte.json` is what the library writes for the byte-level alphabet in order, without merges:
    /// byte `b` has id `b`. `UPDATE_GOLDEN=1` writes it.
    #[test]
    fn the_byte_tokenizer_file_is_what_the_library_writes() {
        let vocabulary: [(String, u32); 256] =
            std::array::from_fn(|byte| (byte_level_char(byte as u8).to_string(), byte as u32));
        let model = BPE::builder().vocab_and_merges(vocabulary, Vec::new());
        let mut library = byte_level(model.build().unwrap());
        let end = [AddedToken::from(END_OF_TEXT, true)];
        library.add_special_tokens(end).unwrap();

        let written = Library::new(library).to_json().unwrap();
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tokenizer/byte.json");
            return std::fs::write(path, written).unwrap();
        }
        assert!(written == super::super::BYTE_JSON);
    }
}
