//! The gradient of unpermute with respect to its weights.

use super::{ABSENT, Group, IN_FLIGHT, Tile};
use crate::assembler::{In, Launch, Out, Ptx, Variable, Variant, group_sum};
use crate::dtype::Dtype;
use crate::faults::FaultSite;
use crate::params;

/// dw_nj = sum_h dout_nh y_rh, where r is the row of slot j of token n; 0 if the slot has no row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UnpermuteGradWeights {
    tile: Tile,
}

impl UnpermuteGradWeights {
    /// The kernel for rows of `features` elements. `aligned`: whether dout and y begin at multiples
    /// of 16 bytes.
    pub fn new(dtype: Dtype, features: u32, aligned: bool) -> UnpermuteGradWeights {
        UnpermuteGradWeights { tile: Tile::new(dtype, features, aligned) }
    }

    /// The launch over N K slots; `None` if there are no slots.
    pub fn launch(&self, slots: u32) -> Option<Launch> {
        self.tile.launch(slots.into())
    }
}

params! {
    /// Arguments of [`UnpermuteGradWeights`].
    pub struct UnpermuteGradWeightsArguments => Call {
        /// \[N, H\].
        dout: In,
        /// \[C, H\].
        y: In,
        /// \[N, K\] of i32.
        row_of_slot: In,
        /// \[N, K\] of f32.
        dweights: Out,
        /// N K.
        slots: u32,
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

impl Variant for UnpermuteGradWeights {
    type Arguments = UnpermuteGradWeightsArguments;

    fn ptx(&self) -> Ptx {
        let k = &self.tile.kernel(self.entry());
        let Call { dout, y, row_of_slot, dweights, slots, rows, top_k, features, faults } =
            self.parameters(k);
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
