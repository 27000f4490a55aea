//! Damaged and hostile safetensors files: each is refused with the error made for it, none makes us
//! panic, and whatever we accept the reference crate accepts with the same content.

use std::fs;
use std::path::Path;

use meshgrad_ckpt::{Error, MAX_HEADER_BYTES, NameProblem, TensorFile, Violation};
use proptest::prelude::*;
use safetensors::SafeTensors;

fn file_of(header: &[u8], data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header, data].concat()
}

/// Our verdict on these bytes; when we accept, the reference must agree in everything.
fn open(folder: &Path, bytes: &[u8]) -> Result<TensorFile, Violation> {
    let path = folder.join("x.safetensors");
    fs::write(&path, bytes).unwrap();

    match TensorFile::open(&path) {
        Ok(file) => {
            assert_same_as_reference(&file, bytes);
            Ok(file)
        }
        Err(Error::Malformed {
            path: named,
            violation,
        }) => {
            assert_eq!(named, path);
            Err(violation)
        }
        Err(other) => panic!("{other}"),
    }
}

fn assert_same_as_reference(file: &TensorFile, bytes: &[u8]) {
    let theirs = SafeTensors::deserialize(bytes)
        .unwrap_or_else(|error| panic!("the reference refuses what we accept: {error}"));
    assert_eq!(theirs.len(), file.tensors().len());

    for tensor in file.tensors() {
        let view = theirs.tensor(&tensor.name).unwrap();
        assert_eq!(view.dtype().to_string(), tensor.dtype.name());
        assert_eq!(view.shape(), tensor.shape);
        assert_eq!(view.data(), file.read(&tensor.name).unwrap());
    }

    let (_, metadata) = SafeTensors::read_metadata(bytes).unwrap();
    let theirs = metadata.metadata().clone().unwrap_or_default();
    assert_eq!(file.metadata(), &theirs.into_iter().collect());
}

#[track_caller]
fn violation(bytes: &[u8]) -> Violation {
    let folder = tempfile::tempdir().unwrap();
    open(folder.path(), bytes).expect_err("accepted")
}

#[track_caller]
fn header_violation(header: &str, data_len: usize) -> Violation {
    violation(&file_of(header.as_bytes(), &vec![0; data_len]))
}

/// A header of `entries`, each a name, a dtype, a shape and offsets.
fn header(entries: &[(&str, &str, &str, &str)]) -> String {
    let entry = |(name, dtype, shape, offsets): &(&str, &str, &str, &str)| {
        format!("\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":{offsets}}}")
    };
    format!(
        "{{{}}}",
        entries.iter().map(entry).collect::<Vec<_>>().join(",")
    )
}

macro_rules! assert_violation {
    ($found:expr, $pattern:pat) => {
        let found = $found;
        assert!(matches!(found, $pattern), "{found:?}");
    };
}

#[test]
fn what_the_format_allows_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let accepted = [
        ("{}".to_owned(), 0),
        ("{}      \n\t".to_owned(), 0),
        ("{\"__metadata__\":{\"a\":\"b\"}}".to_owned(), 0),
        ("{\"__metadata__\":null}".to_owned(), 0),
        (header(&[("w", "F32", "[]", "[0,4]")]), 4),
        (
            header(&[("w", "F32", "[0, 18446744073709551615]", "[0,0]")]),
            0,
        ),
        (
            header(&[
                ("w", "F4", "[2]", "[0,1]"),
                ("v", "F6_E2M3", "[4]", "[1,4]"),
            ]),
            4,
        ),
        // Not aligned, and not in the order of the offsets.
        (
            header(&[("w", "F32", "[1]", "[1,5]"), ("v", "U8", "[1]", "[0,1]")]),
            5,
        ),
        (
            header(&[
                ("empty", "F32", "[0]", "[4,4]"),
                ("w", "F32", "[1]", "[0,4]"),
            ]),
            4,
        ),
        (
            "{\"w\":{\"x\":[{\"y\":[null,1,-1,1.5,true,\"\"]}],\"shape\":[1],\"dtype\":\"U8\",\
             \"data_offsets\":[0,1]}}"
                .to_owned(),
            1,
        ),
    ];

    for (header, data_len) in accepted {
        let data: Vec<u8> = (0..data_len).collect();
        let file = open(folder.path(), &file_of(header.as_bytes(), &data));
        assert!(file.is_ok(), "{header}: {file:?}");
    }
}

#[test]
fn lengths_that_lie_are_refused() {
    for len in 0..8 {
        assert_violation!(violation(&vec![0; len]), Violation::TooShort { .. });
    }

    let with_len = |len: u64| [&len.to_le_bytes()[..], b"{}      "].concat();
    let limit = MAX_HEADER_BYTES as u64;

    assert_violation!(
        violation(&with_len(0)),
        Violation::NotAnObject { first: None }
    );
    assert_violation!(
        violation(&with_len(9)),
        Violation::HeaderBeyondFile {
            header_len: 9,
            available: 8
        }
    );
    assert_violation!(
        violation(&with_len(limit)),
        Violation::HeaderBeyondFile { .. }
    );
    assert_violation!(
        violation(&with_len(limit + 1)),
        Violation::HeaderTooLarge { .. }
    );
    assert_violation!(
        violation(&with_len(u64::MAX)),
        Violation::HeaderTooLarge { .. }
    );
    assert_violation!(
        violation(&with_len(8u64.swap_bytes())),
        Violation::BigEndian { swapped: 8, .. }
    );
}

#[test]
fn headers_that_are_no_json_object_are_refused() {
    for first in [" {}", "\n{}", "[]", "\"x\"", "\u{feff}{}", "null", "\0{}"] {
        assert_violation!(
            header_violation(first, 0),
            Violation::NotAnObject { first: Some(_) }
        );
    }

    let found = violation(&file_of(b"{\"\xff\":1}", b""));
    assert_eq!(found, Violation::NotUtf8 { at: 2 });

    let deep = format!("{{\"w\":{}}}", "[".repeat(100_000));
    let deep_extra = format!("{{\"w\":{{\"x\":{}}}}}", "[".repeat(100_000));
    let entry = |field: &str| {
        format!("{{\"w\":{{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]{field}}}}}")
    };
    let headers = [
        "{".to_owned(),
        "{}x".to_owned(),
        "{}\0".to_owned(),
        "{\"w\":1}".to_owned(),
        "{\"w\":[\"U8\",[1],[0,1]]}".to_owned(),
        "{\"w\":null}".to_owned(),
        "{\"w\":{\"dtype\":\"U8\",\"shape\":[1]}}".to_owned(),
        "{\"__metadata__\":{\"a\":1}}".to_owned(),
        "{\"__metadata__\":[]}".to_owned(),
        "{\"\\ud800\":{}}".to_owned(),
        header(&[("w", "U8", "[1.0]", "[0,1]")]),
        header(&[("w", "U8", "[1e0]", "[0,1]")]),
        header(&[("w", "U8", "[-1]", "[0,1]")]),
        header(&[("w", "U8", "[18446744073709551616]", "[0,1]")]),
        header(&[("w", "U8", "1", "[0,1]")]),
        header(&[("w", "U8", "[1]", "[0]")]),
        header(&[("w", "U8", "[1]", "[0,1,2]")]),
        header(&[("w", "U8", "[1]", "[0.0,1]")]),
        header(&[("w", "U8", "[1]", "[-1,0]")]),
        entry(",\"dtype\":\"U8\""),
        entry(",\"shape\":[1]"),
        entry(",\"x\":1e999"),
        entry(",\"x\":\"\\ud800\""),
        entry(",\"x\":nan"),
        entry(","),
        deep,
        deep_extra,
    ];
    for header in headers {
        let shown: String = header.chars().take(80).collect();
        let found = header_violation(&header, 1);
        assert!(
            matches!(found, Violation::Json { .. }),
            "{shown}: {found:?}"
        );
    }
}

#[test]
fn messages_name_the_tensor_and_the_place() {
    let found = header_violation(&header(&[("layer.w", "U8", "[1.5]", "[0,1]")]), 1);
    let text = found.to_string();
    assert!(
        text.contains("`layer.w`") && text.contains("line 1 column"),
        "{text}"
    );

    let found = header_violation(&header(&[("layer.w", "F32", "[2, 3]", "[0,20]")]), 20);
    assert_eq!(
        found.to_string(),
        "tensor `layer.w` of F32 [2, 3] has 24 bytes but its offsets span 20"
    );
}

#[test]
fn names_that_occur_twice_are_refused() {
    let twice = header(&[("w", "U8", "[1]", "[0,1]"), ("w", "I8", "[1]", "[1,2]")]);
    assert_violation!(
        header_violation(&twice, 2),
        Violation::DuplicateTensor { .. }
    );

    let escaped = header(&[
        ("w", "U8", "[1]", "[0,1]"),
        ("\\u0077", "U8", "[1]", "[1,2]"),
    ]);
    assert_violation!(
        header_violation(&escaped, 2),
        Violation::DuplicateTensor { .. }
    );

    for metadata in [
        "{\"__metadata__\":{},\"__metadata__\":{}}",
        "{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}",
    ] {
        assert_violation!(
            header_violation(metadata, 0),
            Violation::DuplicateMetadata { .. }
        );
    }
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let cases = [
        ("", NameProblem::Empty),
        ("a\\u0000b", NameProblem::Nul),
        ("..", NameProblem::ParentFolder),
        ("../../etc/passwd", NameProblem::ParentFolder),
        ("a/../b", NameProblem::ParentFolder),
        ("a\\\\..\\\\b", NameProblem::ParentFolder),
    ];
    for (name, expected) in cases {
        let found = header_violation(&header(&[(name, "U8", "[1]", "[0,1]")]), 1);
        let Violation::TensorName { problem, .. } = found else {
            panic!("{name}: {found:?}")
        };
        assert_eq!(problem, expected);
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let one = |dtype, shape, offsets, data_len| {
        header_violation(&header(&[("w", dtype, shape, offsets)]), data_len)
    };
    let dims = format!("[{}]", vec!["1"; 65].join(","));

    assert_violation!(
        one("F33", "[1]", "[0,4]", 4),
        Violation::UnknownDtype { .. }
    );
    assert_violation!(
        one("f32", "[1]", "[0,4]", 4),
        Violation::UnknownDtype { .. }
    );
    assert_violation!(
        one("U8", &dims, "[0,1]", 1),
        Violation::TooManyDims { dims: 65, .. }
    );
    assert_violation!(
        one("U8", "[4294967296, 4294967296, 0]", "[0,0]", 0),
        Violation::Overflow { .. }
    );
    assert_violation!(
        one("F64", "[2305843009213693952]", "[0,0]", 0),
        Violation::Overflow { .. }
    );
    assert_violation!(
        one("F4", "[3]", "[0,2]", 2),
        Violation::PartOfAByte { bits: 12, .. }
    );
    assert_violation!(
        one("U8", "[1]", "[1,0]", 1),
        Violation::Backwards {
            begin: 1,
            end: 0,
            ..
        }
    );
    assert_violation!(
        one("F32", "[1]", "[0,3]", 3),
        Violation::WrongSize {
            wanted: 4,
            spanned: 3,
            ..
        }
    );
    assert_violation!(
        one("F32", "[2]", "[0,8]", 7),
        Violation::BeyondFile {
            end: 8,
            data_len: 7,
            ..
        }
    );
    assert_violation!(
        one(
            "U8",
            "[2]",
            "[18446744073709551613,18446744073709551615]",
            2
        ),
        Violation::BeyondFile { .. }
    );
}

#[test]
fn every_byte_belongs_to_one_tensor() {
    let two = |first, second, data_len| {
        header_violation(
            &header(&[("v", "U8", "[2]", first), ("w", "U8", "[2]", second)]),
            data_len,
        )
    };

    assert_violation!(
        two("[1,3]", "[3,5]", 5),
        Violation::Hole {
            begin: 0,
            end: 1,
            ..
        }
    );
    assert_violation!(
        two("[0,2]", "[3,5]", 5),
        Violation::Hole {
            begin: 2,
            end: 3,
            ..
        }
    );
    assert_violation!(
        two("[0,2]", "[1,3]", 3),
        Violation::Overlap {
            begin: 1,
            previous_end: 2,
            ..
        }
    );
    assert_violation!(two("[0,2]", "[0,2]", 2), Violation::Overlap { .. });
    assert_violation!(
        two("[0,2]", "[2,4]", 5),
        Violation::TrailingBytes { end: 4, extra: 1 }
    );
    assert_violation!(
        header_violation("{}", 1),
        Violation::TrailingBytes { end: 0, extra: 1 }
    );

    let inside = header(&[("v", "U8", "[2]", "[0,2]"), ("w", "U8", "[0]", "[1,1]")]);
    assert_violation!(header_violation(&inside, 2), Violation::Overlap { .. });
}

/// Cut anywhere, or grown by a byte, a file is refused.
#[test]
fn every_truncation_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let header = header(&[
        ("w", "F32", "[2,2]", "[0,16]"),
        ("v", "I64", "[1]", "[16,24]"),
    ]);
    let whole = file_of(header.as_bytes(), &[7; 24]);
    assert!(open(folder.path(), &whole).is_ok());

    for len in 0..whole.len() {
        assert!(open(folder.path(), &whole[..len]).is_err(), "{len}");
    }
    let grown = [&whole[..], b"\0"].concat();
    assert_violation!(violation(&grown), Violation::TrailingBytes { .. });
}

#[test]
fn folders_are_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let error = TensorFile::open(folder.path()).unwrap_err();
    assert!(matches!(error, Error::NotAFile { .. }), "{error}");

    let error = TensorFile::open(folder.path().join("none")).unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
}

/// To open a pipe without a writer would block for ever.
#[test]
#[cfg(target_os = "linux")]
fn pipes_are_not_opened() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let mode = rustix::fs::Mode::from(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();

    let error = TensorFile::open(&pipe).unwrap_err();
    assert!(matches!(error, Error::NotAFile { .. }), "{error}");
}

#[test]
fn reads_are_bounded_by_the_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let header = header(&[
        ("left", "U8", "[4]", "[0,4]"),
        ("right", "U8", "[4]", "[4,8]"),
    ]);
    fs::write(&path, file_of(header.as_bytes(), &[0, 1, 2, 3, 4, 5, 6, 7])).unwrap();
    let file = TensorFile::open(&path).unwrap();

    let mut two = [0; 2];
    file.read_range_into("right", 1, &mut two).unwrap();
    assert_eq!(two, [5, 6]);
    file.read_range_into("left", 4, &mut []).unwrap();

    for offset in [3, 4, 5, usize::MAX] {
        let error = file.read_range_into("left", offset, &mut two).unwrap_err();
        assert!(
            matches!(error, Error::OutsideTensor { available: 4, .. }),
            "{error}"
        );
    }
    for size in [0, 3, 5] {
        let error = file.read_into("left", &mut vec![0; size]).unwrap_err();
        assert!(matches!(error, Error::OutsideTensor { .. }), "{error}");
    }

    let error = file.read("rihgt").unwrap_err();
    assert!(
        error.to_string().ends_with("did you mean `right`?"),
        "{error}"
    );

    fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(90)
        .unwrap();
    let error = file.read("right").unwrap_err();
    assert!(matches!(error, Error::Changed { .. }), "{error}");
}

/// Pieces from which headers are put together at random: valid often enough to reach every check.
fn fragments() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec!["a", "b", "c", "", "..", "__metadata__", "\\u0061"]);
    let dtype = prop::sample::select(vec!["U8", "I8", "BF16", "F32", "F4", "F6_E3M2", "F64", "X"]);
    let shape = prop::sample::select(vec![
        "[]", "[1]", "[2]", "[4]", "[0]", "[2,2]", "[-1]", "[8]",
    ]);
    let extra = prop::sample::select(vec![
        "",
        "",
        "",
        ",\"x\":1",
        ",\"x\":{\"y\":[1e400]}",
        ",\"dtype\":\"U8\"",
    ]);

    (name, dtype, shape, 0..20u64, 0..12u64, extra).prop_map(
        |(name, dtype, shape, begin, len, extra)| {
            let end = begin + len;
            format!(
                "\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape},\
                 \"data_offsets\":[{begin},{end}]{extra}}}"
            )
        },
    )
}

/// A valid file of a few tensors, whatever their dtypes.
fn valid_file() -> impl Strategy<Value = Vec<u8>> {
    let dtypes = prop::sample::select(vec![("U8", 1), ("BF16", 2), ("F32", 4), ("I64", 8)]);
    let tensors = prop::collection::vec((dtypes, 0..4usize, 0..4usize), 0..5);

    (tensors, 0..9usize).prop_map(|(tensors, padding)| {
        let mut offset = 0;
        let mut entries = Vec::new();
        for (at, ((dtype, size), rows, columns)) in tensors.into_iter().enumerate() {
            let end = offset + size * rows * columns;
            entries.push(format!(
                "\"t{at}\":{{\"dtype\":\"{dtype}\",\"shape\":[{rows},{columns}],\
                 \"data_offsets\":[{offset},{end}]}}"
            ));
            offset = end;
        }

        let header = format!("{{{}}}{}", entries.join(","), " ".repeat(padding));
        let data: Vec<u8> = (0..offset).map(|at| at as u8).collect();
        file_of(header.as_bytes(), &data)
    })
}

/// Failures are printed, not kept in a file.
fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        cases,
        ..Default::default()
    }
}

proptest! {
    #![proptest_config(cases(1_000))]

    #[test]
    fn valid_files_are_accepted(bytes in valid_file()) {
        let folder = tempfile::tempdir().unwrap();
        prop_assert!(open(folder.path(), &bytes).is_ok());
    }

    /// `open` itself compares with the reference whenever we accept.
    #[test]
    fn random_headers_never_panic(
        parts in prop::collection::vec(fragments(), 0..4),
        data_len in 0..20usize,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let header = format!("{{{}}}", parts.join(","));
        let _ = open(folder.path(), &file_of(header.as_bytes(), &vec![1; data_len]));
    }

    #[test]
    fn changed_bytes_never_panic(
        bytes in valid_file(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = bytes;
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }

        let folder = tempfile::tempdir().unwrap();
        let _ = open(folder.path(), &bytes);
    }
}
