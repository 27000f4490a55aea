//! The gradient with respect to the probabilities.

use super::renormalized_name;
use crate::assembler::{
    F32, GlobalAddress, In, Launch, Out, Pred, Ptx, U32, U64, Variable, Variant,
};
use crate::dtype::Dtype;
use crate::faults::FaultSite;
use crate::lane_group::{Group, Tile};
use crate::params;

/// dp_ne = (dw_nj - mean_n) / s_n if e is choice j of token n, otherwise 0. s_n is the sum of the
/// token's chosen probabilities p_nj, and mean_n = sum_j(dw_nj p_nj) / s_n. Without
/// renormalization, dp_ne = dw_nj for chosen experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouterTopKGrad {
    tile: Tile,
    renormalize: bool,
}

impl RouterTopKGrad {
    /// The kernel for `experts` experts. `aligned`: whether dp begins at a multiple of 16 bytes.
    pub fn new(dtype: Dtype, experts: u32, aligned: bool, renormalize: bool) -> RouterTopKGrad {
        RouterTopKGrad { tile: Tile::new(dtype, experts, aligned), renormalize }
    }

    /// The launch over N tokens; `None` if there are no tokens.
    pub fn launch(&self, tokens: u64) -> Option<Launch> {
        self.tile.launch(tokens)
    }
}

params! {
    /// Arguments of [`RouterTopKGrad`].
    pub struct RouterTopKGradArguments => Call {
        /// \[N, E\], read if weights are renormalized.
        probabilities: In,
        /// \[N, K\] of i32.
        indices: In,
        /// \[N, K\].
        dweights: In,
        /// \[N, E\].
        dprobabilities: Out,
        /// N.
        tokens: u64,
        /// E.
        experts: u32,
        /// K.
        top_k: u32,
        /// The fault site for out-of-range indices.
        faults: FaultSite,
    }
}

impl Variant for RouterTopKGrad {
    type Arguments = RouterTopKGradArguments;

    fn ptx(&self) -> Ptx {
        let k = &self.tile.kernel(self.entry());
        let Call {
            probabilities,
            indices,
            dweights,
            dprobabilities,
            tokens,
            experts,
            top_k,
            faults,
        } = self.parameters(k);
        let group = &Group::new(k, self.tile, tokens, experts);
        let slots = Slots {
            group,
            probabilities: group.of_matrix(probabilities, group.row),
            indices,
            dweights,
            first: group.row * top_k.wide(),
            experts,
        };
        let (sum, mean) = (k.var(0.0_f32), k.var(0.0_f32));
        k.for_range(0u32, top_k, 1, |j| {
            let (index, exists) = slots.index(j);
            let lead = exists & group.lane.equals(0);
            faults.report(lead & index.ge(experts), index.signed().wide());
            if self.renormalize {
                let probability = slots.probability(index);
                sum.add(probability);
                mean.add(slots.dweight(j) * probability);
            }
        });
        let share = self.renormalize.then(|| (*mean / *sum, sum.get()));

        let to = group.of_matrix(dprobabilities, group.row);
        group.for_accesses(1, |accesses| {
            let (element, inside) = accesses[0];
            let values: Vec<Variable<'_, f32>> =
                (0..self.tile.width).map(|_| k.var(0.0_f32)).collect();
            k.for_range(0u32, top_k, 1, |j| {
                let (index, _) = slots.index(j);
                let slope = match share {
                    Some((mean, sum)) => (slots.dweight(j) - mean) / sum,
                    None => slots.dweight(j),
                };
                for (value, i) in values.iter().zip(0..) {
                    let chosen = index.equals(element + i);
                    value.set(chosen.select(slope, **value));
                }
            });
            let values: Vec<_> = values.iter().map(Variable::get).collect();
            group.store_if(group.exists & inside, group.at(to, element), &values);
        });
        k.finish()
    }

    fn entry(&self) -> String {
        let (renormalized, tile) = (renormalized_name(self.renormalize), self.tile.name());
        format!("router_top_k_grad{renormalized}_{tile}")
    }
}

/// The chosen experts of the group's token.
struct Slots<'a, 'k> {
    group: &'a Group<'k>,
    probabilities: GlobalAddress<'k>,
    indices: GlobalAddress<'k>,
    dweights: GlobalAddress<'k>,
    first: U64<'k>,
    experts: U32<'k>,
}

impl<'k> Slots<'_, 'k> {
    /// The expert of choice `j`, and whether the token exists.
    #[track_caller]
    fn index(&self, j: U32<'k>) -> (U32<'k>, Pred<'k>) {
        let index = self.indices.element_wide::<u32>(self.first + j.wide());
        (index.load_if(self.group.exists), self.group.exists)
    }

    #[track_caller]
    fn probability(&self, index: U32<'k>) -> F32<'k> {
        let known = self.group.exists & index.lt(self.experts);
        let from = self.group.at(self.probabilities, index);
        self.group.tile.dtype.load_if(known, from)
    }

    #[track_caller]
    fn dweight(&self, j: U32<'k>) -> F32<'k> {
        let dtype = self.group.tile.dtype;
        let slot = (self.first + j.wide()) * u64::from(dtype.size());
        dtype.load_if(self.group.exists, self.dweights.byte_add(slot))
    }
}
