//! Unpermute: sums the expert rows of each token.

use super::{ABSENT, Group, IN_FLIGHT, Loaded, Tile, weighted_name};
use crate::assembler::{
    Arguments, F32, GlobalAddress, Launch, Pred, Ptx, U32, U64, Variable, Variant,
};
use crate::dtype::Dtype;
use crate::faults::{FaultSite, Faults};

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
        UnpermuteTokens {
            tile: Tile::new(dtype, features, aligned),
            weighted,
        }
    }

    /// The launch over N tokens; `None` if there are no tokens.
    pub fn launch(&self, tokens: u64) -> Option<Launch> {
        self.tile.launch(tokens)
    }
}

impl Variant for UnpermuteTokens {
    fn ptx(&self) -> Ptx {
        let k = &self.tile.kernel(self.entry());
        let (y, weights) = (k.pointer("y"), k.pointer("weights"));
        let (row_of_slot, out) = (k.pointer("row_of_slot"), k.pointer("out"));
        let tokens = k.u64_param("tokens");
        let [rows, top_k, features] = ["rows", "top_k", "features"].map(|name| k.u32_param(name));

        let faults = Faults::parameters(k);
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
        let loaded: Vec<_> = rows
            .into_iter()
            .map(|row_of_slot| self.load(row_of_slot, element))
            .collect();

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
        SlotRow {
            slot,
            exists,
            row: row_of_slot.load_if(exists),
        }
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

/// Arguments of [`UnpermuteTokens`]; pointers are device addresses.
#[derive(Clone, Copy, Debug)]
pub struct UnpermuteTokensArguments {
    /// \[C, H\], read.
    pub y: u64,
    /// \[N, K\] of f32, read if the kernel is weighted.
    pub weights: u64,
    /// \[N, K\] of i32, read.
    pub row_of_slot: u64,
    /// \[N, H\], written.
    pub out: u64,
    /// N.
    pub tokens: u64,
    /// C.
    pub rows: u32,
    /// K.
    pub top_k: u32,
    /// H.
    pub features: u32,
    /// The fault site for out-of-range rows.
    pub faults: FaultSite,
}

impl UnpermuteTokensArguments {
    /// The bytes of the kernel's parameters.
    pub fn arguments(&self) -> Arguments {
        let mut arguments = Arguments::new();
        for pointer in [self.y, self.weights, self.row_of_slot, self.out] {
            arguments.push_pointer(pointer);
        }
        arguments.push_u64(self.tokens);
        for extent in [self.rows, self.top_k, self.features] {
            arguments.push_u32(extent);
        }
        self.faults.push(&mut arguments);
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_fill_the_parameter_space() {
        let arguments = UnpermuteTokensArguments {
            y: 1,
            weights: 2,
            row_of_slot: 3,
            out: 4,
            tokens: 5,
            rows: 6,
            top_k: 7,
            features: 8,
            faults: FaultSite::new(9, 10),
        };
        for weighted in [false, true] {
            let variant = UnpermuteTokens::new(Dtype::F32, 7, true, weighted);
            let bytes = arguments.arguments();
            assert_eq!(bytes.bytes().len(), variant.ptx().parameter_bytes());
        }
    }
}
