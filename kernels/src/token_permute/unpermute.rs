//! Unpermute: sums the expert rows of each token.

use super::{ABSENT, Group, IN_FLIGHT, Loaded, Tile, weighted_name};
use crate::assembler::{
    F32, GlobalAddress, In, Launch, Out, Pred, Ptx, U32, U64, Variable, Variant,
};
use crate::dtype::Dtype;
use crate::faults::{FaultSite, Faults};
use crate::params;

/// Row n of out is the sum of the rows of token n's slots, in slot order, times their weights if
/// weighted. Slots without a row count as zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UnpermuteTokens {
    tile: Tile,
    weighted: bool,
}

impl UnpermuteTokens {
    /// The kernel for rows of `features` elements. `aligned`: whether y and out begin at multiples
    /// of 16 bytes.
    pub fn new(dtype: Dtype, features: u32, aligned: bool, weighted: bool) -> UnpermuteTokens {
        UnpermuteTokens { tile: Tile::new(dtype, features, aligned), weighted }
    }

    /// The launch over N tokens; `None` if there are no tokens.
    pub fn launch(&self, tokens: u64) -> Option<Launch> {
        self.tile.launch(tokens)
    }
}

params! {
    /// Arguments of [`UnpermuteTokens`].
    pub struct UnpermuteTokensArguments => Call {
        /// \[C, H\].
        y: In,
        /// \[N, K\] of f32, read if the kernel is weighted.
        weights: In,
        /// \[N, K\] of i32.
        row_of_slot: In,
        /// \[N, H\].
        out: Out,
        /// N.
        tokens: u64,
        /// C.
        rows: u32,
        /// K.
        top_k: u32,
        /// H.
        features: u32,
        /// The fault site for out-of-range rows.
        faults: FaultSite,
    }
}

impl Variant for UnpermuteTokens {
    type Arguments = UnpermuteTokensArguments;

    fn ptx(&self) -> Ptx {
        let k = &self.tile.kernel(self.entry());
        let Call { y, weights, row_of_slot, out, tokens, rows, top_k, features, faults } =
            self.parameters(k);
        let group = Group::new(k, self.tile, tokens, features);
        let slots = Slots {
            group: &group,
            y,
            row_of_slot,
            weights: self.weighted.then_some(weights),
            first: group.row * top_k.wide(),
            count: top_k,
            rows,
            faults,
        };
        let to = group.of_matrix(out, group.row);
        group.for_accesses(1, |elements| {
            let (element, inside) = elements[0];
            let sums: Vec<Variable<'_, f32>> =
                (0..self.tile.width).map(|_| k.var(0.0_f32)).collect();
            k.for_range(0u32, top_k, IN_FLIGHT, |first| {
                slots.add(first, element, inside, &sums);
            });
            let sums: Vec<_> = sums.iter().map(Variable::get).collect();
            group.store_if(group.exists & inside, group.at(to, element), &sums);
        });
        k.finish()
    }

    fn entry(&self) -> String {
        let (weighted, tile) = (weighted_name(self.weighted), self.tile.name());
        format!("unpermute_tokens{weighted}_{tile}")
    }
}

/// The slots of the group's token.
struct Slots<'a, 'k> {
    group: &'a Group<'k>,
    y: GlobalAddress<'k>,
    row_of_slot: GlobalAddress<'k>,
    weights: Option<GlobalAddress<'k>>,
    first: U64<'k>,
    count: U32<'k>,
    rows: U32<'k>,
    faults: Faults<'k>,
}

impl<'k> Slots<'_, 'k> {
    /// Adds the elements of one access, from the rows of [`IN_FLIGHT`] slots, to `sums`. All loads
    /// come first, then the additions in order.
    #[track_caller]
    fn add(&self, first: U32<'k>, element: U32<'k>, inside: Pred<'k>, sums: &[Variable<'k, f32>]) {
        let slots = (0..IN_FLIGHT).map(|i| first + i);
        let rows: Vec<_> = slots.map(|slot| self.row_of(slot, inside)).collect();
        let loaded: Vec<_> =
            rows.into_iter().map(|row_of_slot| self.load(row_of_slot, element)).collect();

        for (weight, loaded) in loaded {
            for (sum, value) in sums.iter().zip(loaded.widen()) {
                match weight {
                    None => sum.add(value),
                    Some(weight) => sum.add_product(weight, value),
                }
            }
        }
    }

    /// Loads the row index of a slot.
    #[track_caller]
    fn row_of(&self, slot: U32<'k>, inside: Pred<'k>) -> SlotRow<'k> {
        let exists = self.group.exists & inside & slot.lt(self.count);
        let slot = self.first + slot.wide();
        let row_of_slot = self.row_of_slot.element_wide::<u32>(slot);
        SlotRow { slot, exists, row: row_of_slot.load_if(exists) }
    }

    /// Loads elements of the slot's row, if the row exists, and the slot's weight.
    #[track_caller]
    fn load(&self, row_of_slot: SlotRow<'k>, element: U32<'k>) -> (Option<F32<'k>>, Loaded<'k>) {
        let SlotRow { slot, row, exists } = row_of_slot;
        // Only the lane that loads element 0 of the row reports, so a slot is reported once.
        let wild = row.ge(self.rows) & row.differs(ABSENT);
        let reported = exists & element.equals(0) & wild;
        self.faults.report(reported, row.signed().wide());

        let exists = exists & row.lt(self.rows);
        let weight = self.weights.map(|weights| {
            let weight = weights.element_wide::<f32>(slot);
            weight.load_if(exists)
        });
        let from = self.group.of_matrix(self.y, row.wide());
        let loaded = self.group.load_if(exists, self.group.at(from, element));
        (weight, loaded)
    }
}

/// The row index of a slot as loaded, and whether the slot exists.
struct SlotRow<'k> {
    slot: U64<'k>,
    row: U32<'k>,
    exists: Pred<'k>,
}
