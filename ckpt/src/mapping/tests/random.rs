//! Inverses of random maps.

use super::{bind, elements};
use crate::Dtype;
use crate::mapping::TensorSpec;
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
            format!(
                "unflatten({}, {}, dim={dim})",
                next(rng, &joined),
                shape[dim]
            )
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
