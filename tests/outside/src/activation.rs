//! y = max(x, 0)^2 (So et al. 2021): an op with kernels of its own.

use meshgrad::kernels::assembler::{Arguments, Kernel, Ptx, Target, Variant};
use meshgrad::kernels::dtype::Dtype;
use meshgrad::kernels::row::{Row, RowTile};
use meshgrad::prelude::*;
use meshgrad::runtime::{Call, Signature};

static FORWARD: Signature = Signature::new("squared_relu", "x: F[.. d!] -> y: F[.. d]", 2);
static BACKWARD: Signature = Signature::new(
    "squared_relu_grad",
    "x: F[.. d!], dy: F[.. d!] -> dx: F[.. d]",
    3,
);

/// The op on the tape.
pub fn squared_relu(x: &Var) -> Result<Var> {
    let y = forward(x.value())?;
    let kept_x = x.save();
    y.tracked([x], move |dy, [dx]| dx.add(|| backward(&kept_x.get()?, dy)))
}

/// y = max(x, 0)^2.
fn forward(x: &Tensor) -> Result<Tensor> {
    let call = FORWARD.call(&[x])?;
    match call.device().is_gpu() {
        false => ops::square(&ops::clamp(x, 0.0, f64::INFINITY)?),
        true => launch(call, &[x], |tile| SquaredRelu { tile }),
    }
}

/// dx = 2 max(x, 0) dy.
fn backward(x: &Tensor, dy: &Tensor) -> Result<Tensor> {
    let call = BACKWARD.call(&[x, dy])?;
    match call.device().is_gpu() {
        false => {
            let positive = ops::clamp(x, 0.0, f64::INFINITY)?;
            ops::affine(&ops::mul(&positive, dy)?, 2.0, 0.0)
        }
        true => launch(call, &[x, dy], |tile| SquaredReluGrad { tile }),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SquaredRelu {
    tile: RowTile,
}

impl Variant for SquaredRelu {
    fn entry(&self) -> String {
        format!("squared_relu_{}", self.tile.name())
    }

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, self.tile.threads());
        let (x, y) = (k.pointer("x"), k.pointer("y"));
        let row = Row::new(k, self.tile, k.u64_param("rows"));

        let x = row.load(x).widen();
        row.store(y, |i| {
            let positive = x[i].max(0.0_f32);
            positive * positive
        });
        k.finish()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SquaredReluGrad {
    tile: RowTile,
}

impl Variant for SquaredReluGrad {
    fn entry(&self) -> String {
        format!("squared_relu_grad_{}", self.tile.name())
    }

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, self.tile.threads());
        let (x, dy, dx) = (k.pointer("x"), k.pointer("dy"), k.pointer("dx"));
        let row = Row::new(k, self.tile, k.u64_param("rows"));

        let (x, dy) = (row.load(x), row.load(dy)); // both in flight
        let (x, dy) = (x.widen(), dy.widen());
        row.store(dx, |i| x[i].max(0.0_f32) * dy[i] * 2.0_f32);
        k.finish()
    }
}

/// Launches a kernel that reads `inputs` row by row and writes one output of their shape.
fn launch<V: Variant>(
    mut call: Call,
    inputs: &[&Tensor],
    variant: impl Fn(RowTile) -> V,
) -> Result<Tensor> {
    let inputs: Vec<Tensor> = inputs.iter().map(|x| aligned(x)).collect::<Result<_>>()?;
    let tile = tile(&inputs[0])?;
    let y = call.output(0)?;
    call.launch(|gpu| {
        let rows = call.rows() as u64;
        let mut arguments = Arguments::new();
        for x in &inputs {
            arguments.push_pointer(gpu.ptr(x)?);
        }
        arguments.push_pointer(gpu.uninit_ptr(&y)?);
        arguments.push_u64(rows);
        // SAFETY: the arguments match the parameters; the kernel reads the rows of the inputs and
        // writes the same number of rows of y.
        unsafe { gpu.launch(&variant(tile), tile.launch(rows), &arguments) }
    })?;
    Ok(y.finish())
}

/// `x` if it is contiguous and 16-byte aligned, otherwise a copy that is.
fn aligned(x: &Tensor) -> Result<Tensor> {
    let begins_at = x.dtype().bytes(x.layout().offset());
    match x.is_contiguous() && begins_at.is_multiple_of(16) {
        true => Ok(x.clone()),
        false => ops::copy(x),
    }
}

/// How the kernels distribute the rows of `x` over threads.
fn tile(x: &Tensor) -> Result<RowTile> {
    let dtype = match x.dtype() {
        DType::BF16 => Dtype::Bf16,
        _ => Dtype::F32, // the signature refuses f64 on a GPU
    };
    RowTile::new(dtype, x.extent(-1)?).ok_or_else(|| Error::Argument {
        op: "squared_relu",
        problem: format!("the rows of {x} are not whole 16-byte vectors; pad them"),
    })
}
