//! Rules that match no tensor, and what they may have meant.

use std::collections::BTreeMap;

use super::Rule;
use super::captures::Captures;
use super::named::Named;
use super::report::Problem;
use super::template::Template;

/// The problem of a rule without instances; `None` if it is optional, or a catch-all for which
/// other rules left nothing.
pub(super) fn problem(rule: &Rule, sources: &Named) -> Option<Problem> {
    let names = rule.right.names();
    let nothing = Captures::new();
    let matches = |it: &Template| sources.matching(it, &nothing).next().is_some();
    let (first, _) = names.first()?;
    if rule.optional || rule.is_catch_all() && (first.is_whole() || matches(first)) {
        return None;
    }
    let unmatched = names.iter().map(|(it, _)| *it).find(|it| !matches(it));
    let template = unmatched.unwrap_or(first);
    Some(Problem::Unmatched {
        name: template.to_string(),
        line: rule.line,
        hint: hint(template, sources),
    })
}

/// What to write instead.
fn hint(template: &Template, sources: &Named) -> String {
    let written = template.to_string();
    if let Some(stem) = written.strip_suffix(".T") {
        return format!("`.T` is part of the name: write transpose({stem}, 0, 1)");
    }
    let optional = "or write `?=` if the rule is optional";
    match nearest(&pattern_of(&written), sources) {
        Some(near) => {
            format!("did you mean `{}`? Correct the name, {optional}", near.escape_debug())
        }
        None => format!("correct the name, {optional}"),
    }
}

/// A source name that is similar to a missing name. Names that differ only in numbers do not count:
/// they are gaps in a numbering, not misspelled.
pub(super) fn similar(missing: &str, sources: &Named) -> Option<String> {
    let pattern = pattern_of(missing);
    nearest(&pattern, sources).filter(|near| pattern_of(near) != pattern)
}

/// The most similar source name, if it is similar enough. Names that differ only in numbers count
/// as one.
fn nearest(pattern: &str, sources: &Named) -> Option<String> {
    let mut patterns = BTreeMap::new();
    for (name, _) in sources.iter() {
        patterns.entry(pattern_of(name)).or_insert(name);
    }
    // Comparing takes time proportional to the product of the lengths.
    const LONGEST: usize = 1000;
    let comparable = |other: &&String| pattern.len().max(other.len()) <= LONGEST;
    let comparable = patterns.keys().filter(comparable);
    let scored = comparable.map(|other| (strsim::levenshtein(pattern, other), patterns[other]));
    let (distance, name) = scored.min_by_key(|(distance, _)| *distance)?;
    let similar = distance <= (pattern.chars().count() / 6).max(1);
    similar.then(|| (**name).to_string())
}

/// A name or the text of a template, with `#` for each number and each capture.
fn pattern_of(text: &str) -> String {
    let (mut pattern, mut rest) = (String::new(), text.chars().peekable());
    while let Some(next) = rest.next() {
        match next {
            '{' => {
                while rest.next_if(|it| *it != '}').is_some() {}
                rest.next();
                pattern.push('#');
            }
            '0'..='9' => {
                while rest.next_if(char::is_ascii_digit).is_some() {}
                pattern.push('#');
            }
            other => pattern.push(other),
        }
    }
    pattern
}
