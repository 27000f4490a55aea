//! The tokens of a map, with their positions.

use meshgrad_error::{Error, Result, error};

/// A token and its position: line and column from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) word: Word,
    pub(super) line: usize,
    pub(super) column: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// A name, a number, the name of an operation or an argument.
    Text(String),
    /// One of `( ) [ ] , =`, or the `?` of `?=`.
    Sign(char),
    /// The end of a line outside of parentheses, or of the map.
    End,
}

impl std::fmt::Display for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Word::Text(text) => write!(f, "`{}`", text.escape_debug()),
            Word::Sign(sign) => write!(f, "`{sign}`"),
            Word::End => f.write_str("the end of the line"),
        }
    }
}

/// An error with its position: the line and the character in it, from 1.
pub(super) fn at((line, column): (usize, usize), problem: Error) -> Error {
    problem.context(format_args!("line {line}, column {column}"))
}

/// Splits a map into tokens. `#` starts a comment; a line continues while a parenthesis is open.
pub(super) fn tokens(map: &str) -> Result<Vec<Token>> {
    let (mut tokens, mut open) = (Vec::new(), 0usize);
    let mut last = 1;
    for (line, text) in (1..).zip(map.lines()) {
        last = line;
        line_tokens(text, line, &mut tokens, &mut open)?;
        if open == 0 {
            end(&mut tokens, line, text);
        }
    }
    end(&mut tokens, last, map.lines().last().unwrap_or_default());
    Ok(tokens)
}

fn end(tokens: &mut Vec<Token>, line: usize, text: &str) {
    if tokens.last().is_some_and(|last| last.word != Word::End) {
        let (word, column) = (Word::End, text.chars().count() + 1);
        tokens.push(Token { word, line, column });
    }
}

fn line_tokens(text: &str, line: usize, tokens: &mut Vec<Token>, open: &mut usize) -> Result<()> {
    let characters: Vec<char> = text.chars().collect();
    let mut at = 0;
    while let Some(&first) = characters.get(at) {
        let column = at + 1;
        let mut push = |word| tokens.push(Token { word, line, column });
        match first {
            '#' => break,
            it if it.is_whitespace() => at += 1,
            '(' | ')' | '[' | ']' | ',' | '=' => {
                match first {
                    '(' => *open += 1,
                    ')' => *open = open.saturating_sub(1),
                    _ => {}
                }
                push(Word::Sign(first));
                at += 1;
            }
            '?' if characters.get(at + 1) == Some(&'=') => {
                push(Word::Sign('?'));
                at += 1;
            }
            '"' => {
                let length = characters[at + 1..].iter().position(|it| *it == '"');
                let length = length.ok_or_else(|| {
                    let problem = "a quoted name must end on the line on which it starts";
                    self::at((line, column), error!(Invalid, "{problem}"))
                })?;
                push(Word::Text(characters[at + 1..][..length].iter().collect()));
                at += length + 2;
            }
            _ => {
                let length = word_length(&characters[at..]);
                push(Word::Text(characters[at..at + length].iter().collect()));
                at += length;
            }
        }
    }
    Ok(())
}

/// The length up to a sign, a space, a quote or a comment.
fn word_length(characters: &[char]) -> usize {
    let ends = |it: &char| it.is_whitespace() || "()[],=\"#".contains(*it);
    let length = characters.iter().position(ends).unwrap_or(characters.len());
    let (word, rest) = characters.split_at(length);
    let optional = word.len() > 1 && word.ends_with(&['?']) && rest.starts_with(&['=']);
    length - usize::from(optional)
}
