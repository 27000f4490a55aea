//! The kernel for the gradient of the logits.

use super::labels::InTile;
use super::row::{Row, VECTORS};
use super::{Classes, Label, Lanes};
use crate::assembler::{
    F32, GlobalAddress, In, Kernel, Launch, Out, Pair, Ptx, Target, U32, Variant,
    swap_with_neighbor,
};
use crate::dtype::Dtype;
use crate::elementary::exp;
use crate::params;

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

params! {
    /// Arguments of [`CrossEntropyGradient`].
    pub struct CrossEntropyGradientArguments => Call {
        /// \[rows, classes\] of f32, with rows `leading` elements apart. 16-byte aligned.
        logits: In,
        /// \[rows\].
        labels: In,
        /// \[rows\] of f32.
        lse: In,
        /// \[rows\] of f32.
        dloss: In,
        /// \[rows, classes\], with rows `leading` elements apart. 16-byte aligned.
        dlogits: Out,
        /// Elements from one row to the next, in both matrices; a multiple of 8.
        leading: u64,
        /// The classes of the tile and the vocabulary.
        vocabulary: Classes,
        /// Rows per tile.
        rows: u32,
        /// Classes per tile, at most the capacity of `lanes`.
        classes: u32,
    }
}

impl Variant for CrossEntropyGradient {
    type Arguments = CrossEntropyGradientArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, self.lanes.threads());
        let Call { logits, labels, lse, dloss, dlogits, leading, vocabulary, rows, classes } =
            self.parameters(k);

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
        format!("cross_entropy_gradient_{}_{label}_{lanes}", self.dtype.name())
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
        Slope { lse, dloss, label, at }
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
