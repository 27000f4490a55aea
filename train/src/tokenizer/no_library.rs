//! Replaces `library` without the feature `tokenizers`: opening such a tokenizer fails.

/// A tokenizer that cannot exist.
pub(super) enum Library {}

type Result<T> = std::result::Result<T, String>;

const OFF: &str = "meshgrad was built without the feature `tokenizers`; turn it on, or use \
                   data.tokenizer = \"byte\"";

impl Library {
    pub(super) fn train_bpe(_: Vec<&str>, _: usize, _: &str) -> Result<Library> {
        Err(OFF.to_owned())
    }

    pub(super) fn from_json(_: &[u8]) -> Result<Library> {
        Err(OFF.to_owned())
    }

    pub(super) fn to_json(&self) -> Result<String> {
        match *self {}
    }

    pub(super) fn id(&self, _: &str) -> Option<u32> {
        match *self {}
    }

    pub(super) fn largest_id(&self) -> Option<u32> {
        match *self {}
    }

    pub(super) fn encode(&self, _: &str) -> Result<Vec<u32>> {
        match *self {}
    }

    pub(super) fn decode(&self, _: &[u32]) -> Result<String> {
        match *self {}
    }

    pub(super) fn splits_at_words(&self) -> bool {
        match *self {}
    }
}
