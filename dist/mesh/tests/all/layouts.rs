//! The algebra of layouts, compared with enumeration.

use std::collections::BTreeSet;

use meshgrad_mesh::{Mode, RankLayout, Relation};
use proptest::prelude::*;

pub(crate) const NO_RANKS: &str = "a size is 0, but a layout has at least one rank";

fn layout(modes: &[(usize, usize)]) -> RankLayout {
    RankLayout::new(modes.iter().copied()).unwrap()
}

/// Values of torch 2.15's `_MeshLayout` for the same layouts.
#[test]
fn layouts_match_torch() {
    assert_eq!(layout(&[(6, 2), (2, 1)]).to_string(), "12:1");
    assert_eq!(layout(&[(4, 2), (2, 16)]).complement(32).unwrap(), layout(&[(2, 8), (2, 1)]));
    assert_eq!(layout(&[(4, 2)]).complement(24).unwrap(), layout(&[(3, 8), (2, 1)]));
    let parts = layout(&[(8, 1)]).split(&[2, 4]).unwrap();
    assert_eq!(parts, [layout(&[(2, 4)]), layout(&[(4, 1)])]);

    let axes = RankLayout::row_major(&[2, 2, 2]).unwrap();
    let pp_tp = RankLayout::concat([&axes[0], &axes[2]]).unwrap();
    assert_eq!(pp_tp, layout(&[(2, 4), (2, 1)]));
    let groups: Vec<_> = pp_tp.groups(8).unwrap().collect();
    assert_eq!(groups, [[0, 1, 4, 5], [2, 3, 6, 7]]);
    let parts = pp_tp.split(&[2, 2]).unwrap();
    assert_eq!(parts, [layout(&[(2, 4)]), layout(&[(2, 1)])]);
}

#[test]
fn invalid_layouts_are_rejected() {
    let refused = |modes: &[(usize, usize)], expected: &str| {
        let error = RankLayout::new(modes.iter().copied()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    for modes in [[(2, 2), (3, 1)].as_slice(), &[(2, 1), (2, 1)], &[(2, 0)]] {
        refused(modes, "is not separable: the stride");
    }
    refused(&[(0, 1)], NO_RANKS);
    assert_eq!(RankLayout::contiguous(0).unwrap_err().to_string(), NO_RANKS);
    for huge in [(usize::MAX, 1), (2, usize::MAX), (1 << 20, 1 << 20)] {
        refused(&[huge], "ranks exceed the limit of 16777216");
    }
}

/// A mixed radix, and some of its digits in some order.
fn digits() -> impl Strategy<Value = (Vec<usize>, Vec<usize>)> {
    prop::collection::vec(1..=4usize, 1..=6)
        .prop_filter("at most 4096 ranks", |radix| radix.iter().product::<usize>() <= 4096)
        .prop_flat_map(|radix| {
            let all: Vec<usize> = (0..radix.len()).collect();
            let some = prop::sample::subsequence(all.clone(), 0..=all.len()).prop_shuffle();
            (Just(radix), some)
        })
}

/// Enumerates the ranks of all coordinates along `chosen`; the last one varies fastest.
fn enumerated(radix: &[usize], chosen: &[usize]) -> Vec<usize> {
    let stride = |digit: usize| radix[digit + 1..].iter().product::<usize>();
    chosen.iter().fold(vec![0], |ranks, digit| {
        let step = |rank: usize| (0..radix[*digit]).map(move |at| rank + at * stride(*digit));
        ranks.into_iter().flat_map(step).collect()
    })
}

fn of_digits(radix: &[usize], chosen: &[usize]) -> RankLayout {
    let axes = RankLayout::row_major(radix).unwrap();
    RankLayout::concat(chosen.iter().map(|digit| &axes[*digit])).unwrap()
}

fn set(ranks: impl IntoIterator<Item = usize>) -> BTreeSet<usize> {
    ranks.into_iter().collect()
}

proptest! {
    #[test]
    fn layouts_equal_enumeration((radix, chosen) in digits()) {
        let (layout, expected) = (of_digits(&radix, &chosen), enumerated(&radix, &chosen));
        prop_assert_eq!(layout.ranks().collect::<Vec<_>>(), expected.clone());
        prop_assert_eq!(layout.len(), expected.len());
        prop_assert_eq!(layout.span(), expected.iter().max().unwrap() + 1);

        let world: usize = radix.iter().product();
        for rank in 0..2 * world {
            let index = expected.iter().position(|other| *other == rank);
            prop_assert_eq!(layout.index_of(rank), index);
        }
        let mut sorted = expected;
        sorted.sort_unstable();
        prop_assert_eq!(layout.ascending().ranks().collect::<Vec<_>>(), sorted);
    }

    #[test]
    fn groups_partition_the_world_in_order((radix, chosen) in digits()) {
        let (layout, world) = (of_digits(&radix, &chosen), radix.iter().product::<usize>());
        let groups: Vec<Vec<usize>> = layout.groups(world).unwrap().collect();

        let mut all = groups.concat();
        all.sort_unstable();
        prop_assert_eq!(all, (0..world).collect::<Vec<_>>());
        prop_assert!(groups.windows(2).all(|pair| pair[0][0] < pair[1][0]));
        for group in &groups {
            let relative = group.iter().map(|rank| rank - group[0]);
            prop_assert_eq!(relative.collect::<Vec<_>>(), layout.ranks().collect::<Vec<_>>());
            let coordinates = group.iter().map(|rank| layout.coordinate(*rank));
            prop_assert_eq!(coordinates.collect::<Vec<_>>(), (0..group.len()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_layout_and_its_complement_cover_the_world((radix, chosen) in digits()) {
        let (layout, world) = (of_digits(&radix, &chosen), radix.iter().product::<usize>());
        let rest = layout.complement(world).unwrap();
        let both = RankLayout::concat([&rest, &layout]).unwrap();
        prop_assert_eq!(set(both.ranks()), set(0..world));
        prop_assert_eq!(rest.complement(world).unwrap(), layout.ascending());
    }

    #[test]
    fn concat_inverts_split((radix, chosen) in digits()) {
        let layout = of_digits(&radix, &chosen);
        let sizes: Vec<usize> = chosen.iter().map(|digit| radix[*digit]).collect();
        let parts = layout.split(&sizes).unwrap();
        let axes = RankLayout::row_major(&radix).unwrap();
        let expected: Vec<_> = chosen.iter().map(|digit| axes[*digit].clone()).collect();
        prop_assert_eq!(&parts, &expected);
        prop_assert_eq!(RankLayout::concat(&parts).unwrap(), layout);
    }

    /// For any sizes, a split is correct or an error, and never panics.
    #[test]
    fn a_split_is_correct_or_an_error((radix, chosen) in digits(), sizes in prop::collection::vec(1..=8usize, 1..4)) {
        let layout = of_digits(&radix, &chosen);
        if let Ok(parts) = layout.split(&sizes) {
            let lens: Vec<usize> = parts.iter().map(RankLayout::len).collect();
            prop_assert_eq!(lens, sizes);
            prop_assert_eq!(RankLayout::concat(&parts).unwrap(), layout);
        } else if layout.modes().len() <= 1 {
            prop_assert_ne!(sizes.iter().product::<usize>(), layout.len());
        }
    }

    #[test]
    fn composing_is_indexing((radix, chosen) in digits(), (inner_radix, inner) in digits()) {
        let (outer, inner) = (of_digits(&radix, &chosen), of_digits(&inner_radix, &inner));
        let fits = inner.span() <= outer.len();
        match outer.compose(&inner) {
            Ok(composed) => {
                prop_assert!(fits);
                let expected: Vec<_> = inner.ranks().map(|index| outer.rank(index)).collect();
                prop_assert_eq!(composed.ranks().collect::<Vec<_>>(), expected);
            }
            // A single mode is an arithmetic progression: every composition in range exists.
            Err(_) => prop_assert!(!fits || outer.modes().len() > 1),
        }
    }

    /// The relation of two layouts of one world equals that of their groups, compared as sets.
    #[test]
    fn relations_match_the_groups(
        (radix, one) in digits(),
        keep in prop::collection::vec(any::<bool>(), 6),
        more in prop::collection::vec(any::<bool>(), 6),
    ) {
        let other: Vec<usize> = (0..radix.len())
            .filter(|digit| match one.contains(digit) {
                true => keep[*digit],
                false => more[*digit],
            })
            .collect();
        let (a, b) = (of_digits(&radix, &one), of_digits(&radix, &other));
        let world = radix.iter().product();
        prop_assert_eq!(a.relation(&b), by_groups(&a, &b, world));
        prop_assert_eq!(b.relation(&a), by_groups(&b, &a, world));
    }
}

fn by_groups(one: &RankLayout, other: &RankLayout, world: usize) -> Relation {
    let sets = |layout: &RankLayout| -> Vec<BTreeSet<usize>> {
        layout.groups(world).unwrap().map(set).collect()
    };
    let (mine, theirs) = (sets(one), sets(other));
    let each_within = |inner: &[BTreeSet<usize>], outer: &[BTreeSet<usize>]| {
        inner.iter().all(|group| outer.iter().any(|it| group.is_subset(it)))
    };
    let at_most_one =
        mine.iter().all(|group| theirs.iter().all(|it| group.intersection(it).count() <= 1));

    if one.ranks().eq(other.ranks()) {
        Relation::Same
    } else if mine == theirs {
        Relation::Reordered
    } else if each_within(&mine, &theirs) {
        Relation::Sub
    } else if each_within(&theirs, &mine) {
        Relation::Super
    } else if at_most_one {
        Relation::Orthogonal
    } else {
        Relation::Overlapping
    }
}

/// No mesh has both as axes: 4 x 3 and 3 x 4 of the same 12 ranks.
#[test]
fn layouts_without_a_common_radix_overlap() {
    let (fours, threes) = (layout(&[(4, 1)]), layout(&[(3, 1)]));
    assert_eq!(fours.relation(&threes), Relation::Overlapping);
    assert_eq!(threes.relation(&fours), Relation::Overlapping);
    assert_eq!(fours.modes(), [Mode { size: 4, stride: 1 }]);
}

/// Indices that fit in the fastest mode, skip it, or continue in the next one.
#[test]
fn equally_spaced_indices_compose() {
    let outer = layout(&[(4, 32), (8, 1)]);
    for stride in [1usize, 2, 4, 8, 16] {
        for size in (1..=32 / stride).filter(|size| size.is_power_of_two()) {
            assert_composed(&outer, size, stride);
        }
    }
    assert_composed(&layout(&[(2, 10), (5, 1)]), 3, 2);
}

fn assert_composed(outer: &RankLayout, size: usize, stride: usize) {
    let composed = outer.compose(&layout(&[(size, stride)])).unwrap();
    let ranks: Vec<usize> = outer.ranks().collect();
    let expected: Vec<usize> = (0..size).map(|at| ranks[at * stride]).collect();
    assert_eq!(composed.ranks().collect::<Vec<_>>(), expected);
}

#[test]
fn layouts_are_written_as_sizes_and_strides() {
    let text = |modes: &[(usize, usize)]| layout(modes).to_string();
    assert_eq!(text(&[(1, 1)]), "1:0");
    assert_eq!(text(&[(8, 1)]), "8:1");
    assert_eq!(text(&[(2, 4), (2, 1)]), "(2, 2):(4, 1)");
    assert_eq!(format!("{:?}", layout(&[(8, 1)])), "RankLayout(8:1)");
}
