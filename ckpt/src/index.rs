//! The index of a model in several files: `model.safetensors.index.json` of Hugging Face.
//!
//! It says in which file each tensor is. File names in it come from strangers: they must be plain.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde_json::Number;

use crate::header::MAX_HEADER_BYTES;
use crate::header_json::Pairs;
use crate::names::{check_file_name, check_tensor_name};
use crate::{Error, Result};

/// The names of the files of a folder.
pub(crate) const INDEX_FILE: &str = "model.safetensors.index.json";
pub(crate) const SINGLE_FILE: &str = "model.safetensors";

/// What an index says, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Index {
    /// Bytes of all tensors, where the index tells.
    pub(crate) total_size: Option<u64>,
    /// The file of each tensor.
    pub(crate) file_of: BTreeMap<String, String>,
}

impl Index {
    /// Reads an index; `path` is a regular file.
    pub(crate) fn read(path: &Path) -> Result<Index> {
        let not_an_index = |message| Error::Index {
            path: path.to_owned(),
            message,
        };

        let bytes = fs::metadata(path)
            .map_err(|error| Error::io("read", path, error))?
            .len();
        if bytes > MAX_HEADER_BYTES as u64 {
            let message = format!("it has {bytes} bytes, at most {MAX_HEADER_BYTES} are read");
            return Err(not_an_index(message));
        }

        let json = fs::read(path).map_err(|error| Error::io("read", path, error))?;
        let raw: RawIndex =
            serde_json::from_slice(&json).map_err(|error| not_an_index(error.to_string()))?;

        let mut file_of = BTreeMap::new();
        let mut duplicates = Vec::new();
        let total_size = raw.total_size();
        for (tensor, file) in raw.weight_map.0 {
            check_entry(path, &tensor, &file)?;
            match file_of.entry(tensor) {
                Entry::Vacant(free) => {
                    free.insert(file);
                }
                Entry::Occupied(taken) => duplicates.push(taken.key().clone()),
            }
        }

        if !duplicates.is_empty() {
            return Err(Error::DuplicateInIndex {
                path: path.to_owned(),
                names: duplicates,
            });
        }
        Ok(Index {
            total_size,
            file_of,
        })
    }

    /// The index as Hugging Face writes it: sorted, indented by two spaces.
    pub(crate) fn to_json(&self) -> String {
        let json = serde_json::json!({
            "metadata": { "total_size": self.total_size },
            "weight_map": &self.file_of,
        });
        format!("{json:#}\n")
    }
}

fn check_entry(path: &Path, tensor: &str, file: &str) -> Result<()> {
    if let Err(problem) = check_tensor_name(tensor) {
        return Err(Error::TensorName {
            name: tensor.to_owned(),
            problem,
        });
    }
    check_file_name(file).map_err(|problem| Error::FileName {
        folder: crate::disk::folder_of(path).to_owned(),
        name: file.to_owned(),
        problem,
    })
}

/// An index as it stands, duplicates kept. Other fields than these are read over.
#[derive(Deserialize)]
struct RawIndex {
    metadata: Option<RawMetadata>,
    weight_map: Pairs<String>,
}

#[derive(Deserialize)]
struct RawMetadata {
    total_size: Option<Number>,
}

impl RawIndex {
    /// Some writers made it a float; one that is no whole number says nothing.
    fn total_size(&self) -> Option<u64> {
        let number = self.metadata.as_ref()?.total_size.as_ref()?;

        number.as_u64().or_else(|| {
            let value = number.as_f64()?;
            (value.fract() == 0.0 && value >= 0.0).then_some(value as u64)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Index> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(INDEX_FILE);
        fs::write(&path, json).unwrap();
        Index::read(&path)
    }

    #[test]
    fn what_is_written_is_read() {
        let file_of = [("b", "x.safetensors"), ("a", "y.safetensors")]
            .map(|(tensor, file)| (tensor.to_owned(), file.to_owned()));
        let index = Index {
            total_size: Some(12),
            file_of: file_of.into_iter().collect(),
        };

        let json = index.to_json();
        assert!(
            json.starts_with("{\n  \"metadata\": {\n    \"total_size\": 12\n  },\n"),
            "{json}"
        );
        assert_eq!(read(&json).unwrap(), index);
    }

    #[test]
    fn sizes_may_be_floats_or_missing() {
        let of = |metadata: &str| {
            read(&format!(
                "{{{metadata}\"weight_map\": {{}}, \"extra\": [1]}}"
            ))
            .unwrap()
            .total_size
        };
        assert_eq!(
            of("\"metadata\": {\"total_size\": 16060522496.0},"),
            Some(16_060_522_496)
        );
        assert_eq!(of("\"metadata\": {\"total_size\": 0.5},"), None);
        assert_eq!(of("\"metadata\": {\"x\": 1},"), None);
        assert_eq!(of("\"metadata\": null,"), None);
        assert_eq!(of(""), None);
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let names = [
            "",
            "..",
            ".",
            "../x",
            "/etc/passwd",
            "a/b",
            "a\\\\b",
            "a\\u0000b",
            "x/../../y",
            "x/",
        ];
        for name in names {
            let error = read(&format!("{{\"weight_map\": {{\"w\": \"{name}\"}}}}")).unwrap_err();
            assert!(matches!(error, Error::FileName { .. }), "{name}: {error}");
        }

        let error = read("{\"weight_map\": {\"../w\": \"x\"}}").unwrap_err();
        assert!(matches!(error, Error::TensorName { .. }), "{error}");
    }

    #[test]
    fn duplicates_and_other_forms_are_refused() {
        let error =
            read("{\"weight_map\": {\"w\": \"x\", \"v\": \"x\", \"w\": \"y\"}}").unwrap_err();
        assert!(
            matches!(&error, Error::DuplicateInIndex { names, .. } if names == &["w"]),
            "{error}"
        );

        for json in [
            "",
            "null",
            "{}",
            "{\"weight_map\": null}",
            "{\"weight_map\": {\"w\": 1}}",
            "{\"weight_map\": {}, \"weight_map\": {}}",
            "{\"weight_map\": {}} x",
            "\u{feff}{\"weight_map\": {}}",
        ] {
            let error = read(json).unwrap_err();
            assert!(matches!(error, Error::Index { .. }), "{json}: {error}");
        }
    }
}
