//! The token cursor of the parser.

use super::PtxError;
use super::lexer::{Lexeme, Token, lex};

pub(super) type Result<T> = std::result::Result<T, PtxError>;

/// Maximum nesting of braces, brackets and parentheses.
const MAX_NESTING: usize = 64;

/// The tokens of a module and the current position. The other files of this module implement the
/// grammar.
pub(super) struct Parser<'a> {
    source: &'a str,
    lexemes: Vec<Lexeme>,
    at: usize,
    depth: usize,
}

impl<'a> Parser<'a> {
    pub(super) fn new(source: &'a str) -> Result<Parser<'a>> {
        Ok(Parser { source, lexemes: lex(source)?, at: 0, depth: 0 })
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.at >= self.lexemes.len()
    }

    /// Runs `read` one nesting level deeper.
    pub(super) fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth == MAX_NESTING {
            return self.fail(format!("more than {MAX_NESTING} nested levels"));
        }
        self.depth += 1;
        let inner = read(self);
        self.depth -= 1;
        inner
    }

    pub(super) fn peek(&self) -> Option<&Token> {
        self.lexemes.get(self.at).map(|lexeme| &lexeme.token)
    }

    pub(super) fn next(&mut self) -> Result<Token> {
        let Some(token) = self.peek().cloned() else {
            return self.fail("unexpected end of the text".into());
        };
        self.at += 1;
        Ok(token)
    }

    pub(super) fn accept(&mut self, sign: char) -> bool {
        let found = self.peek() == Some(&Token::Sign(sign));
        self.at += usize::from(found);
        found
    }

    pub(super) fn accept_word(&mut self, word: &str) -> bool {
        let found = matches!(self.peek(), Some(Token::Word(next)) if next == word);
        self.at += usize::from(found);
        found
    }

    /// Takes a word that starts with a dot.
    pub(super) fn accept_directive(&mut self) -> Option<String> {
        match self.peek() {
            Some(Token::Word(word)) if word.starts_with('.') => {
                let word = word.clone();
                self.at += 1;
                Some(word)
            }
            _ => None,
        }
    }

    pub(super) fn expect(&mut self, sign: char) -> Result<()> {
        match self.accept(sign) {
            true => Ok(()),
            false => self.fail(format!("expected `{sign}`")),
        }
    }

    pub(super) fn word(&mut self, what: &str) -> Result<String> {
        match self.peek() {
            Some(Token::Word(word)) => {
                let word = word.clone();
                self.at += 1;
                Ok(word)
            }
            _ => self.fail(format!("expected {what}")),
        }
    }

    pub(super) fn integer(&mut self) -> Result<u64> {
        match self.peek() {
            Some(Token::Integer(value)) => {
                let value = *value;
                self.at += 1;
                Ok(value)
            }
            _ => self.fail("expected an integer".into()),
        }
    }

    pub(super) fn text(&mut self) -> Result<String> {
        match self.next()? {
            Token::Text(text) => Ok(text),
            _ => self.fail("expected a string".into()),
        }
    }

    /// The line of the next token, or of the last one at the end.
    pub(super) fn line(&self) -> u32 {
        let at = self.at.min(self.lexemes.len().saturating_sub(1));
        self.lexemes.get(at).map_or(1, |lexeme| lexeme.line)
    }

    pub(super) fn fail<T>(&self, message: String) -> Result<T> {
        Err(PtxError::new(self.source, self.line(), message))
    }
}
