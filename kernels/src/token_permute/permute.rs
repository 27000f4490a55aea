//! Permute: copies token rows into expert order.

use super::{ABSENT, Group, IN_FLIGHT, Tile, weighted_name};
use crate::assembler::{F32, GlobalAddress, In, Launch, Out, Pred, Ptx, U32, Variant};
use crate::dtype::Dtype;
use crate::faults::FaultSite;
use crate::params;

/// Row r of y is the row of x for the token that has slot order_r, times the slot's weight if
/// weighted. Rows without a slot, and rows past the last offset, are zero.
///
/// **The rows of x come from the L2 cache.** A token has a row in several experts, and the rows of an
/// expert are in the order of tokens. So the rows of y are divided into as many segments as there are
/// experts, and all segments are written concurrently: they read about the same tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PermuteTokens {
    tile: Tile,
    weighted: bool,
}

impl PermuteTokens {
    /// The kernel for rows of `features` elements. `aligned`: whether x and y begin at multiples of
    /// 16 bytes.
    pub fn new(dtype: Dtype, features: u32, aligned: bool, weighted: bool) -> PermuteTokens {
        PermuteTokens { tile: Tile::new(dtype, features, aligned), weighted }
    }

    /// The launch over C rows in this many segments; `None` if there are no rows.
    pub fn launch(&self, rows: u32, segments: u32) -> Option<Launch> {
        let of_segment = u64::from(rows.div_ceil(segments.max(1)));
        self.tile.launch(of_segment * u64::from(segments.max(1)))
    }
}

params! {
    /// Arguments of [`PermuteTokens`].
    pub struct PermuteTokensArguments => Call {
        /// \[N, H\].
        x: In,
        /// \[N, K\] of f32, read if the kernel is weighted.
        weights: In,
        /// \[C\] of i32.
        order: In,
        /// The last offset, which is the number of used rows: one i64.
        end: In,
        /// \[C, H\].
        y: Out,
        /// C.
        rows: u32,
        /// The number of segments of y, at least 1. Results do not depend on it.
        segments: u32,
        /// N K.
        slots: u32,
        /// K.
        top_k: u32,
        /// H.
        features: u32,
        /// The fault site for out-of-range slots.
        faults: FaultSite,
        /// The fault site for an end beyond the rows.
        end_faults: FaultSite,
    }
}

impl Variant for PermuteTokens {
    type Arguments = PermuteTokensArguments;

    fn ptx(&self) -> Ptx {
        let k = &self.tile.kernel(self.entry());
        let call = self.parameters(k);
        let Call { x, weights, order, end, y, rows, slots, top_k, .. } = call;
        let group = Group::new(k, self.tile, rows.wide(), call.features);
        let group = group.in_segments(rows, call.segments);
        let leads = group.exists & group.lane.equals(0);
        let end = end.load::<i64>();
        let wild_end = end.unsigned().gt(rows.wide());
        call.end_faults.report(leads & group.row.equals(0) & wild_end, end);

        let used = group.exists & group.row.signed().lt(end);
        let slot = order.element_wide::<u32>(group.row).load_if::<u32>(used);
        let wild = slot.ge(slots) & slot.differs(ABSENT);
        call.faults.report(leads & used & wild, slot.signed().wide());
        let used = used & slot.lt(slots);
        let weight = self.weighted.then(|| {
            let weight = weights.element::<f32>(slot);
            weight.load_if::<f32>(used)
        });

        let from = group.of_matrix(x, (slot / top_k).wide());
        let to = group.of_matrix(y, group.row);
        move_row(&group, used, from, to, weight);
        k.finish()
    }

    fn entry(&self) -> String {
        let (weighted, tile) = (weighted_name(self.weighted), self.tile.name());
        format!("permute_tokens{weighted}_{tile}")
    }
}

/// Copies a row, times `weight` if there is one; an unused row becomes zeros. All loads of an
/// iteration are issued before its first store.
#[track_caller]
fn move_row<'k>(
    group: &Group<'k>,
    used: Pred<'k>,
    from: GlobalAddress<'k>,
    to: GlobalAddress<'k>,
    weight: Option<F32<'k>>,
) {
    group.for_accesses(IN_FLIGHT, |elements| {
        let load = |&(element, inside): &(U32<'k>, Pred<'k>)| {
            group.load_if(used & inside, group.at(from, element))
        };
        let loaded: Vec<_> = elements.iter().map(load).collect();
        for ((element, inside), loaded) in elements.into_iter().zip(loaded) {
            let (to, exists) = (group.at(to, element), group.exists & inside);
            match weight {
                None => loaded.store_if(exists, to),
                Some(weight) => {
                    let values = loaded.widen().into_iter().map(|value| weight * value);
                    group.store_if(exists, to, &values.collect::<Vec<_>>());
                }
            }
        }
    });
}
