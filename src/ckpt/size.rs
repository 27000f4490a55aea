//! Human-readable sizes and counts.

use std::str::FromStr;

/// A number of bytes on the command line, such as `512MiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ByteSize(pub(crate) u64);

const UNITS: [(&str, u64); 10] = [
    ("", 1),
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<ByteSize, String> {
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = text.split_at(digits);

        let found = UNITS.iter().find(|(name, _)| *name == unit.trim_start());
        let (false, Some((_, scale))) = (number.is_empty(), found) else {
            return Err(format!(
                "`{text}` is not a size: write a whole number with B, KiB, MiB, GiB, TiB, kB, MB, \
                 GB or TB, as in 512MiB"
            ));
        };

        let bytes = number.parse().ok().and_then(|n: u64| n.checked_mul(*scale));
        bytes.map(ByteSize).ok_or_else(|| format!("`{text}` exceeds 64 bits"))
    }
}

/// Formats a size, as in `512 B`, `1.5 KiB`, `56.9 GiB`.
pub(crate) fn bytes(count: u64) -> String {
    let (value, step) = scaled(count, 1024.0, 1023.95);
    match step {
        0 => format!("{count} B"),
        _ => format!("{value:.1} {}iB", ["K", "M", "G", "T", "P", "E"][step - 1]),
    }
}

/// Formats a count with three digits, as in `950`, `3.42 M`, `30.5 B`. B stands for billions, as is
/// usual for parameter counts.
pub(crate) fn count(count: u64) -> String {
    let (value, step) = scaled(count, 1000.0, 999.5);
    let digits = match value {
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    match step {
        0 => count.to_string(),
        _ => format!("{value:.digits$} {}", ["K", "M", "B", "T", "P", "E"][step - 1]),
    }
}

/// Formats a number with separators, as in `18,867`.
pub(crate) fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number of things, as in `1 tensor`, `18,867 tensors`.
pub(crate) fn counted(count: u64, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {what}{plural}", grouped(count))
}

/// Divides by `base` until the value is below `limit`; returns it with the number of divisions.
fn scaled(count: u64, base: f64, limit: f64) -> (f64, usize) {
    let (mut value, mut step) = (count as f64, 0);
    while value >= limit && (step > 0 || count as f64 >= base) {
        value /= base;
        step += 1;
    }
    (value, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_as_whole_numbers_with_a_unit() {
        for (text, bytes) in [
            ("0", 0),
            ("17", 17),
            ("17B", 17),
            ("2KiB", 2048),
            ("2 GiB", 2 << 30),
            ("3TiB", 3 << 40),
            ("5kB", 5_000),
            ("7GB", 7_000_000_000),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }

        let too_large = ["16777216TiB", "18446744073709551616"];
        for text in
            ["", "B", "1e9", "1.5GiB", "-1", "+1", "1gib", "1 G", " 1"].into_iter().chain(too_large)
        {
            let error = text.parse::<ByteSize>().unwrap_err();
            assert!(error.contains(&format!("`{text}`")), "{error}");
        }
    }

    #[test]
    fn bytes_have_one_decimal() {
        let shown = [0, 1023, 1024, 1536, (1 << 20) - 1, 1 << 20, 57 << 30, u64::MAX].map(bytes);
        let wanted =
            ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1.0 MiB", "1.0 MiB", "57.0 GiB", "16.0 EiB"];
        assert_eq!(shown, wanted);
    }

    #[test]
    fn counts_have_three_digits() {
        let shown = [0, 999, 1000, 9_996, 123_456, 999_499, 999_500, 30_532_122_624].map(count);
        let wanted = ["0", "999", "1.00 K", "10.0 K", "123 K", "999 K", "1.00 M", "30.5 B"];
        assert_eq!(shown, wanted);
        assert_eq!([0, 999, 1000, 18_867].map(grouped), ["0", "999", "1,000", "18,867"]);
        assert_eq!(counted(1, "tensor"), "1 tensor");
        assert_eq!(counted(0, "tensor"), "0 tensors");
    }
}
