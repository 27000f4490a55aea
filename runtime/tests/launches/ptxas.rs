//! `ptxas` must assemble every kernel that the ops launch, without a warning.

#[path = "../../../kernels/tests/all/ptxas/assemble.rs"]
pub(super) mod assemble;

use std::collections::{BTreeMap, BTreeSet};

use meshgrad_kernels::Ptx;

use super::{LAUNCHES, launched};
use crate::ops;

#[test]
fn every_kernel_of_an_op_assembles_without_a_warning() {
    let (mut kernels, mut launching) = (BTreeMap::new(), BTreeSet::new());
    for (_, launches) in LAUNCHES {
        let launched = launched(*launches);
        kernels.extend(launched.kernels);
        launching.extend(launched.ops);
    }

    // Kernels of elementwise ops are not in the catalogue, so each op must launch some kernel here.
    let missing: Vec<&str> =
        ops::signatures().map(|op| op.name()).filter(|op| !launching.contains(op)).collect();
    assert!(missing.is_empty(), "ops that launched nothing: {missing:?}");

    let kernels: Vec<Ptx> = kernels.into_values().collect();
    assemble::assemble(&kernels, "ptxas.txt");
}
