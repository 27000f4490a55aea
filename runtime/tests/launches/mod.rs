//! Launches every kernel of every op. `ptxas` must assemble each kernel without a warning, and the
//! emulator runs each in several schedules. Every instruction must be executed by some launch.
//!
//! This includes the kernels generated for elementwise ops, which the catalogue of the `kernels`
//! crate cannot list.

mod copies;
mod extents;
mod operands;
mod ptxas;
#[path = "../../../kernels/tests/all/sample.rs"]
mod sample;
mod schedules;
mod tree_reduce;

use crate::launch::recorded::{Launched, record};
use crate::op_cases::{OpCase, Written};
use operands::Operands;

use crate::{DType, Device, GpuProperties, Properties, Result};

/// Launches all kernels of some ops.
type Launches = fn(&Operands<'_>) -> Result<()>;

/// The launches of each family of ops, by its name.
const LAUNCHES: &[(&str, Launches)] = &[
    ("elementwise", extents::elementwise),
    ("copies", copies::copies),
    ("indexing", extents::indexing),
    ("rows", extents::rows),
    ("products", extents::products),
    ("cross_entropy", extents::cross_entropy),
    ("grouped_products", extents::grouped_products),
    ("permutations", extents::permutations),
    ("rotations", extents::rotations),
    ("draws", extents::draws),
    ("router", extents::router),
    ("steps", extents::steps),
    ("sums", extents::sums),
    ("attentions", extents::attentions),
    ("largest", extents::largest),
    ("order", extents::order),
    ("gradients", extents::gradients),
    ("tree_reduce", tree_reduce::tree_reduce),
];

/// Launches the kernels of cases; of sums both those that write the first terms and those that add.
fn run(cases: impl IntoIterator<Item = OpCase>) -> Result<()> {
    for case in cases {
        case.run(&case.whole(Written::InPlace))?;
        if case.writes {
            case.run(&case.whole(Written::Copies))?;
        }
    }
    Ok(())
}

/// Runs launches with operands of one dtype.
fn launch(launches: Launches, device: &Device, dtype: DType) -> Result<()> {
    launches(&Operands { device, dtype, index: DType::I64, has_extremes: false })
}

/// The dtypes that ops compute in on a GPU.
const DTYPES: [DType; 2] = [DType::F32, DType::BF16];

/// Records the launches of a family on a meta device.
fn launched(launches: Launches) -> Launched {
    let gpu = GpuProperties {
        model: "counted".into(),
        compute_capability: (9, 0),
        multiprocessors: 132,
        memory: 1 << 30,
        l2_cache: 50 << 20,
        shared_memory: 232_448,
    };
    let device = Device::meta(&Properties { gpu: Some(gpu), ..Device::cpu().properties().clone() });
    record(|| {
        for dtype in DTYPES {
            launch(launches, &device, dtype).unwrap();
        }
    })
}
