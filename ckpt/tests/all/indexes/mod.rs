//! Indexes of all kinds for a folder whose file `x` has the tensors `a` and `b`, and `y` has `c`.

mod corpus;
mod links;

use std::fs;
use std::path::Path;

use meshgrad_ckpt::{Error, Folder, IndexError};

use crate::indexes::corpus::corpus;
use crate::on_disk::write_shard;

const INDEX: &str = "model.safetensors.index.json";

/// An index, or a folder with one, and its expected verdict.
pub(crate) struct Probe {
    what: String,
    index: Vec<u8>,
    /// Changes the folder before it is opened.
    prepare: fn(&Path),
    expected: Expected,
}

/// The one-letter names of the tensors found, or the violated rule.
pub(crate) type Expected = Result<&'static str, &'static str>;

fn rule(error: &Error) -> String {
    let name = |debug: String| debug.split(' ').next().unwrap_or_default().to_owned();
    match error {
        Error::Index { problem, .. } => match problem {
            IndexError::TensorName { problem, .. } => format!("TensorName {problem:?}"),
            IndexError::FileName { problem, .. } => format!("FileName {problem:?}"),
            problem => name(format!("{problem:?}")),
        },
        error => name(format!("{error:?}")),
    }
}

#[test]
fn every_index_gets_the_expected_verdict() {
    let corpus = corpus();
    let mut wrong = Vec::new();

    for probe in &corpus {
        let parent = tempfile::tempdir().unwrap();
        write_shard(&parent.path().join("secret"), &["a", "b"]);
        let folder = parent.path().join("model");
        fs::create_dir(&folder).unwrap();
        write_shard(&folder.join("x"), &["a", "b"]);
        write_shard(&folder.join("y"), &["c"]);
        fs::write(folder.join(INDEX), &probe.index).unwrap();
        (probe.prepare)(&folder);

        let opened = Folder::open(&folder);
        if let Err(error) = &opened {
            let text = error.to_string();
            assert!(!text.contains(char::is_control), "{text:?}");
        }

        let found = match &opened {
            Ok(opened) => Ok(opened.tensors().map(|tensor| tensor.name.as_str()).collect()),
            Err(error) => Err(rule(error)),
        };
        let expected = probe.expected.map(str::to_owned).map_err(str::to_owned);
        if found != expected {
            wrong.push(format!("{}: {expected:?}, found {found:?}", probe.what));
        }
    }

    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(corpus.len() > 60, "{}", corpus.len());
}
