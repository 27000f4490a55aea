//! The JSON of a header, as it stands: duplicates kept, nothing checked but its form.
//!
//! A map type would keep the last of two equal keys without a word; so entries go into lists.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::names::METADATA_KEY;

/// All entries of a header in the order of the file.
pub(crate) struct RawHeader {
    /// One element for each `__metadata__`.
    pub(crate) metadata: Vec<Vec<(String, String)>>,
    pub(crate) tensors: Vec<(String, RawTensor)>,
}

/// A tensor's entry; unknown fields are read over, as the reference does.
pub(crate) struct RawTensor {
    pub(crate) dtype: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) begin: u64,
    pub(crate) end: u64,
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RawHeader, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = RawHeader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
        let mut header = RawHeader {
            metadata: Vec::new(),
            tensors: Vec::new(),
        };

        while let Some(key) = map.next_key::<String>()? {
            let named = |error: A::Error| {
                A::Error::custom(format_args!("`{}`: {error}", key.escape_debug()))
            };

            if key == METADATA_KEY {
                let pairs: Option<Pairs<String>> = map.next_value().map_err(named)?;
                header
                    .metadata
                    .push(pairs.map(|pairs| pairs.0).unwrap_or_default());
            } else {
                let tensor = map.next_value().map_err(named)?;
                header.tensors.push((key, tensor));
            }
        }
        Ok(header)
    }
}

impl<'de> Deserialize<'de> for RawTensor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RawTensor, D::Error> {
        deserializer.deserialize_map(TensorVisitor)
    }
}

struct TensorVisitor;

impl<'de> Visitor<'de> for TensorVisitor {
    type Value = RawTensor;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with `dtype`, `shape` and `data_offsets`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawTensor, A::Error> {
        let mut dtype = None;
        let mut shape = None;
        let mut offsets = None;

        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "dtype" => set_once(&mut dtype, map.next_value()?, "dtype")?,
                "shape" => set_once(&mut shape, map.next_value()?, "shape")?,
                "data_offsets" => set_once(&mut offsets, map.next_value()?, "data_offsets")?,
                _ => {
                    map.next_value::<Skipped>()?;
                }
            }
        }

        let (begin, end) = offsets.ok_or_else(|| A::Error::missing_field("data_offsets"))?;
        Ok(RawTensor {
            dtype: dtype.ok_or_else(|| A::Error::missing_field("dtype"))?,
            shape: shape.ok_or_else(|| A::Error::missing_field("shape"))?,
            begin,
            end,
        })
    }
}

fn set_once<T, E: Error>(field: &mut Option<T>, value: T, name: &'static str) -> Result<(), E> {
    match field.replace(value) {
        None => Ok(()),
        Some(_) => Err(E::duplicate_field(name)),
    }
}

/// The pairs of an object in order, equal keys kept.
pub(crate) struct Pairs<T>(pub(crate) Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Pairs<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Pairs<T>, D::Error> {
        struct PairsVisitor<T>(std::marker::PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for PairsVisitor<T> {
            type Value = Pairs<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<T>, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }

        deserializer.deserialize_map(PairsVisitor(std::marker::PhantomData))
    }
}

/// Any value, checked and forgotten.
///
/// Not serde's `IgnoredAny`: that one accepts nesting, numbers and escapes that the reference,
/// which keeps the value for a moment, refuses.
pub(crate) struct Skipped;

impl<'de> Deserialize<'de> for Skipped {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Skipped, D::Error> {
        deserializer.deserialize_any(Skipped)
    }
}

impl<'de> Visitor<'de> for Skipped {
    type Value = Skipped;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E: Error>(self) -> Result<Skipped, E> {
        Ok(Skipped)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Skipped, E> {
        Ok(Skipped)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Skipped, E> {
        Ok(Skipped)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Skipped, E> {
        Ok(Skipped)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Skipped, E> {
        Ok(Skipped)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Skipped, E> {
        Ok(Skipped)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Skipped, A::Error> {
        while seq.next_element::<Skipped>()?.is_some() {}
        Ok(Skipped)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Skipped, A::Error> {
        while map.next_entry::<String, Skipped>()?.is_some() {}
        Ok(Skipped)
    }
}
