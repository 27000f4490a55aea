//! The gradient: computes dx from the result y.

use super::Function;
use crate::assembler::{F32, In, Kernel, Launch, Out, Ptx, Target, Variant, block_sum};
use crate::dtype::Dtype;
use crate::elementary::exp;
use crate::params;
use crate::row::{Form, LongRow, LoopTile, Row, RowTile};

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
        match self.form {
            Form::Tile(tile) => in_registers(k, self.function, tile, &call),
            Form::Loop(tile) => in_a_loop(k, self.function, tile, &call),
        }
        k.finish()
    }

    fn entry(&self) -> String {
        format!("{}_grad_{}", self.function.name(), self.form.name())
    }
}

impl Function {
    /// dx of one element, from the sum of its row.
    #[track_caller]
    fn slope<'k>(self, y: F32<'k>, dy: F32<'k>, sum: F32<'k>) -> F32<'k> {
        match self {
            Function::Softmax => y * (dy - sum),
            Function::LogSoftmax => dy - exp(y) * sum,
        }
    }
}

fn in_registers<'k>(k: &'k Kernel, function: Function, tile: RowTile, call: &Call<'k>) {
    let row = Row::new(k, tile, call.rows);
    let (y, dy) = (row.load(call.y), row.load(call.dy));
    let (y, dy) = (y.widen(), dy.widen());

    let sum = k.var(0.0_f32);
    match function {
        Function::Softmax => {
            let pairs = y.iter().zip(&dy);
            pairs.for_each(|(y, dy)| sum.add_product(*y, *dy));
        }
        Function::LogSoftmax => dy.iter().for_each(|dy| sum.add(*dy)),
    }
    let sum = row.sum(sum.get());
    row.store(call.dx, |i| function.slope(y[i], dy[i], sum));
}

/// The second pass reads the row from the caches.
fn in_a_loop<'k>(k: &'k Kernel, function: Function, tile: LoopTile, call: &Call<'k>) {
    let row = LongRow::new(k, tile, call.features);
    let [y, dy, dx] = [call.y, call.dy, call.dx].map(|matrix| row.of_matrix(matrix));

    let sum = k.var(0.0_f32);
    row.for_each(|at| match function {
        Function::Softmax => {
            let (y, dy) = (at.load(y), at.load(dy));
            let pairs = y.into_iter().zip(dy);
            pairs.for_each(|(y, dy)| sum.add_product(y, dy));
        }
        Function::LogSoftmax => at.load(dy).into_iter().for_each(|dy| sum.add(dy)),
    });
    let sum = block_sum(k, sum.get());

    row.for_each(|at| {
        let (y, dy) = (at.load(y), at.load(dy));
        at.store(dx, |i| function.slope(y[i], dy[i], sum));
    });
}
