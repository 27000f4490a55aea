//! The formats of `printf` (CUDA C++ Programming Guide, "Formatted Output").

use super::fault::Fault;

/// A value to format.
pub(super) enum Value {
    Bits(u64),
    Text(Vec<u8>),
}

/// The source of the values.
pub(super) trait Arguments {
    /// The next value of 4 or 8 bytes.
    fn next(&mut self, bytes: usize) -> Result<u64, Box<Fault>>;
    /// The string at an address.
    fn text(&mut self, address: u64) -> Result<Vec<u8>, Box<Fault>>;
}

/// One conversion, such as `%-8.3f`.
#[derive(Clone, Debug, Default, PartialEq)]
struct Conversion {
    flags: Vec<u8>,
    width: usize,
    precision: Option<usize>,
    /// Bytes of an integer: 1, 2, 4 or 8.
    bytes: usize,
    letter: u8,
}

/// Formats all of `format`. Conversions that do not exist are printed as they are.
pub(super) fn format(format: &[u8], arguments: &mut impl Arguments) -> Result<Vec<u8>, Box<Fault>> {
    let mut out = Vec::new();
    let mut rest = format;
    while let Some(at) = rest.iter().position(|byte| *byte == b'%') {
        out.extend_from_slice(&rest[..at]);
        let mut parser = Parser { rest: &rest[at + 1..], arguments: &mut *arguments };
        let conversion = parser.conversion()?;
        let after = parser.rest;
        match conversion {
            Some(conversion) => out.extend(conversion.next(arguments)?),
            None => out.extend_from_slice(&rest[at..rest.len() - after.len()]),
        }
        rest = after;
    }
    out.extend_from_slice(rest);
    Ok(out)
}

struct Parser<'p, 'a, A> {
    rest: &'p [u8],
    arguments: &'a mut A,
}

impl<A: Arguments> Parser<'_, '_, A> {
    /// The conversion after a `%`; `None` if there is no such conversion.
    fn conversion(&mut self) -> Result<Option<Conversion>, Box<Fault>> {
        let mut found = Conversion::default();
        while let Some(flag) = self.take(|byte| b"-+ #0".contains(&byte)) {
            found.flags.push(flag);
        }
        if let Some(width) = self.extent()? {
            if width < 0 {
                found.flags.push(b'-');
            }
            found.width = width.unsigned_abs() as usize;
        }
        if self.take(|byte| byte == b'.').is_some() {
            let precision = self.extent()?.unwrap_or(0);
            found.precision = usize::try_from(precision).ok();
        }
        found.bytes = self.integer_bytes();
        let Some(letter) = self.take(|byte| b"diuoxXcfFeEgGaAps%".contains(&byte)) else {
            return Ok(None);
        };
        found.letter = letter;
        Ok(Some(found))
    }

    fn take(&mut self, is: impl Fn(u8) -> bool) -> Option<u8> {
        let (first, rest) = self.rest.split_first().filter(|(first, _)| is(**first))?;
        self.rest = rest;
        Some(*first)
    }

    /// A width or a precision: a number, or `*` for an argument.
    fn extent(&mut self) -> Result<Option<i32>, Box<Fault>> {
        if self.take(|byte| byte == b'*').is_some() {
            return Ok(Some(self.arguments.next(4)? as i32));
        }
        let mut number = None;
        while let Some(digit) = self.take(|byte| byte.is_ascii_digit()) {
            let digit = i32::from(digit - b'0');
            number = Some((10 * number.unwrap_or(0) + digit).min(MAX_EXTENT));
        }
        Ok(number)
    }

    fn integer_bytes(&mut self) -> usize {
        let mut bytes = 4;
        while let Some(letter) = self.take(|byte| b"hljztL".contains(&byte)) {
            bytes = match letter {
                b'h' => bytes / 2,
                _ => 8,
            };
        }
        bytes.max(1)
    }
}

/// The largest width and precision in a format.
const MAX_EXTENT: i32 = 4096;

impl Conversion {
    fn has(&self, flag: u8) -> bool {
        self.flags.contains(&flag)
    }

    /// The text of the next value.
    fn next(&self, arguments: &mut impl Arguments) -> Result<Vec<u8>, Box<Fault>> {
        let value = match self.letter {
            b'%' => return Ok(vec![b'%']),
            b's' => {
                let address = arguments.next(8)?;
                Value::Text(arguments.text(address)?)
            }
            b'p' => Value::Bits(arguments.next(8)?),
            letter if is_float(letter) => Value::Bits(arguments.next(8)?),
            _ => Value::Bits(arguments.next(if self.bytes == 8 { 8 } else { 4 })?),
        };
        Ok(self.text(value))
    }

    fn text(&self, value: Value) -> Vec<u8> {
        let bits = match value {
            Value::Text(mut text) => {
                text.truncate(self.precision.unwrap_or(usize::MAX));
                return self.padded("", text, false);
            }
            Value::Bits(bits) => bits,
        };
        match self.letter {
            b'c' => self.padded("", vec![bits as u8], false),
            b'p' => self.padded("0x", format!("{bits:x}").into(), false),
            letter if is_float(letter) => self.float(f64::from_bits(bits)),
            _ => self.integer(bits),
        }
    }

    fn integer(&self, bits: u64) -> Vec<u8> {
        let unused = 64 - 8 * self.bytes as u32;
        let (signed, unsigned) = ((bits << unused) as i64 >> unused, bits << unused >> unused);
        let (prefix, digits) = match self.letter {
            b'd' | b'i' => (self.sign(signed < 0), signed.unsigned_abs().to_string()),
            b'o' if self.has(b'#') => ("0", format!("{unsigned:o}")),
            b'o' => ("", format!("{unsigned:o}")),
            b'x' if self.has(b'#') && unsigned != 0 => ("0x", format!("{unsigned:x}")),
            b'X' if self.has(b'#') && unsigned != 0 => ("0X", format!("{unsigned:X}")),
            b'x' => ("", format!("{unsigned:x}")),
            b'X' => ("", format!("{unsigned:X}")),
            _ => ("", unsigned.to_string()),
        };
        let digits = format!("{digits:0>0$}", self.precision.unwrap_or(1));
        self.padded(prefix, digits.into(), self.precision.is_none())
    }

    fn float(&self, value: f64) -> Vec<u8> {
        let (magnitude, upper) = (value.abs(), self.letter.is_ascii_uppercase());
        let digits = match self.letter.to_ascii_lowercase() {
            _ if value.is_nan() => "nan".to_owned(),
            _ if value.is_infinite() => "inf".to_owned(),
            b'f' => format!("{magnitude:.0$}", self.precision.unwrap_or(6)),
            b'e' => exponential(magnitude, self.precision.unwrap_or(6)),
            b'g' => general(magnitude, self.precision.unwrap_or(6), self.has(b'#')),
            _ => hexadecimal(magnitude, self.precision),
        };
        let digits = if upper { digits.to_uppercase() } else { digits };
        let sign = self.sign(value.is_sign_negative() && !value.is_nan());
        self.padded(sign, digits.into(), value.is_finite())
    }

    fn sign(&self, negative: bool) -> &'static str {
        match (negative, self.has(b'+'), self.has(b' ')) {
            (true, ..) => "-",
            (false, true, _) => "+",
            (false, false, true) => " ",
            (false, false, false) => "",
        }
    }

    /// Pads to the width: on the right with `-`, between prefix and digits with `0`.
    fn padded(&self, prefix: &str, text: Vec<u8>, zeros: bool) -> Vec<u8> {
        let missing = self.width.saturating_sub(prefix.len() + text.len());
        let prefix = prefix.as_bytes();
        match (self.has(b'-'), zeros && self.has(b'0')) {
            (true, _) => [prefix, &text, &vec![b' '; missing]].concat(),
            (false, true) => [prefix, &vec![b'0'; missing], &text].concat(),
            (false, false) => [&vec![b' '; missing], prefix, &text].concat(),
        }
    }
}

fn is_float(letter: u8) -> bool {
    b"fFeEgGaA".contains(&letter)
}

/// `1.5e+00`.
fn exponential(value: f64, precision: usize) -> String {
    let (digits, exponent) = split_exponent(value, precision);
    format!("{digits}{}", suffix(exponent))
}

fn suffix(exponent: i32) -> String {
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("e{sign}{:02}", exponent.abs())
}

/// The digits and the exponent in scientific notation.
fn split_exponent(value: f64, precision: usize) -> (String, i32) {
    let text = format!("{value:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    (digits.to_owned(), exponent.parse().unwrap_or(0))
}

/// `%g`: the shorter notation, without trailing zeros.
fn general(value: f64, precision: usize, keeps_zeros: bool) -> String {
    let precision = precision.max(1);
    let (digits, exponent) = split_exponent(value, precision - 1);
    let trimmed = |text: String| match !keeps_zeros && text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    };
    match exponent >= -4 && exponent < precision as i32 {
        true => {
            let decimals = (precision as i32 - 1 - exponent) as usize;
            trimmed(format!("{value:.decimals$}"))
        }
        false => trimmed(digits) + &suffix(exponent),
    }
}

/// `0x1.8p+1`; a precision rounds the digits to nearest even.
fn hexadecimal(value: f64, precision: Option<usize>) -> String {
    const FRACTION: u32 = 52;
    let bits = value.to_bits();
    let (mut exponent, mut fraction) = ((bits >> FRACTION) as i32 - 1023, bits % (1 << FRACTION));
    match exponent {
        -1023 if fraction == 0 => exponent = 0,
        -1023 => exponent = -1022,
        _ => fraction |= 1 << FRACTION,
    }
    if let Some(kept) = precision.filter(|kept| *kept < 13) {
        let dropped = FRACTION - 4 * kept as u32;
        let (half, odd) = (1u64 << (dropped - 1), fraction >> dropped & 1);
        fraction = (fraction + half - 1 + odd) >> dropped << dropped;
    }
    let digits = format!("{:013x}", fraction % (1 << FRACTION));
    let digits = match precision {
        None => digits.trim_end_matches('0').to_owned(),
        Some(kept) => format!("{:0<kept$}", &digits[..kept.min(13)]),
    };
    let point = if digits.is_empty() { "" } else { "." };
    format!("0x{}{point}{digits}p{exponent:+}", fraction >> FRACTION)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values in order; strings are addressed by their index.
    struct Given(Vec<u64>, &'static [&'static str]);

    impl Arguments for Given {
        fn next(&mut self, _: usize) -> Result<u64, Box<Fault>> {
            Ok(self.0.remove(0))
        }

        fn text(&mut self, address: u64) -> Result<Vec<u8>, Box<Fault>> {
            Ok(self.1[address as usize].as_bytes().to_vec())
        }
    }

    fn printed(text: &str, values: &[u64]) -> String {
        let mut given = Given(values.to_vec(), &["zero", "one"]);
        let out = format(text.as_bytes(), &mut given).unwrap();
        assert!(given.0.is_empty(), "{text}: unused arguments");
        String::from_utf8(out).unwrap()
    }

    /// Each expected text is what glibc's printf writes.
    #[test]
    fn formats_are_those_of_c() {
        let cases: &[(&str, u64, &str)] = &[
            ("%d", -5i64 as u64, "-5"),
            ("%5d|", 42, "   42|"),
            ("%-5d|", 42, "42   |"),
            ("%05d", -42i64 as u64, "-0042"),
            ("%+d", 7, "+7"),
            ("% d", 7, " 7"),
            ("%.3d", 7, "007"),
            ("%u", u64::from(u32::MAX), "4294967295"),
            ("%hhd", 0x1ff, "-1"),
            ("%hu", 0x1_0001, "1"),
            ("%lld", -1i64 as u64, "-1"),
            ("%lu", u64::MAX, "18446744073709551615"),
            ("%#x", 255, "0xff"),
            ("%08X", 0xbeef, "0000BEEF"),
            ("%o", 8, "10"),
            ("%c", 65, "A"),
            ("%p", 0x7f00, "0x7f00"),
            ("%s!", 1, "one!"),
            ("%6.2s|", 0, "    ze|"),
        ];
        for (text, value, expected) in cases {
            assert_eq!(printed(text, &[*value]), *expected, "{text}");
        }
        assert_eq!(printed("100%% %y %d\n", &[3]), "100% %y 3\n");
        assert_eq!(printed("%*d|%-*d|%.*f", &[4, 1, 4, 2, 1, 0.25f64.to_bits()]), "   1|2   |0.2");
        assert_eq!(printed("ends with %", &[]), "ends with %");
    }

    #[test]
    fn floats_are_those_of_c() {
        let cases = [
            ("%f", 1.5, "1.500000"),
            ("%.2f", 2.675, "2.67"),
            ("%8.3f|", -1.0, "  -1.000|"),
            ("%e", 12345.678, "1.234568e+04"),
            ("%.0e", 0.0, "0e+00"),
            ("%g", 0.0001, "0.0001"),
            ("%g", 0.00001, "1e-05"),
            ("%g", 1e6, "1e+06"),
            ("%g", 100_000.0, "100000"),
            ("%#g", 1.0, "1.00000"),
            ("%G", 1e-10, "1E-10"),
            ("%.3g", 1234.0, "1.23e+03"),
            ("%a", 3.0, "0x1.8p+1"),
            ("%.1a", 1.96875, "0x2.0p+0"),
            ("%a", 0.0, "0x0p+0"),
            ("%05f", f64::INFINITY, "  inf"),
            ("%F", f64::NAN, "NAN"),
            ("%f", f64::NEG_INFINITY, "-inf"),
            ("%+.1f", 0.05, "+0.1"),
        ];
        for (text, value, expected) in cases {
            assert_eq!(printed(text, &[f64::to_bits(value)]), expected, "{text}");
        }
    }
}
