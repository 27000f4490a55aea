//! The gradient: computes dx from the result y.

use super::Function;
use crate::assembler::{In, Kernel, Launch, Out, Ptx, Target, Variant};
use crate::dtype::Dtype;
use crate::elementary::exp;
use crate::params;
use crate::row::{Form, Row};

/// The gradient of softmax, or of its logarithm, from its result y.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SoftmaxGrad {
    function: Function,
    form: Form,
}

impl SoftmaxGrad {
    /// The kernel for rows of `features` elements. `aligned`: whether y, dy and dx begin at
    /// multiples of 16 bytes.
    pub fn new(function: Function, dtype: Dtype, features: usize, aligned: bool) -> SoftmaxGrad {
        SoftmaxGrad {
            function,
            form: Form::new(dtype, features, aligned),
        }
    }

    /// The launch over rows; `None` if there are no rows.
    pub fn launch(&self, rows: u64) -> Option<Launch> {
        self.form.launch(rows)
    }
}

params! {
    /// Arguments of [`SoftmaxGrad`].
    pub struct SoftmaxGradArguments => Call {
        /// \[R, D\], the result of softmax or of its logarithm.
        y: In,
        /// \[R, D\].
        dy: In,
        /// \[R, D\].
        dx: Out,
        /// R.
        rows: u64,
        /// D.
        features: u32,
    }
}

impl Variant for SoftmaxGrad {
    type Arguments = SoftmaxGradArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, self.form.threads());
        let call = self.parameters(k);
        let row = Row::new(k, self.form, call.rows, call.features);
        let (y, dy) = (row.load(call.y), row.load(call.dy));

        let sum = k.var(0.0_f32);
        match self.function {
            Function::Softmax => row.each([&y, &dy], |[y, dy]| sum.add_product(y, dy)),
            Function::LogSoftmax => row.each([&dy], |[dy]| sum.add(dy)),
        }
        let sum = row.sum(sum.get());

        row.store(call.dx, [&y, &dy], |[y, dy]| match self.function {
            Function::Softmax => y * (dy - sum),
            Function::LogSoftmax => dy - exp(y) * sum,
        });
        k.finish()
    }

    fn entry(&self) -> String {
        format!("{}_grad_{}", self.function.name(), self.form.name())
    }
}
