//! Copies and row kernels, which are memory-bound.

use meshgrad::prelude::*;
use meshgrad::runtime::op_cases::{self, OpCase, Source};
use meshgrad::runtime::{Function, Key, Number, Result, Signature, ops};
use serde_json::json;

use super::{Amount, Group, Inputs, Job};
use crate::bench::shapes::Shapes;

/// Row kernels of one family of cases.
struct RowFamily {
    cases: fn(&Inputs<'_>, [usize; 2]) -> Result<Vec<OpCase>>,
    jobs: &'static [RowJob],
}

/// A row kernel.
struct RowJob {
    name: &'static str,
    cases: &'static [&'static str],
    /// Bytes per element of [R, D] as a function of the element size. The weight and one value per
    /// row are not counted.
    bytes: fn(f64) -> f64,
    compiles: bool,
}

impl RowJob {
    const fn new(
        name: &'static str,
        cases: &'static [&'static str],
        bytes: fn(f64) -> f64,
    ) -> RowJob {
        RowJob { name, cases, bytes, compiles: false }
    }

    /// The same, with torch.compile timed too.
    const fn compiled(self) -> RowJob {
        RowJob { compiles: true, ..self }
    }
}

const FAMILIES: &[RowFamily] = &[
    RowFamily {
        cases: |source, shape| op_cases::binary(source, &shape, &shape),
        jobs: &[RowJob::new("add", &["add"], |width| 3.0 * width)],
    },
    RowFamily {
        cases: |source, shape| op_cases::unary(source, &shape),
        jobs: &[RowJob::new("silu", &["silu"], |width| 2.0 * width)],
    },
    RowFamily {
        cases: |source, shape| Ok(vec![silu_mul_case(source, shape)?]),
        jobs: &[RowJob::new("silu_mul", &["silu_mul"], |width| 3.0 * width).compiled()],
    },
    RowFamily {
        cases: |source, [rows, features]| op_cases::swiglu(source, rows, features / 2),
        jobs: &[
            RowJob::new("swiglu", &["swiglu"], |width| 1.5 * width).compiled(),
            RowJob::new("swiglu_grad", &["swiglu_grad"], |width| 2.5 * width),
        ],
    },
    RowFamily {
        cases: |source, [rows, features]| op_cases::copies(source, [features, rows]),
        jobs: &[
            RowJob::new("transpose", &["contiguous, transposed"], |width| 2.0 * width),
            RowJob::new("cast", &["cast"], |_| 6.0),
        ],
    },
    RowFamily {
        cases: |source, [rows, features]| op_cases::norms(source, &[rows], features),
        jobs: &[
            RowJob::new("rms_norm", &["rms_norm"], |width| 2.0 * width).compiled(),
            RowJob::new(
                "rms_norm_grads",
                &["rms_norm_grad_input", "rms_norm_grad_weight_into"],
                |width| 3.0 * width,
            ),
            RowJob::new("add_rms_norm", &["add_rms_norm"], |width| 4.0 * width).compiled(),
        ],
    },
    RowFamily {
        cases: |source, shape| op_cases::softmaxes(source, &shape),
        jobs: &[
            RowJob::new("softmax", &["softmax"], |width| 2.0 * width).compiled(),
            RowJob::new("softmax_grad", &["softmax_grad"], |width| 3.0 * width),
        ],
    },
    RowFamily {
        cases: |source, shape| Ok(vec![op_cases::top_k(source, &shape, LARGEST)?]),
        jobs: &[RowJob::new("largest 8", &["top_k"], |width| width)],
    },
    RowFamily {
        cases: |source, shape| op_cases::random(source, &shape, &Key::new(1).into()),
        jobs: &[
            RowJob::new("normal", &["normal"], |width| width),
            RowJob::new("dropout", &["dropout"], |width| 2.0 * width),
        ],
    },
    RowFamily {
        cases: |source, shape| op_cases::reductions(source, &shape, &[1]),
        jobs: &[RowJob::new("sum of rows", &["sum"], |width| width)],
    },
    RowFamily {
        cases: |source, shape| op_cases::reductions(source, &shape, &[0]),
        jobs: &[RowJob::new("sum of columns", &["sum"], |width| width)],
    },
];

const LARGEST: usize = 8;

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

fn silu_mul_case(source: &Inputs<'_>, shape: [usize; 2]) -> Result<OpCase> {
    let operands = vec![source.numbers("x", &shape)?, source.numbers("y", &shape)?];
    Ok(OpCase::new("silu_mul", operands, |of| Ok(vec![silu_mul(&of.tensors[0], &of.tensors[1])?])))
}

/// A copy, which measures the device's bandwidth.
pub(crate) fn copy(elements: usize) -> Group {
    let (bytes, extents) = (8.0 * elements as f64, json!({"elements": elements}));
    Group {
        title: format!("{elements}"),
        jobs: vec![Job::new("copy", &["contiguous"], DType::F32, Amount::Bytes(bytes), &extents)],
        bytes: 4 * elements,
        family: Box::new(move |source| {
            let x = source.numbers("x", &[elements])?;
            Ok(vec![OpCase::new("contiguous", vec![x], |of| Ok(vec![ops::copy(&of.tensors[0])?]))])
        }),
    }
}

pub(crate) fn groups(shapes: &Shapes) -> Vec<Group> {
    let rows = shapes.rows.iter();
    let of_shape = |shape: &[usize; 2]| {
        let shape = *shape;
        shapes.floats().flat_map(move |dtype| row_kernels(shape, dtype))
    };
    rows.flat_map(of_shape).collect()
}

fn row_kernels(shape: [usize; 2], dtype: DType) -> impl Iterator<Item = Group> {
    let [rows, features] = shape;
    let extents = json!({"shape": shape});
    let job = move |row: &RowJob| {
        let bytes = (rows * features) as f64 * (row.bytes)(dtype.bytes(1) as f64);
        let job = Job::new(row.name, row.cases, dtype, Amount::Bytes(bytes), &extents);
        if row.compiles { job.compiled() } else { job }
    };
    // swiglu needs an even number of features.
    let supported = move |family: &&RowFamily| {
        features % 2 == 0 || !family.jobs.iter().any(|job| job.name == "swiglu")
    };
    FAMILIES.iter().filter(supported).map(move |family| Group {
        title: format!("{rows}, {features}"),
        jobs: family.jobs.iter().map(&job).collect(),
        bytes: dtype.bytes(2 * rows * features),
        family: Box::new(move |source| (family.cases)(source, shape)),
    })
}
