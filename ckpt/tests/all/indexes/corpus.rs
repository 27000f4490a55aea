//! More than 60 indexes, each with its expected verdict.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;

use crate::indexes::{Expected, INDEX, Probe};
use crate::on_disk::write_shard;

/// The file of each tensor.
const PLACES: &str = r#""a":"x","b":"x","c":"y""#;

fn probe(what: &str, index: impl AsRef<[u8]>, expected: Expected) -> Probe {
    Probe { what: what.to_owned(), index: index.as_ref().to_owned(), prepare: |_| {}, expected }
}

fn map(entries: &str) -> String {
    format!(r#"{{"weight_map":{{{entries}}}}}"#)
}

#[rustfmt::skip]
fn forms() -> Vec<Probe> {
    let with = |what, fields: &str, expected| {
        probe(what, format!(r#"{{{fields}"weight_map":{{{PLACES}}}}}"#), expected)
    };
    let json = Err("Json");
    let nested = |field: &str, levels| {
        format!(r#"{field}{}{},"#, "[".repeat(levels), "]".repeat(levels))
    };
    vec![
        with("only the weight map", "", Ok("abc")),
        with("a size", r#""metadata":{"total_size":24},"#, Ok("abc")),
        with("a wrong size", r#""metadata":{"total_size":25},"#, Ok("abc")),
        with("a size as a float", r#""metadata":{"total_size":24.0},"#, Ok("abc")),
        with("no metadata", r#""metadata":null,"#, Ok("abc")),
        with("more in the metadata", r#""metadata":{"x":[1,{"y":null}]},"#, Ok("abc")),
        with("more fields", r#""x":[1],"y":{"z":"é"},"#, Ok("abc")),
        with("a field with an escape", r#""metad\u0061ta":{"total_size":1},"#, Ok("abc")),
        with("a size as a string", r#""metadata":{"total_size":"24"},"#, json),
        with("a size twice", r#""metadata":{"total_size":1,"total_size":2},"#, json),
        with("metadata twice", r#""metadata":{},"metadata":{},"#, json),
        with("metadata as an array", r#""metadata":[],"#, json),
        with("the weight map twice", r#""weight_map":{},"#, json),
        with("7 levels in a field", &nested(r#""x":"#, 7), Ok("abc")),
        with("8 levels in a field", &nested(r#""x":"#, 8), Err("TooDeep")),
        with("9 levels, two of them objects", &nested(r#""metadata":{"x":"#, 7), Err("TooDeep")),
        with("100,000 levels", &format!(r#""x":{}"#, "[".repeat(100_000)), Err("TooDeep")),
        probe("spaces around", format!(" \n{} \n", map(PLACES)), Ok("abc")),
        probe("an empty file", "", json),
        probe("null", "null", json),
        probe("an array", "[]", json),
        probe("an empty object", "{}", json),
        probe("an HTML page", "<!DOCTYPE html>", json),
        probe("a pointer of Git LFS", "version https://git-lfs.github.com/spec/v1\n", json),
        probe("a byte order mark", format!("\u{feff}{}", map(PLACES)), json),
        probe("a letter after it", format!("{}x", map(PLACES)), json),
        probe("a NUL after it", format!("{}\0", map(PLACES)), json),
        probe("truncated", &map(PLACES)[..20], json),
        probe("invalid UTF-8", b"{\"weight_map\":{\"\xff\":\"x\"}}", Err("NotUtf8")),
        probe("the weight map as null", r#"{"weight_map":null}"#, json),
        probe("the weight map as an array", r#"{"weight_map":[]}"#, json),
        probe("a file as a number", map(r#""a":1"#), json),
        probe("a file as null", map(r#""a":null"#), json),
        probe("a file as an array", map(r#""a":["x"]"#), json),
        probe("half a surrogate", map(r#""\ud800":"x""#), json),
    ]
}

#[rustfmt::skip]
fn names() -> Vec<Probe> {
    let file = |name: &str, broken| {
        let shown = if name.len() < 40 { name } else { "long" };
        let places = format!(r#""a":"{name}","b":"x","c":"y""#);
        probe(&format!("file `{shown}`"), map(&places), Err(broken))
    };
    let tensor = |name: &str, broken| {
        probe(&format!("tensor `{name}`"), map(&format!(r#""{name}":"x",{PLACES}"#)), Err(broken))
    };
    vec![
        file("", "FileName Empty"),
        file(".", "FileName NotPlain"),
        file("..", "FileName ParentFolder"),
        file("../secret", "FileName ParentFolder"),
        file("sub/../../secret", "FileName ParentFolder"),
        file("/etc/passwd", "FileName NotPlain"),
        file("//x", "FileName NotPlain"),
        file("./x", "FileName NotPlain"),
        file("x/", "FileName NotPlain"),
        file("sub/x", "FileName NotPlain"),
        file(r"..\\secret", "FileName NotPlain"),
        file(r"C:\\x", "FileName NotPlain"),
        file(r"\u002e\u002e\u002fsecret", "FileName ParentFolder"),
        file(r"x\u0000", "FileName Nul"),
        file(r"x\n", "FileName Control"),
        file(r"\u001b[2J", "FileName Control"),
        file(r"\u009b2J", "FileName Control"),
        file(&"x".repeat(1 << 16), "FileName TooLong"),
        file(&"x".repeat(255), "MissingShards"),
        file("X", "MissingShards"),
        file(INDEX, "Malformed"),
        tensor("", "TensorName Empty"),
        tensor(r"\u0000", "TensorName Nul"),
        tensor("../a", "TensorName ParentFolder"),
        tensor("__metadata__", "TensorName Reserved"),
    ]
}

#[rustfmt::skip]
fn places() -> Vec<Probe> {
    let and = |entry: &str| map(&format!("{PLACES},{entry}"));
    let million: Vec<String> = (0..1_000_000).map(|at| format!(r#""t{at}":"x""#)).collect();
    vec![
        probe("in another order", map(r#""c":"y","b":"x","a":"x""#), Ok("abc")),
        probe("names with escapes", map(r#""\u0061":"x","b":"\u0078","c":"y""#), Ok("abc")),
        probe("a tensor twice", and(r#""a":"x""#), Err("DuplicateTensors")),
        probe("a tensor in two files", and(r#""a":"y""#), Err("DuplicateTensors")),
        probe("a tensor twice, with an escape", and(r#""\u0061":"x""#), Err("DuplicateTensors")),
        probe("a tensor in the wrong file", map(r#""a":"y","b":"x","c":"y""#), Err("NotInIndex")),
        probe("files exchanged", map(r#""a":"y","b":"y","c":"x""#), Err("NotInShard")),
        probe("a tensor that no file has", and(r#""d":"x""#), Err("NotInShard")),
        probe("a tensor left out", map(r#""a":"x","c":"y""#), Err("NotInIndex")),
        probe("a file left out", map(r#""a":"x","b":"x""#), Ok("ab")),
        probe("a missing file", and(r#""d":"z""#), Err("MissingShards")),
        probe("no tensors", map(""), Ok("")),
        probe("a million tensors", map(&million.join(",")), Err("NotInShard")),
    ]
}

/// Other files in the folder, or in place of a file.
fn folders() -> Vec<Probe> {
    let replace = |what: &str, prepare: fn(&Path), expected| Probe {
        prepare,
        ..probe(what, map(PLACES), expected)
    };
    vec![
        replace(
            "a second model",
            |folder| write_shard(&folder.join("model.safetensors"), &["a"]),
            Err("TwoModels"),
        ),
        replace(
            "a file that is not a safetensors file",
            |folder| fs::write(folder.join("y"), b"<html>").unwrap(),
            Err("Malformed"),
        ),
        replace(
            "a file with an extra tensor",
            |folder| write_shard(&folder.join("y"), &["c", "d"]),
            Err("NotInIndex"),
        ),
        replace(
            "a file with another tensor",
            |folder| write_shard(&folder.join("y"), &["d"]),
            Err("NotInShard"),
        ),
        replace(
            "a tensor in a second file",
            |folder| write_shard(&folder.join("y"), &["a", "c"]),
            Err("NotInIndex"),
        ),
        replace(
            "a folder for a file",
            |folder| {
                fs::remove_file(folder.join("y")).unwrap();
                fs::create_dir(folder.join("y")).unwrap();
            },
            Err("NotAFile"),
        ),
        replace(
            "a folder for the index",
            |folder| {
                fs::remove_file(folder.join(INDEX)).unwrap();
                fs::create_dir(folder.join(INDEX)).unwrap();
            },
            Err("NotAFile"),
        ),
        replace(
            "a socket for a file",
            |folder| {
                fs::remove_file(folder.join("y")).unwrap();
                UnixListener::bind(folder.join("y")).unwrap();
            },
            Err("NotAFile"),
        ),
        replace(
            "a link out of the folder",
            |folder| {
                fs::remove_file(folder.join("x")).unwrap();
                symlink("../secret", folder.join("x")).unwrap();
            },
            Err("Link"),
        ),
        replace(
            "an index that is a link",
            |folder| {
                fs::rename(folder.join(INDEX), folder.join("index")).unwrap();
                symlink("index", folder.join(INDEX)).unwrap();
            },
            Err("Link"),
        ),
        replace(
            "an index that exceeds the limit",
            |folder| {
                let file = fs::File::options().write(true).open(folder.join(INDEX));
                file.unwrap().set_len(100_000_001).unwrap();
            },
            Err("TooLarge"),
        ),
    ]
}

pub(crate) fn corpus() -> Vec<Probe> {
    [forms(), names(), places(), folders()].into_iter().flatten().collect()
}
