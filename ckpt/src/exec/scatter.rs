//! Copies from a window to the targets: the inner loops of loading.
//!
//! A part of a copy moves one contiguous range of bytes per iteration of its nested loops. Long
//! ranges are copied with one call each. For single elements, the order of the loops determines the
//! speed. A transpose in the order of the window touches a different cache line of the target for
//! each element; in the order of the target, a different line of the window. Such copies are tiled
//! (see [`tiles`]).
//!
//! Conversions are applied per contiguous range, or per row of a tile.

mod place;
mod registers;
mod sides;
mod tiles;

use crate::plan::{ByteLoop, Conversion, Part};

use super::convert::convert;
pub(super) use place::Destination;
use place::each;
use tiles::ElementWriter;

/// Copies the elements of a part. Its `from` is relative to the start of `window`.
pub(super) fn scatter(window: &[u8], part: Part<'_>, mut place: impl Destination) {
    copy(window, part, &mut place);
}

/// Takes a trait object, so that it is compiled once and in this module.
fn copy(window: &[u8], part: Part<'_>, place: &mut dyn Destination) {
    if part.filled_bytes() == 0 {
        return;
    }
    let element = u64::from(part.element);
    let (run, outer) = match part.loops {
        [run, outer @ ..] if (run.from, run.to) == (element, element) => {
            (run.count * element, outer)
        }
        outer => (element, outer),
    };
    if tiles::supports(run) {
        let runs = Part { element: run as u32, to_element: run as u32, loops: outer, ..part };
        return tiles::write(window, runs, place, ElementWriter::of(&runs));
    }
    each(outer, part.from, part.to, &mut |from, to| {
        let bytes = &window[from as usize..][..run as usize];
        place.bytes(to..to + run).copy_from_slice(bytes);
    });
}

/// Like [`scatter`], but converts each element.
pub(super) fn scatter_converted(
    window: &[u8],
    part: Part<'_>,
    mut place: impl Destination,
    conversion: &Conversion,
) {
    copy_converted(window, part, &mut place, conversion);
}

fn copy_converted(
    window: &[u8],
    part: Part<'_>,
    place: &mut dyn Destination,
    conversion: &Conversion,
) {
    if part.filled_bytes() == 0 {
        return;
    }
    let (element, to_element) = (u64::from(part.element), u64::from(part.to_element));
    let (count, outer) = match part.loops {
        [run, outer @ ..] if (run.from, run.to) == (element, to_element) => (run.count, outer),
        _ if tiles::supports(element) => {
            return tiles::write(window, part, place, ElementWriter::Convert(conversion));
        }
        outer => (1, outer),
    };
    each(outer, part.from, part.to, &mut |from, to| {
        let bytes = &window[from as usize..][..(count * element) as usize];
        convert(conversion, bytes, place.bytes(to..to + count * to_element));
    });
}

/// Writes one element to every position of the loops, starting at `to`.
pub(super) fn fill(loops: &[ByteLoop], to: u64, element: &[u8], place: &mut [u8]) {
    each(loops, 0, to, &mut |_, to| {
        place[to as usize..][..element.len()].copy_from_slice(element);
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Dtype;
    use crate::graph::ElementOp;

    /// The reference: copies or converts one element at a time.
    fn plainly(window: &[u8], part: Part<'_>, target: &mut [u8], conversion: Option<&Conversion>) {
        each(part.loops, part.from, part.to, &mut |from, to| {
            let element = &window[from as usize..][..part.element as usize];
            let place = &mut target[to as usize..][..part.to_element as usize];
            match conversion {
                Some(conversion) => convert(conversion, element, place),
                None => place.copy_from_slice(element),
            }
        });
    }

    /// The loops that copy a tensor to one with permuted dims.
    #[derive(Clone, Debug)]
    struct Permuted {
        /// Extents, the dim with the smallest stride in the window first.
        shape: Vec<u64>,
        /// Dims, the one with the smallest stride in the target first.
        order: Vec<usize>,
        /// Padding in bytes after each dim: in the window, and in the target.
        pads: Vec<(u64, u64)>,
        /// Whether the last dim's stride is so large that the target spans [`tiles::FAR`] bytes.
        is_far: bool,
    }

    impl Permuted {
        /// The loops for elements of these sizes in the window and in the target.
        fn loops(&self, element: u64, to_element: u64) -> Vec<ByteLoop> {
            let mut loops = vec![ByteLoop { count: 1, from: 0, to: 0 }; self.shape.len()];
            let mut from = element;
            for (dim, it) in loops.iter_mut().enumerate() {
                (it.count, it.from) = (self.shape[dim], from);
                from = from * it.count + self.pads[dim].0;
            }
            let mut to = to_element;
            for (dim, nth) in self.order.iter().zip(1..) {
                let it = &mut loops[*dim];
                if self.is_far && nth == self.order.len() {
                    to = to.max(tiles::FAR / it.count.max(2) * 2);
                }
                it.to = to;
                to = to * it.count + self.pads[*dim].1;
            }
            loops
        }
    }

    fn permuted() -> impl Strategy<Value = Permuted> {
        let extents = vec![0u64, 1, 2, 3, 5, 8, 9, 16, 31, 33, 64, 130, 257, 600];
        let pad = || prop::sample::select(vec![0u64, 0, 0, 1, 2, 5, 64]);
        let dim = (prop::sample::select(extents), (pad(), pad()));
        (prop::collection::vec(dim, 0..5), any::<bool>()).prop_flat_map(|(dims, is_far)| {
            let (mut shape, pads): (Vec<u64>, Vec<(u64, u64)>) = dims.into_iter().unzip();
            let mut elements = 1;
            for extent in &mut shape {
                *extent = (*extent).min(100_000 / elements);
                elements *= (*extent).max(1);
            }
            let order: Vec<usize> = (0..shape.len()).collect();
            Just(order).prop_shuffle().prop_map(move |order| Permuted {
                shape: shape.clone(),
                order,
                pads: pads.clone(),
                is_far,
            })
        })
    }

    /// Scatters `permuted` and compares with [`plainly`].
    fn check(
        permuted: &Permuted,
        (from, to): (u64, u64),
        (element, to_element): (u32, u32),
        conversion: Option<&Conversion>,
    ) {
        let loops = permuted.loops(u64::from(element), u64::from(to_element));
        let part = Part { from, to, element, to_element, loops: &loops };
        let steps = loops.iter().map(|it| it.count.saturating_sub(1));
        let reach: u64 = steps.clone().zip(&loops).map(|(it, by)| it * by.from).sum();
        let to_reach: u64 = steps.zip(&loops).map(|(it, by)| it * by.to).sum();
        let window: Vec<u8> =
            (0..from + reach + u64::from(element)).map(|at| (at * 37 + at / 251) as u8).collect();
        let mut expected = vec![0xee; (to + to_reach) as usize + to_element as usize];
        let mut found = expected.clone();
        plainly(&window, part, &mut expected, conversion);
        match conversion {
            Some(conversion) => scatter_converted(&window, part, &mut found[..], conversion),
            None => scatter(&window, part, &mut found[..]),
        }
        assert!(found == expected, "{permuted:?} {element}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// Each byte is copied to its position, and all others are unchanged: for matrices and
        /// stacks of matrices, smaller and larger than a tile, dense or padded, with targets that
        /// span less and more than [`tiles::FAR`] bytes, and for every element size.
        #[test]
        fn tiled_copies_match_element_copies(
            permuted in permuted(),
            from in 0..20u64,
            to in 0..70u64,
        ) {
            for element in [1, 2, 3, 4, 8, 16] {
                check(&permuted, (from, to), (element, element), None);
            }
        }

        #[test]
        fn tiled_conversions_match_element_conversions(
            permuted in permuted(),
            from in 0..20u64,
            to in 0..70u64,
        ) {
            for (dtype, cast) in [
                (Dtype::BF16, Dtype::F32),
                (Dtype::F32, Dtype::BF16),
                (Dtype::F64, Dtype::F32),
                (Dtype::I8, Dtype::F32),
            ] {
                let conversion = Conversion { from: dtype, steps: vec![ElementOp::Cast(cast)] };
                let sizes = ((dtype.bits() / 8) as u32, (cast.bits() / 8) as u32);
                check(&permuted, (from, to), sizes, Some(&conversion));
            }
        }
    }
}
