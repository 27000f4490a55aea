//! Parts of the header and index parsers: skipped values and borrowed strings.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::limits::MAX_DEPTH;

/// Checks and discards any value.
///
/// Serde's `IgnoredAny` is not suitable: it accepts nesting, numbers and escapes that the reference
/// crate rejects when it stores the value temporarily.
#[derive(Clone, Copy)]
pub(crate) struct Skip<'a> {
    /// Levels of nesting that are still allowed.
    pub(crate) room: usize,
    /// Set when nesting exceeds `room`. It is kept here, because serde's errors are text.
    pub(crate) too_deep: &'a Cell<bool>,
}

impl Skip<'_> {
    fn deeper<E: Error>(self) -> Result<Self, E> {
        match self.room.checked_sub(1) {
            Some(room) => Ok(Skip { room, ..self }),
            None => {
                self.too_deep.set(true);
                Err(E::custom(format_args!("nested more than {MAX_DEPTH} levels deep")))
            }
        }
    }
}

impl<'de> DeserializeSeed<'de> for Skip<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Skip<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let inner = self.deeper()?;
        while seq.next_element_seed(inner)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let inner = self.deeper()?;
        while map.next_key_seed(Text)?.is_some() {
            map.next_value_seed(inner)?;
        }
        Ok(())
    }
}

/// A string, borrowed from the input unless it has escapes.
pub(crate) struct Text;

impl<'de> DeserializeSeed<'de> for Text {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Cow<'de, str>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Text {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}
