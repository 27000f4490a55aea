//! A real model: Qwen3-MoE in the layouts of Hugging Face and of training.

use super::{bind, specs};
use crate::Dtype;
use crate::mapping::{AllowedProblems, Mapping, TensorSpec};

/// Maps Qwen3-MoE from the layout of Hugging Face, with one tensor per expert, to one tensor for
/// all experts and a combined query, key and value.
const QWEN3_MOE: &str = "
model.embed_tokens.weight = model.embed_tokens.weight
model.norm.weight = model.norm.weight
lm_head.weight = tied(lm_head.weight, model.embed_tokens.weight)

[model.layers.{l}. = model.layers.{l}.]
{n:input|post_attention}_layernorm.weight = {n}_layernorm.weight
self_attn.{n:q|k}_norm.weight = self_attn.{n}_norm.weight
self_attn.qkv_proj.weight = concat(self_attn.{p:q|k|v}_proj.weight, each=p, shares=4:1:1)
self_attn.o_proj.weight = self_attn.o_proj.weight
mlp.gate.weight = mlp.gate.weight
mlp.experts.gate_up_proj = stack(
    concat(mlp.experts.{e}.{h:gate|up}_proj.weight, each=h, shares=1:1), each=e)
mlp.experts.down_proj = stack(mlp.experts.{e}.down_proj.weight, each=e)
";

fn qwen3_moe(layers: u64, experts: u64, tied: bool) -> Vec<TensorSpec> {
    let (hidden, features, vocabulary) = (8, 6, 20);
    let mut tensors = specs(&[
        ("model.embed_tokens.weight", &[vocabulary, hidden]),
        ("model.norm.weight", &[hidden]),
    ]);
    let mut add = |name: String, shape: &[u64]| {
        tensors.push(TensorSpec::new(&name, Dtype::BF16, shape));
    };
    for l in 0..layers {
        let layer = format!("model.layers.{l}");
        for norm in ["input", "post_attention"] {
            add(format!("{layer}.{norm}_layernorm.weight"), &[hidden]);
        }
        for (name, shape) in [
            ("q_norm", &[4][..]),
            ("k_norm", &[4]),
            ("q_proj", &[16, hidden]),
            ("k_proj", &[4, hidden]),
            ("v_proj", &[4, hidden]),
            ("o_proj", &[hidden, 16]),
        ] {
            add(format!("{layer}.self_attn.{name}.weight"), shape);
        }
        add(format!("{layer}.mlp.gate.weight"), &[experts, hidden]);
        for e in 0..experts {
            for (name, shape) in [
                ("gate", [features, hidden]),
                ("up", [features, hidden]),
                ("down", [hidden, features]),
            ] {
                add(format!("{layer}.mlp.experts.{e}.{name}_proj.weight"), &shape);
            }
        }
    }
    if !tied {
        add("lm_head.weight".into(), &[vocabulary, hidden]);
    }
    tensors
}

#[test]
fn a_mixture_of_experts_round_trips() {
    for tied in [false, true] {
        let sources = qwen3_moe(3, 12, tied);
        let bound = bind(QWEN3_MOE, &sources);
        let made: Vec<TensorSpec> = bound.outputs().collect();
        assert_eq!(made.len(), 3 + 3 * 9);
        let experts = "model.layers.2.mlp.experts.gate_up_proj";
        let experts = made.iter().find(|it| it.name == experts).unwrap();
        assert_eq!(experts.shape, [12, 12, 8]);

        let back = bound.inverse().unwrap_or_else(|why| panic!("{why}"));
        let mut expected = sources.clone();
        expected.sort_by(|a, b| a.name.cmp(&b.name));
        assert_eq!(back.outputs().collect::<Vec<_>>(), expected);
        let ties: Vec<_> = back.ties().iter().collect();
        match tied {
            true => assert_eq!(ties.len(), 1, "{ties:?}"),
            false => assert!(ties.is_empty(), "{ties:?}"),
        }
    }
}

/// A pipeline stage that requests layer 1 reads only the tensors of layer 1.
#[test]
fn only_requested_tensors_are_read() {
    let sources = qwen3_moe(3, 2, true);
    let whole = bind(QWEN3_MOE, &sources);
    let targets: Vec<TensorSpec> = whole.outputs().filter(|it| it.name.contains(".1.")).collect();
    let mapping = Mapping::parse(QWEN3_MOE).unwrap();
    let stage = mapping.bind(&sources, Some(&targets), &AllowedProblems::none()).unwrap();
    assert_eq!(stage.outputs().collect::<Vec<_>>(), targets);
    assert!(stage.inputs().all(|it| it.name.starts_with("model.layers.1.")));
    assert_eq!(stage.inputs().count(), 8 + 1 + 2 * 3);
    assert_eq!(stage.report().skipped, sources.len() - stage.inputs().count());
}

#[test]
fn all_mismatches_are_reported_together() {
    let mut sources = qwen3_moe(2, 3, false);
    sources.retain(|it| !it.name.contains("layers.1.mlp.experts.1.up"));
    sources.push(TensorSpec::new("extra", Dtype::F32, &[2]));
    let mapping = Mapping::parse(QWEN3_MOE).unwrap();
    let whole = bind(QWEN3_MOE, &qwen3_moe(2, 3, false));
    let mut targets: Vec<TensorSpec> = whole.outputs().collect();
    targets[0].shape = vec![20, 9];
    targets[1].dtype = Dtype::F16;
    targets.push(TensorSpec::new("absent", Dtype::F32, &[1]));

    let report = mapping.bind(&sources, Some(&targets), &AllowedProblems::none()).unwrap_err();
    let expected = "5 problems
  mismatched: `lm_head.weight` should be BF16 [20, 9], but line 4 of the map produces BF16 [20, 8]
  missing: `model.layers.1.mlp.experts.1.up_proj.weight`, required by line 12 of the map
  narrowed: `model.embed_tokens.weight` from F32 to F16 loses precision
  unexpected: no rule uses `extra`
  unmade: `absent` is requested, but no rule produces it from the available tensors";
    assert_eq!(report.to_string(), expected);

    let allowed = ["unexpected:extra", "unmade:abs{r:path}", "narrowed"];
    let allowed = allowed.iter().try_fold(AllowedProblems::none(), |all, it| all.and(it)).unwrap();
    let report = mapping.bind(&sources, Some(&targets), &allowed).unwrap_err();
    assert_eq!((report.problems.len(), report.allowed.len()), (2, 3));
    assert!(AllowedProblems::none().and("missing:x").is_err());
}

/// Maps can be chained, and the chain has an inverse.
#[test]
fn maps_compose() {
    let sources = qwen3_moe(2, 3, false);
    let fused = bind(QWEN3_MOE, &sources);
    let scoped = "
        inner.{rest:path} = {rest:path}
        q.{l} = slice(model.layers.{l}.self_attn.qkv_proj.weight, 0, 16)
        kv.{l} = slice(model.layers.{l}.self_attn.qkv_proj.weight, 16, 24)";
    let both = fused.then(&Mapping::parse(scoped).unwrap(), None, &AllowedProblems::none());
    let both = both.unwrap();
    let q = both.graph().copies(both.expr("q.1").unwrap(), &[0..16, 0..8]).unwrap();
    let [q] = &q[..] else { panic!("{q:?}") };
    assert_eq!(both.graph().leaf_name(q.from), "model.layers.1.self_attn.q_proj.weight");

    let cut = "concat(q.{l}, kv.{l}, shares=2:1) = model.layers.{l}.self_attn.qkv_proj.weight
               inner.{rest:path} = {rest:path}";
    let both = fused.then(&Mapping::parse(cut).unwrap(), None, &AllowedProblems::none());
    let back = both.unwrap().inverse().unwrap();
    let mut expected = sources.clone();
    expected.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(back.outputs().collect::<Vec<_>>(), expected);
}

/// Elements that a second map leaves out are reported with the name of the source.
#[test]
fn losses_between_chained_maps_are_reported() {
    let sources = specs(&[("a", &[4]), ("b", &[6])]);
    let both = bind("ab = concat(a, b)", &sources);
    let first = Mapping::parse("x = slice(ab, 0, 5)").unwrap();
    let report = both.then(&first, None, &AllowedProblems::none()).unwrap_err();
    assert_eq!(report.to_string(), "1 problem\n  partly used: 1 of 6 elements of `b`");
}
