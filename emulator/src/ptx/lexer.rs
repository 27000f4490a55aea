//! The lexer. Words are as long as possible: an opcode with its modifiers is one word
//! (`ld.global.L1::no_allocate.v4.b32`), as are `%tid.x` and each directive (`.reg`).

use std::fmt;

use super::PtxError;

/// One token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token {
    Word(String),
    Integer(u64),
    /// The bits of an f32, `0f3F800000`.
    Float32(u32),
    /// The bits of an f64, `0d3FF0000000000000` or `1.5`.
    Float64(u64),
    Text(String),
    Sign(char),
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Token::Word(word) => f.write_str(word),
            Token::Integer(value) => write!(f, "{value}"),
            Token::Float32(bits) => write!(f, "0f{bits:08X}"),
            Token::Float64(bits) => write!(f, "{:?}", f64::from_bits(*bits)),
            Token::Text(text) => write!(f, "\"{text}\""),
            Token::Sign(sign) => write!(f, "{sign}"),
        }
    }
}

/// A token and its line.
#[derive(Clone, Debug)]
pub(crate) struct Lexeme {
    pub(crate) token: Token,
    pub(crate) line: u32,
}

/// All tokens of `source`.
pub(crate) fn lex(source: &str) -> Result<Vec<Lexeme>, PtxError> {
    let mut lexer = Lexer { source, rest: source, line: 1, lexemes: Vec::new() };
    lexer.run()?;
    Ok(lexer.lexemes)
}

struct Lexer<'a> {
    source: &'a str,
    rest: &'a str,
    line: u32,
    lexemes: Vec<Lexeme>,
}

impl<'a> Lexer<'a> {
    fn run(&mut self) -> Result<(), PtxError> {
        while let Some(first) = self.rest.chars().next() {
            if first.is_whitespace() {
                self.take(first.len_utf8());
            } else if self.rest.starts_with("//") {
                let end = self.rest.find('\n').unwrap_or(self.rest.len());
                self.take(end);
            } else if self.rest.starts_with("/*") {
                let Some(end) = self.rest.find("*/") else {
                    return self.fail("unterminated comment");
                };
                self.take(end + 2);
            } else {
                self.token(first)?;
            }
        }
        Ok(())
    }

    fn token(&mut self, first: char) -> Result<(), PtxError> {
        let token = match first {
            '"' => self.text()?,
            '0'..='9' => self.number()?,
            _ if is_word(first) => {
                let length = word_length(self.rest);
                Token::Word(self.take(length).to_owned())
            }
            '{' | '}' | '(' | ')' | '[' | ']' | '<' | '>' | ',' | ';' | ':' | '@' | '!' | '+'
            | '-' | '|' | '=' | '~' | '*' | '/' | '&' | '^' | '?' => {
                self.take(1);
                Token::Sign(first)
            }
            other => return self.fail(&format!("unexpected character `{other}`")),
        };
        let line = self.line;
        self.lexemes.push(Lexeme { token, line });
        Ok(())
    }

    fn text(&mut self) -> Result<Token, PtxError> {
        let Some(length) = self.rest[1..].find('"') else {
            return self.fail("unterminated string");
        };
        let quoted = self.take(length + 2);
        Ok(Token::Text(quoted[1..=length].to_owned()))
    }

    fn number(&mut self) -> Result<Token, PtxError> {
        let alphanumeric = |c: char| c.is_ascii_alphanumeric();
        let mut length = self.rest.find(|c| !alphanumeric(c)).unwrap_or(self.rest.len());
        if self.rest[length..].starts_with('.') && self.rest[..length].bytes().all(is_digit) {
            let fraction = &self.rest[length + 1..];
            let end = fraction.find(|c| !alphanumeric(c)).unwrap_or(fraction.len());
            length += 1 + end;
            // The sign of an exponent.
            if self.rest[..length].ends_with(['e', 'E'])
                && let Some(exponent) = self.rest[length..].strip_prefix(['+', '-'])
            {
                length +=
                    1 + exponent.find(|c: char| !c.is_ascii_digit()).unwrap_or(exponent.len());
            }
        }
        let digits = self.rest[..length].to_owned();
        match number(&digits) {
            Some(token) => {
                self.take(length);
                Ok(token)
            }
            None => self.fail(&format!("`{digits}` is not a number")),
        }
    }

    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.line += taken.bytes().filter(|byte| *byte == b'\n').count() as u32;
        self.rest = rest;
        taken
    }

    fn fail<T>(&self, message: &str) -> Result<T, PtxError> {
        Err(PtxError::new(self.source, self.line, message))
    }
}

fn is_digit(byte: u8) -> bool {
    byte.is_ascii_digit()
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%' | '.')
}

/// A colon belongs to a word only in pairs: `L1::evict_last` is one word, `label:` is not. Each
/// directive is a separate word: `.reg.b32` is two.
fn word_length(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let directive = rest.starts_with('.');
    let mut at = 0;
    while at < bytes.len() {
        if directive && at > 0 && bytes[at] == b'.' {
            break;
        }
        if is_word(bytes[at] as char) {
            at += 1;
        } else if rest[at..].starts_with("::") {
            at += 2;
        } else {
            break;
        }
    }
    at
}

/// PTX ISA 4.5: decimal, `0x`, octal `0`, binary `0b`, with an optional `U`; `0f` and `0d` bits.
fn number(digits: &str) -> Option<Token> {
    let prefix = digits.get(..2).unwrap_or_default();
    let after = digits.get(2..).unwrap_or_default();
    let integer = |text: &str, radix| {
        let text = text.strip_suffix('U').unwrap_or(text);
        u64::from_str_radix(text, radix).ok().map(Token::Integer)
    };
    match prefix {
        "0f" | "0F" if after.len() == 8 => u32::from_str_radix(after, 16).ok().map(Token::Float32),
        "0d" | "0D" if after.len() == 16 => u64::from_str_radix(after, 16).ok().map(Token::Float64),
        "0x" | "0X" => integer(after, 16),
        "0b" | "0B" => integer(after, 2),
        _ if digits.contains('.') => {
            let value = digits.parse::<f64>().ok()?;
            Some(Token::Float64(value.to_bits()))
        }
        _ if digits.starts_with('0') && digits.len() > 1 => integer(digits, 8),
        _ => integer(digits, 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(source: &str) -> Vec<Token> {
        let lexemes = lex(source).unwrap();
        lexemes.into_iter().map(|lexeme| lexeme.token).collect()
    }

    fn word(text: &str) -> Token {
        Token::Word(text.into())
    }

    #[test]
    fn words_are_as_long_as_possible() {
        let expected = [
            word("$L_1"),
            Token::Sign(':'),
            Token::Sign('@'),
            Token::Sign('!'),
            word("%p1"),
            word("ld.global.L1::no_allocate.b32"),
            word("%r1"),
            Token::Sign(','),
            Token::Sign('['),
            word("%rd2"),
            Token::Sign('+'),
            Token::Integer(16),
            Token::Sign(']'),
            Token::Sign(';'),
        ];
        let source = "$L_1: @!%p1 ld.global.L1::no_allocate.b32 %r1, [%rd2+0x10]; // load";
        assert_eq!(tokens(source), expected);
    }

    #[test]
    fn numbers() {
        assert_eq!(tokens("0f3F800000"), [Token::Float32(1f32.to_bits())]);
        assert_eq!(tokens("0dBFF0000000000000"), [Token::Float64((-1f64).to_bits())]);
        assert_eq!(tokens("1.5e-3"), [Token::Float64(1.5e-3f64.to_bits())]);
        let integers = [7, 8, 5, 0].map(Token::Integer);
        assert_eq!(tokens("7U 010 0b101 0"), integers);
    }

    #[test]
    fn errors_name_the_line() {
        let error = lex("ret;\n  mov 0f12;").unwrap_err();
        assert_eq!((error.line, error.text.as_str()), (2, "mov 0f12;"));
        for wrong in ["\"open", "/* open", "é", "1.5e", "1.5e+", "1.5é", "0x", "09", "\"é"] {
            assert!(lex(wrong).is_err(), "{wrong}");
        }
    }
}
