//! The tokens that end a text, in the files of a Hugging Face folder. Programs that generate text
//! stop at them.

use std::path::Path;
use std::{fs, io};

use meshgrad_error::error;
use meshgrad_models::folder;
use serde_json::{Map, Value};

use crate::Result;
use crate::tokenizer::Tokenizer;

const CONFIG: &str = "config.json";
const GENERATION: &str = "generation_config.json";

/// Its value is one id, or a list of them.
const END: &str = "eos_token_id";

/// The ids of the tokenizer that end generation.
#[derive(Clone, Copy, Default)]
pub(super) struct Ends {
    /// The end of a document.
    pub(super) document: Option<u32>,
    /// The end of a message in ChatML.
    pub(super) message: Option<u32>,
}

impl Ends {
    pub(super) fn of(tokenizer: &Tokenizer) -> Ends {
        Ends { document: tokenizer.separator(), message: tokenizer.end_of_message() }
    }

    /// The declared ids, or the end of a document if none are declared, and always the end of a
    /// message: a base model does not declare it, but may learn it in this run.
    fn with(self, declared: Option<&Value>) -> Vec<Value> {
        let mut ids = match declared {
            None | Some(Value::Null) => self.document.map(Value::from).into_iter().collect(),
            Some(Value::Array(ids)) => ids.clone(),
            Some(id) => vec![id.clone()],
        };
        let message = self.message.map(Value::from);
        ids.extend(message.filter(|message| !ids.contains(message)));
        ids
    }

    /// Adds the ends to a file. Returns whether it has changed.
    fn add_to(self, keys: &mut Map<String, Value>) -> bool {
        let declared = keys.get(END);
        let ends = match &self.with(declared)[..] {
            [] => return false,
            [only] if !declared.is_some_and(Value::is_array) => only.clone(),
            all => Value::Array(all.to_vec()),
        };
        keys.insert(END.to_owned(), ends.clone()) != Some(ends)
    }
}

/// `files`, with the tokens that end a text in config.json and generation_config.json. Files of
/// other folders are returned as they are.
pub(super) fn declared(mut files: Vec<(String, String)>, ends: Ends) -> Vec<(String, String)> {
    let config = files.iter_mut().find(|(name, _)| name == CONFIG);
    let Some((mut config, text)) = config.and_then(|(_, text)| Some((keys(text)?, text))) else {
        return files;
    };
    if !config.contains_key("architectures") {
        return files;
    }
    if ends.add_to(&mut config) {
        *text = pretty(&config);
    }
    let generation = files.iter_mut().find(|(name, _)| name == GENERATION);
    if let Some((_, text)) = generation {
        if let Some(mut own) = keys(text)
            && own.contains_key(END)
            && ends.add_to(&mut own)
        {
            *text = pretty(&own);
        }
        return files;
    }
    let mut generation = Map::new();
    for key in ["bos_token_id", END, "pad_token_id"] {
        let value = config.get(key).filter(|value| !value.is_null());
        generation.extend(value.map(|value| (key.to_owned(), value.clone())));
    }
    if !generation.is_empty() {
        files.push((GENERATION.to_owned(), pretty(&generation)));
    }
    files
}

/// The ids that end a text according to the folder `dir`: the `eos_token_id` of generation_config.json or,
/// without it, of config.json. It is an id, a list of ids, or missing.
///
/// # Errors
/// When a file cannot be read, is not a JSON object, or has another value.
pub fn ends_of_text(dir: &Path) -> Result<Vec<u32>> {
    for name in [GENERATION, CONFIG] {
        let path = dir.join(name);
        let invalid = |problem: String| error!(Malformed, "{}: {problem}", path.display());
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(cause) => return Err(folder::unreadable(&path, cause)),
        };
        let keys: Map<String, Value> =
            serde_json::from_str(&text).map_err(|error| invalid(error.to_string()))?;
        let ids = match keys.get(END) {
            None | Some(Value::Null) => continue,
            Some(Value::Array(ids)) => ids.clone(),
            Some(id) => vec![id.clone()],
        };
        let id = |value: &Value| u32::try_from(value.as_u64()?).ok();
        let ids: Option<Vec<u32>> = ids.iter().map(id).collect();
        let problem = || invalid(format!("`{END}` is {}, not an id or a list of ids", keys[END]));
        return ids.ok_or_else(problem);
    }
    Ok(Vec::new())
}

fn keys(text: &str) -> Option<Map<String, Value>> {
    match serde_json::from_str(text).ok()? {
        Value::Object(keys) => Some(keys),
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

    const DOCUMENT: Ends = Ends { document: Some(7), message: None };

    const CHAT: Ends = Ends { message: Some(8), ..DOCUMENT };

    /// The ids that end a text in each file that `declared` returns, for the ids that the given
    /// files declare.
    fn ends(config: &str, generation: Option<&str>) -> Vec<Value> {
        let with = |ids: &str| format!("{{\"architectures\": [], \"eos_token_id\": {ids}}}");
        let mut files = vec![file(CONFIG, &with(config))];
        files.extend(generation.map(|ids| file(GENERATION, &with(ids))));
        let of = |(_, text): (String, String)| keys(&text).unwrap().remove(END).unwrap();
        declared(files, CHAT).into_iter().map(of).collect()
    }

    #[test]
    fn a_folder_declares_one_id_or_several() {
        let place = tempfile::tempdir().unwrap();
        let ends = |config: &str, generation: Option<&str>| {
            let path = |name| place.path().join(name);
            let write = |name, ids| fs::write(path(name), format!("{{\"eos_token_id\": {ids}}}"));
            write(CONFIG, config).unwrap();
            match generation {
                Some(ids) => write(GENERATION, ids).unwrap(),
                None => drop(fs::remove_file(path(GENERATION))),
            }
            ends_of_text(place.path()).map_err(|error| error.to_string())
        };
        assert!(ends_of_text(place.path()).unwrap().is_empty());
        assert_eq!(ends("null", None), Ok(vec![]));
        assert_eq!(ends("7", None), Ok(vec![7]));
        assert_eq!(ends("7", Some("[8, 7]")), Ok(vec![8, 7]));
        assert_eq!(ends("[7, 9]", Some("null")), Ok(vec![7, 9]));
        for wrong in ["-1", "\"</s>\"", "[1, null]", "4294967296"] {
            let error = ends("7", Some(wrong)).unwrap_err();
            let wrong = wrong.replace(", ", ",");
            let expected = format!("`eos_token_id` is {wrong}, not an id or a list of ids");
            assert!(error.contains(&expected), "{error}");
            assert!(error.contains("generation_config.json"), "{error}");
        }
        assert!(ends("]", None).unwrap_err().contains("config.json"));
    }

    #[test]
    fn messages_end_a_text_too() {
        use serde_json::json;
        assert_eq!(ends("null", None), [json!([7, 8]), json!([7, 8])]);
        assert_eq!(ends("3", None), [json!([3, 8]), json!([3, 8])]);
        assert_eq!(ends("8", Some("[8, 7]")), [json!(8), json!([8, 7])]);
        assert_eq!(ends("7", Some("7")), [json!([7, 8]), json!([7, 8])]);
        assert_eq!(ends("[8]", Some("[3]")), [json!([8]), json!([3, 8])]);
    }

    #[test]
    fn the_separator_ends_a_text() {
        let files = declared(vec![file(CONFIG, r#"{"architectures": []}"#)], DOCUMENT);
        let keys = |at: usize| serde_json::from_str::<Value>(&files[at].1).unwrap();
        assert_eq!(keys(0), serde_json::json!({"architectures": [], "eos_token_id": 7}));
        assert_eq!(files[1].0, GENERATION);
        assert_eq!(keys(1), serde_json::json!({"eos_token_id": 7}));
    }

    #[test]
    fn what_is_declared_stays() {
        let config = r#"{"architectures": [], "eos_token_id": [3, 4]}"#;
        let own = vec![file(CONFIG, config), file(GENERATION, "{ }")];
        assert_eq!(declared(own.clone(), DOCUMENT), own);
        let other = vec![file(CONFIG, r#"{"width": 3}"#)];
        assert_eq!(declared(other.clone(), CHAT), other);
        assert_eq!(declared(Vec::new(), CHAT), []);
        let without = vec![file(CONFIG, r#"{"architectures": []}"#)];
        assert_eq!(declared(without.clone(), Ends::default()), without);
    }
}
