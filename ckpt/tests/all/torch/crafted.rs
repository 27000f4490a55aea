//! Archives and pickles that torch does not write, valid and malicious.

use std::fs;

use meshgrad_ckpt::{Error, Kind, torch};

use crate::torch::tensors;
use crate::torch::zips::{Style, zip};

/// The opcodes that make a tensor of two floats in storage `0`.
const TENSOR: &[u8] = b"ctorch._utils\n_rebuild_tensor_v2\n(\
    (X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x02tQ\
    K\0K\x02\x85K\x01\x85\x89}tR";

/// A pickle of protocol 4 with a tensor between every two parts.
fn with_tensors(parts: &[&[u8]]) -> Vec<u8> {
    [&b"\x80\x04"[..], &parts.join(TENSOR)[..], b"."].concat()
}

/// A pickle of a dict with one tensor `w`.
fn one_tensor() -> Vec<u8> {
    with_tensors(&[b"}U\x01w", b"s"])
}

const DATA: &[u8] = &[0, 0, 0x80, 0x3f, 0, 0, 0, 0x40];

fn archive(pickle: &[u8], style: Style) -> Vec<u8> {
    zip(&[("a/data.pkl", pickle), ("a/byteorder", b"little"), ("a/data/0", DATA)], style)
}

/// The message for a file, or the bytes of `w`.
fn read(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("x.bin");
    fs::write(&path, bytes).unwrap();
    let model = torch::open_file(&path).map_err(|error| {
        let verdict = match is_malformed(&error) {
            true => "cannot be read as a model of PyTorch",
            false => "is not supported",
        };
        let start = format!("{} {verdict}: ", path.display());
        error.to_string().strip_prefix(&start).unwrap().to_owned()
    })?;
    Ok(tensors(&model).unwrap()["w"].2.clone())
}

/// Whether an error is for a damaged file; panics unless it is for a damaged or unsupported one.
fn is_malformed(error: &Error) -> bool {
    match error.kind() {
        Kind::Malformed => true,
        Kind::Unsupported => false,
        _ => panic!("{error}"),
    }
}

/// Whether a file is damaged; panics if it can be read.
fn is_damage(bytes: &[u8]) -> bool {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("x.bin");
    fs::write(&path, bytes).unwrap();
    is_malformed(&torch::open_file(&path).unwrap_err())
}

fn pickled(pickle: &[u8]) -> Result<Vec<u8>, String> {
    read(&archive(pickle, Style::default()))
}

/// Sizes and offsets of 64 bits, comments and other extra fields change nothing.
#[test]
fn all_ways_to_write_a_zip_are_equal() {
    for wide in [false, true] {
        for comment in [0, 1, 70, 65_535] {
            let style = Style { wide, comment, ..Style::default() };
            assert_eq!(read(&archive(&one_tensor(), style)).as_deref(), Ok(DATA));
        }
    }
}

#[test]
fn packed_entries_are_errors() {
    let packed = "its entry `a/data.pkl` is compressed or encrypted; save it again with torch.save";
    let compressed = Style { method: 8, ..Style::default() };
    let encrypted = Style { flags: 1, ..Style::default() };
    for style in [compressed, encrypted] {
        assert_eq!(read(&archive(&one_tensor(), style)), Err(packed.to_owned()));
    }
}

#[test]
fn damaged_archives_say_what_is_missing() {
    let plain = Style::default();
    let pickle = one_tensor();
    let without = |entries: &[(&str, &[u8])]| read(&zip(entries, plain));
    let missing = |name: &str| Err(format!("its zip archive has no entry `{name}`"));
    assert_eq!(without(&[("a/data/0", DATA)]), missing("data.pkl"));
    assert_eq!(without(&[("a/data.pkl", &pickle)]), missing("a/data/0"));
    let twice = without(&[("a/data.pkl", &pickle), ("a/data.pkl", &pickle)]);
    assert_eq!(twice, Err("its zip archive is damaged: two entries have one name".to_owned()));
    let big = without(&[("a/data.pkl", &pickle), ("a/byteorder", b"big"), ("a/data/0", DATA)]);
    let order = "its byte order is big-endian; save it again on a little-endian machine";
    assert_eq!(big, Err(order.to_owned()));
    let short = without(&[("a/data.pkl", &pickle), ("a/data/0", &DATA[..4])]);
    let size = "tensor `w` cannot be read: its storage has another size than its data";
    assert_eq!(short, Err(size.to_owned()));
}

/// Nothing is called: a global that tensors do not need is an error, whatever the pickle does with
/// it.
#[test]
fn no_code_runs() {
    let system = b"\x80\x02cposix\nsystem\nX\x08\0\0\0touch /x\x85R.";
    let named = |global: &str| {
        Err(format!(
            "its pickle names `{global}`, which a file of plain tensors does not need and which is \
             not loaded; save only the state_dict: torch.save(model.state_dict(), ..)"
        ))
    };
    assert_eq!(pickled(system), named("posix.system"));
    let stack = b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93.";
    assert_eq!(pickled(stack), named("builtins.eval"));
    // Opcodes of older protocols that import: INST and OBJ.
    for opcode in [&b"(iposix\nsystem\n."[..], b"(ctorch\nSize\no."] {
        let error = pickled(opcode).unwrap_err();
        assert!(error.starts_with("its pickle uses the opcode "), "{error}");
    }
}

/// Pickles with huge numbers or deep values are errors and need little memory and stack.
#[test]
fn malicious_pickles_are_errors() {
    let deep = [&b"\x80\x02"[..], &vec![b']'; 1 << 20], &vec![b'a'; (1 << 20) - 1], b"."].concat();
    let nested = [&b"\x80\x02)"[..], &[0x85; 1 << 20], b"."].concat();
    let own_item = b"\x80\x02]q\0h\0a.";
    let own_key = b"\x80\x02}q\0h\0h\0s.";
    let cases: [(&[u8], &str); 14] = [
        (b"", "is truncated"),
        (b"\x80", "is truncated"),
        (b"\x80\x02\xff.", "no opcode has this number"),
        (b"\x80\x02.", "its stack is empty"),
        (b"\x80\x02t.", "it has no mark"),
        (b"\x80\x02(1t.", "it has no mark"),
        (b"\x80\x02X\xff\xff\xff\xffw.", "is truncated"),
        (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xffw.", "is truncated"),
        (b"\x80\x02X\x01\0\0\0\xff.", "a string is not UTF-8"),
        (b"\x80\x02j\xff\xff\xff\xff.", "it refers to a value that it has not stored"),
        (b"\x80\x02K\x01K\x01R.", "it calls a value that is not a global"),
        (b"\x80\x02K\x01]a.", "it appends to a value that is not a list"),
        (b"\x80\x02ctorch\nSize", "it ends inside a line"),
        (b"\x80\x02}K\x01b(K\x01u.", "it sets items of a value that is not a dict"),
    ];
    for (pickle, expected) in cases {
        let error = pickled(pickle).unwrap_err();
        assert!(error.contains(expected), "{pickle:?}: {error}");
    }
    let save = "of a dict of tensors; save a dict: torch.save({'NAME': tensor}, ..)";
    let roots: [(&[u8], &str); 3] = [(&deep, "a list"), (&nested, "a tuple"), (own_item, "a list")];
    for (pickle, root) in roots {
        let error = pickled(pickle).unwrap_err();
        assert_eq!(error, format!("it contains {root} instead {save}"));
    }
    let error = pickled(own_key).unwrap_err();
    assert!(error.starts_with("its dict has a key that is"), "{error}");
}

/// Files that PyTorch can read are not damaged, even if their values have no names here, or need
/// Python. The message says what to save instead.
#[test]
fn files_that_python_can_read_are_not_damaged() {
    let dims = [b"(".to_vec(), b"K\x01".repeat(65), b"t".to_vec()].concat();
    let many_dims = with_tensors(&[b"}U\x01w", b"s"]);
    let at = many_dims.windows(3).position(|it| it == b"K\x02\x85").unwrap();
    let many_dims = [&many_dims[..at], &dims, &dims, &many_dims[at + 6..]].concat();
    let cases: [(Vec<u8>, &str); 14] = [
        (with_tensors(&[b"", b""]), "a tensor or another object instead of a dict"),
        (with_tensors(&[b"](", b"e"]), "a list instead of a dict"),
        (with_tensors(&[b"", b"\x85"]), "a tuple instead of a dict"),
        (with_tensors(&[b"K\x01"]), "a single value instead of a dict"),
        (with_tensors(&[b"}(N", b"u"]), "its dict has a key that is neither"),
        (with_tensors(&[b"}(K\x01K\x02\x86", b"u"]), "its dict has a key that is neither"),
        (with_tensors(&[b"}U\x01a}(\x88", b"us"]), "its dict `a` has a key that is neither"),
        (with_tensors(&[b"}(K\x01", b"U\x011", b"u"]), "two of its values have the name `1`"),
        (
            with_tensors(&[b"}(U\x03a.b", b"U\x01a}U\x01b", b"su"]),
            "two of its values have the name `a.b`",
        ),
        (
            with_tensors(&[b"}(U\x01w", b"U\x01s\x8f(K\x01\x90u"]),
            "uses the opcode EMPTY_SET at byte",
        ),
        (
            with_tensors(&[b"}(U\x01w", b"U\x01sc__builtin__\nset\n]\x85Ru"]),
            "its pickle names `__builtin__.set`",
        ),
        (b"\x80\x01}.".to_vec(), "uses protocol 1 at byte 0"),
        (with_tensors(&[b"ccollections\nOrderedDict\n](", b"e\x85R"]), "an OrderedDict with"),
        (many_dims, "it has 65 dims, but at most 64 are supported"),
    ];
    for (pickle, expected) in cases {
        let error = pickled(&pickle).unwrap_err();
        assert!(error.contains(expected), "{expected}: {error}");
        assert!(error.contains("; save ") || error.contains("; rename "), "{error}");
        assert!(!is_damage(&archive(&pickle, Style::default())), "{error}");
    }
    let damaged: [&[u8]; 4] =
        [b"\x80\x02", b"\x80\x02\xff.", b"\x80\x02(1t.", b"\x80\x02}q\0h\x01."];
    for pickle in damaged {
        assert!(is_damage(&archive(pickle, Style::default())), "{pickle:?}");
    }
    let whole = archive(&one_tensor(), Style::default());
    for truncated in [&whole[..whole.len() - 1], &whole[1..], &whole[..40]] {
        assert!(is_damage(truncated));
    }
    let short = [("a/data.pkl", &one_tensor()[..]), ("a/data/0", &DATA[..4])];
    assert!(is_damage(&zip(&short, Style::default())));
}

/// Dicts and lists that contain themselves are errors. So are names that take much more memory than
/// the pickle.
#[test]
fn values_are_nested_within_limits() {
    let cycle = b"\x80\x02}q\0X\x01\0\0\0wh\0s.";
    let error = pickled(cycle).unwrap_err();
    let expected = "its values are nested more than 16 deep at `w.w.w.";
    assert!(error.starts_with(expected), "{error}");

    // Each of 12 lists has the list before it 40 times.
    let mut many = b"\x80\x02]q\0K\x01a0".to_vec();
    for level in 0..12 {
        many.extend([b']', b'q', level + 1, b'(']);
        many.extend([b'h', level].repeat(40));
        many.extend(b"e0");
    }
    many.extend(b"}X\x01\0\0\0wh\x0cs.");
    let error = pickled(&many).unwrap_err();
    assert!(error.contains("its list of names has"), "{error}");
}

/// A tensor whose numbers do not fit its storage, or overflow, is an error.
#[test]
fn tensors_stay_in_their_storage() {
    let tensor = |offset: &[u8], shape: &[u8], strides: &[u8]| {
        let mut pickle = b"\x80\x02}U\x01wctorch._utils\n_rebuild_tensor_v2\n(".to_vec();
        let storage = b"(U\x07storagectorch\nFloatStorage\nU\x010U\x03cpuK\x02tQ";
        for part in [&storage[..], offset, shape, strides, b"\x89}tRs."] {
            pickle.extend(part);
        }
        pickled(&pickle)
    };
    let large = b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f";
    let tuple = |number: &[u8]| [number, b"\x85"].concat();
    assert_eq!(tensor(b"K\0", b"K\x02\x85", b"K\x01\x85").as_deref(), Ok(DATA));
    assert_eq!(tensor(b"K\x01", b")", b")").as_deref(), Ok(&DATA[4..]));
    let repeated = tensor(b"K\x01", b"K\x02\x85", b"K\0\x85");
    assert_eq!(repeated.as_deref(), Ok(&[&DATA[4..], &DATA[4..]].concat()[..]));
    for (offset, shape, strides) in [
        (&b"K\x01"[..], &b"K\x02\x85"[..], &b"K\x01\x85"[..]),
        (b"K\0", b"K\x03\x85", b"K\x01\x85"),
        (b"K\0", b"K\x02\x85", b"K\x02\x85"),
        (b"K\x02", b"K\x02\x85", b"K\0\x85"),
        (b"K\0", &tuple(large), b"K\0\x85"),
        (b"K\0", b"K\x02\x85", b"J\xff\xff\xff\xff\x85"),
        (b"J\xff\xff\xff\xff", b"K\x01\x85", b"K\x01\x85"),
        (b"K\0", b"K\x01K\x01\x86", b"K\x01\x85"),
        (large, b"K\x01\x85", b"K\x01\x85"),
        (b"K\0", &tuple(large), b"K\x01\x85"),
        (b"K\0", b"K\x02\x85", &tuple(large)),
        (b"K\0", &[&large[..], large, b"\x86"].concat(), b"K\x01K\x01\x86"),
    ] {
        assert!(tensor(offset, shape, strides).is_err(), "{offset:?} {shape:?} {strides:?}");
    }
}
