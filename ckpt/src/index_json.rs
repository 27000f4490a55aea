//! The JSON of an index, parsed and checked in one pass.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;

use meshgrad_error::{Error, bail, error};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::Number;

use crate::json::{Skip, Text};
use crate::limits::MAX_DEPTH;
use crate::names::{check_file_name, check_tensor_name};

/// An index as parsed, with duplicate names.
#[derive(Default)]
pub(crate) struct RawIndex<'json> {
    pub(crate) total_size: Option<u64>,
    pub(crate) files: Files<'json>,
    /// Each tensor with its file's number.
    pub(crate) file_of: Vec<(Cow<'json, str>, usize)>,
}

/// Files with their numbers, which follow the order of first use.
#[derive(Default)]
pub(crate) struct Files<'json> {
    pub(crate) numbers: BTreeMap<Cow<'json, str>, usize>,
    /// Tensors of one file are usually adjacent.
    previous: Option<(Cow<'json, str>, usize)>,
}

impl<'json> Files<'json> {
    fn number(&mut self, file: Cow<'json, str>) -> Result<usize, Error> {
        if let Some((_, number)) = self.previous.as_ref().filter(|(name, _)| *name == file) {
            return Ok(*number);
        }
        if let Err(problem) = check_file_name(&file) {
            bail!(Malformed, "invalid file name `{}`: {problem}", file.escape_debug());
        }

        let next = self.numbers.len();
        let number = *self.numbers.entry(file.clone()).or_insert(next);
        self.previous = Some((file, number));
        Ok(number)
    }
}

/// Parses an index of at most `limit` tensors.
pub(crate) fn read(text: &str, limit: usize) -> Result<RawIndex<'_>, Error> {
    let reader = Reader { limit, broken: Cell::new(None), too_deep: Cell::new(false) };

    let mut json = serde_json::Deserializer::from_str(text);
    let read =
        json.deserialize_map(IndexVisitor(&reader)).and_then(|index| json.end().map(|()| index));

    read.map_err(|problem| match reader.broken.take() {
        Some(broken) => broken,
        None if reader.too_deep.get() => {
            error!(Malformed, "it has values nested more than {MAX_DEPTH} levels deep")
        }
        None => error!(Malformed, "{problem}"),
    })
}

/// The state that all visitors share.
struct Reader {
    limit: usize,
    /// The problem that stopped the parser. It is kept here, because serde's errors are text.
    broken: Cell<Option<Error>>,
    too_deep: Cell<bool>,
}

impl Reader {
    fn refuse<E: serde::de::Error>(&self, problem: Error) -> E {
        self.broken.set(Some(problem));
        E::custom("rejected")
    }

    /// Skips a value inside `depth` objects.
    fn skip(&self, depth: usize) -> Skip<'_> {
        Skip { room: MAX_DEPTH - depth, too_deep: &self.too_deep }
    }
}

struct IndexVisitor<'a>(&'a Reader);

impl<'de> Visitor<'de> for IndexVisitor<'_> {
    type Value = RawIndex<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with `weight_map`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawIndex<'de>, A::Error> {
        let mut index = None;
        let mut total_size = None;

        while let Some(key) = map.next_key_seed(Text)? {
            match key.as_ref() {
                "weight_map" => {
                    let read = map.next_value_seed(WeightMap(self.0))?;
                    if index.replace(read).is_some() {
                        return Err(A::Error::duplicate_field("weight_map"));
                    }
                }
                "metadata" => {
                    let read = map.next_value_seed(Metadata(self.0))?;
                    if total_size.replace(read).is_some() {
                        return Err(A::Error::duplicate_field("metadata"));
                    }
                }
                _ => map.next_value_seed(self.0.skip(1))?,
            }
        }

        let index: RawIndex<'de> = index.ok_or_else(|| A::Error::missing_field("weight_map"))?;
        Ok(RawIndex { total_size: total_size.flatten(), ..index })
    }
}

struct WeightMap<'a>(&'a Reader);

impl<'de> DeserializeSeed<'de> for WeightMap<'_> {
    type Value = RawIndex<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for WeightMap<'_> {
    type Value = RawIndex<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object that gives each tensor's file")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawIndex<'de>, A::Error> {
        let reader = self.0;
        let mut index = RawIndex::default();

        while let Some(name) = map.next_key_seed(Text)? {
            let file = map.next_value_seed(Text)?;

            if index.file_of.len() == reader.limit {
                let limit = reader.limit;
                return Err(reader.refuse(error!(Malformed, "it names more than {limit} tensors")));
            }
            if let Err(problem) = check_tensor_name(&name) {
                let name = name.escape_debug();
                let problem = error!(Malformed, "invalid tensor name `{name}`: {problem}");
                return Err(reader.refuse(problem));
            }

            let number = index.files.number(file);
            let number = number.map_err(|problem| reader.refuse(problem))?;
            index.file_of.push((name, number));
        }
        Ok(index)
    }
}

/// The index's `total_size`, if it is a number of bytes; `null` counts as none.
struct Metadata<'a>(&'a Reader);

impl<'de> DeserializeSeed<'de> for Metadata<'_> {
    type Value = Option<u64>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for Metadata<'_> {
    type Value = Option<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with `total_size`")
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut total_size = None;
        while let Some(key) = map.next_key_seed(Text)? {
            if key == "total_size" {
                let number: Option<Number> = map.next_value()?;
                if total_size.replace(number).is_some() {
                    return Err(A::Error::duplicate_field("total_size"));
                }
            } else {
                map.next_value_seed(self.0.skip(2))?;
            }
        }
        Ok(total_size.flatten().and_then(|number| bytes(&number)))
    }
}

/// A number as bytes. Some writers store a float, which is ignored unless it is a whole number.
fn bytes(number: &Number) -> Option<u64> {
    number.as_u64().or_else(|| {
        let value = number.as_f64()?;
        let whole = value.fract() == 0.0 && (0.0..u64::MAX as f64).contains(&value);
        whole.then_some(value as u64)
    })
}
