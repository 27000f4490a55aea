//! The kernel for the gradient of the logits.

use super::labels::{InTile, Vocabulary};
use super::row::{Row, VECTORS};
use super::{Classes, Label, Lanes};
use crate::assembler::{
    Arguments, F32, GlobalAddress, Kernel, Launch, Pair, Ptx, Target, U32, Variant,
    swap_with_neighbor,
};
use crate::dtype::Dtype;
use crate::elementary::exp;

/// `dlogit = dloss * (e^(logit - lse) - [class is the label])` for each logit of a tile, rounded
/// once; 0 in ignored rows.
///
/// An f32 gradient may overwrite the logits, because each thread reads the same elements that it
/// writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CrossEntropyGradient {
    /// The dtype of the gradient.
    pub dtype: Dtype,
    /// The threads of a row.
    pub lanes: Lanes,
    /// The dtype of labels.
    pub label: Label,
}

impl CrossEntropyGradient {
    /// The launch over rows; `None` if there are none.
    pub fn launch(&self, rows: u32) -> Option<Launch> {
        self.lanes.launch(rows)
    }
}

impl Variant for CrossEntropyGradient {
    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, self.lanes.threads());
        let names = ["logits", "labels", "lse", "dloss", "dlogits"];
        let [logits, labels, lse, dloss, dlogits] = names.map(|name| k.pointer(name));
        let leading = k.u64_param("leading");
        let vocabulary = Vocabulary::parameters(k);
        let [rows, classes] = ["rows", "classes"].map(|name| k.u32_param(name));

        let row = Row::new(k, self.lanes, rows, classes);
        let loaded = row.load(row.of(logits, leading, 4));
        let of_row = [lse, dloss].map(|it| it.element_wide::<f32>(row.index));
        let [lse, dloss] = of_row.map(|it| it.load_if::<f32>(row.exists));
        let label = self.label.load_if(row.exists, labels, row.index);

        let slope = Slope::new(lse, dloss, vocabulary.position(label, classes));
        let to = row.of(dlogits, leading, self.dtype.size());
        let dlogits: Vec<[F32<'_>; 4]> = (0..VECTORS)
            .zip(loaded.vectors)
            .map(|(vector, logits)| {
                let class = (row.lane + vector * self.lanes.count()) * 4;
                [0, 1, 2, 3].map(|i| slope.of(logits[i as usize], class + i))
            })
            .collect();
        match self.dtype {
            Dtype::F32 => store_f32(self.lanes, &row, to, &dlogits),
            Dtype::Bf16 => store_bf16(self.lanes, &row, to, &dlogits),
        }
        let last = to.byte_add(row.last.mul_wide(self.dtype.size()));
        let value = slope.of(loaded.last, row.last);
        self.dtype.store_if(row.has_last, last, value);
        vocabulary.report(row.leads, label);
        k.finish()
    }

    fn entry(&self) -> String {
        let (lanes, label) = (self.lanes.name(), self.label.name());
        format!(
            "cross_entropy_gradient_{}_{label}_{lanes}",
            self.dtype.name()
        )
    }
}

/// Computes the gradients of a row's logits.
struct Slope<'k> {
    lse: F32<'k>,
    dloss: F32<'k>,
    label: InTile<'k>,
    /// The position of the label in the tile, or `u32::MAX` if it is in another tile or ignored.
    at: U32<'k>,
}

impl<'k> Slope<'k> {
    #[track_caller]
    fn new(lse: F32<'k>, dloss: F32<'k>, label: InTile<'k>) -> Slope<'k> {
        let at = label.within.select(label.at.low(), u32::MAX);
        Slope {
            lse,
            dloss,
            label,
            at,
        }
    }

    #[track_caller]
    fn of(&self, logit: F32<'k>, class: U32<'k>) -> F32<'k> {
        let softmax = exp(logit - self.lse);
        let slope = class.equals(self.at).select(softmax - 1.0, softmax);
        self.label.counts.select(self.dloss * slope, 0.0)
    }
}

#[track_caller]
fn store_f32<'k>(lanes: Lanes, row: &Row<'k>, to: GlobalAddress<'k>, dlogits: &[[F32<'k>; 4]]) {
    let own = to.byte_add(row.lane.mul_wide(16));
    for (vector, (exists, values)) in (0..).zip(row.vectors.iter().zip(dlogits)) {
        let to = own.offset(16 * i64::from(lanes.count()) * vector);
        to.store_vector_if(*exists, *values);
    }
}

/// Stores 16 bytes per lane, although a vector of four bf16 has only 8. Of every two vectors,
/// neighboring lanes exchange one: the even lane stores both lanes' first vectors, the odd lane
/// both lanes' second vectors.
#[track_caller]
fn store_bf16<'k>(lanes: Lanes, row: &Row<'k>, to: GlobalAddress<'k>, dlogits: &[[F32<'k>; 4]]) {
    let count = lanes.count();
    let odd_lane = row.lane & 1;
    let odd = odd_lane.differs(0);
    let own = to.byte_add(((row.lane - odd_lane) + odd_lane * count).mul_wide(8));

    let vectors = row.vectors.as_chunks::<2>().0.iter();
    for (at, (exist, values)) in (0..).zip(vectors.zip(dlogits.as_chunks::<2>().0)) {
        let [first, second] = values.map(|v| [v[0].pack(v[1]), v[2].pack(v[3])]);
        let choose = |a: Pair<'k>, b: Pair<'k>| odd.select(a, b);
        let theirs = [0, 1].map(|i| swap_with_neighbor(choose(first[i], second[i])));
        let eight = [
            choose(theirs[0], first[0]),
            choose(theirs[1], first[1]),
            choose(second[0], theirs[0]),
            choose(second[1], theirs[1]),
        ];
        let exists = (odd & exist[1]) | (!odd & exist[0]);
        let to = own.offset(16 * i64::from(count) * at);
        to.store_vector_if(exists, eight);
    }
}

/// Arguments of [`CrossEntropyGradient`]; pointers are device addresses.
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropyGradientArguments {
    /// \[rows, classes\] of f32, with rows `leading` elements apart, read. 16-byte aligned.
    pub logits: u64,
    /// \[rows\], read.
    pub labels: u64,
    /// \[rows\] of f32, read.
    pub lse: u64,
    /// \[rows\] of f32, read.
    pub dloss: u64,
    /// \[rows, classes\], with rows `leading` elements apart, written. 16-byte aligned.
    pub dlogits: u64,
    /// Elements from one row to the next, in both matrices; a multiple of 8.
    pub leading: u64,
    /// The classes of the tile and the vocabulary.
    pub vocabulary: Classes,
    /// Rows per tile.
    pub rows: u32,
    /// Classes per tile, at most the capacity of `lanes`.
    pub classes: u32,
}

impl CrossEntropyGradientArguments {
    /// The bytes of the kernel's parameters.
    pub fn arguments(&self) -> Arguments {
        let mut arguments = Arguments::new();
        let read = [self.logits, self.labels, self.lse, self.dloss];
        for pointer in read.into_iter().chain([self.dlogits]) {
            arguments.push_pointer(pointer);
        }
        arguments.push_u64(self.leading);
        self.vocabulary.push(&mut arguments);
        arguments.push_u32(self.rows).push_u32(self.classes);
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::FaultSite;

    #[test]
    fn arguments_fill_the_parameter_space() {
        let arguments = CrossEntropyGradientArguments {
            logits: 1,
            labels: 2,
            lse: 3,
            dloss: 4,
            dlogits: 5,
            leading: 6,
            vocabulary: Classes {
                first: 7,
                total: 8,
                ignore_index: 9,
                faults: FaultSite::new(10, 11),
            },
            rows: 12,
            classes: 13,
        };
        for dtype in Dtype::ALL {
            let variant = CrossEntropyGradient {
                dtype,
                lanes: Lanes::Warp,
                label: Label::I64,
            };
            let bytes = arguments.arguments();
            assert_eq!(bytes.bytes().len(), variant.ptx().parameter_bytes());
        }
    }
}
