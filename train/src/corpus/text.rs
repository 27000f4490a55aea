//! Bytes of a file as text: invalid UTF-8 is replaced, and files that are not text are recognized.

/// The first bytes of formats that may be mistaken for text, and what to do with such a file.
const FORMATS: &[(&[u8], &str)] = &[
    (b"\x1f\x8b", "it is gzip; decompress it first"),
    (b"\x28\xb5\x2f\xfd", "it is zstd; decompress it first"),
    (b"\xfd7zXZ\0", "it is xz; decompress it first"),
    (b"BZh", "it is bzip2; decompress it first"),
    (b"PK\x03\x04", "it is a zip archive; unpack it first"),
    (b"PAR1", "it is Parquet; name it .parquet"),
    (b"%PDF-", "it is PDF; extract its text first"),
    (b"\xff\xfe", "it is UTF-16; convert it to UTF-8"),
    (b"\xfe\xff", "it is UTF-16; convert it to UTF-8"),
];

/// The largest fraction of invalid UTF-8 in a text.
const MAX_INVALID: f64 = 0.3;

/// The text, with U+FFFD in place of invalid UTF-8, and the number of invalid bytes; or why the
/// bytes are not text.
pub(super) fn to_text(bytes: Vec<u8>) -> Result<(String, u64), String> {
    let format = FORMATS.iter().find(|(start, _)| bytes.starts_with(start));
    let text = match String::from_utf8(bytes) {
        // Valid UTF-8 without NUL is text, even if it starts with the letters of a format, such as
        // `BZh`.
        Ok(text) if !text.contains('\0') => return Ok((text, 0)),
        Ok(text) => text.into_bytes(),
        Err(error) => error.into_bytes(),
    };
    if let Some((_, format)) = format {
        return Err((*format).to_owned());
    }
    if let Some(at) = text.iter().position(|byte| *byte == 0) {
        return Err(format!("byte {at} is 0, so it is no text"));
    }
    let size = text.len();
    let (text, replaced) = replace_invalid(&text);
    let invalid = replaced as f64 / size as f64;
    match invalid > MAX_INVALID {
        true => Err(format!("{:.0}% of it is not UTF-8", 100.0 * invalid)),
        false => Ok((text, replaced)),
    }
}

fn replace_invalid(bytes: &[u8]) -> (String, u64) {
    let mut text = String::with_capacity(bytes.len());
    let mut replaced = 0;
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        if !chunk.invalid().is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
            replaced += chunk.invalid().len() as u64;
        }
    }
    (text, replaced)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn files_that_are_not_text_are_recognized() {
        let random: Vec<u8> = (1..=255).cycle().take(2000).collect();
        let cases: [(&[u8], &str); 7] = [
            (b"\x1f\x8b\x08\x00rest", "gzip"),
            (b"\xff\xfea\0b\0", "UTF-16"),
            (b"PK\x03\x04\x14\0", "zip"),
            (b"PAR1\x15\x04\x80\0", "Parquet"),
            (b"text with a \0", "byte 12 is 0"),
            (b"\x7fELF\x02\x01\x01\0", "byte 7 is 0"),
            (&random, "% of it is not UTF-8"),
        ];
        for (bytes, expected) in cases {
            let found = to_text(bytes.to_vec()).unwrap_err();
            assert!(found.contains(expected), "{found}");
        }
        assert_eq!(to_text(b"BZh is a text".to_vec()).unwrap().1, 0);
    }

    proptest! {
        /// The text equals the standard library's lossy conversion, and the count is zero exactly
        /// for valid UTF-8.
        #[test]
        fn lossy_text_matches_the_standard_library(bytes: Vec<u8>) {
            let (text, replaced) = replace_invalid(&bytes);
            prop_assert_eq!(&text, &String::from_utf8_lossy(&bytes));
            prop_assert_eq!(replaced == 0, std::str::from_utf8(&bytes).is_ok());
        }
    }
}
