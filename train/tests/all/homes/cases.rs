//! Models, meshes and homes.

use std::fmt;

use meshgrad_data_parallel::{DataParallel, Reshard, Strategy};
use meshgrad_mesh::Mesh;
use meshgrad_models::families::qwen3::Qwen3Config;
use meshgrad_models::{Compute, ModelParallelism};
use meshgrad_runtime::DType;

use crate::homes::step::PASSES;
use crate::small::{self, ALL_EXPERTS, Axes, DENSE, EXPERTS, TIED};

/// The homes of the layers, and of the rest.
pub(crate) type MakeHomes = fn() -> [Strategy; 2];

/// A model on a mesh, with homes for its parameters. Axis `tp` is for tensor parallelism; all others
/// shard the batch.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) model: &'static str,
    pub(crate) mesh: Axes,
    pub(crate) homes: MakeHomes,
    /// The modules that are units.
    pub(crate) units: &'static str,
    pub(crate) prefetch: usize,
    pub(crate) checkpointing: bool,
    pub(crate) bf16: bool,
    /// The passes of a step that are announced. Otherwise, reductions start in each.
    pub(crate) expected_passes: Option<usize>,
    /// Whether all ranks have equally many rows.
    pub(crate) even: bool,
    pub(crate) trained: Trained,
    /// Whether sequences are sharded over `tp`.
    pub(crate) sequence: bool,
    /// Whether the axes along which gradients are partial sums are learnt before.
    pub(crate) learns_classes: bool,
    /// Whether Muon updates the matrices, not AdamW.
    pub(crate) muon: bool,
    /// By how many rows the batch is rotated, so that ranks have other rows.
    pub(crate) rotated: usize,
}

/// The parameters that are not frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trained {
    All,
    /// All but those of a layer.
    Except(usize),
    /// Low-rank adapters of the projections.
    Adapters,
}

impl Case {
    pub(crate) const fn new(
        name: &'static str,
        model: &'static str,
        mesh: Axes,
        homes: MakeHomes,
    ) -> Case {
        Case {
            name,
            model,
            mesh,
            homes,
            units: "model.layers.*",
            prefetch: 1,
            checkpointing: false,
            bf16: false,
            expected_passes: Some(PASSES),
            even: false,
            trained: Trained::All,
            sequence: true,
            learns_classes: true,
            muon: false,
            rotated: 0,
        }
    }

    pub(crate) const fn checkpointed(self) -> Case {
        Case { checkpointing: true, ..self }
    }

    const fn bf16(self) -> Case {
        Case { bf16: true, ..self }
    }

    pub(crate) const fn prefetch(self, prefetch: usize) -> Case {
        Case { prefetch, ..self }
    }

    pub(crate) const fn expecting(self, expected_passes: Option<usize>) -> Case {
        Case { expected_passes, ..self }
    }

    const fn uncounted(self) -> Case {
        self.expecting(None)
    }

    pub(crate) const fn even(self) -> Case {
        Case { even: true, ..self }
    }

    pub(crate) const fn trained(self, trained: Trained) -> Case {
        Case { trained, ..self }
    }

    pub(crate) const fn whole_sequences(self) -> Case {
        Case { sequence: false, ..self }
    }

    const fn muon(self) -> Case {
        Case { muon: true, ..self }
    }

    const fn rotated(self, rotated: usize) -> Case {
        Case { rotated, ..self }
    }

    /// The rows of a batch.
    pub(crate) fn rows(&self) -> usize {
        let axes = self.mesh.iter().filter(|(name, _)| *name != "tp");
        let ranks: usize = axes.map(|(_, size)| size).product();
        2 * ranks - usize::from(!self.even)
    }

    /// Whether ranks have different rows of parameters.
    pub(crate) fn divides(&self) -> bool {
        (self.homes)()[0] != Strategy::replicate(["dp"])
    }

    pub(crate) fn config(&self) -> Qwen3Config {
        small::config(self.model)
    }

    pub(crate) fn mesh(&self) -> Mesh {
        small::mesh(self.mesh)
    }

    pub(crate) fn batch_axes(&self) -> impl Iterator<Item = &'static str> {
        let axes = self.mesh.iter().map(|(name, _)| *name);
        axes.filter(|name| *name != "tp")
    }

    pub(crate) fn parallelism(&self, mesh: &Mesh) -> ModelParallelism {
        let has_tp = self.mesh.iter().any(|(name, _)| *name == "tp");
        let tensor: &[&str] = if has_tp { &["tp"] } else { &[] };
        ModelParallelism::new(mesh)
            .tensor(tensor)
            .unwrap()
            .sequence_parallel(self.sequence)
            .loss_parallel(true)
    }

    pub(crate) fn homes(&self, rank: &dyn meshgrad_comm::Rank, mesh: &Mesh) -> DataParallel {
        let [layers, rest] = (self.homes)();
        DataParallel::new(rank, mesh, rest).unit(self.units, layers).prefetch(self.prefetch)
    }

    pub(crate) fn compute(&self) -> Compute {
        small::compute(self.bf16, self.checkpointing)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)?;
        for (axis, ranks) in self.mesh {
            write!(f, " {axis} {ranks}")?;
        }
        Ok(())
    }
}

pub(crate) const DP2: Axes = &[("dp", 2)];
pub(crate) const DP3: Axes = &[("dp", 3)];
const DP4: Axes = &[("dp", 4)];
const HYBRID: Axes = &[("copies", 2), ("dp", 2)];
const HYBRID6: Axes = &[("copies", 2), ("dp", 3)];
pub(crate) const DP_TP: Axes = &[("dp", 2), ("tp", 2)];
const DP3_TP: Axes = &[("dp", 3), ("tp", 2)];
const HYBRID_TP: Axes = &[("copies", 2), ("dp", 2), ("tp", 2)];

pub(crate) fn replicate() -> [Strategy; 2] {
    [Strategy::replicate(["dp"]), Strategy::replicate(["dp"])]
}

pub(crate) fn zero1() -> [Strategy; 2] {
    [Strategy::zero1(["dp"]), Strategy::zero1(["dp"])]
}

pub(crate) fn fsdp() -> [Strategy; 2] {
    [Strategy::fsdp(["dp"]), Strategy::fsdp(["dp"])]
}

fn hsdp() -> [Strategy; 2] {
    let home = || Strategy::hsdp(["dp"], ["copies"]);
    [home(), home()]
}

/// Over both axes together.
fn fsdp_over_all() -> [Strategy; 2] {
    let home = || Strategy::fsdp(["copies", "dp"]);
    [home(), home()]
}

fn mixed() -> [Strategy; 2] {
    let rest = Strategy::zero1(["dp"]).reduce_each_pass(true);
    [Strategy::fsdp(["dp"]).reshard(Reshard::AfterBackward), rest]
}

fn accumulated() -> [Strategy; 2] {
    let layers = Strategy::fsdp(["dp"]).reduce_each_pass(false);
    [layers, Strategy::replicate(["dp"]).reduce_each_pass(true)]
}

fn compute_bf16() -> [Strategy; 2] {
    let home = || Strategy::fsdp(["dp"]).compute_dtype(DType::BF16);
    [home(), home().reduction_dtype(DType::BF16)]
}

fn whole_matrices() -> [Strategy; 2] {
    let home = || Strategy::fsdp(["dp"]).whole_matrices();
    [home(), home()]
}

pub(crate) const CASES: &[Case] = &[
    Case::new("dense replicated", DENSE, DP3, replicate),
    Case::new("dense replicated, uncounted", DENSE, DP3, replicate).uncounted(),
    Case::new("dense zero1", DENSE, DP3, zero1).uncounted(),
    Case::new("dense fsdp", DENSE, DP2, fsdp),
    Case::new("dense fsdp", DENSE, DP3, fsdp).prefetch(0),
    Case::new("dense fsdp checkpointed", DENSE, DP3, fsdp).checkpointed(),
    Case::new("dense fsdp, whole gradients", DENSE, DP3, accumulated).uncounted(),
    Case::new("dense mixed", DENSE, DP4, mixed).prefetch(2),
    Case::new("dense whole matrices", DENSE, DP3, whole_matrices),
    Case::new("dense muon", DENSE, DP3, whole_matrices).muon(),
    Case::new("experts muon", ALL_EXPERTS, DP4, whole_matrices).muon(),
    Case::new("dense replicated, other rows", DENSE, DP3, replicate).rotated(2),
    Case::new("experts fsdp, other rows", ALL_EXPERTS, DP3, fsdp).rotated(3),
    Case::new("dense hsdp, other rows", DENSE, HYBRID, hsdp).rotated(1),
    Case::new("dense hsdp", DENSE, HYBRID, hsdp),
    Case::new("dense hsdp", DENSE, HYBRID6, hsdp).uncounted(),
    Case::new("dense fsdp over two axes", DENSE, HYBRID6, fsdp_over_all),
    Case::new("tied fsdp", TIED, DP_TP, fsdp),
    Case::new("tied hsdp checkpointed", TIED, HYBRID_TP, hsdp).checkpointed(),
    Case::new("experts replicated", EXPERTS, DP3, replicate),
    Case::new("experts fsdp", EXPERTS, DP3, fsdp),
    Case::new("experts fsdp checkpointed", EXPERTS, DP3_TP, fsdp).checkpointed(),
    Case::new("experts hsdp", EXPERTS, HYBRID_TP, hsdp).even(),
    Case::new("experts fsdp, whole sequences", EXPERTS, DP3_TP, fsdp).whole_sequences(),
    Case::new("dense zero1, whole sequences, adapters", DENSE, DP3_TP, zero1)
        .trained(Trained::Adapters)
        .whole_sequences(),
    Case::new("dense fsdp, layer frozen", DENSE, DP3, fsdp).trained(Trained::Except(1)),
    Case::new("experts zero1, layer frozen", EXPERTS, DP3, zero1).trained(Trained::Except(0)),
    Case::new("dense fsdp, adapters", DENSE, DP3, fsdp).trained(Trained::Adapters),
    Case::new("experts hsdp, adapters", EXPERTS, HYBRID6, hsdp)
        .trained(Trained::Adapters)
        .checkpointed()
        .even(),
    Case::new("tied fsdp, adapters", TIED, DP_TP, fsdp).trained(Trained::Adapters),
    Case::new("all experts bf16", ALL_EXPERTS, DP3, compute_bf16).bf16(),
    Case::new("dense bf16", DENSE, DP_TP, fsdp).bf16(),
];
