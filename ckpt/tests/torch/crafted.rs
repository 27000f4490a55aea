//! Archives and pickles that torch does not write, valid and malicious.

use std::fs;

use meshgrad_ckpt::torch;

use crate::tensors;
use crate::zips::{Style, zip};

/// A pickle of a dict with one tensor `w` of two floats in storage `0`.
fn one_tensor() -> Vec<u8> {
    let mut pickle = b"\x80\x02}U\x01wctorch._utils\n_rebuild_tensor_v2\n(".to_vec();
    pickle.extend(b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x02tQ");
    pickle.extend(b"K\0K\x02\x85K\x01\x85\x89}tRs.");
    pickle
}

const DATA: &[u8] = &[0, 0, 0x80, 0x3f, 0, 0, 0, 0x40];

fn archive(pickle: &[u8], style: Style) -> Vec<u8> {
    zip(
        &[
            ("a/data.pkl", pickle),
            ("a/byteorder", b"little"),
            ("a/data/0", DATA),
        ],
        style,
    )
}

/// The message for a file, or the bytes of `w`.
fn read(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("x.bin");
    fs::write(&path, bytes).unwrap();
    let model = torch::open_file(&path).map_err(|error| {
        let start = format!("{} cannot be read as a model of PyTorch: ", path.display());
        error.to_string().replace(&start, "")
    })?;
    Ok(tensors(&model).unwrap()["w"].2.clone())
}

fn pickled(pickle: &[u8]) -> Result<Vec<u8>, String> {
    read(&archive(pickle, Style::default()))
}

/// Sizes and offsets of 64 bits, comments and other extra fields change nothing.
#[test]
fn all_ways_to_write_a_zip_are_equal() {
    for wide in [false, true] {
        for comment in [0, 1, 70, 65_535] {
            let style = Style {
                wide,
                comment,
                ..Style::default()
            };
            assert_eq!(read(&archive(&one_tensor(), style)).as_deref(), Ok(DATA));
        }
    }
}

#[test]
fn packed_entries_are_errors() {
    let packed = "its entry `a/data.pkl` is compressed or encrypted; save it again with torch.save";
    let compressed = Style {
        method: 8,
        ..Style::default()
    };
    let encrypted = Style {
        flags: 1,
        ..Style::default()
    };
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
    assert_eq!(
        twice,
        Err("its zip archive is damaged: two entries have one name".to_owned())
    );
    let big = without(&[
        ("a/data.pkl", &pickle),
        ("a/byteorder", b"big"),
        ("a/data/0", DATA),
    ]);
    let order = "its byte order is `big`; save it again on a little-endian machine";
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
        assert!(error.contains("tensors do not need this opcode"), "{error}");
    }
}

/// Pickles with huge numbers or deep values are errors and need little memory and stack.
#[test]
fn malicious_pickles_are_errors() {
    let deep = [
        &b"\x80\x02"[..],
        &vec![b']'; 1 << 20],
        &vec![b'a'; (1 << 20) - 1],
        b".",
    ]
    .concat();
    let nested = [&b"\x80\x02)"[..], &[0x85; 1 << 20], b"."].concat();
    let own_item = b"\x80\x02]q\0h\0a.";
    let own_key = b"\x80\x02}q\0h\0h\0s.";
    let cases: [(&[u8], &str); 14] = [
        (b"", "is truncated"),
        (b"\x80", "is truncated"),
        (b"\x80\x01.", "its protocol is not one of 2 to 5"),
        (b"\x80\x02.", "its stack is empty"),
        (b"\x80\x02t.", "it has no mark"),
        (b"\x80\x02(1t.", "it has no mark"),
        (b"\x80\x02X\xff\xff\xff\xffw.", "is truncated"),
        (
            b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xffw.",
            "is truncated",
        ),
        (b"\x80\x02X\x01\0\0\0\xff.", "a string is not UTF-8"),
        (
            b"\x80\x02j\xff\xff\xff\xff.",
            "it refers to a value that it has not stored",
        ),
        (
            b"\x80\x02K\x01K\x01R.",
            "it calls a value that is not a global",
        ),
        (
            b"\x80\x02K\x01]a.",
            "it appends to a value that is not a list",
        ),
        (b"\x80\x02ctorch\nSize", "it ends inside a line"),
        (
            b"\x80\x02}K\x01b(K\x01u.",
            "it sets items of a value that is not a dict",
        ),
    ];
    for (pickle, expected) in cases {
        let error = pickled(pickle).unwrap_err();
        assert!(error.contains(expected), "{pickle:?}: {error}");
    }
    for pickle in [&deep[..], &nested, own_item] {
        let error = pickled(pickle).unwrap_err();
        assert_eq!(error, "its pickle has no dict of tensors");
    }
    assert_eq!(
        pickled(own_key).unwrap_err(),
        "its pickle has no names of tensors"
    );
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
    assert_eq!(
        tensor(b"K\0", b"K\x02\x85", b"K\x01\x85").as_deref(),
        Ok(DATA)
    );
    assert_eq!(tensor(b"K\x01", b")", b")").as_deref(), Ok(&DATA[4..]));
    let repeated = tensor(b"K\x01", b"K\x02\x85", b"K\0\x85");
    assert_eq!(
        repeated.as_deref(),
        Ok(&[&DATA[4..], &DATA[4..]].concat()[..])
    );
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
        (
            b"K\0",
            &[&large[..], large, b"\x86"].concat(),
            b"K\x01K\x01\x86",
        ),
    ] {
        assert!(
            tensor(offset, shape, strides).is_err(),
            "{offset:?} {shape:?} {strides:?}"
        );
    }
}
