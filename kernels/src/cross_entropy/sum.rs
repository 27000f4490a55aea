//! The kernel that sums the loss over all rows.

use super::Label;
use crate::assembler::{Arguments, F64, Kernel, Launch, Ptx, SharedAddress, Target, Variant};
use crate::dtype::Dtype;

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

impl Variant for CrossEntropySum {
    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let [lse, label_logit] = ["lse", "label_logit"].map(|name| k.pointer(name));
        let [labels, loss, count] = ["labels", "loss", "count"].map(|name| k.pointer(name));
        let ignore_index = k.i64_param("ignore_index");
        let rows = k.u64_param("rows");

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

/// Arguments of [`CrossEntropySum`]; pointers are device addresses.
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropySumArguments {
    /// \[rows\], read.
    pub lse: u64,
    /// \[rows\], read.
    pub label_logit: u64,
    /// \[rows\], read.
    pub labels: u64,
    /// One value, written.
    pub loss: u64,
    /// One value, written.
    pub count: u64,
    /// The label of ignored rows.
    pub ignore_index: i64,
    /// Number of rows.
    pub rows: u64,
}

impl CrossEntropySumArguments {
    /// The bytes of the kernel's parameters.
    pub fn arguments(&self) -> Arguments {
        let mut arguments = Arguments::new();
        let read = [self.lse, self.label_logit, self.labels];
        for pointer in read.into_iter().chain([self.loss, self.count]) {
            arguments.push_pointer(pointer);
        }
        arguments.push_i64(self.ignore_index).push_u64(self.rows);
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_fill_the_parameter_space() {
        let arguments = CrossEntropySumArguments {
            lse: 1,
            label_logit: 2,
            labels: 3,
            loss: 4,
            count: 5,
            ignore_index: 6,
            rows: 7,
        };
        let variant = CrossEntropySum {
            dtype: Dtype::F32,
            label: Label::I32,
        };
        let bytes = arguments.arguments();
        assert_eq!(bytes.bytes().len(), variant.ptx().parameter_bytes());
    }
}
