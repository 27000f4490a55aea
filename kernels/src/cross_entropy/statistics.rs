//! The kernel for the statistics max, sum_exp and label_logit of each row.

use super::row::Row;
use super::{Classes, Label, Lanes};
use crate::assembler::{F32, In, Kernel, Launch, Out, Ptx, Target, Variant};
use crate::elementary::exp;
use crate::params;

/// For each row of a tile: the maximum of the logits, the sum of e^(logit - maximum), and the logit
/// of the label, merged with those of earlier tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CrossEntropyStatistics {
    /// The threads of a row.
    pub lanes: Lanes,
    /// The dtype of labels.
    pub label: Label,
    /// Whether this is the first tile. Then the statistics are only written, not read.
    pub first: bool,
}

impl CrossEntropyStatistics {
    /// The launch over rows; `None` if there are none.
    pub fn launch(&self, rows: u32) -> Option<Launch> {
        self.lanes.launch(rows)
    }
}

params! {
    /// Arguments of [`CrossEntropyStatistics`].
    pub struct CrossEntropyStatisticsArguments => Call {
        /// \[rows, classes\] of f32, with rows `leading` elements apart. 16-byte aligned.
        logits: In,
        /// \[rows\].
        labels: In,
        /// \[rows\] of f32; also read unless first.
        max: Out,
        /// \[rows\] of f32; also read unless first.
        sum_exp: Out,
        /// \[rows\] of f32.
        label_logit: Out,
        /// Elements from one row of logits to the next; a multiple of 4.
        leading: u64,
        /// The classes of the tile and the vocabulary.
        vocabulary: Classes,
        /// Rows per tile.
        rows: u32,
        /// Classes per tile, at most the capacity of `lanes`.
        classes: u32,
    }
}

impl Variant for CrossEntropyStatistics {
    type Arguments = CrossEntropyStatisticsArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, self.lanes.threads());
        let Call { logits, labels, max, sum_exp, label_logit, leading, vocabulary, rows, classes } =
            self.parameters(k);

        let row = Row::new(k, self.lanes, rows, classes);
        let start = row.of(logits, leading, 4);
        let loaded = row.load(start);
        let of_row = [max, sum_exp, label_logit].map(|it| it.element_wide::<f32>(row.index));
        let [max, sum_exp, label_logit] = of_row;
        let before = (!self.first).then(|| [max, sum_exp].map(|it| it.load_if::<f32>(row.leads)));
        let label = self.label.load_if(row.leads, labels, row.index);

        let in_tile = vocabulary.position(label, classes);
        let within = row.leads & in_tile.within;
        let of_label = start.element_wide::<f32>(in_tile.at);
        let logit = of_label.load_if::<f32>(within);

        let of_tile = row.max(&loaded);
        let terms = row.sum(&loaded, |logit| exp(logit - of_tile));
        let [now, total] = match before {
            None => [of_tile, terms],
            Some([before, sum]) => merged([before, sum], [of_tile, terms]),
        };
        max.store_if(row.leads, now);
        sum_exp.store_if(row.leads, total);
        label_logit.store_if(if self.first { row.leads } else { within }, logit);
        vocabulary.report(row.leads, label);
        k.finish()
    }

    fn entry(&self) -> String {
        let (lanes, label) = (self.lanes.name(), self.label.name());
        let first = if self.first { "_first" } else { "" };
        format!("cross_entropy_statistics_{label}_{lanes}{first}")
    }
}

/// The `[maximum, sum]` of the union of two sets of logits. The maximum of an empty set is minus
/// infinity, so its term is set to 0: the difference of two infinities would be NaN.
#[track_caller]
fn merged<'k>(a: [F32<'k>; 2], b: [F32<'k>; 2]) -> [F32<'k>; 2] {
    let max = a[0].max(b[0]);
    let [a, b] = [a, b].map(|[of_set, sum]| {
        let scaled = sum * exp(of_set - max);
        sum.equals(0.0).select(0.0, scaled)
    });
    [max, a + b]
}
