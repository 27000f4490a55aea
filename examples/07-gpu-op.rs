//! Your own GPU kernel as an op: written with the assembler, launched on tensors, differentiated on
//! the tape, and compared with the CPU.
//!
//! `cargo run --example 07-gpu-op` runs it on the emulator, `cargo run --example 07-gpu-op cuda` on
//! the machine's GPU.

use meshgrad::autograd::{Result, Tolerance, gradcheck};
use meshgrad::opcheck::{Case, Closeness, compare};
use meshgrad::prelude::*;
use meshgrad::runtime::Signature;
use meshgrad_kernels::assembler::{In, Kernel, Out, Ptx, Target, Variant};
use meshgrad_kernels::dtype::Dtype;
use meshgrad_kernels::params;
use meshgrad_kernels::row::{Form, Row};

/// y = x / |x| for each row x of a matrix, and |x|: one pass over memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct UnitRows {
    form: Form,
}

params! {
    /// The parameters of [`UnitRows`], for the kernel and for its launch.
    struct UnitRowsArguments {
        x: In,
        y: Out,
        length: Out,
        rows: u64,
        features: u32,
    }
}

impl Variant for UnitRows {
    type Arguments = UnitRowsArguments;

    fn entry(&self) -> String {
        format!("unit_rows_{}", self.form.name())
    }

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, self.form.threads());
        let p = self.parameters(k);
        let row = Row::new(k, self.form, p.rows, p.features);

        let x = row.load(p.x);
        let squares = k.var(0.0_f32);
        row.each([&x], |[x]| squares.add_product(x, x));
        let of_row = row.sum(squares.get()).sqrt();

        row.store(p.y, [&x], |[x]| x / of_row);
        row.store_scalar(p.length, of_row);
        k.finish()
    }
}

/// dx = (dy - y (y . dy)) / |x|: the component of dy along y has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct UnitRowsGrad {
    form: Form,
}

params! {
    /// The parameters of [`UnitRowsGrad`].
    struct UnitRowsGradArguments {
        dy: In,
        y: In,
        length: In,
        dx: Out,
        rows: u64,
        features: u32,
    }
}

impl Variant for UnitRowsGrad {
    type Arguments = UnitRowsGradArguments;

    fn entry(&self) -> String {
        format!("unit_rows_grad_{}", self.form.name())
    }

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, self.form.threads());
        let p = self.parameters(k);
        let row = Row::new(k, self.form, p.rows, p.features);

        let (dy, y) = (row.load(p.dy), row.load(p.y)); // both in flight
        let length = row.load_scalar(p.length);
        let products = k.var(0.0_f32);
        row.each([&dy, &y], |[dy, y]| products.add_product(dy, y));
        let along = row.sum(products.get());

        row.store(p.dx, [&dy, &y], |[dy, y]| (dy - y * along) / length);
        k.finish()
    }
}

static UNIT_ROWS: Signature =
    Signature::new("unit_rows", "x: F[.. d!] -> y: F[.. d], length: A[..]", 3);
static UNIT_ROWS_GRAD: Signature =
    Signature::new("unit_rows_grad", "dy: F[.. d!], y: F[.. d!], length: A[..] -> dx: F[.. d]", 5);

/// The op on tensors, without the tape. Returns y and the lengths of the rows. The signature checks
/// the operands and determines the shapes of the results.
fn unit_rows_of(x: &Tensor) -> Result<(Tensor, Tensor)> {
    let mut call = UNIT_ROWS.call(&[x])?;
    if !call.device().is_gpu() {
        let length = ops::sqrt(&ops::sum(&ops::square(x)?, &[-1])?)?;
        return Ok((ops::div(x, &column(&length)?)?, length));
    }

    let x = ops::contiguous(x)?;
    let form = form(&[&x])?;
    let (y, length) = (call.output(0)?, call.output(1)?);
    call.launch(|gpu| {
        let rows = call.rows() as u64;
        let arguments = UnitRowsArguments {
            x: gpu.ptr(&x)?,
            y: gpu.uninit_ptr(&y)?,
            length: gpu.uninit_ptr(&length)?,
            rows,
            features: x.extent(-1)? as u32,
        };
        gpu.launch(&UnitRows { form }, form.launch(rows), &arguments)
    })?;
    Ok((y.finish(), length.finish()))
}

/// The gradient on tensors, without the tape.
fn unit_rows_grad(dy: &Tensor, y: &Tensor, length: &Tensor) -> Result<Tensor> {
    let mut call = UNIT_ROWS_GRAD.call(&[dy, y, length])?;
    if !call.device().is_gpu() {
        let along = column(&ops::sum(&ops::mul(dy, y)?, &[-1])?)?;
        let across = ops::sub(dy, &ops::mul(y, &along)?)?;
        return ops::div(&across, &column(length)?);
    }

    let [dy, y, length] = [ops::contiguous(dy)?, ops::contiguous(y)?, ops::contiguous(length)?];
    let form = form(&[&dy, &y])?;
    let dx = call.output(0)?;
    call.launch(|gpu| {
        let rows = call.rows() as u64;
        let arguments = UnitRowsGradArguments {
            dy: gpu.ptr(&dy)?,
            y: gpu.ptr(&y)?,
            length: gpu.ptr(&length)?,
            dx: gpu.uninit_ptr(&dx)?,
            rows,
            features: y.extent(-1)? as u32,
        };
        gpu.launch(&UnitRowsGrad { form }, form.launch(rows), &arguments)
    })?;
    Ok(dx.finish())
}

/// The op on the tape. It saves y and one length per row, not x.
fn unit_rows(x: &Var) -> Result<Var> {
    let (y, length) = unit_rows_of(x.value())?;
    let (kept_y, kept_length) = (y.save(), length.save());
    y.tracked([x], move |dy, [dx]| {
        dx.add(|| unit_rows_grad(dy, &kept_y.get()?, &kept_length.get()?))
    })
}

/// Makes a tensor of one number per row a column, which broadcasts along the rows.
fn column(x: &Tensor) -> Result<Tensor> {
    x.unsqueeze(x.shape().len())
}

/// Chooses how the kernels process the rows of contiguous matrices: in registers, or in loops if
/// the rows are too long, or not of whole aligned vectors.
fn form(matrices: &[&Tensor]) -> Result<Form> {
    let dtype = match matrices[0].dtype() {
        DType::BF16 => Dtype::Bf16,
        _ => Dtype::F32, // the signature refuses f64 on a GPU
    };
    let begins_at = |x: &Tensor| x.dtype().bytes(x.layout().offset());
    let aligned = matrices.iter().all(|it| begins_at(it).is_multiple_of(16));
    Ok(Form::new(dtype, matrices[0].extent(-1)?, aligned))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let gpu = match std::env::args().nth(1).as_deref() {
        Some("cuda") => Device::cuda(0)?,
        _ => Device::emulator(0)?,
    };
    // Rows that the kernels keep in registers, and rows that they read in loops.
    check(&gpu, 64)?;
    check(&gpu, 63)?;
    Ok(())
}

fn check(gpu: &Device, features: usize) -> Result<()> {
    // Checks the mathematics on the CPU, with finite differences in f64.
    let cpu = Device::cpu();
    let numbers: Vec<f64> = (0..77 * features).map(|i| (i as f64 * 0.7).sin()).collect();
    let exact = Tensor::from_slice(&cpu, &[77, features], &numbers)?;
    let few = ops::copy(&exact.slice(0, 0..3)?)?;
    let op = |x: &[Var]| Ok(vec![unit_rows(&x[0])?]);
    gradcheck(op, &[few], Tolerance::default())?;
    println!("on the CPU the gradient agrees with finite differences");

    // Compares the kernels with the CPU.
    let x = ops::to_device(&ops::cast(&exact, DType::F32)?, gpu)?;
    let (y, _) = unit_rows_of(&x)?;
    let (expected, _) = unit_rows_of(&exact)?;
    let pairs = y.to_vec::<f32>()?.into_iter().zip(expected.to_vec::<f64>()?);
    let worst = pairs.map(|(y, exact)| (f64::from(y) - exact).abs()).fold(0.0, f64::max);
    println!("on {gpu} the maximum error of y is {worst:.1e}");

    let case = |x: Tensor| Case::new("unit_rows", vec![x], op);
    compare(&case(x), &case(exact), Closeness::Elements(1e-6))?;
    println!("the op and its gradient agree with the f64 results of the CPU");
    Ok(())
}

#[test]
fn kernels_and_gradients_agree_with_the_cpu() {
    match Device::emulator_is_built() {
        true => {
            let gpu = Device::emulator(0).unwrap();
            for features in [64, 63] {
                check(&gpu, features).unwrap();
            }
        }
        false => eprintln!("no emulator: skipping the kernels"),
    }
}
