//! Names with captures: `model.layers.{l}.mlp.experts.{e}.up_proj.weight`.
//!
//! A template matches a name in at most one way, and filling in the captures gives the same name
//! again. So it works in both directions, unlike a regular expression. To guarantee this, parsing
//! checks that a capture is followed by something that cannot be part of it.

use std::collections::BTreeMap;
use std::fmt;

use meshgrad_error::{Error, Result, bail, ensure, error};

use super::captures::{Captures, Value};
use super::numbering::{MAX_WIDTH, Numbering};

/// The values that a capture accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `{l}`: a decimal number.
    Number,
    /// `{p:q|k|v}`: one of these.
    Choice(Vec<String>),
    /// `{name:word}`: any text without a dot.
    Word,
    /// `{rest:path}`: any text.
    Path,
}

/// A name with captures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Literal(String),
    Capture { name: String, kind: Kind, numbering: Numbering },
}

impl Template {
    /// Parses a template. Captures without a declared kind have the kind in `kinds`, or are
    /// numbers.
    pub(crate) fn parse(text: &str, kinds: &BTreeMap<String, Kind>) -> Result<Template> {
        let mut parts = Vec::new();
        for (literal, capture) in segments(text)? {
            if !literal.is_empty() {
                parts.push(Part::Literal(literal.to_owned()));
            }
            if let Some(capture) = capture {
                let (name, kind, numbering) = read_capture(capture)?;
                let kind = kind.or_else(|| kinds.get(name).cloned());
                let kind = kind.unwrap_or(Kind::Number);
                if kind != Kind::Number && numbering != Numbering::default() {
                    return Err(not_a_capture(capture));
                }
                parts.push(Part::Capture { name: name.into(), kind, numbering });
            }
        }
        let template = Template { parts };
        template.check()?;
        Ok(template)
    }

    /// The template that matches every name.
    pub(super) fn whole(capture: &str) -> Template {
        Template {
            parts: vec![Part::Capture {
                name: capture.into(),
                kind: Kind::Path,
                numbering: Numbering::default(),
            }],
        }
    }

    /// Whether it has a capture of any text.
    pub(crate) fn has_path(&self) -> bool {
        self.kinds_of_captures().any(|(_, kind)| *kind == Kind::Path)
    }

    /// Whether it matches every name.
    pub(crate) fn is_whole(&self) -> bool {
        matches!(&self.parts[..], [Part::Capture { kind: Kind::Path, .. }])
    }

    /// The kinds of captures that a text declares.
    pub(super) fn kinds(text: &str) -> Result<Vec<(String, Kind)>> {
        let mut kinds = Vec::new();
        for capture in segments(text)?.into_iter().filter_map(|(_, capture)| capture) {
            if let (name, Some(kind), _) = read_capture(capture)? {
                kinds.push((name.to_owned(), kind));
            }
        }
        Ok(kinds)
    }

    /// The names of its captures, in order.
    pub fn captures(&self) -> impl Iterator<Item = &str> + Clone {
        self.kinds_of_captures().map(|(name, _)| name)
    }

    /// The captures with their kinds.
    pub(super) fn kinds_of_captures(&self) -> impl Iterator<Item = (&str, &Kind)> + Clone {
        self.parts.iter().filter_map(|part| match part {
            Part::Capture { name, kind, .. } => Some((&**name, kind)),
            Part::Literal(_) => None,
        })
    }

    /// The choices of a capture; `None` if it is not a choice.
    pub(super) fn choices(&self, capture: &str) -> Option<&[String]> {
        self.kinds_of_captures().find_map(|(name, kind)| match kind {
            Kind::Choice(choices) if name == capture => Some(&choices[..]),
            _ => None,
        })
    }

    /// The values of its captures in `name`; `None` if the name does not match.
    pub fn matches<'n>(&'n self, name: &'n str) -> Option<Captures<'n>> {
        self.rest_matches(0, name)
    }

    /// Matches the template parts from number `first` on with the rest of a name, and returns their
    /// captures.
    pub(super) fn rest_matches<'n>(&'n self, first: usize, rest: &'n str) -> Option<Captures<'n>> {
        let (mut rest, mut captures) = (rest, Captures::new());
        for (at, part) in self.parts.iter().enumerate().skip(first) {
            rest = match part {
                Part::Literal(literal) => rest.strip_prefix(literal.as_str())?,
                Part::Capture { name, kind, numbering } => {
                    let suffix = &self.parts[at + 1..];
                    let (value, rest) = match kind {
                        Kind::Number => take_number(*numbering, rest)?,
                        other => other.take(rest, suffix)?,
                    };
                    captures.set(name, value);
                    rest
                }
            };
        }
        rest.is_empty().then_some(captures)
    }

    /// The name with these captures; `Err` with the name of a missing one.
    pub fn fill(&self, captures: &Captures<'_>) -> Result<String, String> {
        let mut name = String::new();
        let filled = self.fill_into(captures, &mut name);
        match self.parts.get(filled) {
            Some(Part::Capture { name, .. }) => Err(name.clone()),
            _ => Ok(name),
        }
    }

    /// Writes the name with these captures to `to`; returns false if one is missing.
    pub(super) fn makes_name(&self, captures: &Captures<'_>, to: &mut String) -> bool {
        self.fill_into(captures, to) == self.parts.len()
    }

    /// Replaces `to` by the name up to the first capture without a value. Returns the number of
    /// parts written.
    pub(super) fn fill_into(&self, captures: &Captures<'_>, to: &mut String) -> usize {
        to.clear();
        for (at, part) in self.parts.iter().enumerate() {
            match part {
                Part::Literal(literal) => to.push_str(literal),
                Part::Capture { name, numbering, .. } => match captures.get(name) {
                    Some(Value::Text(text)) => to.push_str(text),
                    Some(Value::Number(number)) if numbering.write(number, to) => {}
                    _ => return at,
                },
            }
        }
        self.parts.len()
    }

    fn check(&self) -> Result<()> {
        let mut seen = Vec::new();
        for (at, part) in self.parts.iter().enumerate() {
            let Part::Capture { name, kind, .. } = part else {
                continue;
            };
            ensure!(!seen.contains(&name), Invalid, "`{{{name}}}` is used twice; use it once");
            seen.push(name);
            kind.check(name, &self.parts[at + 1..])?;
        }
        Ok(())
    }
}

fn take_number(numbering: Numbering, text: &str) -> Option<(Value<'_>, &str)> {
    let (number, rest) = numbering.take(text)?;
    Some((Value::Number(number), rest))
}

impl Kind {
    /// Splits the capture's value off the front of `text`; `suffix` is the rest of the template.
    fn take<'t>(&self, text: &'t str, suffix: &[Part]) -> Option<(Value<'t>, &'t str)> {
        match self {
            Kind::Number => take_number(Numbering::default(), text),
            Kind::Choice(choices) => choices.iter().find_map(|choice| {
                let rest = text.strip_prefix(choice.as_str())?;
                Some((Value::Text(&text[..choice.len()]), rest))
            }),
            Kind::Word => {
                let (word, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
                (!word.is_empty()).then_some((Value::Text(word), rest))
            }
            Kind::Path => {
                // Only a literal follows: see `check`.
                let after = match suffix {
                    [Part::Literal(literal)] => literal.as_str(),
                    _ => "",
                };
                let path = text.strip_suffix(after)?;
                let rest = &text[path.len()..];
                (!path.is_empty()).then_some((Value::Text(path), rest))
            }
        }
    }

    /// Checks that the text after the capture cannot be part of it.
    fn check(&self, capture: &str, suffix: &[Part]) -> Result<()> {
        let follows = |expected| {
            error!(
                Invalid,
                "`{{{capture}}}` is ambiguous: it must be followed by {expected}, or be last"
            )
        };
        match (self, suffix) {
            (Kind::Choice(choices), _) => check_choices(capture, choices),
            (_, []) | (Kind::Path, [Part::Literal(_)]) => Ok(()),
            (Kind::Number, [Part::Literal(next), ..]) if !begins_with_digit(next) => Ok(()),
            (Kind::Word, [Part::Literal(next), ..]) if next.starts_with('.') => Ok(()),
            (Kind::Number, _) => Err(follows("something other than a digit")),
            (Kind::Word, _) => Err(follows("a dot")),
            (Kind::Path, _) => Err(follows("text without captures")),
        }
    }
}

fn begins_with_digit(text: &str) -> bool {
    text.starts_with(|it: char| it.is_ascii_digit())
}

fn check_choices(capture: &str, choices: &[String]) -> Result<()> {
    for (at, short) in choices.iter().enumerate() {
        let others = choices.iter().enumerate().filter(|(other, _)| *other != at);
        for (_, long) in others {
            ensure!(
                !long.starts_with(short.as_str()),
                Invalid,
                "ambiguous choices of `{{{capture}}}`: `{short}` is a prefix of `{long}`"
            );
        }
    }
    Ok(())
}

/// A text split into literals, each with the content of the braces after it.
fn segments(text: &str) -> Result<Vec<(&str, Option<&str>)>> {
    let (mut segments, mut rest) = (Vec::new(), text);
    while let Some(open) = rest.find(['{', '}']) {
        let inside = rest[open..].strip_prefix('{');
        let inside = inside.and_then(|inside| inside.split_once('}'));
        let Some((inside, after)) = inside else {
            bail!(Invalid, "unbalanced `{{` and `}}`");
        };
        segments.push((&rest[..open], Some(inside)));
        rest = after;
    }
    segments.push((rest, None));
    Ok(segments)
}

/// The error for the content of braces that is not a capture.
fn not_a_capture(inside: &str) -> Error {
    error!(
        Invalid,
        "`{{{inside}}}` is not a capture: write `{{l}}`, `{{l+10}}`, `{{l:03}}`, `{{p:q|k|v}}`, \
         `{{w:word}}` or `{{r:path}}`"
    )
}

/// The content of braces: a name, the kind if it is declared, and how numbers are written.
fn read_capture(inside: &str) -> Result<(&str, Option<Kind>, Numbering)> {
    let bad = || not_a_capture(inside);
    let (name, kind) = match inside.split_once(':') {
        Some((name, kind)) => (name, Some(kind)),
        None => (inside, None),
    };
    let mut numbering = Numbering::default();
    let name = match name.split_once('+') {
        Some((name, plus)) => {
            numbering.plus = plus.parse().map_err(|_| bad())?;
            name
        }
        None => name,
    };
    let plain = |it: char| it.is_ascii_alphanumeric() || it == '_';
    if name.is_empty() || begins_with_digit(name) || !name.chars().all(plain) {
        return Err(bad());
    }
    let kind = match kind {
        None => None,
        Some("word") => Some(Kind::Word),
        Some("path") => Some(Kind::Path),
        Some("number") => Some(Kind::Number),
        Some(width) if width.len() > 1 && width.starts_with('0') => {
            let width = width.parse().ok().filter(|width| (1..=MAX_WIDTH).contains(width));
            numbering.width = width.ok_or_else(bad)?;
            Some(Kind::Number)
        }
        Some(choices) => {
            let choices: Vec<String> = choices.split('|').map(str::to_owned).collect();
            if choices.len() < 2 || choices.iter().any(String::is_empty) {
                return Err(bad());
            }
            Some(Kind::Choice(choices))
        }
    };
    Ok((name, kind, numbering))
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.parts {
            match part {
                Part::Literal(literal) => f.write_str(literal)?,
                Part::Capture { name, numbering, .. } => write!(f, "{{{name}{numbering}}}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn template(text: &str) -> Template {
        Template::parse(text, &BTreeMap::new()).unwrap()
    }

    #[test]
    fn a_name_matches_in_one_way() {
        let experts = template("layers.{l}.experts.{e}.{p:up|gate}_proj.weight");
        let captures = experts.matches("layers.12.experts.0.gate_proj.weight");
        let captures = captures.unwrap();
        assert_eq!(captures.get("l"), Some(Value::Number(12)));
        assert_eq!(captures.get("p"), Some(Value::Text("gate")));

        for other in [
            "layers.012.experts.0.gate_proj.weight",
            "layers..experts.0.gate_proj.weight",
            "layers.-1.experts.0.gate_proj.weight",
            "layers.99999999999999999999.experts.0.gate_proj.weight",
            "layers.1.experts.0.down_proj.weight",
            "layers.1.experts.0.gate_proj.weight.extra",
            "model.layers.1.experts.0.gate_proj.weight",
        ] {
            assert_eq!(experts.matches(other), None, "{other}");
        }

        let rest = template("model.{rest:path}.weight");
        let captures = rest.matches("model.a.weight.b.weight").unwrap();
        assert_eq!(captures.get("rest"), Some(Value::Text("a.weight.b")));
        assert_eq!(rest.matches("model..weight"), None);
        let word = template("{w:word}.bias");
        assert_eq!(word.matches("a.b.bias"), None);
    }

    #[test]
    fn ambiguous_templates_are_rejected() {
        let rejected = [
            (
                "{l}{m}",
                "`{l}` is ambiguous: it must be followed by something other than a digit, or \
                 be last",
            ),
            (
                "x{l}0",
                "`{l}` is ambiguous: it must be followed by something other than a digit, or \
                 be last",
            ),
            ("{w:word}_proj", "`{w}` is ambiguous: it must be followed by a dot, or be last"),
            (
                "{r:path}.{l}",
                "`{r}` is ambiguous: it must be followed by text without captures, or \
                 be last",
            ),
            ("{p:q|qk}", "ambiguous choices of `{p}`: `q` is a prefix of `qk`"),
            ("{l}.{l}", "`{l}` is used twice; use it once"),
            ("{l", "unbalanced `{` and `}`"),
            ("l}", "unbalanced `{` and `}`"),
            (
                "{}",
                "`{}` is not a capture: write `{l}`, `{l+10}`, `{l:03}`, `{p:q|k|v}`, \
                 `{w:word}` or `{r:path}`",
            ),
            (
                "{a b}",
                "`{a b}` is not a capture: write `{l}`, `{l+10}`, `{l:03}`, `{p:q|k|v}`, \
                 `{w:word}` or `{r:path}`",
            ),
            (
                "{p:q|}",
                "`{p:q|}` is not a capture: write `{l}`, `{l+10}`, `{l:03}`, `{p:q|k|v}`, \
                 `{w:word}` or `{r:path}`",
            ),
        ];
        for (text, message) in rejected {
            let problem = Template::parse(text, &BTreeMap::new()).unwrap_err();
            assert_eq!(problem.to_string(), message);
        }
    }

    /// Numbers may have an offset and leading zeros.
    #[test]
    fn numbers_may_have_an_offset_and_leading_zeros() {
        let value = |text: &str, name: &str| match template(text).matches(name)?.get("l") {
            Some(Value::Number(number)) => Some(number),
            _ => None,
        };
        for (text, name, number) in [
            ("h.{l+10}.w", "h.12.w", Some(2)),
            ("h.{l+10}.w", "h.9.w", None),
            ("h.{l+10}.w", "h.010.w", None),
            ("h.{l:03}.w", "h.007.w", Some(7)),
            ("h.{l:03}.w", "h.1234.w", Some(1234)),
            ("h.{l:03}.w", "h.07.w", None),
            ("h.{l:03}.w", "h.0007.w", None),
            ("h.{l:03}.w", "h.7.w", None),
            ("h.{l+5:02}", "h.05", Some(0)),
        ] {
            assert_eq!(value(text, name), number, "{text} {name}");
            assert_eq!(template(text).to_string(), text);
        }
        for wrong in ["{l+}", "{l+x}", "{l:0}", "{l:0x}", "{l:099}", "{w+1:word}"] {
            assert!(Template::parse(wrong, &BTreeMap::new()).is_err(), "{wrong}");
        }
        let numbers = template("{l+1}");
        let last = Captures::new().with("l", Value::Number(u64::MAX));
        assert_eq!(numbers.fill(&last), Err("l".to_owned()));
    }

    proptest! {
        /// Every number has one form.
        #[test]
        fn numbers_have_one_form(l in any::<u64>(), plus in 0u64..200, width in 2usize..8, digits in "[0-9]{1,9}") {
            let template = template(&format!("h{{l+{plus}:0{width}}}.w"));
            let filled = template.fill(&Captures::new().with("l", Value::Number(l / 2))).unwrap();
            let found = template.matches(&filled).unwrap();
            prop_assert_eq!(found.get("l"), Some(Value::Number(l / 2)));
            let name = format!("h{digits}.w");
            if let Some(captures) = template.matches(&name) {
                let filled = template.fill(&captures);
                prop_assert_eq!(filled.as_ref(), Ok(&name));
            }
        }

        /// Filling in and matching again preserves captures; matching and filling in again
        /// preserves a name.
        #[test]
        fn filling_and_matching_are_inverse(
            l in any::<u64>(),
            p in prop::sample::select(vec!["q", "k", "v"]),
            w in "[^.]{1,8}",
            r in ".{1,12}",
            name in "(a[0-9]{0,3}|x)[.](q|k|v|)_[.](b|[.]){1,2}.{0,6}z",
        ) {
            let template = template("a{l}.{p:q|k|v}_.{w:word}.{r:path}z");
            let captures = Captures::new()
                .with("l", Value::Number(l))
                .with("p", Value::Text(p))
                .with("w", Value::Text(&w))
                .with("r", Value::Text(&r));
            let filled = template.fill(&captures).unwrap();
            let found = template.matches(&filled).unwrap();
            let pairs = |captures: &Captures<'_>| -> Vec<String> {
                captures.iter().map(|(name, value)| format!("{name}={value}")).collect()
            };
            prop_assert_eq!(pairs(&found), pairs(&captures));
            if let Some(captures) = template.matches(&name) {
                let filled = template.fill(&captures);
                prop_assert_eq!(filled.as_ref(), Ok(&name));
            }
        }
    }
}
