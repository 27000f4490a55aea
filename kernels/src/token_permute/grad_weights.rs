//! The gradient of unpermute with respect to its weights.

use super::{ABSENT, Group, IN_FLIGHT, Tile};
use crate::assembler::{Arguments, Launch, Ptx, Variable, Variant, group_sum};
use crate::dtype::Dtype;
use crate::faults::{FaultSite, Faults};

/// dw_nj = sum_h dout_nh y_rh, where r is the row of slot j of token n; 0 if the slot has no row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UnpermuteGradWeights {
    tile: Tile,
}

impl UnpermuteGradWeights {
    /// The kernel for rows of `features` elements. `aligned`: whether dout and y begin at multiples
    /// of 16 bytes.
    pub fn new(dtype: Dtype, features: u32, aligned: bool) -> UnpermuteGradWeights {
        UnpermuteGradWeights {
            tile: Tile::new(dtype, features, aligned),
        }
    }

    /// The launch over N K slots; `None` if there are no slots.
    pub fn launch(&self, slots: u32) -> Option<Launch> {
        self.tile.launch(slots.into())
    }
}

impl Variant for UnpermuteGradWeights {
    fn ptx(&self) -> Ptx {
        let k = &self.tile.kernel(self.entry());
        let (dout, y) = (k.pointer("dout"), k.pointer("y"));
        let (row_of_slot, dweights) = (k.pointer("row_of_slot"), k.pointer("dweights"));
        let [slots, rows, top_k, features] =
            ["slots", "rows", "top_k", "features"].map(|name| k.u32_param(name));

        let faults = Faults::parameters(k);
        let group = Group::new(k, self.tile, slots.wide(), features);
        let row_of_slot = row_of_slot.element_wide::<u32>(group.row);
        let row = row_of_slot.load_if::<u32>(group.exists);
        let placed = group.exists & row.lt(rows);
        let leads = group.exists & group.lane.equals(0);
        let wild = row.ge(rows) & row.differs(ABSENT);
        faults.report(leads & wild, row.signed().wide());

        let token = (group.row.low() / top_k).wide();
        let (dout, y) = (group.of_matrix(dout, token), group.of_matrix(y, row.wide()));
        // One accumulator per access in flight, so that additions do not wait for each other.
        let sums: Vec<Variable<'_, f32>> = (0..IN_FLIGHT).map(|_| k.var(0.0_f32)).collect();
        group.for_accesses(IN_FLIGHT, |elements| {
            let loads = elements.into_iter().map(|(element, inside)| {
                [dout, y].map(|row| group.load_if(placed & inside, group.at(row, element)))
            });
            let loaded: Vec<_> = loads.collect();
            for (sum, [dout, y]) in sums.iter().zip(loaded) {
                for (dout, y) in dout.widen().into_iter().zip(y.widen()) {
                    sum.add_product(dout, y);
                }
            }
        });

        let own = sums[1..].iter().fold(sums[0].get(), |sum, it| sum + **it);
        let sum = group_sum(k, own, self.tile.lanes);
        let of_slot = dweights.element_wide::<f32>(group.row);
        of_slot.store_if(leads, sum);
        k.finish()
    }

    fn entry(&self) -> String {
        format!("unpermute_grad_weights_{}", self.tile.name())
    }
}

/// Arguments of [`UnpermuteGradWeights`]; pointers are device addresses.
#[derive(Clone, Copy, Debug)]
pub struct UnpermuteGradWeightsArguments {
    /// \[N, H\], read.
    pub dout: u64,
    /// \[C, H\], read.
    pub y: u64,
    /// \[N, K\] of i32, read.
    pub row_of_slot: u64,
    /// \[N, K\] of f32, written.
    pub dweights: u64,
    /// N K.
    pub slots: u32,
    /// C.
    pub rows: u32,
    /// K.
    pub top_k: u32,
    /// H.
    pub features: u32,
    /// The fault site for out-of-range rows.
    pub faults: FaultSite,
}

impl UnpermuteGradWeightsArguments {
    /// The bytes of the kernel's parameters.
    pub fn arguments(&self) -> Arguments {
        let mut arguments = Arguments::new();
        for pointer in [self.dout, self.y, self.row_of_slot, self.dweights] {
            arguments.push_pointer(pointer);
        }
        for extent in [self.slots, self.rows, self.top_k, self.features] {
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
        let arguments = UnpermuteGradWeightsArguments {
            dout: 1,
            y: 2,
            row_of_slot: 3,
            dweights: 4,
            slots: 5,
            rows: 6,
            top_k: 7,
            features: 8,
            faults: FaultSite::new(9, 10),
        };
        let variant = UnpermuteGradWeights::new(Dtype::Bf16, 96, true);
        let bytes = arguments.arguments();
        assert_eq!(bytes.bytes().len(), variant.ptx().parameter_bytes());
    }
}
