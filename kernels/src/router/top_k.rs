//! The chosen experts and their weights.

use super::renormalized_name;
use super::scores::{Access, ArgReduce, Candidate, Scores};
use crate::assembler::{
    F32, GlobalAddress, In, Kernel, Launch, Out, Pred, Ptx, U32, U64, Variable, Variant,
};
use crate::dtype::Dtype;
use crate::lane_group::{Group, Tile};
use crate::params;

/// Maximum experts per lane whose keys stay in registers.
const EXPERTS_OF_LANE: u32 = 16;

/// The K best experts of each token, in descending order, and their weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouterTopK {
    tile: Tile,
    /// Accesses per lane to a row in registers; `None` if rows are reloaded for each choice.
    accesses: Option<u32>,
    biased: bool,
    renormalize: bool,
}

impl RouterTopK {
    /// The kernel for `experts` experts. `aligned`: whether probabilities and bias begin at
    /// multiples of 16 bytes; `biased`: whether a bias is added for the choice; `renormalize`:
    /// whether weights are divided by their sum.
    pub fn new(
        dtype: Dtype,
        experts: u32,
        aligned: bool,
        [biased, renormalize]: [bool; 2],
    ) -> RouterTopK {
        let tile = Tile::new(dtype, experts, aligned);
        let in_registers = experts <= 32 * EXPERTS_OF_LANE;
        let lanes = experts.div_ceil(EXPERTS_OF_LANE).clamp(1, 32);
        let lanes = lanes.next_power_of_two();
        let accesses = (experts / tile.width).div_ceil(lanes);
        RouterTopK {
            tile: match in_registers {
                true => Tile { lanes, ..tile },
                false => tile,
            },
            accesses: in_registers.then_some(accesses),
            biased,
            renormalize,
        }
    }

    /// The launch over N tokens; `None` if there are no tokens.
    pub fn launch(&self, tokens: u64) -> Option<Launch> {
        self.tile.launch(tokens)
    }
}

params! {
    /// Arguments of [`RouterTopK`].
    pub struct RouterTopKArguments => Call {
        /// \[N, E\].
        probabilities: In,
        /// \[E\] of f32, read if the kernel is biased.
        bias: In,
        /// \[N, K\].
        weights: Out,
        /// \[N, K\] of i32.
        indices: Out,
        /// N.
        tokens: u64,
        /// E.
        experts: u32,
        /// K, at most E.
        top_k: u32,
    }
}

impl Variant for RouterTopK {
    type Arguments = RouterTopKArguments;

    fn ptx(&self) -> Ptx {
        let k = &self.tile.kernel(self.entry());
        let Call { probabilities, bias, weights, indices, tokens, experts, top_k } =
            self.parameters(k);

        let group = &Group::new(k, self.tile, tokens, experts);
        let scores = &Scores {
            group,
            probabilities: group.of_matrix(probabilities, group.row),
            bias: self.biased.then_some(bias),
            experts,
        };
        let choice = Choice {
            scores,
            weights,
            indices,
            first: group.row * top_k.wide(),
            top_k,
            renormalize: self.renormalize,
        };
        match self.accesses {
            Some(accesses) => {
                let ranked = InRegisters::new(scores, accesses);
                choice.choose(|| ranked.best(), |chosen| ranked.remove(chosen));
            }
            None => {
                let ranked = InMemory::new(scores);
                choice.choose(|| ranked.best(), |chosen| ranked.remove(chosen));
            }
        }
        k.finish()
    }

    fn entry(&self) -> String {
        let biased = if self.biased { "_biased" } else { "" };
        let form =
            self.accesses.map_or_else(|| "loop".to_owned(), |accesses| format!("a{accesses}"));
        let (renormalized, tile) = (renormalized_name(self.renormalize), self.tile.name());
        format!("router_top_k{biased}{renormalized}_{tile}_{form}")
    }
}

/// Keys of a row in registers. The key of a chosen expert is set to 0.
struct InRegisters<'k> {
    k: &'k Kernel,
    ranked: Vec<(Variable<'k, u32>, U32<'k>)>,
}

impl<'k> InRegisters<'k> {
    #[track_caller]
    fn new(scores: &Scores<'_, 'k>, accesses: u32) -> InRegisters<'k> {
        let (group, k) = (scores.group, scores.group.k);
        let Tile { width, lanes, .. } = group.tile;
        let firsts = (0..accesses).map(|access| group.lane * width + access * lanes * width);
        let loaded = firsts.map(|first| scores.load(first, first.lt(scores.experts)));
        let loaded: Vec<Access<'k>> = loaded.collect(); // all in flight
        let ranked = loaded.iter().flat_map(Access::candidates);
        InRegisters { k, ranked: ranked.map(|it| (k.var(it.key), it.expert)).collect() }
    }

    #[track_caller]
    fn best(&self) -> ArgReduce<'k> {
        let best = ArgReduce::new(self.k);
        for (key, expert) in &self.ranked {
            let (key, expert) = (**key, *expert);
            best.offer(Candidate { key, expert }, None);
        }
        best
    }

    #[track_caller]
    fn remove(&self, chosen: Candidate<'k>) {
        for (key, expert) in &self.ranked {
            key.set(expert.equals(chosen.expert).select(0, **key));
        }
    }
}

/// Scores that are reloaded for each choice, for rows that do not fit in registers. Candidates are
/// the experts that come after the last chosen one in descending order.
struct InMemory<'a, 'k> {
    scores: &'a Scores<'a, 'k>,
    last_key: Variable<'k, u32>,
    /// Among experts of key `last_key`, those from this index on are left.
    next: Variable<'k, u32>,
}

impl<'a, 'k> InMemory<'a, 'k> {
    #[track_caller]
    fn new(scores: &'a Scores<'a, 'k>) -> InMemory<'a, 'k> {
        let k = scores.group.k;
        InMemory { scores, last_key: k.var(u32::MAX), next: k.var(0u32) }
    }

    #[track_caller]
    fn best(&self) -> ArgReduce<'k> {
        let best = ArgReduce::new(self.scores.group.k);
        self.scores.group.for_accesses(1, |accesses| {
            let (first, inside) = accesses[0];
            for candidate in self.scores.load(first, inside).candidates() {
                let equal = candidate.key.equals(*self.last_key);
                let left = equal & candidate.expert.ge(*self.next);
                let left = left | candidate.key.lt(*self.last_key);
                best.offer(candidate, Some(left));
            }
        });
        best
    }

    #[track_caller]
    fn remove(&self, chosen: Candidate<'k>) {
        self.last_key.set(chosen.key);
        self.next.set(chosen.expert + 1);
    }
}

/// The scores of a token, and where its chosen experts and weights are stored.
struct Choice<'a, 'k> {
    scores: &'a Scores<'a, 'k>,
    weights: GlobalAddress<'k>,
    indices: GlobalAddress<'k>,
    /// The token's first slot.
    first: U64<'k>,
    top_k: U32<'k>,
    renormalize: bool,
}

impl<'k> Choice<'_, 'k> {
    /// Stores the `best` expert K times and removes it from the candidates each time.
    #[track_caller]
    fn choose(&self, best: impl FnOnce() -> ArgReduce<'k>, remove: impl FnOnce(Candidate<'k>)) {
        let group = self.scores.group;
        let (k, lanes) = (group.k, group.tile.lanes);
        let sum = k.var(0.0_f32);
        k.for_range(0u32, self.top_k, 1, |j| {
            let chosen = best().of_group(lanes);
            remove(chosen);

            // Slots are distributed over lanes; the loop below uses the same assignment.
            let own = group.exists & (j & (lanes - 1)).equals(group.lane);
            self.index(j).store_if(own, chosen.expert);
            let probability = self.scores.probability(chosen.expert);
            match self.renormalize {
                true => sum.add(probability),
                false => self.store_weight(own, j, probability),
            }
        });
        if self.renormalize {
            k.for_range(group.lane, self.top_k, lanes, |j| {
                let chosen = self.index(j).load_if::<u32>(group.exists);
                let weight = self.scores.probability(chosen) / *sum;
                self.store_weight(group.exists, j, weight);
            });
        }
    }

    #[track_caller]
    fn index(&self, j: U32<'k>) -> GlobalAddress<'k> {
        self.indices.element_wide::<u32>(self.first + j.wide())
    }

    #[track_caller]
    fn store_weight(&self, own: Pred<'k>, j: U32<'k>, weight: F32<'k>) {
        let dtype = self.scores.group.tile.dtype;
        let slot = (self.first + j.wide()) * u64::from(dtype.size());
        dtype.store_if(own, self.weights.byte_add(slot), weight);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No lane has more than [`EXPERTS_OF_LANE`] experts, and together the lanes have all.
    #[test]
    fn lanes_share_the_experts() {
        for dtype in Dtype::ALL {
            for experts in 1..600 {
                let variant = RouterTopK::new(dtype, experts, true, [false; 2]);
                let Some(accesses) = variant.accesses else {
                    assert!(experts > 512);
                    continue;
                };
                let of_lane = accesses * variant.tile.width;
                assert!(of_lane <= EXPERTS_OF_LANE, "{experts}");
                assert!(of_lane * variant.tile.lanes >= experts, "{experts}");
            }
        }
    }
}
