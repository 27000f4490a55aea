//! Folds numbered names into patterns, so that a model of 18,000 tensors fits on a screen:
//!
//! ```text
//! model.layers.{0..47}.mlp.experts.{0..127}.down_proj.weight
//! ```
//!
//! A pattern stands for exactly the names that exist: a layer with a missing expert gets a separate
//! pattern. Ranges are written as in bash: they include the last number, and `{3..47..4}` has a
//! step of 4. Unlike in bash, a list may contain ranges, as in `{0..2,5}`. A long list ends in
//! `...`.

use std::cmp::Ordering;
use std::collections::BTreeMap;

/// A number is folded only if it is a whole part between these.
const SEPARATORS: [char; 2] = ['.', '/'];

/// Replaces a number in a template; tensor names never contain it.
const PLACEHOLDER: char = '\0';

/// More runs of numbers than this are cut off with `...`.
const MAX_RUNS: usize = 8;

/// A pattern and the names that it stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Folded {
    pub(crate) pattern: String,
    /// Ascending indices of the names.
    pub(crate) members: Vec<usize>,
}

/// Folds names of equal kind `K` into patterns, sorted by their first members.
pub(crate) fn fold<'a, K: Ord>(names: impl IntoIterator<Item = (&'a str, K)>) -> Vec<Folded> {
    let mut groups: BTreeMap<(String, K), BTreeMap<Vec<u64>, usize>> = BTreeMap::new();
    for (at, (name, kind)) in names.into_iter().enumerate() {
        let (template, numbers) = split(name);
        groups.entry((template, kind)).or_default().insert(numbers, at);
    }

    let mut all = Vec::new();
    for ((template, _), found) in &groups {
        let tuples: Vec<&[u64]> = found.keys().map(Vec::as_slice).collect();
        for product in products(&tuples) {
            let in_product = |numbers: &Vec<u64>| {
                let mut pairs = product.iter().zip(numbers);
                pairs.all(|(set, number)| set.binary_search(number).is_ok())
            };
            let members = found.iter().filter(|(numbers, _)| in_product(numbers));
            let mut members: Vec<usize> = members.map(|(_, at)| *at).collect();
            members.sort_unstable();
            all.push(Folded { pattern: render(template, &product), members });
        }
    }
    all.sort_by_key(|folded| folded.members.first().copied());
    all
}

/// Compares names with numbers as numbers: `layers.2` sorts before `layers.10`.
pub(crate) fn natural_order(a: &str, b: &str) -> Ordering {
    let (mut rest_a, mut rest_b) = (a.split(SEPARATORS), b.split(SEPARATORS));
    loop {
        let (part_a, part_b) = match (rest_a.next(), rest_b.next()) {
            (Some(part_a), Some(part_b)) => (part_a, part_b),
            (None, None) => return a.cmp(b),
            (rest_a, rest_b) => return rest_a.cmp(&rest_b),
        };
        let ordering = match (number(part_a), number(part_b)) {
            (Some(number_a), Some(number_b)) => number_a.cmp(&number_b),
            _ => part_a.cmp(part_b),
        };
        if ordering.is_ne() {
            return ordering;
        }
    }
}

/// Splits a name into its template and the numbers of the placeholders.
fn split(name: &str) -> (String, Vec<u64>) {
    let (mut template, mut numbers) = (String::new(), Vec::new());
    for piece in name.split_inclusive(SEPARATORS) {
        let part = piece.trim_end_matches(SEPARATORS);
        match number(part) {
            Some(number) => {
                numbers.push(number);
                template.push(PLACEHOLDER);
                template.push_str(&piece[part.len()..]);
            }
            None => template.push_str(piece),
        }
    }
    (template, numbers)
}

/// Parses a number without sign and leading zeros.
fn number(part: &str) -> Option<u64> {
    let plain = part.bytes().all(|byte| byte.is_ascii_digit());
    let canonical = plain && (part == "0" || !part.starts_with('0'));
    canonical.then(|| part.parse().ok())?
}

/// Decomposes sorted tuples of equal length into disjoint products of sets.
fn products(tuples: &[&[u64]]) -> Vec<Vec<Vec<u64>>> {
    if tuples.first().is_none_or(|tuple| tuple.is_empty()) {
        return vec![Vec::new()];
    }

    // Groups the first numbers by the set of tuples that follow them.
    let mut first_of: BTreeMap<Vec<&[u64]>, Vec<u64>> = BTreeMap::new();
    for same_first in tuples.chunk_by(|a, b| a[0] == b[0]) {
        let rests = same_first.iter().map(|tuple| &tuple[1..]).collect();
        first_of.entry(rests).or_default().push(same_first[0][0]);
    }

    let mut all = Vec::new();
    for (rests, first) in first_of {
        for mut product in products(&rests) {
            product.insert(0, first.clone());
            all.push(product);
        }
    }
    all
}

fn render(template: &str, product: &[Vec<u64>]) -> String {
    let mut sets = product.iter();
    let mut pattern = String::new();
    for character in template.chars() {
        match (character, sets.as_slice().first()) {
            (PLACEHOLDER, Some(set)) => {
                pattern.push_str(&brace_range(set));
                sets.next();
            }
            _ => pattern.push(character),
        }
    }
    pattern
}

/// Formats a set of numbers, as in `7`, `{0..47}`, `{3..47..4}`, `{0..2,5,9..12}`.
fn brace_range(set: &[u64]) -> String {
    if let [only] = set {
        return only.to_string();
    }

    let step = set[1] - set[0];
    if set.len() > 2 && set.windows(2).all(|pair| pair[1] - pair[0] == step) {
        let (first, last) = (set[0], set[set.len() - 1]);
        return match step {
            1 => format!("{{{first}..{last}}}"),
            _ => format!("{{{first}..{last}..{step}}}"),
        };
    }

    let runs = set.chunk_by(|a, b| *b == a + 1).map(|run| match run {
        [only] => only.to_string(),
        [first, second] => format!("{first},{second}"),
        run => format!("{}..{}", run[0], run[run.len() - 1]),
    });
    let mut runs: Vec<String> = runs.collect();
    if runs.len() > MAX_RUNS {
        runs.truncate(MAX_RUNS);
        runs.push("...".to_owned());
    }
    format!("{{{}}}", runs.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(names: &[String]) -> Vec<(String, usize)> {
        let folded = fold(names.iter().map(|name| (name.as_str(), ())));
        folded.into_iter().map(|f| (f.pattern, f.members.len())).collect()
    }

    fn experts(layers: impl Iterator<Item = u64>, experts: u64) -> Vec<String> {
        layers
            .flat_map(|l| (0..experts).map(move |e| format!("layers.{l}.experts.{e}.w")))
            .collect()
    }

    #[test]
    fn a_model_folds_into_a_few_patterns() {
        let mut names = vec!["embed".to_owned()];
        names.extend(experts(0..48, 128));
        names.push("v.0".to_owned());
        let wanted = [
            ("embed".to_owned(), 1),
            ("layers.{0..47}.experts.{0..127}.w".to_owned(), 6144),
            ("v.0".to_owned(), 1),
        ];
        assert_eq!(patterns(&names), wanted);
    }

    /// A pattern never covers a name that does not exist.
    #[test]
    fn a_missing_name_splits_the_pattern() {
        let mut names = experts(0..4, 4);
        names.retain(|name| name != "layers.2.experts.1.w");
        let wanted = [
            ("layers.{0,1,3}.experts.{0..3}.w".to_owned(), 12),
            ("layers.2.experts.{0,2,3}.w".to_owned(), 3),
        ];
        assert_eq!(patterns(&names), wanted);
    }

    /// Expands the braces of a pattern that is not cut off.
    fn expand(pattern: &str) -> Vec<String> {
        let Some((before, rest)) = pattern.split_once('{') else {
            return vec![pattern.to_owned()];
        };
        let (inside, after) = rest.split_once('}').unwrap();
        let numbers = inside.split(',').flat_map(|run| {
            let ends: Vec<u64> = run.split("..").map(|end| end.parse().unwrap()).collect();
            let step = ends.get(2).copied().unwrap_or(1) as usize;
            let (first, last) = (ends[0], *ends.get(1).unwrap_or(&ends[0]));
            (first..=last).step_by(step)
        });
        let expanded = |number| expand(after).into_iter().map(move |rest| (number, rest));
        let all = numbers.flat_map(expanded);
        all.map(|(number, rest)| format!("{before}{number}{rest}")).collect()
    }

    /// For any set of names, each name has exactly one pattern, and a pattern expands to exactly
    /// its members.
    #[test]
    fn patterns_expand_to_their_members() {
        for modulus in 1..40u64 {
            let scattered = (0..150).map(|at| {
                let (a, b, c) = (at * at % modulus, at * 31 % 13, at % 3);
                format!("a.{a}/b.{b}.c.{c}")
            });
            let mut names: Vec<String> = scattered.collect();
            names.sort();
            names.dedup();

            let folded = fold(names.iter().map(|name| (name.as_str(), name.len() % 2)));
            let mut seen = vec![false; names.len()];
            for Folded { pattern, members } in folded {
                let mut expanded = expand(&pattern);
                expanded.sort();
                let named: Vec<&String> = members.iter().map(|&at| &names[at]).collect();
                assert_eq!(expanded.iter().collect::<Vec<_>>(), named, "{pattern}");
                for at in members {
                    assert!(!seen[at], "{} is under two patterns", names[at]);
                    seen[at] = true;
                }
            }
            assert!(seen.into_iter().all(|seen| seen));
        }
    }

    #[test]
    fn different_kinds_get_different_patterns() {
        let names = ["w.0", "w.1", "w.2", "w.3"];
        let folded = fold(names.iter().enumerate().map(|(at, name)| (*name, at % 2)));
        let patterns: Vec<&str> = folded.iter().map(|f| f.pattern.as_str()).collect();
        assert_eq!(patterns, ["w.{0,2}", "w.{1,3}"]);
    }

    #[test]
    fn only_whole_parts_without_leading_zeros_are_numbers() {
        for name in ["conv1", "w.007", "x.+1", "", "a..b", "99999999999999999999"] {
            assert_eq!(split(name), (name.to_owned(), vec![]), "{name}");
        }
        assert_eq!(split("0.a/1"), ("\0.a/\0".to_owned(), vec![0, 1]));
    }

    #[test]
    fn sets_are_written_as_ranges_and_lists() {
        let all = [
            (vec![7], "7"),
            (vec![7, 8], "{7,8}"),
            (vec![7, 9], "{7,9}"),
            (vec![0, 1, 2], "{0..2}"),
            (vec![3, 7, 11], "{3..11..4}"),
            (vec![0, 1, 2, 5, 8, 9], "{0..2,5,8,9}"),
            (vec![0, 2, 5, 9, 14, 20, 27, 35, 44], "{0,2,5,9,14,20,27,35,...}"),
        ];
        for (set, wanted) in all {
            assert_eq!(brace_range(&set), wanted);
        }
    }

    #[test]
    fn natural_order_compares_numbers_as_numbers() {
        let mut names = vec!["l.10.a", "l.9.b", "l.9", "l.x", "l.10", "k"];
        names.sort_by(|a, b| natural_order(a, b));
        assert_eq!(names, ["k", "l.9", "l.9.b", "l.10", "l.10.a", "l.x"]);
    }
}
