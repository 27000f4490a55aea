//! The plan of a decoder: which parameter and which seam has which placements.

use meshgrad_error::Result;
use meshgrad_mesh::Placement;

use super::Decoder;
use crate::attention::{AttentionSizes, LatentSizes, Projections};
use crate::parallel::{Placements, in_units};
use crate::plan::does_not_fit;
use crate::{ModelParallelism, ModelPlan};

/// Projections into heads and inner features are column parallel, those out of them row parallel
/// (Shoeybi et al. 2019); between blocks, sequences are sharded if that is requested (Korthikanti et
/// al. 2022); the vocabulary is sharded at both ends.
///
/// Norms, routers and, unless they are sharded, experts are replicated. So are the biases of
/// row-parallel projections, which count once.
///
/// Experts may be on a mesh of their own, where the block divides tokens between ranks itself.
pub(super) fn plan(model: &Decoder, parallelism: &ModelParallelism) -> Result<ModelPlan> {
    let plan = ModelPlan::new(&parallelism.mesh).overlap(parallelism.overlap_chunks);
    let plan = with_experts(plan, model, parallelism)?;
    let plan = with_sequences(plan, model, parallelism)?;
    if parallelism.tensor_ranks() == 1 {
        return Ok(plan);
    }

    let heads = Heads::new(model, parallelism)?;
    let (shard, whole) = (|dim| parallelism.shard(dim), parallelism.replicate());
    let between_blocks = match parallelism.sequence_parallel {
        true => shard(1),
        false => whole.clone(),
    };
    let mut rows = vec![
        ("*.self_attn.input", whole.clone()),
        ("*.self_attn.q_proj.weight", heads.queries(0)),
        ("*.self_attn.q_proj.bias", heads.queries(0)),
        ("*.self_attn.q_proj.lora_B.weight", heads.queries(0)),
        ("*.self_attn.[kv]_proj.weight", heads.keys()),
        ("*.self_attn.[kv]_proj.bias", heads.keys()),
        ("*.self_attn.[kv]_proj.lora_B.weight", heads.keys()),
        ("*.self_attn.o_proj.weight", heads.values()),
        ("*.self_attn.o_proj.lora_A.weight", heads.values()),
        ("*.self_attn.output", between_blocks.clone()),
        ("*.mlp.input", whole.clone()),
        ("*.mlp.gate_up_proj.weight", shard(1)),
        ("*.mlp.gate_proj.lora_B.weight", shard(0)),
        ("*.mlp.up_proj.lora_B.weight", shard(0)),
        ("*.mlp.up_proj.weight", shard(0)),
        ("*.mlp.up_proj.bias", shard(0)),
        ("*.mlp.down_proj.weight", shard(1)),
        ("*.mlp.down_proj.lora_A.weight", shard(1)),
        ("*.mlp.output", between_blocks.clone()),
        ("*.mlp.shared_experts.input", whole.clone()),
        ("*.mlp.shared_experts.gate_up_proj.weight", shard(1)),
        ("*.mlp.shared_experts.gate_proj.lora_B.weight", shard(0)),
        ("*.mlp.shared_experts.up_proj.lora_B.weight", shard(0)),
        ("*.mlp.shared_experts.down_proj.weight", shard(1)),
        ("*.mlp.shared_experts.down_proj.lora_A.weight", shard(1)),
        ("*.mlp.shared_experts.output", between_blocks.clone()),
    ];
    match model.layers.first().map(|layer| &layer.self_attn.projections) {
        Some(Projections::Grouped(grouped)) if grouped.has_joint_norms() => rows.extend([
            ("*.self_attn.q_norm.weight", heads.queries(0)),
            ("*.self_attn.k_norm.weight", heads.keys()),
        ]),
        Some(Projections::Latent(latent)) => {
            let LatentSizes { plain, values, .. } = latent.sizes();
            rows.extend([
                ("*.self_attn.q_b_proj.weight", heads.queries(0)),
                ("*.self_attn.q_b_proj.lora_B.weight", heads.queries(0)),
                ("*.self_attn.kv_b_proj.weight", heads.of_queries(0, plain + values)),
                ("*.self_attn.kv_b_proj.lora_B.weight", heads.of_queries(0, plain + values)),
            ]);
        }
        _ => {}
    }
    match parallelism.loss_parallel {
        true => rows.extend([
            ("model.embed_tokens.weight", shard(0)),
            ("model.embed_tokens.output", between_blocks.clone()),
            ("lm_head.input", whole.clone()),
            ("lm_head.weight", shard(0)),
        ]),
        // Each rank embeds and predicts its tokens.
        false => rows.push(("model.embed_tokens.input", between_blocks.clone())),
    }
    if parallelism.shard_experts {
        rows.extend([
            ("*.mlp.experts.input", whole),
            ("*.mlp.experts.gate_up_proj", shard(2)),
            ("*.mlp.experts.down_proj", shard(2)),
            ("*.mlp.experts.output", between_blocks),
        ]);
    }
    let add =
        |plan: ModelPlan, (names, placements): (&str, Placements)| plan.place(names, placements);
    Ok(rows.into_iter().fold(plan, add).matching(model))
}

/// `plan` with the placements of experts on their own mesh, if they have one.
fn with_experts(
    plan: ModelPlan,
    model: &Decoder,
    parallelism: &ModelParallelism,
) -> Result<ModelPlan> {
    let Some((mesh, [experts, features])) = &parallelism.experts else {
        return Ok(plan);
    };
    let of_axes = |axes: &[String], dim| -> Placements {
        axes.iter().map(|axis| (axis.clone(), Placement::shard(dim))).collect()
    };
    let sizes = experts.iter().map(|axis| mesh.size(axis));
    let ranks: usize = sizes.product::<meshgrad_mesh::Result<usize>>()?;
    let (count, shard_by_tensor) = (model.whole.experts, parallelism.shard_experts);
    let problem = match model.sparse_blocks().next() {
        None => {
            "the model has no experts to divide over ranks: expert parallelism must be 1".to_owned()
        }
        Some(_) if !count.is_multiple_of(ranks) => format!(
            "{count} experts cannot be divided over {ranks} ranks of expert parallelism; use a divisor \
             of {count}"
        ),
        Some(_) if shard_by_tensor => {
            "experts are sharded by tensor parallelism or are on a mesh of their own, not both"
                .to_owned()
        }
        Some(_) => {
            let placements = [of_axes(experts, 0), of_axes(features, 2)].concat();
            let rows = ["*.mlp.experts.gate_up_proj", "*.mlp.experts.down_proj"];
            let place = |plan: ModelPlan, names| plan.place_on(mesh, names, &placements);
            return Ok(rows.into_iter().fold(plan, place));
        }
    };
    Err(does_not_fit(&[problem]))
}

/// `plan` with the exchanges of attention, for sequences of which no rank has all tokens.
fn with_sequences(
    plan: ModelPlan,
    model: &Decoder,
    parallelism: &ModelParallelism,
) -> Result<ModelPlan> {
    let ModelParallelism { context, ulysses, .. } = parallelism;
    let (ranks, tensor_ranks) = (product(ulysses), parallelism.tensor_ranks());
    let (queries, keys) = (model.whole.attention.heads, model.whole.attention.kv_heads);
    let fits = queries.is_multiple_of(ranks * tensor_ranks) && keys.is_multiple_of(tensor_ranks);
    if ranks > 1 && !fits {
        return Err(does_not_fit(&[format!(
            "{queries} query and {keys} key-value heads cannot be divided over {ranks} ranks of sp times \
             {tensor_ranks} of tp; sp x tp must be a divisor of {queries}, and tp of {keys}"
        )]));
    }
    let of_ulysses =
        |dim| ulysses.iter().map(move |(axis, _)| (axis.clone(), Placement::shard(dim)));
    let gathered = context.iter().filter(|_| !parallelism.ring);
    let gathered = gathered.map(|axis| (axis.clone(), Placement::Replicate));
    let rows: [(&str, Placements); 3] = [
        ("*.self_attn.queries", of_ulysses(2).collect()),
        ("*.self_attn.keys", of_ulysses(2).chain(gathered).collect()),
        ("*.self_attn.attended", of_ulysses(1).collect()),
    ];
    let rows = rows.into_iter().filter(|(_, placements)| !placements.is_empty());
    Ok(rows.fold(plan, |plan, (names, placements)| plan.place(names, placements)))
}

/// How query and key-value heads are sharded: in proportion, without dividing a head. Axes on which
/// there is only one key-value head replicate it, and shard its query heads.
struct Heads {
    axes: Vec<(String, usize)>,
    /// The axes before this one shard key-value heads, the others replicate them.
    sharding: usize,
    sizes: AttentionSizes,
    /// Features per head of values.
    values: usize,
}

impl Heads {
    fn new(model: &Decoder, parallelism: &ModelParallelism) -> Result<Heads> {
        let (sizes, axes) = (model.whole.attention, parallelism.tensor.clone());
        let (keys, ranks) = (sizes.kv_heads, parallelism.tensor_ranks());
        let sharding = match keys >= ranks {
            true => Some(axes.len()),
            false => (0..axes.len()).find(|at| product(&axes[..*at]) == keys),
        };
        let values = model.layers.first().map(|layer| layer.self_attn.value_features());
        let heads = Heads {
            axes,
            sharding: sharding.unwrap_or_default(),
            sizes,
            values: values.unwrap_or_default(),
        };
        if sharding.is_some() && heads.units(0, 1).is_some() {
            return Ok(heads);
        }
        let names: Vec<String> = heads.axes.iter().map(|(axis, _)| format!("`{axis}`")).collect();
        Err(does_not_fit(&[format!(
            "`model.layers.*.self_attn.k_proj.weight`: dim 0 has {keys} key-value heads, which \
             cannot be sharded over {} ({ranks} ranks); {}",
            names.join(" and "),
            remedy(keys, &heads.axes)
        )]))
    }

    /// Of key-value heads as dim 0.
    fn keys(&self) -> Placements {
        let AttentionSizes { kv_heads, head_dim, .. } = self.sizes;
        in_units(&self.axes[..self.sharding], 0, kv_heads, head_dim).unwrap_or_default()
    }

    /// Of query heads as dim `dim`.
    fn queries(&self, dim: usize) -> Placements {
        self.of_queries(dim, self.sizes.head_dim)
    }

    /// Of the values of query heads as dim 1.
    fn values(&self) -> Placements {
        self.of_queries(1, self.values)
    }

    /// Of query heads of `length` features as dim `dim`.
    fn of_queries(&self, dim: usize, length: usize) -> Placements {
        self.units(dim, length).unwrap_or_default()
    }

    fn units(&self, dim: usize, length: usize) -> Option<Placements> {
        let AttentionSizes { heads, kv_heads, .. } = self.sizes;
        let (outer, inner) = self.axes.split_at(self.sharding);
        let group = heads / kv_heads;
        let mut placements = in_units(outer, dim, kv_heads, group * length)?;
        placements.extend(in_units(inner, dim, group, length)?);
        Some(placements)
    }
}

fn product(axes: &[(String, usize)]) -> usize {
    axes.iter().map(|(_, ranks)| ranks).product()
}

fn remedy(keys: usize, axes: &[(String, usize)]) -> String {
    let ranks = product(axes);
    let replicas = ranks / keys;
    match axes {
        [(axis, _)] if ranks.is_multiple_of(keys) => format!(
            "split the axis, so that `kv` shards the heads and `tp` replicates them: \
             mesh.split(\"{axis}\", &[(\"kv\", {keys}.into()), (\"tp\", {replicas}.into())]), then \
             tensor([\"kv\", \"tp\"])"
        ),
        _ if ranks.is_multiple_of(keys) => {
            format!("choose axes of which the outer ones have {keys} ranks together")
        }
        _ => format!("use at most {keys} ranks, or a multiple of {keys}"),
    }
}
