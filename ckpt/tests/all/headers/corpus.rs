//! More than 200 files, each with its expected verdict.

use crate::headers::Expected::{Read, Rejected, Stricter};
use crate::headers::{Probe, file_of};

/// More levels than any stack can hold. Fewer under Miri, which is slow.
const MANY: usize = if cfg!(miri) { 1_000 } else { 100_000 };

/// Not JSON of the expected form.
const JSON: crate::headers::Expected = Rejected("Json");

/// A probe of a header with `data` zero bytes after it.
fn probe(
    what: &str,
    header: impl AsRef<[u8]>,
    data: usize,
    expected: crate::headers::Expected,
) -> Probe {
    Probe { what: what.to_owned(), bytes: file_of(header.as_ref(), &vec![0; data]), expected }
}

/// A header of one tensor, `w`.
fn one(dtype: &str, shape: &str, offsets: &str) -> String {
    format!("{{{}}}", entry("w", dtype, shape, offsets))
}

/// An entry whose name is given as JSON without quotes.
fn entry(name: &str, dtype: &str, shape: &str, offsets: &str) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}"#)
}

/// A header of `U8` tensors, each with its name, length and offsets.
fn bytes(entries: &[(&str, usize, &str)]) -> String {
    let entry = |&(name, len, offsets): &(&str, usize, &str)| {
        entry(name, "U8", &format!("[{len}]"), offsets)
    };
    format!("{{{}}}", entries.iter().map(entry).collect::<Vec<_>>().join(","))
}

/// A header of one `U8` tensor, `w`, with more fields.
fn with_fields(fields: &str) -> String {
    format!(r#"{{"w":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]{fields}}}}}"#)
}

/// The length field, and files that are shorter or longer than it says.
#[rustfmt::skip]
fn lengths() -> Vec<Probe> {
    let mut probes: Vec<Probe> = (0..8)
        .map(|len| Probe {
            what: format!("a file of {len} bytes"),
            bytes: vec![0; len],
            expected: Rejected("TooShort"),
        })
        .collect();

    let lengths = [
        ("no header", 0, Rejected("NotAnObject")),
        ("the header is truncated by one byte", 1, JSON),
        ("the header's last byte counts as data", 9, Rejected("TrailingBytes")),
        ("a header of its exact length", 10, Read),
        ("the header is one byte too long", 11, Rejected("HeaderBeyondFile")),
        ("the largest header", 100_000_000, Rejected("HeaderBeyondFile")),
        ("one byte more than the largest", 100_000_001, Rejected("HeaderTooLarge")),
        ("a length of 31 bits", i32::MAX as u64, Rejected("HeaderTooLarge")),
        ("a length of 32 bits", u32::MAX as u64, Rejected("HeaderTooLarge")),
        ("a length of 63 bits", i64::MAX as u64, Rejected("HeaderTooLarge")),
        ("a length that wraps to 0 with the prefix", u64::MAX - 7, Rejected("HeaderTooLarge")),
        ("a length of 64 bits", u64::MAX, Rejected("HeaderTooLarge")),
        ("written with its bytes reversed", 10u64.swap_bytes(), Rejected("BigEndian")),
    ];
    probes.extend(lengths.map(|(what, len, expected)| Probe {
        what: what.to_owned(),
        bytes: [&len.to_le_bytes()[..], b"{}       \n"].concat(),
        expected,
    }));

    let whole = file_of(one("F32", "[2]", "[0,8]").as_bytes(), &[0; 8]);
    probes.push(Probe {
        what: "a file inside a file".to_owned(),
        bytes: [&whole[..], &whole[..]].concat(),
        expected: Rejected("TrailingBytes"),
    });
    probes.push(Probe {
        what: "an archive follows".to_owned(),
        bytes: [&whole[..], b"PK\x03\x04"].concat(),
        expected: Rejected("TrailingBytes"),
    });
    probes
}

/// Bytes before and after the object, and headers that are not objects.
#[rustfmt::skip]
fn frames() -> Vec<Probe> {
    let spaces = ["{", "}", "[", "]", ":", ","]
        .iter()
        .fold(with_fields(""), |header, mark| header.replace(mark, &format!(" \t{mark}\r\n")));
    let spaces = spaces.trim_start();
    vec![
        probe("an empty header", "{}", 0, Read),
        probe("spaces after it", "{}      ", 0, Read),
        probe("all of JSON's white space after it", "{} \t\r\n", 0, Read),
        probe("a space before", " {}", 0, Stricter("NotAnObject")),
        probe("a newline before", "\n{}", 0, Stricter("NotAnObject")),
        probe("a tab before", "\t{}", 0, Stricter("NotAnObject")),
        probe("a NUL before", "\0{}", 0, Rejected("NotAnObject")),
        probe("a byte order mark before", "\u{feff}{}", 0, Rejected("NotAnObject")),
        probe("a comment before", "/**/{}", 0, Rejected("NotAnObject")),
        probe("an array", "[]", 0, Rejected("NotAnObject")),
        probe("a string", r#""w""#, 0, Rejected("NotAnObject")),
        probe("a number", "1", 0, Rejected("NotAnObject")),
        probe("null", "null", 0, Rejected("NotAnObject")),
        probe("only spaces", "        ", 0, Rejected("NotAnObject")),
        probe("an HTML page", "<!DOCTYPE html>", 0, Rejected("NotAnObject")),
        probe("a pickle", b"\x80\x02}q\x00.", 0, Rejected("NotAnObject")),
        probe("a NUL after it", "{}\0", 0, JSON),
        probe("a letter after it", "{}x", 0, JSON),
        probe("a second object after it", "{}{}", 0, JSON),
        probe("a comma after it", "{},", 0, JSON),
        probe("a comment after it", "{}//", 0, JSON),
        probe("a form feed after it", "{}\x0c", 0, JSON),
        probe("a no-break space after it", "{}\u{a0}", 0, JSON),
        probe("an open object", "{", 0, JSON),
        probe("a closed array", "{]", 0, JSON),
        probe("a comma before the first entry", "{,}", 0, JSON),
        probe("a name without a value", r#"{"w"}"#, 0, JSON),
        probe("a name and a colon", r#"{"w":}"#, 0, JSON),
        probe("a name without quotes", "{w:{}}", 0, JSON),
        probe("a name in single quotes", "{'w':{}}", 0, JSON),
        probe("a number as a name", "{1:{}}", 0, JSON),
        probe("a comma after the last entry", with_fields("").replace("}}", "},}"), 1, JSON),
        probe("a comma after the last field", with_fields(","), 1, JSON),
        probe("a comma after the last extent", one("U8", "[1,]", "[0,1]"), 1, JSON),
        probe("a semicolon between fields", with_fields(r#";"x":1"#), 1, JSON),
        probe("white space wherever it is allowed", spaces, 1, Read),
        probe("a vertical tab between entries", "{\x0b}", 0, JSON),
        probe("a byte that is never UTF-8", b"{\"\xff\":1}", 0, Rejected("NotUtf8")),
        probe("a truncated character", b"{\"\xe2\x82\":1}", 0, Rejected("NotUtf8")),
        probe("a NUL of two bytes", b"{\"\xc0\x80\":1}", 0, Rejected("NotUtf8")),
        probe("a surrogate as three bytes", b"{\"\xed\xa0\x80\":1}", 0, Rejected("NotUtf8")),
        probe("UTF-16", b"{\0}\0", 0, JSON),
    ]
}

/// The content of an entry.
#[rustfmt::skip]
fn entries() -> Vec<Probe> {
    vec![
        probe("fields in another order",
            r#"{"w":{"data_offsets":[0,1],"shape":[1],"dtype":"U8"}}"#, 1, Read),
        probe("names of fields with escapes",
            r#"{"w":{"\u0064type":"U8","sh\u0061pe":[1],"data_offsets":[0,1]}}"#, 1, Read),
        probe("an unknown field", with_fields(r#","x":1"#), 1, Read),
        probe("an unknown field of every kind",
            with_fields(r#","x":[null,true,-1,1.5e3,"é\n",{"y":{}}]"#), 1, Read),
        probe("an unknown field twice", with_fields(r#","x":1,"x":2"#), 1, Read),
        probe("an unknown field without a name", with_fields(r#","":1"#), 1, Read),
        probe("names of fields are case-sensitive", with_fields(r#","DTYPE":"X""#), 1, Read),
        probe("a number", r#"{"w":1}"#, 0, JSON),
        probe("a string", r#"{"w":"U8"}"#, 0, JSON),
        probe("null", r#"{"w":null}"#, 0, JSON),
        probe("true", r#"{"w":true}"#, 0, JSON),
        probe("an empty object", r#"{"w":{}}"#, 0, JSON),
        probe("an empty array", r#"{"w":[]}"#, 0, JSON),
        probe("the fields as an array",
            r#"{"w":["U8",[1],[0,1]]}"#, 1, Stricter("Json: entry as an array")),
        probe("no dtype", r#"{"w":{"shape":[1],"data_offsets":[0,1]}}"#, 1, JSON),
        probe("no shape", r#"{"w":{"dtype":"U8","data_offsets":[0,1]}}"#, 1, JSON),
        probe("no offsets", r#"{"w":{"dtype":"U8","shape":[1]}}"#, 1, JSON),
        probe("dtype twice", with_fields(r#","dtype":"U8""#), 1, JSON),
        probe("shape twice", with_fields(r#","shape":[1]"#), 1, JSON),
        probe("offsets twice", with_fields(r#","data_offsets":[0,1]"#), 1, JSON),
        probe("dtype twice, once with an escape", with_fields(r#","\u0064type":"U8""#), 1, JSON),
        probe("a bad number in an unknown field", with_fields(r#","x":01"#), 1, JSON),
        probe("a number too large for a float in an unknown field",
            with_fields(r#","x":1e999"#), 1, JSON),
        probe("NaN in an unknown field", with_fields(r#","x":NaN"#), 1, JSON),
        probe("half a surrogate in an unknown field", with_fields(r#","x":"\ud800""#), 1, JSON),
        probe("half a surrogate in the name of an unknown field",
            with_fields(r#","\udfff":1"#), 1, JSON),
        probe("a control character in an unknown field", with_fields(",\"x\":\"\n\""), 1, JSON),
        probe("an unknown escape", with_fields(r#","x":"\x41""#), 1, JSON),
    ]
}

/// Extents and offsets are whole numbers of 64 bits.
#[rustfmt::skip]
fn numbers() -> Vec<Probe> {
    let shape = |what: &str, shape, expected| {
        let what = format!("shape: {what}");
        probe(&what, one("U8", shape, "[0,1]"), 1, expected)
    };
    let offsets = |what: &str, offsets, expected| {
        let what = format!("offsets: {what}");
        probe(&what, one("U8", "[1]", offsets), 1, expected)
    };
    vec![
        shape("a scalar", "[]", Read),
        shape("many ones", "[1,1,1,1,1,1,1,1]", Read),
        shape("a float", "[1.0]", JSON),
        shape("an exponent", "[1e0]", JSON),
        shape("a negative", "[-1]", JSON),
        shape("minus zero", "[-0]", JSON),
        shape("a plus sign", "[+1]", JSON),
        shape("a leading zero", "[01]", JSON),
        shape("hexadecimal", "[0x1]", JSON),
        shape("2^64", "[18446744073709551616]", JSON),
        shape("a hundred digits", &format!("[{}]", "9".repeat(100)), JSON),
        shape("a string", r#"["1"]"#, JSON),
        shape("null for an extent", "[null]", JSON),
        shape("true", "[true]", JSON),
        shape("an array in it", "[[1]]", JSON),
        shape("a number", "1", JSON),
        shape("null", "null", JSON),
        shape("an object", "{}", JSON),
        offsets("none", "[]", JSON),
        offsets("one", "[0]", JSON),
        offsets("three", "[0,1,1]", JSON),
        offsets("a float", "[0.0,1]", JSON),
        offsets("a negative", "[-1,0]", JSON),
        offsets("minus zero", "[-0,1]", JSON),
        offsets("2^64", "[0,18446744073709551616]", JSON),
        offsets("a string", r#"["0","1"]"#, JSON),
        offsets("an object", r#"{"0":0,"1":1}"#, JSON),
        offsets("null", "null", JSON),
    ]
}

/// Tensor names.
#[rustfmt::skip]
fn names() -> Vec<Probe> {
    let name = |what: &str, name: &str, expected| {
        let what = format!("name: {what}");
        probe(&what, bytes(&[(name, 1, "[0,1]")]), 1, expected)
    };
    vec![
        name("a path", "model/layers/0/w", Read),
        name("dots at its end", "w..", Read),
        name("three dots", "...", Read),
        name("a space", " ", Read),
        name("a control character as an escape", r"\u001b[2J", Read),
        name("a character of four bytes", "\u{1f980}", Read),
        name("a pair of surrogates", r"\ud83e\udd80", Read),
        name("a byte order mark", "\u{feff}", Read),
        name("text from right to left", "\u{202e}w", Read),
        name("quotes", r#"\"w\""#, Read),
        name("64 KiB", &"w".repeat(1 << 16), Read),
        name("empty", "", Stricter("TensorName Empty")),
        name("a NUL as an escape", r"a\u0000b", Stricter("TensorName Nul")),
        name("the parent folder", "..", Stricter("TensorName ParentFolder")),
        name("a file far above", "../../etc/passwd", Stricter("TensorName ParentFolder")),
        name("the parent in the middle", "a/../b", Stricter("TensorName ParentFolder")),
        name("the parent at the end", "a/..", Stricter("TensorName ParentFolder")),
        name("the parent with backslashes", r"a\\..\\b", Stricter("TensorName ParentFolder")),
        name("the parent with escapes",
            r"\u002e\u002e\u002fw", Stricter("TensorName ParentFolder")),
        name("a literal NUL", "\0", JSON),
        name("a literal newline", "a\nb", JSON),
        name("half a surrogate", r"\ud800", JSON),
        name("surrogates in the wrong order", r"\udd80\ud83e", JSON),
        name("a truncated escape", r"\u00", JSON),
        name("an unknown escape", r"\a", JSON),
    ]
}

/// Duplicate names.
#[rustfmt::skip]
fn duplicates() -> Vec<Probe> {
    let twice = |first, second| bytes(&[(first, 1, "[0,1]"), (second, 2, "[0,2]")]);
    let next = |first, second| bytes(&[(first, 1, "[0,1]"), (second, 1, "[1,2]")]);
    vec![
        probe("two tensors of one name", twice("w", "w"), 2, Stricter("DuplicateTensor")),
        probe("one of them with an escape", twice("w", r"\u0077"), 2, Stricter("DuplicateTensor")),
        probe("the second after the first", next("w", "w"), 2, Rejected("DuplicateTensor")),
        probe("the same entry twice",
            bytes(&[("w", 1, "[0,1]"), ("w", 1, "[0,1]")]), 1, Stricter("DuplicateTensor")),
        probe("the second covers what the first does not",
            bytes(&[("w", 9, "[1,10]"), ("w", 1, "[0,1]")]), 1, Stricter("DuplicateTensor")),
        probe("composed and decomposed letters differ", next("\u{e9}", "e\u{301}"), 2, Read),
        probe("small and capital letters differ", next("w", "W"), 2, Read),
    ]
}

/// The header's metadata.
#[rustfmt::skip]
fn metadata() -> Vec<Probe> {
    let metadata = |what: &str, value: &str, expected| {
        let what = format!("metadata: {what}");
        probe(&what, format!(r#"{{"__metadata__":{value}}}"#), 0, expected)
    };
    vec![
        metadata("strings", r#"{"format":"pt","":""}"#, Read),
        metadata("none", "{}", Read),
        metadata("null", "null", Read),
        metadata("a NUL as an escape", r#"{"\u0000":"\u0000"}"#, Read),
        metadata("a key twice", r#"{"a":"1","a":"2"}"#, Stricter("DuplicateMetadata")),
        metadata("a number", r#"{"a":1}"#, JSON),
        metadata("null for a string", r#"{"a":null}"#, JSON),
        metadata("an object in it", r#"{"a":{}}"#, JSON),
        metadata("an array", "[]", JSON),
        metadata("a string", r#""pt""#, JSON),
        metadata("half a surrogate", r#"{"a":"\ud800"}"#, JSON),
        metadata("twice", r#"{},"__metadata__":{}"#, Rejected("DuplicateMetadata")),
        metadata("twice, once with an escape",
            r#"{},"\u005f_metadata__":{}"#, Rejected("DuplicateMetadata")),
        metadata("like a tensor", r#"{"dtype":"U8","shape":[1],"data_offsets":[0,1]}"#, JSON),
    ]
}

/// Each of the 22 element types, and unknown ones.
#[rustfmt::skip]
fn dtypes() -> Vec<Probe> {
    let sizes = "BOOL 8 F4 4 F6_E2M3 6 F6_E3M2 6 U8 8 I8 8 F8_E5M2 8 F8_E4M3 8 F8_E8M0 8 \
                 F8_E4M3FNUZ 8 F8_E5M2FNUZ 8 I16 16 U16 16 F16 16 BF16 16 I32 32 U32 32 F32 32 \
                 C64 64 F64 64 I64 64 U64 64";
    let words: Vec<&str> = sizes.split(' ').collect();

    // Four elements of any dtype fill whole bytes.
    let mut probes: Vec<Probe> = words
        .chunks(2)
        .map(|pair| {
            let len = pair[1].parse::<usize>().unwrap() / 2;
            let header = one(pair[0], "[2,2]", &format!("[0,{len}]"));
            probe(&format!("four of {}", pair[0]), header, len, Read)
        })
        .collect();

    for unknown in ["F33", "f32", "F32 ", "FP32", "torch.float32", "C128", "", "U128"] {
        let header = one(unknown, "[1]", "[0,4]");
        probes.push(probe(&format!("dtype `{unknown}`"), header, 4, Rejected("UnknownDtype")));
    }

    let form = |form: &str| {
        format!(r#"{{"w":{{"dtype":{form},"shape":[1],"data_offsets":[0,1]}}}}"#)
    };
    probes.extend([
        probe("a dtype with an escape", one(r"U\u0038", "[1]", "[0,1]"), 1, Read),
        probe("a number as a dtype", form("4"), 1, JSON),
        probe("null as a dtype", form("null"), 1, JSON),
        probe("an array as a dtype", form(r#"["U8"]"#), 1, JSON),
        probe("an object as a dtype",
            form(r#"{"U8":null}"#), 1, Stricter("Json: dtype as an object")),
    ]);
    probes
}

/// Dtype and shape must match the offsets.
#[rustfmt::skip]
fn sizes() -> Vec<Probe> {
    let size = |what: &str, (dtype, shape, offsets): (&str, &str, &str), data, expected| {
        probe(what, one(dtype, shape, offsets), data, expected)
    };
    vec![
        size("no elements, because one extent is 0",
            ("F32", "[0,18446744073709551615]", "[0,0]"), 0, Read),
        size("an extent of 0 after extents that overflow",
            ("U8", "[4294967296,4294967296,0]", "[0,0]"), 0, Rejected("Overflow")),
        size("elements fit, their bits do not",
            ("F64", "[2305843009213693952]", "[0,0]"), 0, Rejected("Overflow")),
        size("elements do not fit",
            ("U8", "[4294967296,4294967296]", "[0,0]"), 0, Rejected("Overflow")),
        size("the bytes would wrap to the right size",
            ("U8", "[18446744073709551615,18446744073709551615]", "[0,1]"), 1, Rejected("Overflow")),
        size("half a byte", ("F4", "[1]", "[0,1]"), 1, Rejected("PartOfAByte")),
        size("a byte and a half", ("F4", "[3]", "[0,2]"), 2, Rejected("PartOfAByte")),
        size("three quarters of a byte", ("F6_E3M2", "[1]", "[0,1]"), 1, Rejected("PartOfAByte")),
        size("one byte too few", ("F32", "[1]", "[0,3]"), 3, Rejected("WrongSize")),
        size("one byte too many", ("F32", "[1]", "[0,5]"), 5, Rejected("WrongSize")),
        size("elements and no bytes", ("F32", "[1]", "[0,0]"), 0, Rejected("WrongSize")),
        size("bytes and no elements", ("F32", "[0]", "[0,4]"), 4, Rejected("WrongSize")),
        size("another dtype's size", ("BF16", "[2]", "[0,8]"), 8, Rejected("WrongSize")),
        size("the offsets run backwards", ("U8", "[1]", "[1,0]"), 1, Rejected("Backwards")),
        size("the offsets run backwards over all",
            ("U8", "[1]", "[18446744073709551615,0]"), 1, Rejected("Backwards")),
        size("64 dims", ("U8", &format!("[{}1]", "1,".repeat(63)), "[0,1]"), 1, Read),
        size("65 dims",
            ("U8", &format!("[{}1]", "1,".repeat(64)), "[0,1]"), 1, Stricter("TooManyDims")),
        size("65 dims of which one is not a number",
            ("U8", &format!("[{}x]", "1,".repeat(64)), "[0,1]"), 1, JSON),
    ]
}

/// Every byte of the data belongs to one tensor.
#[rustfmt::skip]
fn coverage() -> Vec<Probe> {
    let two = |what: &str, first, second, data, expected| {
        probe(what, bytes(&[("v", 2, first), ("w", 2, second)]), data, expected)
    };
    let odd_floats = format!(
        "{{{},{}}}",
        entry("v", "U8", "[1]", "[0,1]"),
        entry("w", "F32", "[1]", "[1,5]")
    );
    let with_empty = |what: &str, offsets, expected| {
        probe(what, bytes(&[("v", 2, "[0,2]"), ("w", 0, offsets)]), 2, expected)
    };
    vec![
        two("one after the other", "[0,2]", "[2,4]", 4, Read),
        two("in the other order", "[2,4]", "[0,2]", 4, Read),
        two("bytes before the first", "[1,3]", "[3,5]", 5, Rejected("Hole")),
        two("bytes between them", "[0,2]", "[3,5]", 5, Rejected("Hole")),
        two("they share a byte", "[0,2]", "[1,3]", 3, Rejected("Overlap")),
        two("they share all bytes", "[0,2]", "[0,2]", 2, Rejected("Overlap")),
        two("a byte after the last", "[0,2]", "[2,4]", 5, Rejected("TrailingBytes")),
        two("the last is truncated", "[0,2]", "[2,4]", 3, Rejected("BeyondFile")),
        two("the data is missing", "[0,2]", "[2,4]", 0, Rejected("BeyondFile")),
        with_empty("an empty tensor at the start", "[0,0]", Read),
        with_empty("an empty tensor at the end", "[2,2]", Read),
        with_empty("an empty tensor inside another", "[1,1]", Rejected("Overlap")),
        with_empty("an empty tensor after the end", "[3,3]", Rejected("BeyondFile")),
        probe("data and no tensors", "{}", 1, Rejected("TrailingBytes")),
        probe("data and metadata", r#"{"__metadata__":{}}"#, 1, Rejected("TrailingBytes")),
        probe("offsets near 2^64",
            one("U8", "[2]", "[18446744073709551613,18446744073709551615]"),
            2, Rejected("BeyondFile")),
        probe("offsets that wrap when the header is added",
            one("U8", "[0]", "[18446744073709551615,18446744073709551615]"),
            0, Rejected("BeyondFile")),
        probe("floats that are not aligned", odd_floats, 5, Read),
    ]
}

/// Eight levels in total, of which a tensor's entry takes two.
#[rustfmt::skip]
fn nesting() -> Vec<Probe> {
    let arrays = |depth| format!(r#","x":{}{}"#, "[".repeat(depth), "]".repeat(depth));
    let objects = |depth| format!(r#","x":{}1{}"#, r#"{"y":"#.repeat(depth), "}".repeat(depth));
    vec![
        probe("six arrays in an unknown field", with_fields(&arrays(6)), 1, Read),
        probe("seven arrays", with_fields(&arrays(7)), 1, Stricter("TooDeep")),
        probe("six objects in an unknown field", with_fields(&objects(6)), 1, Read),
        probe("seven objects", with_fields(&objects(7)), 1, Stricter("TooDeep")),
        probe("countless arrays", with_fields(&arrays(MANY)), 1, Rejected("TooDeep")),
        probe("countless open arrays",
            with_fields(&format!(r#","x":{}"#, "[".repeat(MANY))), 1, Rejected("TooDeep")),
        probe("countless arrays as an entry", format!(r#"{{"w":{}"#, "[".repeat(MANY)), 0, JSON),
        probe("countless arrays as a shape", one("U8", &"[".repeat(MANY), "[0,1]"), 1, JSON),
        probe("countless objects", r#"{"w":"#.repeat(MANY), 0, Rejected("TooDeep")),
    ]
}

pub(crate) fn corpus() -> Vec<Probe> {
    [
        lengths(),
        frames(),
        entries(),
        numbers(),
        names(),
        duplicates(),
        metadata(),
        dtypes(),
        sizes(),
        coverage(),
        nesting(),
    ]
    .concat()
}
