//! Models and meshes.

use std::fmt;

use meshgrad_mesh::{Mesh, Placement};
use meshgrad_models::Balance::{Layer, Sequence};
use meshgrad_models::families::qwen3::Qwen3Config;
use meshgrad_models::moe::Dispatch::{self, AllGather, AllToAll};
use meshgrad_models::{Balance, Balancing, Compute, ModelParallelism};

use crate::laws::YARN;
use crate::small::{self, ALL_EXPERTS, Axes, BALANCING, DENSE, EIGHT_EXPERTS, EXPERTS, TIED};

/// A model on a mesh.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) model: &'static str,
    /// Names and sizes of the axes. `dp` divides the batch; `cp`, `cr` and `sp` sequences; all others
    /// matrices.
    pub(crate) mesh: Axes,
    /// Whether keys go around `cp` and `cr`.
    pub(crate) ring: bool,
    pub(crate) sequence: bool,
    pub(crate) loss: bool,
    pub(crate) experts: bool,
    pub(crate) checkpointing: bool,
    pub(crate) bf16: bool,
    /// Of the batch.
    pub(crate) rows: usize,
    /// Of a row.
    pub(crate) tokens: usize,
    /// Whether rows have several documents.
    pub(crate) documents: bool,
    /// Whether the projections have low-rank adapters.
    pub(crate) lora: bool,
    /// Whether sparse layers have shared experts.
    pub(crate) shared: bool,
    /// The mesh of experts: along `ep` they are sharded, along `etp` their inner features.
    pub(crate) apart: Option<(Axes, Dispatch)>,
    pub(crate) balance: Balance,
}

impl Case {
    const fn new(model: &'static str, mesh: Axes) -> Case {
        Case {
            model,
            mesh,
            ring: false,
            sequence: false,
            loss: true,
            experts: false,
            checkpointing: false,
            bf16: false,
            rows: 3,
            tokens: 7,
            documents: false,
            lora: false,
            shared: false,
            apart: None,
            balance: Balance::Pooled,
        }
    }

    const fn balance(self, balance: Balance) -> Case {
        Case { balance, ..self }
    }

    const fn apart(self, axes: Axes, dispatch: Dispatch) -> Case {
        Case { apart: Some((axes, dispatch)), ..self }
    }

    const fn rows(self, rows: usize) -> Case {
        Case { rows, ..self }
    }

    const fn tokens(self, tokens: usize) -> Case {
        Case { tokens, ..self }
    }

    const fn documents(self) -> Case {
        Case { documents: true, ..self }
    }

    const fn ring(self) -> Case {
        Case { ring: true, ..self }
    }

    const fn sequence(self) -> Case {
        Case { sequence: true, ..self }
    }

    const fn whole_vocabulary(self) -> Case {
        Case { loss: false, ..self }
    }

    const fn sharded_experts(self) -> Case {
        Case { experts: true, ..self }
    }

    const fn checkpointed(self) -> Case {
        Case { checkpointing: true, ..self }
    }

    const fn bf16(self) -> Case {
        Case { bf16: true, ..self }
    }

    const fn lora(self) -> Case {
        Case { lora: true, ..self }
    }

    const fn shared_experts(self) -> Case {
        Case { shared: true, ..self }
    }

    pub(crate) fn config(&self) -> Qwen3Config {
        small::config(self.model)
    }

    pub(crate) fn mesh(&self) -> Mesh {
        small::mesh(self.mesh)
    }

    pub(crate) fn parallelism(&self, mesh: &Mesh) -> ModelParallelism {
        let parallelism = ModelParallelism::new(mesh)
            .tensor(self.axes(|axis| !["dp", "cp", "cr", "sp"].contains(&axis)))
            .unwrap()
            .context(self.axes(|axis| ["cp", "cr"].contains(&axis)))
            .unwrap()
            .ulysses(self.axes(|axis| axis == "sp"))
            .unwrap()
            .ring(self.ring)
            .sequence_parallel(self.sequence)
            .loss_parallel(self.loss)
            .shard_experts(self.experts);
        let Some((axes, _)) = self.apart else {
            return parallelism;
        };
        let named = |wanted: &str| -> Vec<&str> {
            axes.iter().map(|(axis, _)| *axis).filter(|axis| *axis == wanted).collect()
        };
        let [experts, features] = ["ep", "etp"].map(named);
        parallelism.experts(&small::mesh(axes), experts, features).unwrap()
    }

    fn axes(&self, are: impl Fn(&str) -> bool) -> Vec<&'static str> {
        self.mesh.iter().map(|(axis, _)| *axis).filter(|axis| are(axis)).collect()
    }

    /// The placements of a batch [rows, tokens].
    pub(crate) fn of_batch(&self) -> Vec<(String, Placement)> {
        let mut placements = self.parallelism(&self.mesh()).of_tokens();
        let of_rows = self.axes(|axis| axis == "dp").into_iter();
        placements.extend(of_rows.map(|axis| (axis.to_owned(), Placement::shard(0))));
        placements
    }

    pub(crate) fn balancing(&self) -> Balancing {
        Balancing { balance: self.balance, ..BALANCING }
    }

    pub(crate) fn dispatch(&self) -> Dispatch {
        self.apart.map_or(Dispatch::Cheapest, |(_, dispatch)| dispatch)
    }

    pub(crate) fn is_tensor_parallel(&self) -> bool {
        !self.axes(|axis| !["dp", "cp", "cr", "sp"].contains(&axis)).is_empty()
    }

    /// Whether ranks have different tokens of a sequence.
    pub(crate) fn divides_sequences(&self) -> bool {
        !self.axes(|axis| ["cp", "cr", "sp"].contains(&axis)).is_empty()
    }

    /// The number of ranks that rows are divided over by document: if chunks are equal.
    pub(crate) fn ranks_of_documents(&self) -> Option<usize> {
        let axes = self.mesh.iter().filter(|(axis, _)| ["cp", "cr"].contains(axis));
        let ranks: usize = axes.map(|(_, ranks)| ranks).product();
        (self.documents && ranks > 1 && self.tokens.is_multiple_of(2 * ranks)).then_some(ranks)
    }

    /// The number of data-parallel ranks.
    pub(crate) fn replicas(&self) -> usize {
        let axes = self.mesh.iter().filter(|(axis, _)| *axis == "dp");
        axes.map(|(_, ranks)| ranks).product()
    }

    /// Whether some ranks are exchanged with others when two of a group change places.
    pub(crate) fn has_three_ranks(&self) -> bool {
        let (axes, _) = self.apart.unwrap_or((self.mesh, Dispatch::Cheapest));
        axes.iter().any(|(axis, ranks)| *axis != "copies" && *ranks >= 3)
    }

    pub(crate) fn compute(&self) -> Compute {
        small::compute(self.bf16, self.checkpointing)
    }
}

/// The model's name, the mesh, and the options.
impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = MODELS.iter().find(|(_, text)| *text == self.model);
        write!(f, "{}", name.map_or("model", |(name, _)| name))?;
        for (axis, ranks) in self.mesh {
            write!(f, " {axis} {ranks}")?;
        }
        let options = [
            (self.ring, "ring"),
            (self.documents, "documents"),
            (self.sequence, "sequence"),
            (!self.loss, "whole vocabulary"),
            (self.experts, "sharded experts"),
            (self.checkpointing, "checkpointing"),
            (self.bf16, "bf16"),
            (self.lora, "adapters"),
            (self.shared, "shared experts"),
        ];
        if let Some((axes, dispatch)) = self.apart {
            write!(f, ", experts {axes:?} by {dispatch:?}")?;
        }
        if self.balance != Balance::Pooled {
            write!(f, ", balanced by {:?}", self.balance)?;
        }
        for (_, option) in options.into_iter().filter(|(is_set, _)| *is_set) {
            write!(f, ", {option}")?;
        }
        Ok(())
    }
}

const TP2: Axes = &[("tp", 2)];
const TP3: Axes = &[("tp", 3)];
const TP4: Axes = &[("tp", 4)];
const DP_TP4: Axes = &[("dp", 2), ("tp", 4)];
const KV_TP: Axes = &[("kv", 2), ("tp", 2)];
const DP2: Axes = &[("dp", 2)];
const DP_TP: Axes = &[("dp", 2), ("tp", 2)];
const TP_DP: Axes = &[("tp", 3), ("dp", 2)];

const CP2: Axes = &[("cp", 2)];
const CP3: Axes = &[("cp", 3)];
const CP_TP: Axes = &[("cp", 2), ("tp", 2)];
const CP_SP: Axes = &[("cp", 3), ("sp", 2)];
const DP_CP: Axes = &[("dp", 2), ("cp", 2)];
const CP_CR: Axes = &[("cp", 2), ("cr", 2)];

const DP3: Axes = &[("dp", 3)];
const DP4: Axes = &[("dp", 4)];
const DP4_TP2: Axes = &[("dp", 4), ("tp", 2)];

/// Experts of which a rank has 1 to 12; three per token.
const MANY_EXPERTS: &str = r#"
    model_type = "qwen3_moe"
    vocab_size = 53
    hidden_size = 12
    intermediate_size = 20
    num_hidden_layers = 3
    num_attention_heads = 4
    num_key_value_heads = 4
    head_dim = 4
    num_experts = 24
    num_experts_per_tok = 3
    moe_intermediate_size = 7
    mlp_only_layers = [1]
    norm_topk_prob = true
    initializer_range = 0.2
"#;

/// Five key-value heads: of four ranks, two have two heads, one has one, and the last has none.
const FIVE_HEADS: &str = r#"
    model_type = "qwen3"
    vocab_size = 43
    hidden_size = 12
    intermediate_size = 18
    num_hidden_layers = 2
    num_attention_heads = 10
    num_key_value_heads = 5
    head_dim = 4
    initializer_range = 0.2
"#;

const MODELS: [(&str, &str); 8] = [
    ("yarn", YARN),
    ("dense", DENSE),
    ("five heads", FIVE_HEADS),
    ("tied", TIED),
    ("experts", EXPERTS),
    ("all experts", ALL_EXPERTS),
    ("eight experts", EIGHT_EXPERTS),
    ("many experts", MANY_EXPERTS),
];

pub(crate) const CASES: &[Case] = &[
    Case::new(DENSE, DP2),
    Case::new(DENSE, TP2),
    Case::new(DENSE, TP3),
    Case::new(DENSE, TP3).sequence(),
    Case::new(DENSE, TP3).whole_vocabulary(),
    Case::new(DENSE, TP3).sequence().whole_vocabulary(),
    Case::new(DENSE, TP_DP).sequence().checkpointed(),
    Case::new(DENSE, DP_TP).bf16(),
    Case::new(DENSE, TP3).sequence().bf16(),
    Case::new(DENSE, TP3).lora(),
    Case::new(DENSE, DP_TP).sequence().checkpointed().lora(),
    Case::new(FIVE_HEADS, TP4),
    Case::new(FIVE_HEADS, DP_TP4).sequence().checkpointed(),
    Case::new(TIED, TP2),
    Case::new(TIED, DP_TP).sequence(),
    Case::new(TIED, KV_TP),
    Case::new(TIED, KV_TP).sequence().whole_vocabulary(),
    Case::new(TIED, KV_TP).sequence().checkpointed(),
    Case::new(TIED, KV_TP).sequence().lora(),
    Case::new(EXPERTS, DP2),
    Case::new(EXPERTS, TP4).balance(Layer),
    Case::new(EXPERTS, DP_TP4).sequence().lora(),
    Case::new(EXPERTS, TP3).sequence().balance(Sequence),
    Case::new(EXPERTS, TP3).sharded_experts(),
    Case::new(EXPERTS, TP3).sharded_experts().sequence(),
    Case::new(EXPERTS, TP4).sequence().sharded_experts(),
    Case::new(EXPERTS, DP_TP).sequence().checkpointed().balance(Sequence),
    Case::new(EXPERTS, DP_TP).sequence().sharded_experts().whole_vocabulary(),
    Case::new(EIGHT_EXPERTS, TP4).shared_experts().sequence(),
    Case::new(EIGHT_EXPERTS, DP_TP).shared_experts().sharded_experts().checkpointed(),
    Case::new(ALL_EXPERTS, DP2).bf16(),
    Case::new(ALL_EXPERTS, TP3).sequence().sharded_experts().bf16(),
    Case::new(MANY_EXPERTS, DP2).apart(&[("ep", 2)], AllGather),
    Case::new(MANY_EXPERTS, DP2).apart(&[("ep", 2)], AllToAll).checkpointed(),
    Case::new(MANY_EXPERTS, DP3).apart(&[("ep", 3)], AllGather).checkpointed(),
    Case::new(MANY_EXPERTS, DP3).apart(&[("ep", 3)], AllToAll).balance(Layer),
    Case::new(MANY_EXPERTS, DP3).apart(&[("etp", 3)], AllToAll),
    // A rank without tokens.
    Case::new(MANY_EXPERTS, DP4).apart(&[("ep", 4)], AllGather),
    Case::new(MANY_EXPERTS, DP4).apart(&[("ep", 4)], AllToAll).rows(2).balance(Sequence),
    Case::new(MANY_EXPERTS, DP4).apart(&[("copies", 2), ("ep", 2)], AllToAll),
    Case::new(MANY_EXPERTS, DP4).apart(&[("ep", 2), ("etp", 2)], AllGather),
    Case::new(MANY_EXPERTS, DP4).apart(&[("ep", 2), ("etp", 2)], AllToAll).checkpointed(),
    // Tokens that tensor parallelism replicates, or shards, are on one rank each.
    Case::new(MANY_EXPERTS, DP_TP).apart(&[("ep", 4)], AllToAll),
    Case::new(MANY_EXPERTS, TP3).apart(&[("ep", 3)], AllGather),
    Case::new(MANY_EXPERTS, DP_TP).apart(&[("copies", 2), ("ep", 2)], AllGather).sequence(),
    Case::new(MANY_EXPERTS, TP_DP).apart(&[("ep", 3), ("etp", 2)], AllToAll).sequence(),
    Case::new(MANY_EXPERTS, DP4_TP2)
        .apart(&[("ep", 8)], AllToAll)
        .sequence()
        .rows(5)
        .balance(Layer),
    Case::new(MANY_EXPERTS, DP4_TP2).apart(&[("copies", 2), ("ep", 2), ("etp", 2)], AllToAll),
    Case::new(ALL_EXPERTS, DP3).apart(&[("ep", 3)], AllToAll).bf16(),
    Case::new(ALL_EXPERTS, DP3).apart(&[("ep", 3)], AllGather).bf16(),
    Case::new(EIGHT_EXPERTS, DP_TP).apart(&[("ep", 2), ("etp", 2)], AllGather).sequence().bf16(),
    Case::new(EXPERTS, TP3).sequence().bf16(),
    Case::new(MANY_EXPERTS, DP3).apart(&[("ep", 3)], AllToAll).bf16(),
    Case::new(MANY_EXPERTS, DP4_TP2)
        .apart(&[("ep", 8)], AllGather)
        .sequence()
        .rows(5)
        .bf16()
        .balance(Sequence),
    // Sequences of which no rank has all tokens.
    Case::new(DENSE, CP2),
    Case::new(DENSE, CP3).checkpointed(),
    Case::new(TIED, CP3),
    Case::new(TIED, CP_TP).sequence(),
    Case::new(DENSE, CP2).ring(),
    Case::new(DENSE, CP3).ring().lora(),
    Case::new(DENSE, &[("cp", 4)]).ring().checkpointed(),
    Case::new(DENSE, CP3).ring().bf16(),
    Case::new(DENSE, &[("sp", 2)]),
    Case::new(DENSE, &[("sp", 3)]),
    Case::new(TIED, &[("sp", 4)]).checkpointed(),
    Case::new(TIED, &[("sp", 2), ("tp", 2)]).sequence(),
    Case::new(DENSE, CP_SP),
    Case::new(DENSE, CP_SP).ring().checkpointed(),
    Case::new(DENSE, CP_CR).ring(),
    Case::new(FIVE_HEADS, DP_CP),
    Case::new(EXPERTS, DP_CP).ring().balance(Sequence),
    Case::new(TIED, CP3).ring(),
    Case::new(TIED, &[("cp", 4)]).ring().checkpointed(),
    Case::new(YARN, CP2),
    // Rows of several documents.
    Case::new(DENSE, DP2).documents(),
    Case::new(TIED, TP2).sequence().documents(),
    Case::new(TIED, CP3).documents(),
    Case::new(DENSE, CP3).ring().documents(),
    Case::new(TIED, &[("sp", 4)]).documents(),
    // The same, divided by document.
    Case::new(TIED, CP3).documents().tokens(12),
    Case::new(TIED, CP_TP).sequence().documents().checkpointed().tokens(8),
    Case::new(TIED, DP_CP).ring().documents().checkpointed().tokens(8),
    Case::new(DENSE, CP_SP).documents().tokens(18),
    Case::new(YARN, CP_SP).ring().documents().tokens(12),
    Case::new(DENSE, CP_CR).documents().tokens(8),
    Case::new(DENSE, CP_SP).ring().documents().bf16().tokens(12),
    // Merged with rows, shards of shards must be equal.
    Case::new(EXPERTS, CP_TP).ring().sequence().sharded_experts().tokens(8),
    Case::new(EXPERTS, &[("cp", 2), ("sp", 2)]).balance(Layer).tokens(8),
    Case::new(MANY_EXPERTS, CP3).ring().apart(&[("ep", 3)], AllToAll).documents().tokens(12),
    Case::new(MANY_EXPERTS, DP_CP).apart(&[("ep", 4)], AllToAll).balance(Sequence),
    Case::new(MANY_EXPERTS, &[("cp", 2), ("sp", 2)])
        .apart(&[("ep", 2), ("etp", 2)], AllGather)
        .tokens(12),
    Case::new(EIGHT_EXPERTS, &[("cp", 2), ("sp", 2), ("tp", 2)])
        .tokens(16)
        .ring()
        .sequence()
        .apart(&[("copies", 2), ("ep", 4)], AllToAll)
        .shared_experts()
        .checkpointed(),
];
