//! Models, meshes and homes.

use std::fmt;

use meshgrad_data_parallel::{Home, Homes, Reshard};
use meshgrad_mesh::Mesh;
use meshgrad_models::config::Qwen3Config;
use meshgrad_models::{Balancing, Compute, ModelParallelism};
use meshgrad_runtime::DType;

/// A model on a mesh, with homes for its parameters. Axis `tp` is for tensor parallelism; all others
/// shard the batch.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) model: &'static str,
    pub(crate) mesh: &'static [(&'static str, usize)],
    /// The homes of the layers, and of the rest.
    pub(crate) homes: fn() -> [Home; 2],
    pub(crate) prefetch: usize,
    pub(crate) checkpointing: bool,
    pub(crate) bf16: bool,
    /// Whether the last pass is announced.
    pub(crate) announced: bool,
    /// Whether all ranks have equally many rows.
    pub(crate) even: bool,
    /// Whether Muon updates the matrices, not AdamW.
    pub(crate) muon: bool,
    /// By how many rows the batch is rotated, so that ranks have other rows.
    pub(crate) rotated: usize,
}

impl Case {
    const fn new(
        name: &'static str,
        model: &'static str,
        mesh: &'static [(&'static str, usize)],
        homes: fn() -> [Home; 2],
    ) -> Case {
        Case {
            name,
            model,
            mesh,
            homes,
            prefetch: 1,
            checkpointing: false,
            bf16: false,
            announced: true,
            even: false,
            muon: false,
            rotated: 0,
        }
    }

    const fn checkpointed(self) -> Case {
        Case {
            checkpointing: true,
            ..self
        }
    }

    const fn bf16(self) -> Case {
        Case { bf16: true, ..self }
    }

    const fn prefetch(self, prefetch: usize) -> Case {
        Case { prefetch, ..self }
    }

    const fn unannounced(self) -> Case {
        Case {
            announced: false,
            ..self
        }
    }

    const fn even(self) -> Case {
        Case { even: true, ..self }
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
        (self.homes)()[0] != Home::replicate(["dp"])
    }

    pub(crate) fn config(&self) -> Qwen3Config {
        toml::from_str(self.model).unwrap()
    }

    pub(crate) fn mesh(&self) -> Mesh {
        let (names, sizes): (Vec<&str>, Vec<usize>) = self.mesh.iter().copied().unzip();
        Mesh::new(&sizes, &names).unwrap()
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
            .sequence_parallel(true)
            .loss_parallel(true)
    }

    pub(crate) fn homes(&self, rank: &dyn meshgrad_comm::Rank, mesh: &Mesh) -> Homes {
        let [layers, rest] = (self.homes)();
        Homes::new(rank, mesh, rest)
            .unit("model.layers.*", layers)
            .prefetch(self.prefetch)
    }

    pub(crate) fn compute(&self) -> Compute {
        Compute {
            dtype: match self.bf16 {
                true => DType::BF16,
                false => DType::F32,
            },
            checkpointing: self.checkpointing,
        }
    }

    pub(crate) fn balancing(&self) -> Balancing {
        Balancing {
            auxiliary: 0.1,
            z: 0.01,
            bias_update_rate: 0.001,
        }
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

const DENSE: &str = r#"
    model_type = "qwen3"
    vocab_size = 97
    hidden_size = 20
    intermediate_size = 22
    num_hidden_layers = 3
    num_attention_heads = 6
    num_key_value_heads = 2
    head_dim = 8
    attention_bias = true
    initializer_range = 0.2
"#;

const TIED: &str = r#"
    model_type = "qwen3"
    vocab_size = 61
    hidden_size = 16
    intermediate_size = 23
    num_hidden_layers = 2
    num_attention_heads = 4
    num_key_value_heads = 2
    head_dim = 4
    tie_word_embeddings = true
    initializer_range = 0.2
"#;

/// Five experts, two per token; the second layer is dense.
const EXPERTS: &str = r#"
    model_type = "qwen3_moe"
    vocab_size = 53
    hidden_size = 16
    intermediate_size = 20
    num_hidden_layers = 3
    num_attention_heads = 4
    num_key_value_heads = 2
    num_experts = 5
    num_experts_per_tok = 2
    moe_intermediate_size = 14
    mlp_only_layers = [1]
    norm_topk_prob = true
    initializer_range = 0.2
"#;

/// Every expert has every token, so that rounding does not change the routing.
const ALL_EXPERTS: &str = r#"
    model_type = "qwen3_moe"
    vocab_size = 53
    hidden_size = 16
    num_hidden_layers = 2
    num_attention_heads = 4
    num_key_value_heads = 4
    num_experts = 3
    num_experts_per_tok = 3
    moe_intermediate_size = 14
    initializer_range = 0.2
"#;

const DP2: &[(&str, usize)] = &[("dp", 2)];
const DP3: &[(&str, usize)] = &[("dp", 3)];
const DP4: &[(&str, usize)] = &[("dp", 4)];
const HYBRID: &[(&str, usize)] = &[("copies", 2), ("dp", 2)];
const HYBRID6: &[(&str, usize)] = &[("copies", 2), ("dp", 3)];
const DP_TP: &[(&str, usize)] = &[("dp", 2), ("tp", 2)];
const DP3_TP: &[(&str, usize)] = &[("dp", 3), ("tp", 2)];
const HYBRID_TP: &[(&str, usize)] = &[("copies", 2), ("dp", 2), ("tp", 2)];

fn replicate() -> [Home; 2] {
    [Home::replicate(["dp"]), Home::replicate(["dp"])]
}

fn zero1() -> [Home; 2] {
    [Home::zero1(["dp"]), Home::zero1(["dp"])]
}

fn fsdp() -> [Home; 2] {
    [Home::fsdp(["dp"]), Home::fsdp(["dp"])]
}

fn hsdp() -> [Home; 2] {
    let home = || Home::hsdp(["dp"], ["copies"]);
    [home(), home()]
}

/// Over both axes together.
fn fsdp_over_all() -> [Home; 2] {
    let home = || Home::fsdp(["copies", "dp"]);
    [home(), home()]
}

fn mixed() -> [Home; 2] {
    let rest = Home::zero1(["dp"]).reduce_each_pass(true);
    [Home::fsdp(["dp"]).reshard(Reshard::AfterBackward), rest]
}

fn accumulated() -> [Home; 2] {
    let layers = Home::fsdp(["dp"]).reduce_each_pass(false);
    [layers, Home::replicate(["dp"]).reduce_each_pass(true)]
}

fn compute_bf16() -> [Home; 2] {
    let home = || Home::fsdp(["dp"]).compute_dtype(DType::BF16);
    [home(), home().reduction_dtype(DType::BF16)]
}

fn whole_matrices() -> [Home; 2] {
    let home = || Home::fsdp(["dp"]).whole_matrices();
    [home(), home()]
}

pub(crate) const CASES: &[Case] = &[
    Case::new("dense replicated", DENSE, DP3, replicate),
    Case::new("dense zero1", DENSE, DP3, zero1).unannounced(),
    Case::new("dense fsdp", DENSE, DP2, fsdp),
    Case::new("dense fsdp", DENSE, DP3, fsdp).prefetch(0),
    Case::new("dense fsdp checkpointed", DENSE, DP3, fsdp).checkpointed(),
    Case::new("dense fsdp, whole gradients", DENSE, DP3, accumulated).unannounced(),
    Case::new("dense mixed", DENSE, DP4, mixed).prefetch(2),
    Case::new("dense whole matrices", DENSE, DP3, whole_matrices),
    Case::new("dense muon", DENSE, DP3, whole_matrices).muon(),
    Case::new("experts muon", ALL_EXPERTS, DP4, whole_matrices).muon(),
    Case::new("dense replicated, other rows", DENSE, DP3, replicate).rotated(2),
    Case::new("experts fsdp, other rows", ALL_EXPERTS, DP3, fsdp).rotated(3),
    Case::new("dense hsdp, other rows", DENSE, HYBRID, hsdp).rotated(1),
    Case::new("dense hsdp", DENSE, HYBRID, hsdp),
    Case::new("dense hsdp", DENSE, HYBRID6, hsdp).unannounced(),
    Case::new("dense fsdp over two axes", DENSE, HYBRID6, fsdp_over_all),
    Case::new("tied fsdp", TIED, DP_TP, fsdp),
    Case::new("tied hsdp checkpointed", TIED, HYBRID_TP, hsdp).checkpointed(),
    Case::new("experts replicated", EXPERTS, DP3, replicate),
    Case::new("experts fsdp", EXPERTS, DP3, fsdp),
    Case::new("experts fsdp checkpointed", EXPERTS, DP3_TP, fsdp).checkpointed(),
    Case::new("experts hsdp", EXPERTS, HYBRID_TP, hsdp).even(),
    Case::new("all experts bf16", ALL_EXPERTS, DP3, compute_bf16).bf16(),
    Case::new("dense bf16", DENSE, DP_TP, fsdp).bf16(),
];
