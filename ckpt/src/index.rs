//! The index of a model in several files: `model.safetensors.index.json` of Hugging Face.
//!
//! It names the file of each tensor. Its file names are untrusted, so they must be plain names
//! without a path.

use std::borrow::Cow;
use std::collections::BTreeMap;

use meshgrad_error::{Result, ensure, error};

use crate::index_json;
use crate::limits::MAX_TENSORS;
use crate::names::Listed;

/// The file names of the index, and of a model in a single file.
pub(crate) const INDEX_FILE: &str = "model.safetensors.index.json";
pub(crate) const SINGLE_FILE: &str = "model.safetensors";

/// The content of an index, checked as far as possible without the files.
#[derive(Debug)]
pub(crate) struct Index<'json> {
    /// Bytes of all tensors, if the index declares them.
    pub(crate) total_size: Option<u64>,
    /// The names of the files, sorted.
    pub(crate) files: Vec<Cow<'json, str>>,
    /// Each tensor with its position in `files`, sorted by name.
    pub(crate) file_of: Vec<(Cow<'json, str>, usize)>,
}

impl<'json> Index<'json> {
    pub(crate) fn parse(json: &'json [u8]) -> Result<Index<'json>> {
        Index::parse_limited(json, MAX_TENSORS)
    }

    fn parse_limited(json: &'json [u8], limit: usize) -> Result<Index<'json>> {
        let text = std::str::from_utf8(json).map_err(|invalid| {
            error!(Malformed, "it is not UTF-8 at byte {}", invalid.valid_up_to())
        })?;
        let raw = index_json::read(text, limit)?;

        // Files were numbered in the order of their first use.
        let numbers = raw.files.numbers;
        let mut place = vec![0; numbers.len()];
        let mut files = Vec::with_capacity(numbers.len());
        for (at, (file, number)) in numbers.into_iter().enumerate() {
            place[number] = at;
            files.push(file);
        }

        let mut file_of = raw.file_of;
        for (_, file) in &mut file_of {
            *file = place[*file];
        }
        file_of.sort_by(|(a, _), (b, _)| a.cmp(b));
        check_duplicates(&file_of)?;

        Ok(Index { total_size: raw.total_size, files, file_of })
    }
}

fn check_duplicates(sorted: &[(Cow<'_, str>, usize)]) -> Result<()> {
    let groups = sorted.chunk_by(|(a, _), (b, _)| a == b);
    let groups = groups.filter(|group| group.len() > 1);
    let names: Vec<&str> = groups.map(|group| group[0].0.as_ref()).collect();
    ensure!(names.is_empty(), Malformed, "it names tensors more than once: {}", Listed(&names));
    Ok(())
}

/// An index in the form that Hugging Face writes: sorted, indented by two spaces.
pub(crate) fn to_json(total_size: u64, file_of: &BTreeMap<String, String>) -> String {
    let json = serde_json::json!({
        "metadata": { "total_size": total_size },
        "weight_map": file_of,
    });
    format!("{json:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_indexes_are_parsed() {
        let file_of = [("b", "x.safetensors"), ("a", "y.safetensors")]
            .map(|(tensor, file)| (tensor.to_owned(), file.to_owned()));

        let json = to_json(12, &file_of.into_iter().collect());
        assert!(json.starts_with("{\n  \"metadata\": {\n    \"total_size\": 12\n  },\n"), "{json}");

        let index = Index::parse(json.as_bytes()).unwrap();
        assert_eq!(index.total_size, Some(12));
        assert_eq!(index.files, ["x.safetensors", "y.safetensors"]);
        assert_eq!(index.file_of, [("a".into(), 1), ("b".into(), 0)]);
    }

    /// Files are sorted although they are numbered by first use.
    #[test]
    fn files_are_sorted_and_unique() {
        let json = br#"{"weight_map": {"d": "z", "c": "x", "b": "y", "a": "\u0078", "e": "z"}}"#;
        let index = Index::parse(json).unwrap();

        assert_eq!(index.files, ["x", "y", "z"]);
        let files: Vec<usize> = index.file_of.iter().map(|(_, file)| *file).collect();
        assert_eq!(files, [0, 1, 0, 2, 2]);
    }

    #[test]
    fn the_number_of_tensors_is_limited() {
        let json = br#"{"weight_map": {"a": "x", "b": "x", "c": "x"}}"#;
        assert!(Index::parse_limited(json, 3).is_ok());
        let error = Index::parse_limited(json, 2).unwrap_err();
        assert_eq!(error, error!(Malformed, "it names more than 2 tensors"));
    }

    #[test]
    fn sizes_may_be_floats_or_missing() {
        let cases = [
            (r#""metadata": {"total_size": 7},"#, Some(7)),
            (r#""metadata": {"total_size": 16060522496.0},"#, Some(16_060_522_496)),
            (r#""metadata": {"total_size": 0.5},"#, None),
            (r#""metadata": {"total_size": -1},"#, None),
            (r#""metadata": {"total_size": 1e300},"#, None),
            (r#""metadata": {"total_size": null},"#, None),
            (r#""metadata": {"x": 1},"#, None),
            (r#""metadata": null,"#, None),
            ("", None),
        ];
        for (metadata, expected) in cases {
            let json = format!(r#"{{{metadata}"weight_map": {{}}, "extra": [1]}}"#);
            let index = Index::parse(json.as_bytes()).unwrap();
            assert_eq!(index.total_size, expected, "{metadata}");
        }
    }
}
