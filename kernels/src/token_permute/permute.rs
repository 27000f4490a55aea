//! Permute: copies token rows into expert order.

use super::{Group, IN_FLIGHT, Tile, weighted_name};
use crate::assembler::{Arguments, F32, GlobalAddress, Launch, Pred, Ptx, U32, Variant};
use crate::dtype::Dtype;
use crate::faults::{FaultSite, Faults};

/// Row r of y is the row of x for the token that has slot order_r, times the slot's weight if
/// weighted. Rows past the last offset are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PermuteTokens {
    tile: Tile,
    weighted: bool,
}

impl PermuteTokens {
    /// The kernel for rows of `features` elements. `aligned`: whether x and y begin at multiples of
    /// 16 bytes.
    pub fn new(dtype: Dtype, features: u32, aligned: bool, weighted: bool) -> PermuteTokens {
        PermuteTokens {
            tile: Tile::new(dtype, features, aligned),
            weighted,
        }
    }

    /// The launch over C rows; `None` if there are no rows.
    pub fn launch(&self, rows: u32) -> Option<Launch> {
        self.tile.launch(rows.into())
    }
}

impl Variant for PermuteTokens {
    fn ptx(&self) -> Ptx {
        let k = &self.tile.kernel(self.entry());
        let (x, weights) = (k.pointer("x"), k.pointer("weights"));
        let (order, end) = (k.pointer("order"), k.pointer("end"));
        let y = k.pointer("y");
        let [rows, top_k, features] = ["rows", "top_k", "features"].map(|name| k.u32_param(name));

        let faults = Faults::parameters(k);
        let group = Group::new(k, self.tile, rows.wide(), features);
        let leads = group.exists & group.lane.equals(0);
        let end = end.load::<i64>();
        let wild_end = end.unsigned().gt(rows.wide());
        faults.report(leads & group.row.equals(0) & wild_end, end);

        let used = group.exists & group.row.signed().lt(end);
        let slot = order.element_wide::<u32>(group.row).load_if::<u32>(used);
        let wild = used & slot.ge(rows);
        faults.report(leads & wild, slot.signed().wide());
        let used = used & !wild;
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

/// Arguments of [`PermuteTokens`]; pointers are device addresses.
#[derive(Clone, Copy, Debug)]
pub struct PermuteTokensArguments {
    /// \[N, H\], read.
    pub x: u64,
    /// \[N, K\] of f32, read if the kernel is weighted.
    pub weights: u64,
    /// \[C\] of i32, read.
    pub order: u64,
    /// The last offset, which is the number of used rows: one i64, read.
    pub end: u64,
    /// \[C, H\], written.
    pub y: u64,
    /// C.
    pub rows: u32,
    /// K.
    pub top_k: u32,
    /// H.
    pub features: u32,
    /// The fault site for out-of-range slots.
    pub faults: FaultSite,
}

impl PermuteTokensArguments {
    /// The bytes of the kernel's parameters.
    pub fn arguments(&self) -> Arguments {
        let mut arguments = Arguments::new();
        for pointer in [self.x, self.weights, self.order, self.end, self.y] {
            arguments.push_pointer(pointer);
        }
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
        let arguments = PermuteTokensArguments {
            x: 1,
            weights: 2,
            order: 3,
            end: 4,
            y: 5,
            rows: 6,
            top_k: 7,
            features: 8,
            faults: FaultSite::new(9, 10),
        };
        for weighted in [false, true] {
            let variant = PermuteTokens::new(Dtype::Bf16, 64, true, weighted);
            let bytes = arguments.arguments();
            assert_eq!(bytes.bytes().len(), variant.ptx().parameter_bytes());
        }
    }
}
