//! The JSON of a header, parsed and checked in one pass.
//!
//! Entries go into a list: a map type would silently keep the last of two equal keys.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;

use meshgrad_error::{Error, error};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use crate::header_entry::{Entries, Entry, check_entry};
use crate::json::{Skip, Text};
use crate::limits::{MAX_DEPTH, MAX_DIMS};
use crate::names::METADATA_KEY;

/// Parses a header whose tensors share `data_len` bytes; their ranges stay relative to the data.
pub(crate) fn read(text: &str, data_len: u64) -> Result<Entries, Error> {
    let reader = Reader { data_len, broken: Cell::new(None), too_deep: Cell::new(false) };

    let mut json = serde_json::Deserializer::from_str(text);
    let read = json
        .deserialize_map(HeaderVisitor(&reader))
        .and_then(|entries| json.end().map(|()| entries));

    read.map_err(|problem| {
        let broken = reader.broken.take();
        broken.unwrap_or_else(|| error!(Malformed, "its header cannot be parsed: {problem}"))
    })
}

/// The state that all visitors share.
struct Reader {
    data_len: u64,
    /// The violated rule that stopped the parser. It is kept here, because serde's errors are text.
    broken: Cell<Option<Error>>,
    too_deep: Cell<bool>,
}

impl Reader {
    fn refuse<E: serde::de::Error>(&self, problem: Error) -> E {
        self.broken.set(Some(problem));
        E::custom("rejected")
    }

    fn refuse_twice<E: serde::de::Error>(&self, key: &str) -> E {
        let key = key.escape_debug();
        self.refuse(error!(Malformed, "its metadata has the key `{key}` twice"))
    }
}

struct HeaderVisitor<'a>(&'a Reader);

impl<'de> Visitor<'de> for HeaderVisitor<'_> {
    type Value = Entries;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
        let mut tensors = Vec::new();
        let mut metadata = None;

        while let Some(key) = map.next_key::<String>()? {
            if key == METADATA_KEY {
                let pairs = map.next_value_seed(Metadata(self.0));
                let pairs = pairs.map_err(|error| named(&key, error))?;
                if metadata.replace(pairs).is_some() {
                    return Err(self.0.refuse_twice(&key));
                }
                continue;
            }

            match map.next_value_seed(EntryVisitor(self.0)) {
                Ok(entry) => {
                    let tensor = check_entry(key, entry, self.0.data_len);
                    tensors.push(tensor.map_err(|problem| self.0.refuse(problem))?);
                }
                Err(_) if self.0.too_deep.get() => {
                    return Err(self.0.refuse(error!(
                        Malformed,
                        "tensor `{}` has values nested more than {MAX_DEPTH} levels deep",
                        key.escape_debug()
                    )));
                }
                Err(error) => return Err(named(&key, error)),
            }
        }
        Ok((tensors, metadata.unwrap_or_default()))
    }
}

/// Adds the name of the entry to the error.
fn named<E: serde::de::Error>(key: &str, error: E) -> E {
    E::custom(format_args!("`{}`: {error}", key.escape_debug()))
}

/// A tensor's entry; unknown fields are skipped, as in the reference crate.
struct EntryVisitor<'a>(&'a Reader);

impl<'de> DeserializeSeed<'de> for EntryVisitor<'_> {
    type Value = Entry<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Entry<'de>, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for EntryVisitor<'_> {
    type Value = Entry<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with `dtype`, `shape` and `data_offsets`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entry<'de>, A::Error> {
        let mut dtype = None;
        let mut shape = None;
        let mut offsets = None;
        let skip = Skip { room: MAX_DEPTH - 2, too_deep: &self.0.too_deep };

        while let Some(key) = map.next_key_seed(Text)? {
            match key.as_ref() {
                "dtype" => set_once(&mut dtype, map.next_value_seed(Text)?, "dtype")?,
                "shape" => set_once(&mut shape, map.next_value_seed(Shape)?, "shape")?,
                "data_offsets" => set_once(&mut offsets, map.next_value()?, "data_offsets")?,
                _ => map.next_value_seed(skip)?,
            }
        }

        let missing = A::Error::missing_field;
        let (shape, dims) = shape.ok_or_else(|| missing("shape"))?;
        let (begin, end) = offsets.ok_or_else(|| missing("data_offsets"))?;
        Ok(Entry { dtype: dtype.ok_or_else(|| missing("dtype"))?, shape, dims, begin, end })
    }
}

fn set_once<T, E: serde::de::Error>(
    field: &mut Option<T>,
    value: T,
    name: &'static str,
) -> Result<(), E> {
    match field.replace(value) {
        None => Ok(()),
        Some(_) => Err(E::duplicate_field(name)),
    }
}

/// The first [`MAX_DIMS`] extents, and the number of extents.
struct Shape;

impl<'de> DeserializeSeed<'de> for Shape {
    type Value = (Vec<usize>, usize);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Shape {
    type Value = (Vec<usize>, usize);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of extents")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut shape = Vec::new();
        let mut dims = 0;
        while let Some(extent) = seq.next_element()? {
            if dims < MAX_DIMS {
                shape.push(extent);
            }
            dims += 1;
        }
        Ok((shape, dims))
    }
}

/// The strings of `__metadata__`; `null` counts as none.
struct Metadata<'a>(&'a Reader);

impl<'de> DeserializeSeed<'de> for Metadata<'_> {
    type Value = BTreeMap<String, String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for Metadata<'_> {
    type Value = BTreeMap<String, String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<Self::Value, E> {
        Ok(BTreeMap::new())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut pairs = BTreeMap::new();
        while let Some((key, value)) = map.next_entry::<String, String>()? {
            if pairs.contains_key(&key) {
                return Err(self.0.refuse_twice(&key));
            }
            pairs.insert(key, value);
        }
        Ok(pairs)
    }
}
