//! Files of a Hugging Face folder that other programs read, and that training does not change.

use std::path::Path;

use meshgrad_error::Result;

use crate::folder::unreadable;

/// Settings of text generation, and files of a tokenizer other than tokenizer.json.
const NAMES: [&str; 7] = [
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
];

/// The names and contents of these files in `dir`. Missing ones are left out.
///
/// # Errors
/// When one cannot be read.
pub fn companions(dir: &Path) -> Result<Vec<(String, String)>> {
    let mut files = Vec::new();
    for name in NAMES {
        let path = dir.join(name);
        match std::fs::read_to_string(&path) {
            Ok(text) => files.push((name.to_owned(), text)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(cause) => return Err(unreadable(&path, cause)),
        }
    }
    Ok(files)
}
