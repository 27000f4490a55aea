//! Comparison with the reference crate: one verdict per file.

use meshgrad_ckpt::{Error, Header, Kind};
use safetensors::SafeTensors;

/// The verdict of both crates on a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Both accept it, with the same content.
    Read,
    /// Both reject it; this crate for this rule.
    Rejected(String),
    /// Only this crate rejects it, for this rule.
    Stricter(String),
}

/// The rules that the reference lacks. The format's description requires the first byte and forbids
/// equal keys; an array instead of an object is an accident of the reference; the other rules
/// protect other programs that use the names.
pub(crate) const STRICTER: [&str; 10] = [
    "DuplicateMetadata",
    "DuplicateTensor",
    "Json: dtype as an object",
    "Json: entry as an array",
    "NotAnObject",
    "TensorName Empty",
    "TensorName Nul",
    "TensorName ParentFolder",
    "TooDeep",
    "TooManyDims",
];

/// The verdict on a file. Panics when this crate accepts a file that the reference rejects or
/// parses differently.
pub(crate) fn verdict(bytes: &[u8]) -> Verdict {
    let reference = SafeTensors::deserialize(bytes);

    match (Header::parse(bytes, bytes.len() as u64), reference) {
        (Ok(header), Ok(reference)) => {
            assert_same(&header, &reference, bytes);
            Verdict::Read
        }
        (Ok(header), Err(error)) => {
            panic!("the reference rejects an accepted header: {error}: {header:?}")
        }
        (Err(problem), Err(_)) => Verdict::Rejected(rule(&problem)),
        (Err(problem), Ok(reference)) => match entries(bytes) > reference.len() {
            // The reference checks only the last entry of a name; this crate checks all.
            true => Verdict::Stricter("DuplicateTensor".to_owned()),
            false => Verdict::Stricter(difference(&problem)),
        },
    }
}

fn assert_same(header: &Header, reference: &SafeTensors<'_>, bytes: &[u8]) {
    assert_eq!(reference.len(), header.tensors().len());
    for tensor in header.tensors() {
        let view = reference.tensor(&tensor.name).unwrap();
        let data = &bytes[tensor.range.start as usize..tensor.range.end as usize];

        assert_eq!(view.dtype().to_string(), tensor.dtype.name());
        assert_eq!(view.shape(), tensor.shape);
        assert_eq!(view.data(), data);
    }

    let (_, metadata) = SafeTensors::read_metadata(bytes).unwrap();
    let reference = metadata.metadata().clone().unwrap_or_default();
    assert_eq!(header.metadata(), &reference.into_iter().collect());
}

/// The number of entries in a header, including duplicates.
fn entries(bytes: &[u8]) -> usize {
    struct Count;

    impl<'de> serde::de::Visitor<'de> for Count {
        type Value = usize;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<usize, A::Error> {
            let mut count = 0;
            while let Some((key, _)) = map.next_entry::<String, serde::de::IgnoredAny>()? {
                count += usize::from(key != "__metadata__");
            }
            Ok(count)
        }
    }

    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut json = serde_json::Deserializer::from_slice(&bytes[8..8 + len]);
    serde::Deserializer::deserialize_map(&mut json, Count).unwrap()
}

/// The rules, each with a part of its message that no other rule has.
const RULES: [(&str, &str); 24] = [
    ("Json", "its header cannot be parsed: "),
    ("TooShort", "but the header's length alone has 8"),
    ("BigEndian", "with the bytes reversed"),
    ("HeaderTooLarge", "bytes, but the format allows 100000000; "),
    ("HeaderBeyondFile", " follow; it is truncated or not a safetensors file"),
    ("NotAnObject", "its header starts with "),
    ("NotUtf8", "its header is not UTF-8 at byte "),
    ("DuplicateMetadata", "its metadata has the key "),
    ("DuplicateTensor", "two tensors have the name "),
    ("TensorName Empty", "`: it is empty"),
    ("TensorName Nul", "`: it contains a NUL character"),
    ("TensorName ParentFolder", "`: it has a component `..`"),
    ("TensorName Reserved", "`: `__metadata__` is reserved for the header"),
    ("UnknownDtype", " has the unknown dtype "),
    ("TooDeep", " has values nested more than "),
    ("TooManyDims", " dims, but at most "),
    ("Overflow", " has more bytes than fit in 64 bits"),
    ("PartOfAByte", " bits, which is not a whole number of bytes"),
    ("Backwards", " but ends earlier, at byte "),
    ("WrongSize", " bytes, but its offsets span "),
    ("BeyondFile", " bytes; the file is truncated"),
    ("Hole", ", belong to no tensor"),
    ("Overlap", " of the data, before `"),
    ("TrailingBytes", " bytes follow its last tensor, "),
];

/// The name of a rule in the tables.
fn rule(problem: &Error) -> String {
    assert_eq!(problem.kind(), Kind::Malformed, "{problem}");
    let message = problem.to_string();
    let rules: Vec<&str> =
        RULES.iter().filter(|(_, part)| message.contains(part)).map(|(name, _)| *name).collect();
    assert!(rules.len() <= 1, "{rules:?}: {message}");
    rules.first().map_or(message, |name| (*name).to_owned())
}

/// The name of a difference: two forms of JSON that only the reference accepts.
fn difference(problem: &Error) -> String {
    let message = problem.to_string();
    match rule(problem) {
        json if json == "Json" && message.contains("sequence, expected an object with") => {
            "Json: entry as an array".to_owned()
        }
        json if json == "Json" && message.contains("map, expected a string") => {
            "Json: dtype as an object".to_owned()
        }
        other => other,
    }
}
