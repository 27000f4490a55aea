//! Initial values of variables (PTX ISA 5.4.4): nested lists, one level per array dimension.
//! Missing values are zero.

use super::cursor::{Parser, Result};
use super::lexer::Token;
use super::syntax::{Initial, PlacedValue};
use super::types::{Element, bytes_of_extents};

impl Parser<'_> {
    /// Parses what follows `=`; returns the length of the outermost list.
    pub(super) fn initial(
        &mut self,
        element: &Element,
        extents: &[Option<usize>],
        into: &mut Vec<PlacedValue>,
    ) -> Result<usize> {
        let mut levels = extents.to_vec();
        if element.lanes > 1 {
            levels.push(Some(element.lanes));
        }
        self.initial_at(0, element, &levels, into)
    }

    fn initial_at(
        &mut self,
        offset: usize,
        element: &Element,
        levels: &[Option<usize>],
        into: &mut Vec<PlacedValue>,
    ) -> Result<usize> {
        let bytes = element.lane_bytes();
        let [extent, inner @ ..] = levels else {
            let value = self.initial_value(&element.kind)?;
            into.push(PlacedValue { offset, bytes, value });
            return Ok(1);
        };
        self.expect('{')?;
        let mut count = 0;
        while !self.accept('}') {
            if count > 0 {
                self.expect(',')?;
            }
            if *extent == Some(count) {
                return self.fail(format!("more values than the array's {count} elements"));
            }
            let at = bytes_of_extents(inner, bytes)
                .and_then(|step| step.checked_mul(count)?.checked_add(offset));
            let Some(at) = at else {
                return self.fail("the array is too large".into());
            };
            self.nested(|parser| parser.initial_at(at, element, inner, into))?;
            count += 1;
        }
        Ok(count)
    }

    fn initial_value(&mut self, kind: &str) -> Result<Initial> {
        let negative = self.accept('-');
        match self.next()? {
            Token::Word(name) if !negative => self.initial_address(name, kind),
            number => match bits(&number, negative, kind) {
                Some(bits) => Ok(Initial::Bits(bits)),
                None => {
                    let sign = if negative { "-" } else { "" };
                    let words =
                        format!("`{sign}{number}` is not a valid initial value of type `{kind}`");
                    self.fail(format!("{words}; {}", expected(kind)))
                }
            },
        }
    }

    /// `name+4` or `generic(name+4)+4`; `name` or `generic` was already read.
    fn initial_address(&mut self, word: String, kind: &str) -> Result<Initial> {
        if !matches!(kind, ".u64" | ".s64" | ".b64") {
            let words = format!("an address needs a 64-bit type, not `{kind}`");
            return self.fail(words);
        }
        if word != "generic" {
            let offset = self.offset()?;
            return Ok(Initial::Address { name: word, offset });
        }
        self.expect('(')?;
        let name = self.word("a variable")?;
        let inner = self.offset()?;
        self.expect(')')?;
        let offset = inner.wrapping_add(self.offset()?);
        Ok(Initial::Address { name, offset })
    }
}

/// A number's bits as a value of a type; `None` if the type does not allow it.
fn bits(number: &Token, negative: bool, kind: &str) -> Option<u64> {
    let integral = matches!(&kind[1..2], "u" | "s" | "b") && kind != ".b128";
    Some(match (number, kind) {
        (Token::Integer(value), _) if integral && negative => value.wrapping_neg(),
        (Token::Integer(value), _) if integral => *value,
        (Token::Float32(bits), ".f32" | ".b32") if !negative => u64::from(*bits),
        (Token::Float64(bits), _) => {
            let value = f64::from_bits(*bits ^ u64::from(negative) << 63);
            match kind {
                ".f32" | ".b32" => u64::from((value as f32).to_bits()),
                ".f64" | ".b64" => value.to_bits(),
                _ => return None,
            }
        }
        _ => return None,
    })
}

/// The hint of an error message.
fn expected(kind: &str) -> &'static str {
    match kind {
        ".f32" => "write 1.0, or 0f3F800000 for its bits",
        ".f64" => "write 1.0, or 0d3FF0000000000000 for its bits",
        ".f16" | ".bf16" | ".f16x2" | ".bf16x2" => "declare it of type .b16 or .b32, as bits",
        _ => "write an integer",
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    /// The bytes of the variable that `declaration` declares.
    fn bytes(declaration: &str) -> std::result::Result<Vec<u8>, String> {
        let module = parse(declaration).map_err(|error| error.message)?;
        let variable = &module.variables[0];
        let mut bytes = vec![0; variable.bytes()];
        for placed in &variable.initial {
            let Initial::Bits(bits) = placed.value else {
                return Err("an address".into());
            };
            let place = &mut bytes[placed.offset..placed.offset + placed.bytes];
            place.copy_from_slice(&bits.to_le_bytes()[..placed.bytes]);
        }
        Ok(bytes)
    }

    fn words(declaration: &str) -> Vec<u32> {
        let bytes = bytes(declaration).unwrap();
        let words = bytes.chunks_exact(4);
        words.map(|it| u32::from_le_bytes(it.try_into().unwrap())).collect()
    }

    /// The words that ptxas 13.0 writes to its object file.
    #[test]
    fn numbers_have_the_bits_of_their_type() {
        let floats = |declaration| -> Vec<f32> {
            words(declaration).into_iter().map(f32::from_bits).collect()
        };
        assert_eq!(floats(".const .f32 b[] = {-1.0, 1.5};"), [-1.0, 1.5]);
        assert_eq!(
            floats(".global .f32 b[3] = {0f3F800000, 0d4000000000000000};"),
            [1.0, 2.0, 0.0]
        );
        assert_eq!(
            floats(".global .f32 b[] = {0.1, 1.0e-40, 1.0e39};"),
            [0.1, 1.0e-40, f32::INFINITY]
        );
        assert_eq!(floats(".global .b32 b[2] = {1.5, -2.5};"), [1.5, -2.5]);
        assert_eq!(words(".global .f64 b = -1.5;"), [0, 0xbff8_0000]);
        assert_eq!(words(".global .b64 b = 0d3FF0000000000000;"), [0, 0x3ff0_0000]);
        assert_eq!(words(".global .s32 b[] = {-0x1, 1U};"), [u32::MAX, 1]);
        assert_eq!(bytes(".global .u8 b[] = {300, -129};").unwrap(), [0x2c, 0x7f]);
    }

    #[test]
    fn inner_lists_are_padded_with_zeros() {
        assert_eq!(words(".global .u32 b[2][2] = {{1}, {2}};"), [1, 0, 2, 0]);
        assert_eq!(words(".global .u32 b[][2] = {{1}, {2}, {3}};"), [1, 0, 2, 0, 3, 0]);
        assert_eq!(words(".global .v2 .u32 b[2] = {{1, 2}, {3, 4}};"), [1, 2, 3, 4]);
        assert_eq!(words(".global .v2 .u32 b = {1, 2};"), [1, 2]);
        assert_eq!(words(".global .u32 b[3] = {};"), [0, 0, 0]);
    }

    /// ptxas rejects all of these, except that it accepts a float as an integer and writes zeros.
    #[test]
    fn invalid_initial_values_are_rejected() {
        for wrong in [
            ".f32 b[1] = {1}",
            ".f64 b[1] = {0f3F800000}",
            ".f32 b[1] = {-0f3F800000}",
            ".u32 b[1] = {1.5}",
            ".u32 b[1] = {0f3F800000}",
            ".b16 b[1] = {1.5}",
            ".f16 b[1] = {0x3c00}",
            ".u32 b[2] = {1, 2, 3}",
            ".u32 b[2][2] = {1, 2}",
            ".u32 b[2][2] = {{1, 2, 3}}",
            ".u32 b = {1}",
            ".u32 b[2] = 1",
            ".u32 b[2] = {1 2}",
            ".u32 b[2] = {1,}",
            ".b128 b[1] = {1}",
            ".v2 .u32 b[2] = {1, 2, 3, 4}",
            ".u32 b[1] = {c}",
            ".u32 b[2][] = {{1}, {2}}",
            ".u32 b[0]",
            ".b8 b[0xffffffffffff][0xffffffffffff]",
        ] {
            assert!(bytes(&format!(".global {wrong};")).is_err(), "{wrong}");
        }
        assert!(bytes(".shared .u32 b[1] = {1};").is_err());
        let error = bytes(".global .f32 b[2] = {1, 2};").unwrap_err();
        assert!(
            error.contains("`1`") && error.contains(".f32") && error.contains("1.0"),
            "{error}"
        );
    }
}
