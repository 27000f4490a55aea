//! The token that ends a text, in the files of a Hugging Face folder. Programs that generate text
//! stop at it.

use serde_json::{Map, Value};

const CONFIG: &str = "config.json";
const GENERATION: &str = "generation_config.json";

/// `files`, with `separator` as the token that ends a text unless config.json names another one,
/// and with a generation_config.json. Files of other folders are returned as they are.
pub(super) fn declared(
    mut files: Vec<(String, String)>,
    separator: Option<u32>,
) -> Vec<(String, String)> {
    let config = files.iter_mut().find(|(name, _)| name == CONFIG);
    let Some((mut config, text)) = config.and_then(|(_, text)| Some((keys(text)?, text))) else {
        return files;
    };
    let named = |keys: &Map<String, Value>, key: &str| {
        let value = keys.get(key).filter(|value| !value.is_null());
        value.cloned()
    };
    let end = named(&config, "eos_token_id");
    if let (None, Some(separator)) = (&end, separator) {
        config.insert("eos_token_id".into(), separator.into());
        *text = pretty(&config);
    }
    if files.iter().all(|(name, _)| name != GENERATION) {
        let mut generation = Map::new();
        for key in ["bos_token_id", "eos_token_id", "pad_token_id"] {
            generation.extend(named(&config, key).map(|value| (key.to_owned(), value)));
        }
        if !generation.is_empty() {
            files.push((GENERATION.to_owned(), pretty(&generation)));
        }
    }
    files
}

/// The keys of the config.json of a Hugging Face folder.
fn keys(text: &str) -> Option<Map<String, Value>> {
    match serde_json::from_str(text).ok()? {
        Value::Object(keys) if keys.contains_key("architectures") => Some(keys),
        _ => None,
    }
}

fn pretty(keys: &Map<String, Value>) -> String {
    // Strings, numbers and lists of them can be written.
    let text = serde_json::to_string_pretty(keys).unwrap_or_default();
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: &str) -> (String, String) {
        (name.to_owned(), text.to_owned())
    }

    #[test]
    fn the_separator_ends_a_text() {
        let files = declared(vec![file(CONFIG, r#"{"architectures": []}"#)], Some(7));
        let keys = |at: usize| serde_json::from_str::<Value>(&files[at].1).unwrap();
        assert_eq!(
            keys(0),
            serde_json::json!({"architectures": [], "eos_token_id": 7})
        );
        assert_eq!(files[1].0, GENERATION);
        assert_eq!(keys(1), serde_json::json!({"eos_token_id": 7}));
    }

    #[test]
    fn what_is_declared_stays() {
        let config = r#"{"architectures": [], "eos_token_id": [3, 4]}"#;
        let own = vec![file(CONFIG, config), file(GENERATION, "{ }")];
        assert_eq!(declared(own.clone(), Some(7)), own);
        let other = vec![file(CONFIG, r#"{"width": 3}"#)];
        assert_eq!(declared(other.clone(), Some(7)), other);
        assert_eq!(declared(Vec::new(), Some(7)), []);
        let without = vec![file(CONFIG, r#"{"architectures": []}"#)];
        assert_eq!(declared(without.clone(), None), without);
    }
}
