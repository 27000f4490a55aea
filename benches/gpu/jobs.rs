//! What is timed: row kernels and matrix products, at the shapes of `benches/shapes.toml`.

use std::fs;
use std::path::Path;

use anyhow::Context;
use meshgrad::prelude::*;
use meshgrad::runtime::{Accumulator, Key, Result};
use serde::Deserialize;
use serde_json::{Value, json};

/// The shapes of `benches/shapes.toml`.
#[derive(Deserialize)]
pub(crate) struct Shapes {
    /// Rows and features.
    pub(crate) rows: Vec<[usize; 2]>,
    /// Elements of the copy that shows the device's bandwidth.
    pub(crate) copy: usize,
    pub(crate) gemm: Vec<Gemm>,
}

/// A matrix product.
#[derive(Clone, Deserialize)]
pub(crate) struct Gemm {
    m: usize,
    n: usize,
    k: usize,
    transposes: String,
    what: String,
}

impl Shapes {
    /// Those of `file`, otherwise of `benches/shapes.toml`.
    pub(crate) fn read(file: Option<&Path>, smoke: bool) -> anyhow::Result<Shapes> {
        #[derive(Deserialize)]
        struct File {
            #[serde(flatten)]
            full: Shapes,
            smoke: Shapes,
        }

        if let Some(path) = file {
            let text = fs::read_to_string(path);
            let text = text.with_context(|| format!("cannot read {}", path.display()))?;
            return toml::from_str(&text).with_context(|| format!("in {}", path.display()));
        }
        let file: File = toml::from_str(include_str!("../shapes.toml"))?;
        Ok(if smoke { file.smoke } else { file.full })
    }
}

/// One thing to time.
pub(crate) struct Job {
    pub(crate) name: &'static str,
    pub(crate) dtype: DType,
    pub(crate) amount: Amount,
    /// How the peer is asked for the same.
    pub(crate) request: Value,
    pub(crate) run: Run,
}

/// Computes something of one set of operands.
pub(crate) type Run = fn(&[Tensor]) -> Result<Vec<Tensor>>;

/// What a job has to do, whatever an implementation does.
#[derive(Clone, Copy)]
pub(crate) enum Amount {
    /// Bytes: each operand read once and each result written once.
    Bytes(f64),
    Flops(f64),
}

/// Jobs that work on the same operands.
pub(crate) struct Group {
    pub(crate) title: String,
    pub(crate) jobs: Vec<Job>,
    operands: Operands,
}

enum Operands {
    Copy(usize),
    /// x, dy, w and 1 / rms of x: see [`X`].
    Rows([usize; 2], DType),
    /// a, b.
    Gemm(Gemm, DType),
}

/// A row kernel.
struct RowJob {
    name: &'static str,
    /// Bytes an element of \[R, D\], for elements of some bytes. The weight and what there is one
    /// of a row are not worth counting.
    bytes: fn(f64) -> f64,
    run: Run,
}

/// Where the operands of row kernels are in a set.
const X: usize = 0;
const DY: usize = 1;
const W: usize = 2;
const INV_RMS: usize = 3;

const ROW_JOBS: &[RowJob] = &[
    RowJob {
        name: "add",
        bytes: |width| 3.0 * width,
        run: |of| Ok(vec![values::add(&of[X], &of[DY])?]),
    },
    RowJob {
        name: "silu",
        bytes: |width| 2.0 * width,
        run: |of| Ok(vec![values::silu(&of[X])?]),
    },
    RowJob {
        name: "silu_mul",
        bytes: |width| 3.0 * width,
        run: |of| Ok(vec![values::mul(&values::silu(&of[X])?, &of[DY])?]),
    },
    RowJob {
        name: "cast",
        bytes: |_| 6.0,
        run: |of| Ok(vec![values::cast(&of[X], other(&of[X]))?]),
    },
    RowJob {
        name: "rms_norm",
        bytes: |width| 2.0 * width,
        run: |of| {
            let (y, inv_rms) = values::rms_norm(&of[X], &of[W], EPSILON)?;
            Ok(vec![y, inv_rms])
        },
    },
    RowJob {
        name: "rms_norm_grads",
        bytes: |width| 3.0 * width,
        run: |of| {
            let (x, dy, w, inv_rms) = (&of[X], &of[DY], &of[W], &of[INV_RMS]);
            let dx = values::rms_norm_grad_input(dy, x, w, inv_rms)?;
            let mut dw = Accumulator::new(x.device(), *w.shape(), DType::F32)?;
            values::rms_norm_grad_weight_into(dy, x, inv_rms, &mut dw)?;
            Ok(vec![dx, dw.buffer().clone()])
        },
    },
];

const EPSILON: f64 = 1e-6;

/// The float that a cast is timed to.
fn other(x: &Tensor) -> DType {
    match x.dtype() {
        DType::F32 => DType::BF16,
        _ => DType::F32,
    }
}

/// The device's bandwidth: a copy, alone in its group.
pub(crate) fn copy(elements: usize) -> Group {
    let job = Job {
        name: "copy",
        dtype: DType::F32,
        amount: Amount::Bytes(8.0 * elements as f64),
        request: json!({"what": "copy", "dtype": "f32", "elements": elements}),
        run: |of| Ok(vec![values::copy(&of[0])?]),
    };
    Group {
        title: format!("{elements}"),
        jobs: vec![job],
        operands: Operands::Copy(elements),
    }
}

/// Everything else.
pub(crate) fn groups(shapes: &Shapes) -> Vec<Group> {
    let floats = [DType::F32, DType::BF16];
    let rows = shapes.rows.iter();
    let rows = rows.flat_map(|shape| floats.map(|dtype| row_kernels(*shape, dtype)));
    let products = floats
        .into_iter()
        .flat_map(|dtype| shapes.gemm.iter().map(move |gemm| product(gemm, dtype)));
    rows.chain(products).collect()
}

fn row_kernels([rows, features]: [usize; 2], dtype: DType) -> Group {
    let job = |&RowJob { name, bytes, run }: &RowJob| Job {
        name,
        dtype,
        amount: Amount::Bytes((rows * features) as f64 * bytes(dtype.bytes(1) as f64)),
        request: json!({"what": name, "dtype": dtype.name(), "shape": [rows, features]}),
        run,
    };
    Group {
        title: format!("{rows}, {features}"),
        jobs: ROW_JOBS.iter().map(job).collect(),
        operands: Operands::Rows([rows, features], dtype),
    }
}

fn product(gemm: &Gemm, dtype: DType) -> Group {
    let Gemm {
        m,
        n,
        k,
        transposes,
        what,
    } = gemm;
    let job = Job {
        name: "matmul",
        dtype,
        amount: Amount::Flops(2.0 * (m * n * k) as f64),
        request: json!({
            "what": "matmul", "dtype": dtype.name(),
            "m": m, "n": n, "k": k, "transposes": transposes,
        }),
        run: |of| Ok(vec![values::matmul(&of[0], &of[1])?]),
    };
    Group {
        title: format!("{m}, {n}, {k} {transposes}: {what}"),
        jobs: vec![job],
        operands: Operands::Gemm(gemm.clone(), dtype),
    }
}

impl Group {
    /// Bytes of one set of operands.
    pub(crate) fn bytes(&self) -> usize {
        match &self.operands {
            Operands::Copy(elements) => 4 * elements,
            Operands::Rows([rows, features], dtype) => dtype.bytes(2 * rows * features),
            Operands::Gemm(Gemm { m, n, k, .. }, dtype) => dtype.bytes((m + n) * k),
        }
    }

    /// A set of operands on `device`, of random values: how fast a chip is depends on them.
    pub(crate) fn operands(&self, device: &Device, set: usize) -> Result<Vec<Tensor>> {
        let host = Device::cpu();
        let random = |name: &str, shape: &[usize], dtype| {
            let key = Key::new(set as u64).fold_name(name);
            let x = values::uniform(&host, shape, dtype, key, -1.0, 1.0)?;
            values::to_device(&x, device)
        };
        match &self.operands {
            Operands::Copy(elements) => Ok(vec![random("x", &[*elements], DType::F32)?]),
            Operands::Rows([rows, features], dtype) => {
                let x = random("x", &[*rows, *features], *dtype)?;
                let dy = random("dy", &[*rows, *features], *dtype)?;
                let w = random("w", &[*features], *dtype)?;
                let (_, inv_rms) = values::rms_norm(&x, &w, EPSILON)?;
                Ok(vec![x, dy, w, inv_rms])
            }
            Operands::Gemm(gemm, dtype) => {
                let matrix = |name, [rows, columns]: [usize; 2], transposed| match transposed {
                    true => random(name, &[columns, rows], *dtype)?.transpose(0, 1),
                    false => random(name, &[rows, columns], *dtype),
                };
                let Gemm { m, n, k, .. } = *gemm;
                let a = matrix("a", [m, k], gemm.transposes.starts_with('t'))?;
                let b = matrix("b", [k, n], gemm.transposes.ends_with('t'))?;
                Ok(vec![a, b])
            }
        }
    }
}
