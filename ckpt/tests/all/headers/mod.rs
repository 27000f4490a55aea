//! Headers of all kinds, parsed by this crate and by the reference crate.
//!
//! The reference accepts everything that we accept, with the same content. It also accepts some
//! headers that we reject: exactly those that [`reference::STRICTER`] lists.

mod corpus;
mod mutants;
mod reference;

use std::collections::BTreeSet;
use std::fs;

use meshgrad_ckpt::{Header, Kind, TensorFile};

use crate::headers::corpus::corpus;
use crate::headers::reference::{STRICTER, Verdict, verdict};

/// A file and its expected verdict.
#[derive(Clone)]
pub(crate) struct Probe {
    what: String,
    bytes: Vec<u8>,
    expected: Expected,
}

/// The expected verdict on a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    /// Both accept it, with the same content.
    Read,
    /// It violates this rule; the reference rejects it too.
    Rejected(&'static str),
    /// It violates this rule; the reference accepts it.
    Stricter(&'static str),
}

pub(crate) fn file_of(header: &[u8], data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header, data].concat()
}

#[test]
fn every_header_gets_the_expected_verdict() {
    let corpus = corpus();
    let mut wrong = Vec::new();

    for probe in &corpus {
        let expected = match probe.expected {
            Expected::Read => Verdict::Read,
            Expected::Rejected(rule) => Verdict::Rejected(rule.to_owned()),
            Expected::Stricter(rule) => Verdict::Stricter(rule.to_owned()),
        };
        let found = verdict(&probe.bytes);
        if found != expected {
            wrong.push(format!("{}: {expected:?}, found {found:?}", probe.what));
        }
    }

    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(corpus.len() > 200, "{}", corpus.len());
}

/// Every listed difference occurs in some probe.
#[test]
fn every_listed_difference_is_tested() {
    let found: BTreeSet<&str> = corpus()
        .iter()
        .filter_map(|probe| match probe.expected {
            Expected::Stricter(rule) => Some(rule),
            _ => None,
        })
        .collect();
    assert_eq!(found, BTreeSet::from(STRICTER));
}

/// A file on a disk gets the verdict of its bytes.
#[test]
#[cfg_attr(miri, ignore = "it needs files")]
fn files_get_the_verdict_of_their_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");

    for probe in corpus() {
        fs::write(&path, &probe.bytes).unwrap();
        let bytes = Header::parse(&probe.bytes, probe.bytes.len() as u64);

        match TensorFile::open(&path) {
            Ok(file) => assert_eq!(Ok(file.header().clone()), bytes, "{}", probe.what),
            Err(error) => {
                let problem = bytes.unwrap_err();
                let message =
                    format!("{} is not a valid safetensors file: {problem}", path.display());
                assert_eq!((error.kind(), error.to_string()), (Kind::Malformed, message));
            }
        }
    }
}

/// The header of a file of any size can be parsed from its first bytes.
#[test]
fn headers_are_parsed_without_data() {
    let json = br#"{"w":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}"#;
    let start = file_of(json, b"and some data");
    let data_start = 8 + json.len() as u64;

    let header = Header::parse(&start, data_start + (4 << 40)).unwrap();
    assert_eq!(header.get("w").unwrap().range, data_start..data_start + (4 << 40));
    assert!(Header::parse(&start, start.len() as u64).is_err());
    assert!(Header::parse(&start[..80], data_start + (4 << 40)).is_err());
}

/// File content is escaped in messages, so that it cannot control a terminal.
#[test]
fn messages_have_no_control_characters() {
    for probe in corpus() {
        if let Err(problem) = Header::parse(&probe.bytes, probe.bytes.len() as u64) {
            let text = problem.to_string();
            assert!(!text.contains(char::is_control), "{text:?}");
        }
    }

    let name = r"\u001b[2J\u009b\u202e";
    let json = format!(r#"{{"{name}":{{"dtype":"{name}","shape":[],"data_offsets":[0,1]}}}}"#);
    let text = Header::parse(&file_of(json.as_bytes(), b"x"), 1 << 20).unwrap_err().to_string();
    assert!(text.contains(r"\u{1b}[2J\u{9b}\u{202e}"), "{text:?}");
}

#[test]
fn messages_name_the_tensor_and_the_position() {
    let text = |shape, offsets| {
        let entry = format!(r#"{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}"#);
        let header = format!(r#"{{"layer.w":{entry}}}"#);
        Header::parse(&file_of(header.as_bytes(), b""), 1 << 20).unwrap_err().to_string()
    };

    assert_eq!(
        text("[2,3]", "[0,20]"),
        "tensor `layer.w` of F32 [2, 3] has 24 bytes, but its offsets span 20"
    );
    let text = text("[1.5]", "[0,1]");
    assert!(text.contains("`layer.w`"), "{text}");
    assert!(text.contains("line 1 column"), "{text}");
}

/// A file that is truncated anywhere, or extended by a byte, is rejected.
#[test]
fn every_truncation_is_detected() {
    let header = concat!(
        r#"{"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"#,
        r#""v":{"dtype":"I64","shape":[1],"data_offsets":[16,24]}}"#
    );
    let whole = file_of(header.as_bytes(), &[7; 24]);
    assert_eq!(verdict(&whole), Verdict::Read);

    for len in 0..whole.len() {
        let found = verdict(&whole[..len]);
        assert!(matches!(found, Verdict::Rejected(_)), "{len}: {found:?}");
    }
    let grown = [&whole[..], b"\0"].concat();
    assert_eq!(verdict(&grown), Verdict::Rejected("TrailingBytes".to_owned()));
}
