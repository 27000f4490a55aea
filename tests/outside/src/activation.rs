//! y = max(x, 0)^2 (So et al. 2021): an op with kernels of its own.

use meshgrad::kernels::assembler::{In, Kernel, Out, Ptx, Target, Variant};
use meshgrad::kernels::dtype::Dtype;
use meshgrad::kernels::params;
use meshgrad::kernels::row::{Form, Row};
use meshgrad::prelude::*;
use meshgrad::runtime::Signature;

static FORWARD: Signature = Signature::new("squared_relu", "x: F[.. d!] -> y: F[.. d]", 2);
static BACKWARD: Signature =
    Signature::new("squared_relu_grad", "x: F[.. d!], dy: F[.. d!] -> dx: F[.. d]", 3);

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
    let x = ops::contiguous(x)?;
    let form = form(&[&x])?;
    let y = call.output(0)?;
    call.launch(|gpu| {
        let rows = call.rows() as u64;
        let arguments = SquaredReluArguments {
            x: gpu.ptr(&x)?,
            y: gpu.uninit_ptr(&y)?,
            rows,
            features: x.extent(-1)? as u32,
        };
        gpu.launch(&SquaredRelu { form }, form.launch(rows), &arguments)
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
    let (x, dy) = (ops::contiguous(x)?, ops::contiguous(dy)?);
    let form = form(&[&x, &dy])?;
    let dx = call.output(0)?;
    call.launch(|gpu| {
        let rows = call.rows() as u64;
        let arguments = SquaredReluGradArguments {
            x: gpu.ptr(&x)?,
            dy: gpu.ptr(&dy)?,
            dx: gpu.uninit_ptr(&dx)?,
            rows,
            features: x.extent(-1)? as u32,
        };
        gpu.launch(&SquaredReluGrad { form }, form.launch(rows), &arguments)
    })?;
    Ok(dx.finish())
}

params! {
    struct SquaredReluArguments {
        x: In,
        y: Out,
        rows: u64,
        features: u32,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SquaredRelu {
    form: Form,
}

impl Variant for SquaredRelu {
    type Arguments = SquaredReluArguments;

    fn entry(&self) -> String {
        format!("squared_relu_{}", self.form.name())
    }

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, self.form.threads());
        let p = self.parameters(k);
        let row = Row::new(k, self.form, p.rows, p.features);

        let x = row.load(p.x);
        row.store(p.y, [&x], |[x]| {
            let positive = x.max(0.0_f32);
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
        features: u32,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SquaredReluGrad {
    form: Form,
}

impl Variant for SquaredReluGrad {
    type Arguments = SquaredReluGradArguments;

    fn entry(&self) -> String {
        format!("squared_relu_grad_{}", self.form.name())
    }

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, self.form.threads());
        let p = self.parameters(k);
        let row = Row::new(k, self.form, p.rows, p.features);

        let (x, dy) = (row.load(p.x), row.load(p.dy)); // both in flight
        row.store(p.dx, [&x, &dy], |[x, dy]| x.max(0.0_f32) * dy * 2.0_f32);
        k.finish()
    }
}

/// How the kernels process the rows of contiguous matrices.
fn form(matrices: &[&Tensor]) -> Result<Form> {
    let dtype = match matrices[0].dtype() {
        DType::BF16 => Dtype::Bf16,
        _ => Dtype::F32, // the signature refuses f64 on a GPU
    };
    let begins_at = |x: &Tensor| x.dtype().bytes(x.layout().offset());
    let aligned = matrices.iter().all(|it| begins_at(it).is_multiple_of(16));
    Ok(Form::new(dtype, matrices[0].extent(-1)?, aligned))
}
