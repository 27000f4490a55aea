//! The parser of maps: from tokens to rules.

use std::collections::{BTreeMap, BTreeSet};

use meshgrad_error::{Error, Result, bail, ensure, error};

use super::Rule;
use super::arguments::{self, Arguments};
use super::template::{Kind, Template};
use super::term::Term;
use super::text::{Token, Word, at, tokens};

/// The rules of a map.
pub(super) fn rules(map: &str) -> Result<Vec<Rule>> {
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

fn rule(tokens: &[Token], scope: &Scope) -> Result<Rule> {
    let mut parser = Parser { tokens, at: 0, depth: 0 };
    let left = parser.written()?;
    let optional = parser.peek() == Some(&Word::Sign('?'));
    parser.at += usize::from(optional);
    parser.sign('=', "`=` between the two sides")?;
    let right = parser.written()?;
    parser.end()?;

    let (line, column) = (tokens[0].line, tokens[0].column);
    let at_rule = |problem| at((line, column), problem);
    let mut kinds = BTreeMap::new();
    collect_kinds(&left, &scope.left, &mut kinds).map_err(at_rule)?;
    collect_kinds(&right, &scope.right, &mut kinds).map_err(at_rule)?;
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

    fn expected(&self, expected: &'static str) -> Error {
        let found = self.peek().unwrap_or(&Word::End);
        at(self.place(), error!(Invalid, "expected {expected}, found {found}"))
    }

    fn sign(&mut self, sign: char, expected: &'static str) -> Result<()> {
        if self.peek() != Some(&Word::Sign(sign)) {
            return Err(self.expected(expected));
        }
        self.at += 1;
        Ok(())
    }

    fn text(&mut self, expected: &'static str) -> Result<String> {
        let Some(Word::Text(text)) = self.peek() else {
            return Err(self.expected(expected));
        };
        let text = text.clone();
        self.at += 1;
        Ok(text)
    }

    fn end(&mut self) -> Result<()> {
        match self.peek() {
            None | Some(Word::End) => Ok(()),
            Some(_) => Err(self.expected("the end of the rule")),
        }
    }

    /// Parses `[left = right]`. Either side may be empty.
    fn scope(&mut self) -> Result<Scope> {
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

    fn written(&mut self) -> Result<Written> {
        let (line, column) = self.place();
        let name = self.text("a name or an operation")?;
        if self.peek() != Some(&Word::Sign('(')) {
            return Ok(Written::Name(name));
        }
        self.at += 1;
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            let problem = error!(
                Invalid,
                "more than {MAX_DEPTH} nested operations: split the rule in two, or the map"
            );
            return Err(at((line, column), problem));
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
) -> Result<()> {
    match written {
        Written::Name(name) => {
            for (capture, kind) in Template::kinds(&format!("{prefix}{name}"))? {
                match kinds.get(&capture) {
                    Some(known) if *known != kind => bail!(
                        Invalid,
                        "`{{{capture}}}` has two kinds; declare the kind once, or the same one \
                         everywhere"
                    ),
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
    fn term(&self, written: Written, place: (usize, usize)) -> Result<Term> {
        match written {
            Written::Name(name) => {
                let full = format!("{}{name}", self.prefix);
                let template = Template::parse(&full, self.kinds);
                Ok(Term::Name(template.map_err(|problem| at(place, problem))?))
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
                let call = arguments::call(&name, arguments);
                call.map_err(|problem| at((line, column), problem))
            }
        }
    }
}

/// Checks that both sides have the same captures, and that a name on each side has all of them.
fn check(rule: &Rule) -> Result<()> {
    let (left, right) = (rule.left.free_captures(), rule.right.free_captures());
    for (side, ours, theirs) in [("left", &left, &right), ("right", &right, &left)] {
        if let Some(capture) = ours.difference(theirs).next() {
            bail!(
                Invalid,
                "`{{{capture}}}` is only on the {side} side: use it on both, or write \
                 `each={capture}` in the operation that iterates over it"
            );
        }
    }
    for (side, term) in [("left", &rule.left), ("right", &rule.right)] {
        check_side(side, term, &left)?;
    }
    Ok(())
}

fn check_side(side: &'static str, term: &Term, captures: &BTreeSet<&str>) -> Result<()> {
    check_each(term)?;
    let names = term.names();
    let has_all = |template: &Template| {
        let own: BTreeSet<&str> = template.captures().collect();
        captures.is_subset(&own)
    };
    let listed = || captures.iter().map(|it| format!("`{{{it}}}`")).collect::<Vec<_>>().join(", ");
    ensure!(
        names.is_empty() || names.iter().any(|(template, _)| has_all(template)),
        Invalid,
        "no name on the {side} side has all of {}: one name must determine the tensors",
        listed()
    );
    Ok(())
}

/// Checks that operands have the captures that operations iterate over, and that these are ordered.
fn check_each(term: &Term) -> Result<()> {
    let Term::Call(call) = term else {
        return Ok(());
    };
    if let (Some(each), [of]) = (&call.each, &call.of[..]) {
        let names = of.names();
        let ordered = |kind: &Kind| matches!(kind, Kind::Number | Kind::Choice(_));
        let mut kinds = names.iter().flat_map(|(it, _)| it.kinds_of_captures());
        ensure!(
            kinds.any(|(name, kind)| name == &**each && ordered(kind)),
            Invalid,
            "each={each}: the operand has no capture `{{{each}}}` that is a number or a choice"
        );
    }
    call.of.iter().try_for_each(check_each)
}
