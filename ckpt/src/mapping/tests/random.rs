//! Inverses of random maps.

use super::{bind, elements};
use crate::Dtype;
use crate::mapping::{AllowedProblems, Bound, Mapping, TensorSpec};
use meshgrad_ckpt_crash::SplitMix64;

/// A random invertible term of a shape; its names are added to `sources`.
fn term(rng: &mut SplitMix64, shape: &[u64], depth: u32, sources: &mut Vec<TensorSpec>) -> String {
    let rank = shape.len();
    let dim = rng.below(rank as u64) as usize;
    let with = |extents: &[u64]| {
        let mut other = shape.to_vec();
        other.splice(dim..=dim, extents.iter().copied());
        other
    };
    if depth == 0 {
        let name = format!("t{}", sources.len());
        sources.push(TensorSpec::new(&name, Dtype::F32, shape));
        return name;
    }
    let mut next = |rng: &mut SplitMix64, shape: &[u64]| term(rng, shape, depth - 1, sources);
    match rng.below(7) {
        0 if shape[dim] > 1 => {
            let first = 1 + rng.below(shape[dim] - 1);
            let second = shape[dim] - first;
            let (a, b) = (next(rng, &with(&[first])), next(rng, &with(&[second])));
            format!("concat({a}, {b}, dim={dim}, shares={first}:{second})")
        }
        1 if rank > 1 && shape[dim] < 4 => {
            let parts: Vec<String> = (0..shape[dim]).map(|_| next(rng, &with(&[]))).collect();
            format!("stack({}, dim={dim})", parts.join(", "))
        }
        2 if shape[dim].is_multiple_of(2) => {
            let half = with(&[shape[dim] / 2]);
            let (a, b) = (next(rng, &half), next(rng, &half));
            format!("interleave({a}, {b}, dim={dim})")
        }
        3 if rank > 1 => {
            let mut transposed = shape.to_vec();
            transposed.swap(0, rank - 1);
            format!("transpose({}, 0, -1)", next(rng, &transposed))
        }
        4 if shape[dim].is_multiple_of(3) => {
            let rows = next(rng, &with(&[3, shape[dim] / 3]));
            format!("flatten({rows}, dim={dim}, rows=3)")
        }
        5 if dim + 1 < rank => {
            let mut joined = shape.to_vec();
            joined.splice(dim..dim + 2, [shape[dim] * shape[dim + 1]]);
            format!("unflatten({}, {}, dim={dim})", next(rng, &joined), shape[dim])
        }
        6 => format!("squeeze({}, dim={dim})", next(rng, &with(&[1, shape[dim]]))),
        _ => next(rng, shape),
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(1000))]

    /// The inverse of a random map restores the position of each element.
    #[test]
    fn inverses_restore_every_element(seed in proptest::prelude::any::<u64>(), depth in 0..6u32) {
        let (mut rng, mut sources) = (SplitMix64::new(seed), Vec::new());
        let shape: Vec<u64> = (0..1 + rng.below(3)).map(|_| 1 + rng.below(6)).collect();
        let term = term(&mut rng, &shape, depth, &mut sources);
        let bound = bind(&format!("x = {term}"), &sources);
        let back = bound.inverse().unwrap_or_else(|why| panic!("{term}: {why}"));

        let forth = elements(&bound, "x");
        for spec in back.outputs() {
            for (at, place) in elements(&back, &spec.name).iter().enumerate() {
                let place: usize = place.strip_prefix('x').unwrap().parse().unwrap();
                proptest::prop_assert_eq!(&forth[place], &format!("{}{at}", spec.name));
            }
        }
        let forth_again = back.inverse().unwrap();
        proptest::prop_assert_eq!(elements(&forth_again, "x"), forth);
    }
}

/// The kinds of mistakes in random maps.
const WRONGS: [&str; 4] = ["none", "declared", "name", "dropped"];

/// A map of several rules, some of them wrong. Arguments that the inverse needs may contradict the
/// tensors or be absent; a name may match nothing; a copy may drop its original.
fn random_map(rng: &mut SplitMix64) -> (String, Vec<TensorSpec>) {
    let (mut map, mut sources) = (String::new(), Vec::new());
    for rule in 0..1 + rng.below(3) {
        let shape: Vec<u64> = (0..1 + rng.below(3)).map(|_| 1 + rng.below(6)).collect();
        let depth = rng.below(4) as u32;
        map += &format!("x{rule} = {}\n", term(rng, &shape, depth, &mut sources));
    }
    match WRONGS[rng.below(WRONGS.len() as u64) as usize] {
        "declared" => map = with_wrong_arguments(rng, &map),
        "name" => map = map.replacen("t0", "t0.T", 1),
        "dropped" => map += "{r:path} = {r:path}\n",
        _ => {}
    }
    (map, sources)
}

/// Changes some numbers of `shares=` and `rows=`, or removes the arguments.
fn with_wrong_arguments(rng: &mut SplitMix64, map: &str) -> String {
    let mut wrong = String::new();
    let mut rest = map;
    while let Some(at) = rest.find(", shares=").or_else(|| rest.find(", rows=")) {
        let length = rest[at..].find(')').unwrap();
        let (argument, after) = rest[at..].split_at(length);
        wrong += &rest[..at];
        let number = |rng: &mut SplitMix64| 1 + rng.below(4);
        match (rng.below(3), argument.contains("shares")) {
            (0, _) => wrong += argument,
            (1, true) => wrong += &format!(", shares={}:{}", number(rng), number(rng)),
            (1, false) => wrong += &format!(", rows={}", number(rng)),
            _ => {}
        }
        rest = after;
    }
    wrong + rest
}

/// The elements of a source after a round trip, each by its origin, as in `t0.3`.
fn there_and_back(there: &Bound, back: &Bound, spec: &TensorSpec) -> Vec<String> {
    let origin = |place: &String| {
        let names = there.outputs().map(|it| it.name);
        let found = names
            .filter_map(|name| Some((place.strip_prefix(&name)?.parse::<usize>().ok()?, name)))
            .max_by_key(|(_, name)| name.len());
        let (at, name) = found.unwrap();
        elements(there, &name)[at].clone()
    };
    elements(back, &spec.name).iter().map(origin).collect()
}

/// Whether the second conversion writes what the first one read.
fn is_restored(there: &Bound, back: &Bound, sources: &[TensorSpec]) -> bool {
    let mut before = sources.to_vec();
    before.sort_by(|a, b| a.name.cmp(&b.name));
    let after: Vec<TensorSpec> = back.outputs().collect();
    let is_same = |spec: &TensorSpec| {
        let count = spec.shape.iter().product::<u64>();
        let expected: Vec<String> = (0..count).map(|at| format!("{}{at}", spec.name)).collect();
        there_and_back(there, back, spec) == expected
    };
    after == before && after.iter().all(is_same)
}

/// For 1,000 random maps, some with mistakes: `convert` followed by `convert --inverse` restores
/// the source, or one of them refuses before it writes. Exactly the maps that restore the source
/// are called proven.
#[test]
fn converting_back_restores_the_source_or_is_refused() {
    let (mut restored, mut refused, mut refused_back) = (0, 0, 0);
    for seed in 0..1000 {
        let mut rng = SplitMix64::new(seed);
        let (map, sources) = random_map(&mut rng);
        let mapping = Mapping::parse(&map).unwrap();
        let Ok(there) = mapping.bind(&sources, None, &AllowedProblems::none()) else {
            refused += 1;
            continue;
        };
        let made: Vec<TensorSpec> = there.outputs().collect();
        let reversed = mapping.reversed();
        let proven = there.round_trip().is_ok();
        match reversed.bind(&made, None, &AllowedProblems::none()) {
            Ok(back) => {
                assert!(is_restored(&there, &back, &sources), "{seed}: {map}");
                assert!(proven, "{seed}: {map}");
                restored += 1;
            }
            Err(_) => {
                assert!(!proven, "{seed}: {map}");
                refused_back += 1;
            }
        }
    }
    let seen = [restored, refused, refused_back];
    assert!(seen.iter().all(|count| *count > 20), "{seen:?}");
}

/// The comparison above fails for swapped parts, for parts of other sizes and for a lost tensor.
#[test]
fn wrong_inverses_are_detected() {
    let sources = super::specs(&[("a", &[2, 3]), ("b", &[4, 3])]);
    let there = bind("x = concat(a, b, shares=1:2)", &sources);
    let made: Vec<TensorSpec> = there.outputs().collect();
    for (back, restored) in [
        ("concat(a, b, shares=1:2) = x", true),
        ("concat(b, a, shares=2:1) = x", false),
        ("concat(a, b, shares=2:1) = x", false),
        ("concat(a, c, shares=1:2) = x", false),
        ("a = slice(x, 1, 3)\nb = slice(x, 2, 6)\nfirst = slice(x, 0, 1)", false),
    ] {
        let back = bind(back, &made);
        assert_eq!(is_restored(&there, &back, &sources), restored);
    }
}
