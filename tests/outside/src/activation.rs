//! y = max(x, 0)^2 (So et al. 2021): an op with kernels of its own.

use meshgrad::kernels::assembler::{In, Kernel, Out, Ptx, Target, Variant};
use meshgrad::kernels::dtype::Dtype;
use meshgrad::kernels::params;
use meshgrad::kernels::row::{Row, RowTile};
use meshgrad::prelude::*;
use meshgrad::runtime::Signature;

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
    let mut call = FORWARD.call(&[x])?;
    if !call.device().is_gpu() {
        return ops::square(&ops::clamp(x, 0.0, f64::INFINITY)?);
    }
    let (x, tile) = (aligned(x)?, tile(x)?);
    let y = call.output(0)?;
    call.launch(|gpu| {
        let rows = call.rows() as u64;
        let arguments = SquaredReluArguments {
            x: gpu.ptr(&x)?,
            y: gpu.uninit_ptr(&y)?,
            rows,
        };
        gpu.launch(&SquaredRelu { tile }, tile.launch(rows), &arguments)
    })?;
    Ok(y.finish())
}

/// dx = 2 max(x, 0) dy.
fn backward(x: &Tensor, dy: &Tensor) -> Result<Tensor> {
    let mut call = BACKWARD.call(&[x, dy])?;
    if !call.device().is_gpu() {
        let positive = ops::clamp(x, 0.0, f64::INFINITY)?;
        return ops::affine(&ops::mul(&positive, dy)?, 2.0, 0.0);
    }
    let (x, dy, tile) = (aligned(x)?, aligned(dy)?, tile(x)?);
    let dx = call.output(0)?;
    call.launch(|gpu| {
        let rows = call.rows() as u64;
        let arguments = SquaredReluGradArguments {
            x: gpu.ptr(&x)?,
            dy: gpu.ptr(&dy)?,
            dx: gpu.uninit_ptr(&dx)?,
            rows,
        };
        gpu.launch(&SquaredReluGrad { tile }, tile.launch(rows), &arguments)
    })?;
    Ok(dx.finish())
}

params! {
    struct SquaredReluArguments {
        x: In,
        y: Out,
        rows: u64,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SquaredRelu {
    tile: RowTile,
}

impl Variant for SquaredRelu {
    type Arguments = SquaredReluArguments;

    fn entry(&self) -> String {
        format!("squared_relu_{}", self.tile.name())
    }

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, self.tile.threads());
        let p = self.parameters(k);
        let row = Row::new(k, self.tile, p.rows);

        let x = row.load(p.x).widen();
        row.store(p.y, |i| {
            let positive = x[i].max(0.0_f32);
            positive * positive
        });
        k.finish()
    }
}

params! {
    struct SquaredReluGradArguments {
        x: In,
        dy: In,
        dx: Out,
        rows: u64,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SquaredReluGrad {
    tile: RowTile,
}

impl Variant for SquaredReluGrad {
    type Arguments = SquaredReluGradArguments;

    fn entry(&self) -> String {
        format!("squared_relu_grad_{}", self.tile.name())
    }

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, self.tile.threads());
        let p = self.parameters(k);
        let row = Row::new(k, self.tile, p.rows);

        let (x, dy) = (row.load(p.x), row.load(p.dy)); // both in flight
        let (x, dy) = (x.widen(), dy.widen());
        row.store(p.dx, |i| x[i].max(0.0_f32) * dy[i] * 2.0_f32);
        k.finish()
    }
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
