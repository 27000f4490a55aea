//! The gradient with respect to x: computes dx.

use super::mean;
use crate::assembler::{
    Arguments, F32, GlobalAddress, Kernel, Launch, Ptx, Target, U32, U64, Variant,
};
use crate::dtype::Dtype;
use crate::row::{Form, LongRow, LoopTile, Row, RowTile};

/// dx = inv_rms (dy w - x inv_rms^2 mean(dy w x)), row by row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RmsNormGradInput {
    form: Form,
}

impl RmsNormGradInput {
    /// The kernel for rows of `features` elements. `aligned`: whether dy, x, w and dx begin at
    /// multiples of 16 bytes.
    pub fn new(dtype: Dtype, features: usize, aligned: bool) -> RmsNormGradInput {
        RmsNormGradInput {
            form: Form::new(dtype, features, aligned),
        }
    }

    /// The launch over rows; `None` if there are no rows.
    pub fn launch(&self, rows: u64) -> Option<Launch> {
        self.form.launch(rows)
    }
}

impl Variant for RmsNormGradInput {
    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, self.form.threads());
        let call = Call {
            dy: k.pointer("dy"),
            x: k.pointer("x"),
            w: k.pointer("w"),
            inv_rms: k.pointer("inv_rms"),
            dx: k.pointer("dx"),
            rows: k.u64_param("rows"),
            features: k.u32_param("features"),
        };
        match self.form {
            Form::Tile(tile) => in_registers(k, tile, &call),
            Form::Loop(tile) => in_a_loop(k, tile, &call),
        }
        k.finish()
    }

    fn entry(&self) -> String {
        format!("rms_norm_grad_input_{}", self.form.name())
    }
}

/// Arguments of [`RmsNormGradInput`]; pointers are device addresses.
#[derive(Clone, Copy, Debug)]
pub struct RmsNormGradInputArguments {
    /// \[R, D\], read.
    pub dy: u64,
    /// \[R, D\], read.
    pub x: u64,
    /// \[D\], read.
    pub w: u64,
    /// \[R\] of f32, read.
    pub inv_rms: u64,
    /// \[R, D\], written.
    pub dx: u64,
    /// R.
    pub rows: u64,
    /// D.
    pub features: u32,
}

impl RmsNormGradInputArguments {
    /// The bytes of the kernel's parameters.
    pub fn arguments(&self) -> Arguments {
        let mut arguments = Arguments::new();
        for pointer in [self.dy, self.x, self.w, self.inv_rms, self.dx] {
            arguments.push_pointer(pointer);
        }
        arguments.push_u64(self.rows).push_u32(self.features);
        arguments
    }
}

/// The parameters in registers.
struct Call<'k> {
    dy: GlobalAddress<'k>,
    x: GlobalAddress<'k>,
    w: GlobalAddress<'k>,
    inv_rms: GlobalAddress<'k>,
    dx: GlobalAddress<'k>,
    rows: U64<'k>,
    features: U32<'k>,
}

/// dx of one element, where `along_x` is inv_rms^3 mean(dy w x).
#[track_caller]
fn slope<'k>([dy, x, w]: [F32<'k>; 3], inv_rms: F32<'k>, along_x: F32<'k>) -> F32<'k> {
    dy * w * inv_rms - x * along_x
}

fn in_registers<'k>(k: &'k Kernel, tile: RowTile, call: &Call<'k>) {
    let row = Row::new(k, tile, call.rows);
    let (dy, x, w) = (row.load(call.dy), row.load(call.x), row.load_vector(call.w));
    let inv_rms = row.load_scalar(call.inv_rms);

    let (dy, x, w) = (dy.widen(), x.widen(), w.widen());
    let dot = k.var(0.0_f32);
    for i in 0..x.len() {
        dot.add_product(dy[i] * w[i], x[i]);
    }
    let mean = row.sum(dot.get()) / tile.features() as f32;
    let along_x = mean * inv_rms * inv_rms * inv_rms;

    row.store(call.dx, |i| slope([dy[i], x[i], w[i]], inv_rms, along_x));
}

/// The second pass reads the row from the caches.
fn in_a_loop<'k>(k: &'k Kernel, tile: LoopTile, call: &Call<'k>) {
    let row = LongRow::new(k, tile, call.features);
    let [dy, x, dx] = [call.dy, call.x, call.dx].map(|matrix| row.of_matrix(matrix));
    let inv_rms = call.inv_rms.element::<f32>(k.cta()).load::<f32>();

    let dot = k.var(0.0_f32);
    row.for_each(|at| {
        let [dy, x, w] = [dy, x, call.w].map(|row| at.load(row));
        for i in 0..x.len() {
            dot.add_product(dy[i] * w[i], x[i]);
        }
    });
    let along_x = mean(k, dot, call.features) * inv_rms * inv_rms * inv_rms;

    row.for_each(|at| {
        let [dy, x, w] = [dy, x, call.w].map(|row| at.load(row));
        at.store(dx, |i| slope([dy[i], x[i], w[i]], inv_rms, along_x));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_fill_the_parameter_space() {
        let arguments = RmsNormGradInputArguments {
            dy: 1,
            x: 2,
            w: 3,
            inv_rms: 4,
            dx: 5,
            rows: 6,
            features: 7,
        };
        for features in [64, 65] {
            let variant = RmsNormGradInput::new(Dtype::Bf16, features, true);
            let bytes = arguments.arguments();
            assert_eq!(bytes.bytes().len(), variant.ptx().parameter_bytes());
        }
    }
}
