//! A fast reader for headers in the form that nearly all writers use.
//!
//! That form has no spaces, no escapes, and a fixed order of fields. Any other header, valid or
//! not, is left to the [general reader](crate::header_json), which alone reports errors. Both
//! readers give the same result.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::header_entry::{Entries, Entry, check_entry};
use crate::names::METADATA_KEY;
use crate::tensor_info::TensorInfo;

/// More dims than nearly any tensor has.
const COMMON_DIMS: usize = 8;

/// A lower bound for the bytes of a tensor's entry, with a name of typical length.
const SHORT_ENTRY: usize = 96;

/// Parses a header whose tensors share `data_len` bytes; `None` if the general reader must parse
/// it.
pub(crate) fn read(text: &str, data_len: u64) -> Option<Entries> {
    let mut rest = Rest(text);
    let mut tensors = Vec::with_capacity(text.len() / SHORT_ENTRY);
    let mut metadata = None;
    rest.skip("{\"")?;
    loop {
        let name = rest.text()?;
        match name {
            METADATA_KEY if metadata.is_some() => return None,
            METADATA_KEY => metadata = Some(rest.pairs()?),
            _ => tensors.push(rest.tensor(name, data_len)?),
        }
        if rest.skip(",\"").is_none() {
            break;
        }
    }
    rest.skip("}")?;
    let ends = rest.0.bytes().all(|byte| byte == b' ');
    ends.then(|| (tensors, metadata.unwrap_or_default()))
}

/// The rest of the text.
struct Rest<'j>(&'j str);

impl<'j> Rest<'j> {
    fn skip(&mut self, expected: &str) -> Option<()> {
        self.0 = self.0.strip_prefix(expected)?;
        Some(())
    }

    /// Parses the rest of a string after its opening quote.
    fn text(&mut self) -> Option<&'j str> {
        let special = |byte: u8| byte == b'"' || byte == b'\\' || byte < b' ';
        let end = self.0.bytes().position(special)?;
        let (text, rest) = self.0.split_at(end);
        self.0 = rest;
        self.skip("\"")?;
        Some(text)
    }

    fn number(&mut self) -> Option<u64> {
        let digits = self.0.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = self.0.split_at(digits);
        if digits > 1 && number.starts_with('0') {
            return None;
        }
        self.0 = rest;
        number.parse().ok()
    }

    /// Parses the entry of a tensor after its name.
    fn tensor(&mut self, name: &str, data_len: u64) -> Option<TensorInfo> {
        self.skip(":{\"dtype\":\"")?;
        let dtype = Cow::Borrowed(self.text()?);
        self.skip(",\"shape\":[")?;
        let mut shape = Vec::new();
        if self.skip("]").is_none() {
            shape.push(usize::try_from(self.number()?).ok()?);
            while self.skip(",").is_some() {
                shape.push(usize::try_from(self.number()?).ok()?);
                if shape.len() > COMMON_DIMS {
                    return None;
                }
            }
            self.skip("]")?;
        }
        self.skip(",\"data_offsets\":[")?;
        let begin = self.number()?;
        self.skip(",")?;
        let end = self.number()?;
        self.skip("]}")?;
        let entry = Entry { dtype, dims: shape.len(), shape, begin, end };
        check_entry(name.to_owned(), entry, data_len).ok()
    }

    /// Parses the metadata after its name.
    fn pairs(&mut self) -> Option<BTreeMap<String, String>> {
        self.skip(":{\"")?;
        let mut pairs = BTreeMap::new();
        loop {
            let key = self.text()?;
            self.skip(":\"")?;
            let value = self.text()?;
            if pairs.insert(key.to_owned(), value.to_owned()).is_some() {
                return None;
            }
            if self.skip(",\"").is_none() {
                break;
            }
        }
        self.skip("}")?;
        Some(pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dtype, FileWriter, header_json};
    use meshgrad_ckpt_crash::SplitMix64;

    /// A header as a writer of the format produces it.
    fn header() -> String {
        let mut file = FileWriter::new();
        file.set_metadata("format", "pt");
        file.set_metadata("step", "12");
        for layer in 0..12 {
            let name = format!("layers.{layer}.weight");
            file.add(&name, Dtype::BF16, &[layer, 10, 3]).unwrap();
        }
        file.add("größe", Dtype::U8, &[]).unwrap();
        file.add("empty", Dtype::F32, &[0]).unwrap();
        let start = file.plan().unwrap().start;
        let json = &start[crate::header::PREFIX..];
        String::from_utf8(json.to_vec()).unwrap()
    }

    #[test]
    fn written_headers_are_parsed() {
        let text = header();
        let (tensors, metadata) = read(&text, u64::MAX).unwrap();
        assert_eq!((tensors.len(), metadata.len()), (14, 2));
    }

    /// For any change of a header, this reader either agrees with the general one or defers to it.
    #[test]
    fn both_readers_agree() {
        let original = header();
        let (mut rng, mut read_here) = (SplitMix64::new(7), 0);
        for _ in 0..20_000 {
            let mut bytes = original.clone().into_bytes();
            for _ in 0..1 + rng.below(2) {
                let at = rng.below(bytes.len() as u64) as usize;
                let from = rng.below(bytes.len() as u64) as usize;
                match rng.below(4) {
                    0 => bytes[at] = bytes[from],
                    1 => bytes.insert(at, bytes[from]),
                    2 => _ = bytes.remove(at),
                    _ => bytes[at] = b"0123456789 \\\"\n,{}[]"[rng.below(19) as usize],
                }
            }
            let Ok(text) = String::from_utf8(bytes) else {
                continue;
            };
            let data_len = rng.below(8000);
            if let Some(entries) = read(&text, data_len) {
                assert_eq!(header_json::read(&text, data_len), Ok(entries), "{text}");
                read_here += 1;
            }
        }
        assert!(read_here > 500, "{read_here}");
    }
}
