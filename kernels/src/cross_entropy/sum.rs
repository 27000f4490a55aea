//! The kernel that sums the loss over all rows.

use super::Label;
use crate::assembler::{F64, In, Kernel, Launch, Out, Ptx, SharedAddress, Target, Variant};
use crate::dtype::Dtype;
use crate::params;

/// Threads per CTA.
const THREADS: u32 = 512;

/// Rows per thread whose loads are in flight together.
const ROWS_IN_FLIGHT: u32 = 4;

/// The sum of `lse - label_logit` over the rows that are not ignored, and the number of these rows.
/// Both are accumulated in f64.
///
/// One CTA suffices: a row is at most 16 bytes, so even a million rows are little data. Each
/// thread adds every 512th row, then a tree reduction adds the sums of the threads. The order
/// depends only on the number of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CrossEntropySum {
    /// The dtype of the statistics and of the results.
    pub dtype: Dtype,
    /// The dtype of labels.
    pub label: Label,
}

impl CrossEntropySum {
    /// The launch. It is never `None`: without rows, the kernel writes zeros.
    pub fn launch(&self) -> Option<Launch> {
        Launch::new([1, 1, 1], THREADS)
    }
}

params! {
    /// Arguments of [`CrossEntropySum`].
    pub struct CrossEntropySumArguments => Call {
        /// \[rows\].
        lse: In,
        /// \[rows\].
        label_logit: In,
        /// \[rows\].
        labels: In,
        /// One value.
        loss: Out,
        /// One value.
        count: Out,
        /// The label of ignored rows.
        ignore_index: i64,
        /// Number of rows.
        rows: u64,
    }
}

impl Variant for CrossEntropySum {
    type Arguments = CrossEntropySumArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let Call { lse, label_logit, labels, loss, count, ignore_index, rows } = self.parameters(k);

        let (sum, counted) = (k.var(0.0_f64), k.var(0.0_f64));
        let step = u64::from(THREADS * ROWS_IN_FLIGHT);
        k.for_range(k.thread().wide(), rows, step, |first| {
            let load = |i: u32| {
                let row = first + u64::from(i * THREADS);
                let exists = row.lt(rows);
                let bytes = row * u64::from(self.dtype.size());
                let values =
                    [lse, label_logit].map(|it| self.dtype.load_if(exists, it.byte_add(bytes)));
                (values, self.label.load_if(exists, labels, row), exists)
            };
            let loaded = [0, 1, 2, 3].map(load);
            for ([lse, label_logit], label, exists) in loaded {
                let counts = exists & label.differs(ignore_index);
                let loss = lse.to_f64() - label_logit.to_f64();
                sum.add(counts.select(loss, 0.0));
                counted.add(counts.select(k.constant(1.0_f64), 0.0));
            }
        });

        let shared = [(); 2].map(|()| k.shared::<f64>(THREADS));
        let [sum, counted] = total(k, shared, [sum.get(), counted.get()]);
        let first = k.thread().equals(0);
        self.dtype.store_if(first, loss, sum.to_f32());
        self.dtype.store_if(first, count, counted.to_f32());
        k.finish()
    }

    fn entry(&self) -> String {
        let (dtype, label) = (self.dtype.name(), self.label.name());
        format!("cross_entropy_sum_{dtype}_{label}")
    }
}

/// The sums over all threads, valid in the first thread.
#[track_caller]
fn total<'k>(k: &'k Kernel, shared: [SharedAddress<'k>; 2], values: [F64<'k>; 2]) -> [F64<'k>; 2] {
    let own = shared.map(|it| it.element::<f64>(k.thread()));
    for (own, value) in own.iter().zip(values) {
        own.store(value);
    }
    let mut half = THREADS / 2;
    while half > 0 {
        k.barrier();
        k.if_(k.thread().lt(half), || {
            for own in own {
                own.store(own.load::<f64>() + own.offset(8 * half).load::<f64>());
            }
        });
        half /= 2;
    }
    // The first thread wrote these itself.
    own.map(|own| own.load())
}
