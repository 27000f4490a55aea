//! Indexes of all kinds for a folder whose file `x` has the tensors `a` and `b`, and `y` has `c`.

mod corpus;
mod links;

use std::fs;
use std::path::Path;

use meshgrad_ckpt::{Error, Folder, Kind};

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

/// The rules, each with a part of its message that no other rule has.
const RULES: [(&str, Kind, &str); 19] = [
    ("Link", Kind::System, " is a link to "),
    ("NotAFile", Kind::System, " is not a regular file"),
    ("TwoModels", Kind::System, "an index that does not name it"),
    ("Malformed", Kind::Malformed, " is not a valid safetensors file: "),
    ("MissingShards", Kind::Malformed, " names missing files: "),
    ("NotInShard", Kind::Malformed, " lacks tensors that "),
    ("NotInIndex", Kind::Malformed, " contains tensors that "),
    ("TooLarge", Kind::Malformed, "more than the limit of "),
    ("NotUtf8", Kind::Malformed, "it is not UTF-8 at byte "),
    ("TooDeep", Kind::Malformed, "it has values nested more than "),
    ("DuplicateTensors", Kind::Malformed, "it names tensors more than once: "),
    ("Empty", Kind::Malformed, "`: it is empty"),
    ("Nul", Kind::Malformed, "`: it contains a NUL character"),
    ("ParentFolder", Kind::Malformed, "`: it has a component `..`"),
    ("Reserved", Kind::Malformed, "`: `__metadata__` is reserved for the header"),
    ("NotPlain", Kind::Malformed, "`: it refers to another folder"),
    ("Control", Kind::Malformed, "`: it contains a control character"),
    ("TooLong", Kind::Malformed, "`: it has more than 255 bytes"),
    ("Json", Kind::Malformed, " at line "),
];

fn rule(error: &Error) -> String {
    let message = error.to_string();
    let is_it = |rule: &&(&str, Kind, &str)| error.kind() == rule.1 && message.contains(rule.2);
    let rules: Vec<&str> = RULES.iter().filter(is_it).map(|(name, ..)| *name).collect();
    let name = match rules[..] {
        [name] | [name, "Json"] => name,
        [] => return message,
        _ => panic!("{rules:?}: {message}"),
    };
    match message.split_once("model files: invalid ") {
        Some((_, invalid)) if invalid.starts_with("tensor name `") => format!("TensorName {name}"),
        Some((_, invalid)) if invalid.starts_with("file name `") => format!("FileName {name}"),
        _ => name.to_owned(),
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
