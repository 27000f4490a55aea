//! The forward pass: computes y and inv_rms.

use super::mean;
use crate::assembler::{
    Arguments, F32, GlobalAddress, Kernel, Launch, Ptx, Target, U32, U64, Variant,
};
use crate::dtype::Dtype;
use crate::row::{Form, LongRow, LoopTile, Row, RowTile};

/// y = x w / sqrt(mean(x^2) + eps) per row; and 1 / sqrt(..), one f32 per row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RmsNorm {
    form: Form,
}

impl RmsNorm {
    /// The kernel for rows of `features` elements. `aligned`: whether x, w and y begin at multiples
    /// of 16 bytes.
    pub fn new(dtype: Dtype, features: usize, aligned: bool) -> RmsNorm {
        RmsNorm {
            form: Form::new(dtype, features, aligned),
        }
    }

    /// The launch over rows; `None` if there are no rows.
    pub fn launch(&self, rows: u64) -> Option<Launch> {
        self.form.launch(rows)
    }
}

impl Variant for RmsNorm {
    fn ptx(&self) -> Ptx {
        let k =
            &Kernel::new(self.entry(), Target::Sm80, self.form.threads()).reserve_load_registers();
        let call = Call {
            x: k.pointer("x"),
            w: k.pointer("w"),
            y: k.pointer("y"),
            inv_rms: k.pointer("inv_rms"),
            rows: k.u64_param("rows"),
            features: k.u32_param("features"),
            eps: k.f32_param("eps"),
        };
        match self.form {
            Form::Tile(tile) => in_registers(k, tile, &call),
            Form::Loop(tile) => in_a_loop(k, tile, &call),
        }
        k.finish()
    }

    fn entry(&self) -> String {
        format!("rms_norm_{}", self.form.name())
    }
}

/// Arguments of [`RmsNorm`]; pointers are device addresses.
#[derive(Clone, Copy, Debug)]
pub struct RmsNormArguments {
    /// \[R, D\], read.
    pub x: u64,
    /// \[D\], read.
    pub w: u64,
    /// \[R, D\], written.
    pub y: u64,
    /// \[R\] of f32, written.
    pub inv_rms: u64,
    /// R.
    pub rows: u64,
    /// D.
    pub features: u32,
    /// Added to the mean square before the square root.
    pub eps: f32,
}

impl RmsNormArguments {
    /// The bytes of the kernel's parameters.
    pub fn arguments(&self) -> Arguments {
        let mut arguments = Arguments::new();
        for pointer in [self.x, self.w, self.y, self.inv_rms] {
            arguments.push_pointer(pointer);
        }
        arguments
            .push_u64(self.rows)
            .push_u32(self.features)
            .push_f32(self.eps);
        arguments
    }
}

/// The parameters in registers.
struct Call<'k> {
    x: GlobalAddress<'k>,
    w: GlobalAddress<'k>,
    y: GlobalAddress<'k>,
    inv_rms: GlobalAddress<'k>,
    rows: U64<'k>,
    features: U32<'k>,
    eps: F32<'k>,
}

/// All loads of x are issued before the first use, so that they are in flight together. The loads
/// of w, which are cached, are issued before the row sum. x stays in registers between the sum of
/// squares and the scaling.
fn in_registers<'k>(k: &'k Kernel, tile: RowTile, call: &Call<'k>) {
    let row = Row::new(k, tile, call.rows);
    let (x, w) = (row.load(call.x), row.load_vector(call.w));

    let x = x.widen();
    let squares = k.var(0.0_f32);
    for value in &x {
        squares.add_product(*value, *value);
    }
    let mean = row.sum(squares.get()) / tile.features() as f32;
    let inv_rms = (mean + call.eps).sqrt().reciprocal();

    let w = w.widen();
    row.store(call.y, |i| x[i] * inv_rms * w[i]);
    row.store_scalar(call.inv_rms, inv_rms);
}

/// The second pass reads x from the caches.
fn in_a_loop<'k>(k: &'k Kernel, tile: LoopTile, call: &Call<'k>) {
    let row = LongRow::new(k, tile, call.features);
    let (x, y) = (row.of_matrix(call.x), row.of_matrix(call.y));

    let squares = k.var(0.0_f32);
    row.for_each(|at| {
        for value in at.load(x) {
            squares.add_product(value, value);
        }
    });
    let mean = mean(k, squares, call.features);
    let inv_rms = (mean + call.eps).sqrt().reciprocal();

    row.for_each(|at| {
        let (x, w) = (at.load(x), at.load(call.w));
        at.store(y, |i| x[i] * inv_rms * w[i]);
    });
    let address = call.inv_rms.element::<f32>(k.cta());
    address.store_if(k.thread().equals(0), inv_rms);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_fill_the_parameter_space() {
        let arguments = RmsNormArguments {
            x: 1,
            w: 2,
            y: 3,
            inv_rms: 4,
            rows: 5,
            features: 6,
            eps: 7.0,
        };
        for variant in [
            RmsNorm::new(Dtype::F32, 64, true),
            RmsNorm::new(Dtype::F32, 65, true),
        ] {
            let bytes = arguments.arguments();
            assert_eq!(bytes.bytes().len(), variant.ptx().parameter_bytes());
        }
    }
}
