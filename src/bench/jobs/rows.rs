//! Copies and row kernels, which are memory-bound.

use meshgrad::prelude::*;
use meshgrad::runtime::ops;
use meshgrad::runtime::{Accumulator, Function, Key, Number, Result, Signature};
use serde_json::json;

use super::{Amount, Group, Job};
use crate::bench::shapes::Shapes;

/// A row kernel.
struct RowJob {
    name: &'static str,
    /// Bytes per element of [R, D] as a function of the element size. The weight and one value per
    /// row are not counted.
    bytes: fn(f64) -> f64,
    compiles: bool,
    run: fn(&[Tensor]) -> Result<Vec<Tensor>>,
}

/// Indices of the operands of row kernels in a set.
const X: usize = 0;
const DY: usize = 1;
const W: usize = 2;
const INV_RMS: usize = 3;

const ROW_JOBS: &[RowJob] = &[
    RowJob {
        name: "add",
        bytes: |width| 3.0 * width,
        compiles: false,
        run: |of| Ok(vec![ops::add(&of[X], &of[DY])?]),
    },
    RowJob {
        name: "silu",
        bytes: |width| 2.0 * width,
        compiles: false,
        run: |of| Ok(vec![ops::silu(&of[X])?]),
    },
    RowJob {
        name: "silu_mul",
        bytes: |width| 3.0 * width,
        compiles: true,
        run: |of| Ok(vec![silu_mul(&of[X], &of[DY])?]),
    },
    RowJob {
        name: "swiglu",
        bytes: |width| 1.5 * width,
        compiles: true,
        run: |of| {
            let [rows, features] = [of[X].extent(0)?, of[X].extent(1)?];
            let gate_up = ops::reshape(&of[X], &[rows, 2, features / 2])?;
            Ok(vec![ops::swiglu(&gate_up)?])
        },
    },
    RowJob {
        name: "swiglu_grad",
        bytes: |width| 2.5 * width,
        compiles: false,
        run: |of| {
            let [rows, features] = [of[X].extent(0)?, of[X].extent(1)?];
            let gate_up = ops::reshape(&of[X], &[rows, 2, features / 2])?;
            let dy = of[DY].slice(1, 0..features / 2)?;
            Ok(vec![ops::swiglu_grad(&gate_up, &dy)?])
        },
    },
    RowJob {
        name: "transpose",
        bytes: |width| 2.0 * width,
        compiles: false,
        run: |of| Ok(vec![ops::copy(&of[X].transpose(0, 1)?)?]),
    },
    RowJob {
        name: "cast",
        bytes: |_| 6.0,
        compiles: false,
        run: |of| Ok(vec![ops::cast(&of[X], other(&of[X]))?]),
    },
    RowJob {
        name: "rms_norm",
        bytes: |width| 2.0 * width,
        compiles: true,
        run: |of| {
            let (y, inv_rms) = ops::rms_norm(&of[X], &of[W], EPSILON)?;
            Ok(vec![y, inv_rms])
        },
    },
    RowJob {
        name: "rms_norm_grads",
        bytes: |width| 3.0 * width,
        compiles: false,
        run: |of| {
            let (x, dy, w, inv_rms) = (&of[X], &of[DY], &of[W], &of[INV_RMS]);
            let dx = ops::rms_norm_grad_input(dy, x, w, inv_rms)?;
            let mut dw = Accumulator::new(x.device(), *w.shape(), DType::F32)?;
            ops::rms_norm_grad_weight_into(dy, x, inv_rms, &mut dw)?;
            Ok(vec![dx, dw.buffer().clone()])
        },
    },
    RowJob {
        name: "softmax",
        bytes: |width| 2.0 * width,
        compiles: true,
        run: |of| Ok(vec![ops::softmax(&of[X])?]),
    },
    RowJob {
        name: "softmax_grad",
        bytes: |width| 3.0 * width,
        compiles: false,
        run: |of| Ok(vec![ops::softmax_grad(&of[X], &of[DY])?]),
    },
    RowJob {
        name: "add_rms_norm",
        bytes: |width| 4.0 * width,
        compiles: true,
        run: |of| {
            let (h, y, inv_rms) = ops::add_rms_norm(&of[X], &of[DY], &of[W], EPSILON)?;
            Ok(vec![h, y, inv_rms])
        },
    },
    RowJob {
        name: "largest 8",
        bytes: |width| width,
        compiles: false,
        run: |of| {
            let (largest, at) = ops::top_k(&of[X], LARGEST)?;
            Ok(vec![largest, at])
        },
    },
    RowJob {
        name: "normal",
        bytes: |width| width,
        compiles: false,
        run: |of| {
            let (x, key) = (&of[X], Key::new(1));
            let y = ops::normal(x.device(), x.shape(), x.dtype(), key, 0.0, 1.0)?;
            Ok(vec![y])
        },
    },
    RowJob {
        name: "dropout",
        bytes: |width| 2.0 * width,
        compiles: false,
        run: |of| Ok(vec![ops::dropout(&of[X], Key::new(1), 0.1)?]),
    },
    RowJob {
        name: "sum of rows",
        bytes: |width| width,
        compiles: false,
        run: |of| Ok(vec![ops::sum(&of[X], &[1])?]),
    },
    RowJob {
        name: "sum of columns",
        bytes: |width| width,
        compiles: false,
        run: |of| Ok(vec![ops::sum(&of[X], &[0])?]),
    },
];

static SILU_MUL: Signature = Signature::new("silu_mul", "x: F[..], y: F[..] -> z: F[..]", 5);

/// silu(x) * y as one op, because torch.compile fuses both operations too.
fn silu_mul(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    let mut call = SILU_MUL.call(&[x, y])?;
    let mut z = call.output(0)?;
    ops::map(&call, &SiluMul, [x, y], &mut z)?;
    Ok(z.finish())
}

struct SiluMul;

impl Function<2> for SiluMul {
    #[inline(always)]
    fn value<W: Number>(&self, [x, y]: [W; 2]) -> W {
        x * x.sigmoid() * y
    }
}

const EPSILON: f64 = 1e-6;

const LARGEST: usize = 8;

/// The target dtype of a cast.
fn other(x: &Tensor) -> DType {
    match x.dtype() {
        DType::F32 => DType::BF16,
        _ => DType::F32,
    }
}

/// A copy, which measures the device's bandwidth.
pub(crate) fn copy(elements: usize) -> Group {
    let (bytes, extents) = (8.0 * elements as f64, json!({"elements": elements}));
    let job = Job::new("copy", DType::F32, Amount::Bytes(bytes), &extents, |of| {
        Ok(vec![ops::copy(&of[0])?])
    });
    Group {
        title: format!("{elements}"),
        jobs: vec![job],
        bytes: 4 * elements,
        operands: Box::new(move |source| Ok(vec![source.random("x", &[elements], DType::F32)?])),
    }
}

pub(crate) fn groups(shapes: &Shapes) -> Vec<Group> {
    let rows = shapes.rows.iter();
    let of_shape = |shape: &[usize; 2]| {
        let shape = *shape;
        shapes.floats().map(move |dtype| row_kernels(shape, dtype))
    };
    rows.flat_map(of_shape).collect()
}

fn row_kernels([rows, features]: [usize; 2], dtype: DType) -> Group {
    let extents = json!({"shape": [rows, features]});
    let job = |row: &RowJob| {
        let bytes = (rows * features) as f64 * (row.bytes)(dtype.bytes(1) as f64);
        let job = Job::new(row.name, dtype, Amount::Bytes(bytes), &extents, row.run);
        if row.compiles { job.compiled() } else { job }
    };
    // swiglu needs an even number of features.
    let supported = |row: &&RowJob| !row.name.starts_with("swiglu") || features % 2 == 0;
    let jobs = ROW_JOBS.iter().filter(supported);
    Group {
        title: format!("{rows}, {features}"),
        jobs: jobs.map(job).collect(),
        bytes: dtype.bytes(2 * rows * features),
        operands: Box::new(move |source| {
            let x = source.random("x", &[rows, features], dtype)?;
            let dy = source.random("dy", &[rows, features], dtype)?;
            let w = source.random("w", &[features], dtype)?;
            let (_, inv_rms) = ops::rms_norm(&x, &w, EPSILON)?;
            Ok(vec![x, dy, w, inv_rms])
        }),
    }
}
