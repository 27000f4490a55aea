//! The parser of maps: from tokens to rules.

use std::collections::{BTreeMap, BTreeSet};

use super::Rule;
use super::arguments::{self, Arguments};
use super::error::{MapError, MapErrorKind};
use super::template::{Kind, Template, TemplateError};
use super::term::Term;
use super::text::{Token, Word, tokens};

/// The rules of a map.
pub(super) fn rules(map: &str) -> Result<Vec<Rule>, MapError> {
    let tokens = tokens(map)?;
    let mut rules = Vec::new();
    let mut scope = Scope::default();
    let mut rest = &tokens[..];
    while let Some(end) = rest.iter().position(|token| token.word == Word::End) {
        let (line, after) = rest.split_at(end + 1);
        rest = after;
        let mut parser = Parser { tokens: line, at: 0, depth: 0 };
        if parser.peek() == Some(&Word::Sign('[')) {
            scope = parser.scope()?;
        } else {
            rules.push(rule(line, &scope)?);
        }
    }
    Ok(rules)
}

/// The prefixes of all names on each side.
#[derive(Clone, Default)]
struct Scope {
    left: String,
    right: String,
}

/// A term before its names are parsed as templates.
enum Written {
    Name(String),
    Call {
        name: String,
        positional: Vec<Written>,
        named: Vec<(String, String)>,
        line: usize,
        column: usize,
    },
}

struct Parser<'t> {
    tokens: &'t [Token],
    at: usize,
    /// The current nesting of operations.
    depth: usize,
}

/// The maximum nesting of operations.
const MAX_DEPTH: usize = 64;

fn rule(tokens: &[Token], scope: &Scope) -> Result<Rule, MapError> {
    let mut parser = Parser { tokens, at: 0, depth: 0 };
    let left = parser.written()?;
    let optional = parser.peek() == Some(&Word::Sign('?'));
    parser.at += usize::from(optional);
    parser.sign('=', "`=` between the two sides")?;
    let right = parser.written()?;
    parser.end()?;

    let (line, column) = (tokens[0].line, tokens[0].column);
    let at_rule = |problem: MapErrorKind| MapError { line, column, problem };
    let mut kinds = BTreeMap::new();
    collect_kinds(&left, &scope.left, &mut kinds).map_err(|it| at_rule(it.into()))?;
    collect_kinds(&right, &scope.right, &mut kinds).map_err(|it| at_rule(it.into()))?;
    let build = |written, prefix| Builder { kinds: &kinds, prefix }.term(written, (line, column));
    let rule = Rule {
        left: build(left, &scope.left)?,
        right: build(right, &scope.right)?,
        line,
        optional,
    };
    check(&rule).map_err(at_rule)?;
    Ok(rule)
}

impl Parser<'_> {
    fn peek(&self) -> Option<&Word> {
        self.tokens.get(self.at).map(|token| &token.word)
    }

    fn place(&self) -> (usize, usize) {
        let last = self.tokens.len() - 1;
        let token = &self.tokens[self.at.min(last)];
        (token.line, token.column)
    }

    fn expected(&self, expected: &'static str) -> MapError {
        let (line, column) = self.place();
        let found = self.peek().unwrap_or(&Word::End).to_string();
        MapError { line, column, problem: MapErrorKind::Expected { expected, found } }
    }

    fn sign(&mut self, sign: char, expected: &'static str) -> Result<(), MapError> {
        if self.peek() != Some(&Word::Sign(sign)) {
            return Err(self.expected(expected));
        }
        self.at += 1;
        Ok(())
    }

    fn text(&mut self, expected: &'static str) -> Result<String, MapError> {
        let Some(Word::Text(text)) = self.peek() else {
            return Err(self.expected(expected));
        };
        let text = text.clone();
        self.at += 1;
        Ok(text)
    }

    fn end(&mut self) -> Result<(), MapError> {
        match self.peek() {
            None | Some(Word::End) => Ok(()),
            Some(_) => Err(self.expected("the end of the rule")),
        }
    }

    /// Parses `[left = right]`. Either side may be empty.
    fn scope(&mut self) -> Result<Scope, MapError> {
        let mut scope = Scope::default();
        self.sign('[', "`[`")?;
        if let Some(Word::Text(_)) = self.peek() {
            scope.left = self.text("a prefix")?;
        }
        self.sign('=', "`=` between the two prefixes")?;
        if let Some(Word::Text(_)) = self.peek() {
            scope.right = self.text("a prefix")?;
        }
        self.sign(']', "`]`")?;
        self.end()?;
        Ok(scope)
    }

    fn written(&mut self) -> Result<Written, MapError> {
        let (line, column) = self.place();
        let name = self.text("a name or an operation")?;
        if self.peek() != Some(&Word::Sign('(')) {
            return Ok(Written::Name(name));
        }
        self.at += 1;
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(MapError {
                line,
                column,
                problem: MapErrorKind::TooDeep { limit: MAX_DEPTH },
            });
        }
        let (mut positional, mut named) = (Vec::new(), Vec::new());
        while self.peek() != Some(&Word::Sign(')')) {
            let next = self.tokens.get(self.at + 1).map(|token| &token.word);
            if next == Some(&Word::Sign('=')) {
                let key = self.text("the name of an argument")?;
                self.at += 1;
                named.push((key, self.text("a value")?));
            } else {
                positional.push(self.written()?);
            }
            if self.peek() != Some(&Word::Sign(')')) {
                self.sign(',', "`,` or `)`")?;
            }
        }
        self.at += 1;
        self.depth -= 1;
        Ok(Written::Call { name, positional, named, line, column })
    }
}

/// Collects the kinds of captures that the names of a term declare.
fn collect_kinds(
    written: &Written,
    prefix: &str,
    kinds: &mut BTreeMap<String, Kind>,
) -> Result<(), TemplateError> {
    match written {
        Written::Name(name) => {
            for (capture, kind) in Template::kinds(&format!("{prefix}{name}"))? {
                match kinds.get(&capture) {
                    Some(known) if *known != kind => {
                        return Err(TemplateError::TwoKinds(capture));
                    }
                    _ => kinds.insert(capture, kind),
                };
            }
            Ok(())
        }
        Written::Call { positional, .. } => {
            positional.iter().try_for_each(|it| collect_kinds(it, prefix, kinds))
        }
    }
}

struct Builder<'k> {
    kinds: &'k BTreeMap<String, Kind>,
    prefix: &'k str,
}

impl Builder<'_> {
    fn term(&self, written: Written, (line, column): (usize, usize)) -> Result<Term, MapError> {
        let at = |problem| MapError { line, column, problem };
        match written {
            Written::Name(name) => {
                let full = format!("{}{name}", self.prefix);
                let template = Template::parse(&full, self.kinds);
                Ok(Term::Name(template.map_err(|it| at(it.into()))?))
            }
            Written::Call { name, positional, named, line, column } => {
                let mut arguments = Arguments { positional: Vec::new(), named };
                for written in positional {
                    let text = match &written {
                        Written::Name(name) => Some(name.clone()),
                        Written::Call { .. } => None,
                    };
                    let term = self.term(written, (line, column))?;
                    arguments.positional.push((term, text));
                }
                arguments::call(&name, arguments).map_err(|problem| MapError {
                    line,
                    column,
                    problem,
                })
            }
        }
    }
}

/// Checks that both sides have the same captures, and that a name on each side has all of them.
fn check(rule: &Rule) -> Result<(), MapErrorKind> {
    let (left, right) = (rule.left.free_captures(), rule.right.free_captures());
    for (side, ours, theirs) in [("left", &left, &right), ("right", &right, &left)] {
        if let Some(capture) = ours.difference(theirs).next() {
            let capture = (*capture).to_owned();
            return Err(MapErrorKind::OneSide { capture, side });
        }
    }
    for (side, term) in [("left", &rule.left), ("right", &rule.right)] {
        check_side(side, term, &left)?;
    }
    Ok(())
}

fn check_side(
    side: &'static str,
    term: &Term,
    captures: &BTreeSet<&str>,
) -> Result<(), MapErrorKind> {
    check_each(term)?;
    let names = term.names();
    let has_all = |template: &Template| {
        let own: BTreeSet<&str> = template.captures().collect();
        captures.is_subset(&own)
    };
    match names.is_empty() || names.iter().any(|(template, _)| has_all(template)) {
        true => Ok(()),
        false => Err(MapErrorKind::Scattered {
            side,
            captures: captures.iter().map(|it| (*it).to_owned()).collect(),
        }),
    }
}

/// Checks that operands have the captures that operations iterate over, and that these are ordered.
fn check_each(term: &Term) -> Result<(), MapErrorKind> {
    let Term::Call(call) = term else {
        return Ok(());
    };
    if let (Some(each), [of]) = (&call.each, &call.of[..]) {
        let names = of.names();
        let ordered = |kind: &Kind| matches!(kind, Kind::Number | Kind::Choice(_));
        let mut kinds = names.iter().flat_map(|(it, _)| it.kinds_of_captures());
        if !kinds.any(|(name, kind)| name == &**each && ordered(kind)) {
            return Err(MapErrorKind::NothingToGoOver(each.to_string()));
        }
    }
    call.of.iter().try_for_each(check_each)
}
