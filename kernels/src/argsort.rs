//! Keys that sort the elements of rows by [`crate::sort`].
//!
//! A stable sort of all elements by value, and then by row, sorts each row: the second sort keeps
//! the order of values within a row. NaN is greater than all numbers, and -0 equals 0.

use crate::assembler::{In, Kernel, Launch, Out, Ptx, Target, U32, Variant};
use crate::dtype::Dtype;
use crate::params;
use crate::row::element;

const THREADS: u32 = 256;

/// One of the kernels around the two sorts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Argsort {
    /// `keys[i]` orders the elements like `x[i]`; `positions[i] = i`.
    Values {
        /// The dtype of x.
        dtype: Dtype,
        /// Whether large values come first.
        descending: bool,
    },
    /// `keys[i]` = the row of `from[i]`; `positions[i] = from[i]`.
    Rows,
    /// `indices[i]` = the column of `from[i]`.
    Columns,
}

impl Argsort {
    /// The launch over elements; `None` if there are none.
    pub fn launch(&self, count: u32) -> Option<Launch> {
        Launch::new([count.div_ceil(THREADS), 1, 1], THREADS)
    }

    fn has_keys(self) -> bool {
        !matches!(self, Argsort::Columns)
    }
}

params! {
    /// Arguments of [`Argsort`].
    pub struct ArgsortArguments => Call for variant: Argsort {
        /// x \[R, D\], or \[R D\] positions of u32.
        from: In,
        /// \[R D\] of u32, unless indices are written.
        keys: Option<Out> = variant.has_keys(),
        /// \[R D\] positions of u32, or indices of i64.
        to: Out,
        /// R D.
        count: u32,
        /// D.
        features: u32,
    }
}

impl Variant for Argsort {
    type Arguments = ArgsortArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let call = self.parameters(k);
        let at = k.cta() * THREADS + k.thread();
        let exists = at.lt(call.count);
        let position = || call.from.element::<u32>(at).load_if::<u32>(exists);
        let write = |key: U32<'_>, position: U32<'_>| {
            if let Some(keys) = call.keys {
                keys.element::<u32>(at).store_if(exists, key);
            }
            call.to.element::<u32>(at).store_if(exists, position);
        };
        match *self {
            Argsort::Values { dtype, descending } => {
                let x = dtype.load_if(exists, element(dtype, call.from, at));
                // The sum is 0 for -0.
                let bits = (x + 0.0).to_bits();
                let negative = bits.ge(0x8000_0000);
                let key = negative.select(!bits, bits | 0x8000_0000);
                let key = x.equals(x).select(key, u32::MAX);
                write(if descending { !key } else { key }, at);
            }
            Argsort::Rows => {
                let position = position();
                write(position / call.features, position);
            }
            Argsort::Columns => {
                let position = position();
                let column = position - position / call.features * call.features;
                call.to.element::<u64>(at).store_if(exists, column.wide());
            }
        }
        k.finish()
    }

    fn entry(&self) -> String {
        match self {
            Argsort::Values { dtype, descending } => {
                let order = if *descending { "descending" } else { "ascending" };
                format!("argsort_values_{}_{order}", dtype.name())
            }
            Argsort::Rows => "argsort_rows".to_owned(),
            Argsort::Columns => "argsort_columns".to_owned(),
        }
    }
}
