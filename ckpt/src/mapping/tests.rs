//! Maps of real models and random ones, their way back, and what is told when they do not fit.

use super::*;
use crate::graph::{Leaf, Piece};

fn specs(tensors: &[(&str, &[u64])]) -> Vec<TensorSpec> {
    let spec = |(name, shape): &(&str, &[u64])| TensorSpec::new(name, Dtype::F32, shape);
    tensors.iter().map(spec).collect()
}

fn bind(map: &str, there: &[TensorSpec]) -> Bound {
    let bound = Mapping::parse(map)
        .unwrap()
        .bind(there, None, &Waivers::none());
    bound.unwrap_or_else(|report| panic!("{report}"))
}

fn refuse(map: &str, there: &[TensorSpec], wanted: Option<&[TensorSpec]>) -> String {
    let bound = Mapping::parse(map)
        .unwrap()
        .bind(there, wanted, &Waivers::none());
    bound.unwrap_err().to_string()
}

/// `name shape <- where each element comes from`, for small tensors.
fn elements(bound: &Bound, name: &str) -> Vec<String> {
    let graph = bound.graph();
    let expr = bound.expr(name).unwrap();
    let whole: Vec<_> = graph.shape(expr).iter().map(|extent| 0..*extent).collect();
    let mut elements = vec![String::new(); graph.shape(expr).iter().product::<u64>() as usize];
    for piece in graph.pull(expr, &whole).unwrap() {
        for turn in 0..piece.elements() {
            let (from, to) = element(&piece, turn);
            elements[to as usize] = match piece.from {
                Leaf::Fill(value) => format!("{}", value.value().unwrap()),
                leaf => format!("{}{from}", graph.leaf_name(leaf)),
            };
        }
    }
    elements
}

fn element(piece: &Piece, turn: u64) -> (u64, u64) {
    let (mut rest, mut from, mut to) = (turn, piece.source_offset, piece.destination_offset);
    for it in &piece.loops {
        from += rest % it.count * it.source_stride;
        to += rest % it.count * it.destination_stride;
        rest /= it.count;
    }
    (from, to)
}

/// Each operation, by what its result is made of.
#[test]
fn operations_do_what_they_say() {
    let there = specs(&[("a", &[4]), ("b", &[4]), ("m", &[2, 3])]);
    let all = "{rest:path} = {rest:path}\n";
    let cases = [
        ("concat(a, b)", "a0 a1 a2 a3 b0 b1 b2 b3"),
        ("stack(a, b)", "a0 a1 a2 a3 b0 b1 b2 b3"),
        ("stack(a, b, dim=-1)", "a0 b0 a1 b1 a2 b2 a3 b3"),
        ("interleave(a, b)", "a0 b0 a1 b1 a2 b2 a3 b3"),
        ("concat({c:b|a}, each=c)", "b0 b1 b2 b3 a0 a1 a2 a3"),
        ("transpose(m, 0, 1)", "m0 m3 m1 m4 m2 m5"),
        ("transpose(m, -1, -2)", "m0 m3 m1 m4 m2 m5"),
        ("permute(m, 1, 0)", "m0 m3 m1 m4 m2 m5"),
        ("slice(a, 1, 4, step=2)", "a1 a3"),
        ("slice(m, 1, 3, dim=1)", "m1 m2 m4 m5"),
        ("select(m, 1)", "m3 m4 m5"),
        ("select(m, 1, dim=-1)", "m1 m4"),
        ("chunk(a, 1, of=2)", "a2 a3"),
        ("flatten(m)", "m0 m1 m2 m3 m4 m5"),
        ("transpose(unflatten(a, 2), 0, 1)", "a0 a2 a1 a3"),
        ("squeeze(unsqueeze(a, dim=1), dim=1)", "a0 a1 a2 a3"),
        ("pad(a, 6, value=0.5)", "a0 a1 a2 a3 0.5 0.5"),
        ("fill(2, F32, shape=1x3)", "2 2 2"),
        ("first(c, b)", "b0 b1 b2 b3"),
        ("first(a, b)", "a0 a1 a2 a3"),
        ("mean(a, b)", "mean0 mean1 mean2 mean3"),
        ("cast(scale(add(a, 1), 2), BF16)", "a0 a1 a2 a3"),
    ];
    for (operation, expected) in cases {
        let map = format!("{all}made = {operation}");
        let waivers = Waivers::none().and("unexpected").unwrap();
        let waivers = waivers.and("partly-used").unwrap();
        let bound = Mapping::parse(&map).unwrap().bind(&there, None, &waivers);
        let bound = bound.unwrap_or_else(|report| panic!("{operation}: {report}"));
        assert_eq!(elements(&bound, "made").join(" "), expected, "{operation}");
    }
}

/// The names of Hugging Face's Qwen3-MoE, per expert, to one tensor for all experts, with query, key
/// and value in one.
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
                add(
                    format!("{layer}.mlp.experts.{e}.{name}_proj.weight"),
                    &shape,
                );
            }
        }
    }
    if !tied {
        add("lm_head.weight".into(), &[vocabulary, hidden]);
    }
    tensors
}

#[test]
fn a_mixture_of_experts_there_and_back() {
    for tied in [false, true] {
        let there = qwen3_moe(3, 12, tied);
        let bound = bind(QWEN3_MOE, &there);
        let made: Vec<TensorSpec> = bound.made().collect();
        assert_eq!(made.len(), 3 + 3 * 9);
        let experts = "model.layers.2.mlp.experts.gate_up_proj";
        let experts = made.iter().find(|it| it.name == experts).unwrap();
        assert_eq!(experts.shape, [12, 12, 8]);

        let back = bound.inverse().unwrap_or_else(|why| panic!("{why}"));
        let mut expected = there.clone();
        expected.sort_by(|a, b| a.name.cmp(&b.name));
        assert_eq!(back.made().collect::<Vec<_>>(), expected);
        let ties: Vec<_> = back.ties().iter().collect();
        match tied {
            true => assert_eq!(ties.len(), 1, "{ties:?}"),
            false => assert!(ties.is_empty(), "{ties:?}"),
        }
    }
}

/// A stage of a pipeline that wants layer 1 reads the tensors of layer 1.
#[test]
fn what_is_wanted_decides_what_is_read() {
    let there = qwen3_moe(3, 2, true);
    let whole = bind(QWEN3_MOE, &there);
    let wanted: Vec<TensorSpec> = whole.made().filter(|it| it.name.contains(".1.")).collect();
    let mapping = Mapping::parse(QWEN3_MOE).unwrap();
    let stage = mapping
        .bind(&there, Some(&wanted), &Waivers::none())
        .unwrap();
    assert_eq!(stage.made().collect::<Vec<_>>(), wanted);
    assert!(
        stage
            .used()
            .all(|it| it.name.starts_with("model.layers.1."))
    );
    assert_eq!(stage.used().count(), 8 + 1 + 2 * 3);
    assert_eq!(stage.report().unwanted, there.len() - stage.used().count());
}

#[test]
fn everything_that_does_not_fit_is_told_at_once() {
    let mut there = qwen3_moe(2, 3, false);
    there.retain(|it| !it.name.contains("layers.1.mlp.experts.1.up"));
    there.push(TensorSpec::new("extra", Dtype::F32, &[2]));
    let mapping = Mapping::parse(QWEN3_MOE).unwrap();
    let whole = bind(QWEN3_MOE, &qwen3_moe(2, 3, false));
    let mut wanted: Vec<TensorSpec> = whole.made().collect();
    wanted[0].shape = vec![20, 9];
    wanted[1].dtype = Dtype::F16;
    wanted.push(TensorSpec::new("nobody", Dtype::F32, &[1]));

    let report = mapping
        .bind(&there, Some(&wanted), &Waivers::none())
        .unwrap_err();
    let expected = "5 problems
  mismatched: `lm_head.weight` is wanted as BF16 [20, 9], and line 4 of the map makes BF16 [20, 8]
  missing: `model.layers.1.mlp.experts.1.up_proj.weight`, needed by line 12 of the map
  narrowed: `model.embed_tokens.weight` from F32 to F16 loses digits
  unexpected: `extra` is there, and no rule uses it
  unmade: `nobody` is wanted, and no rule makes it of what is there";
    assert_eq!(report.to_string(), expected);

    let waivers = ["unexpected:extra", "unmade:nob{r:path}", "narrowed"];
    let waivers = waivers
        .iter()
        .try_fold(Waivers::none(), |all, it| all.and(it))
        .unwrap();
    let report = mapping.bind(&there, Some(&wanted), &waivers).unwrap_err();
    assert_eq!((report.problems.len(), report.waived.len()), (2, 3));
    assert!(Waivers::none().and("missing:x").is_err());
}

/// The problems of maps that cannot work, a line each.
#[test]
fn rules_that_cannot_work_are_told() {
    let there = specs(&[("a", &[4]), ("b", &[6]), ("m.0", &[2, 3]), ("m.2", &[2, 3])]);
    let rest = "{r:path} = {r:path}\n";
    let cases = [
        (
            "x = stack(a, b)",
            "impossible: line 2 of the map: stack along dim 0: operand 0 has shape [4] and operand 1 has [6]",
        ),
        (
            "x = stack(m.{e}, each=e)",
            "missing: `m.1`, needed by line 2 of the map",
        ),
        (
            "x = select(a, 4)",
            "impossible: line 2 of the map: slice: 1 elements from 4 on, every 1 of dim 0, which has 4: a step is at least 1 and the last element must be inside",
        ),
        (
            "x.{l} = squeeze(m.{l}, dim=-1)",
            "impossible: line 2 of the map with l=0: squeeze: dim 1 has 3 elements, not 1",
        ),
        ("a = b", "made twice: `a` by lines 2 and 1 of the map"),
        (
            "slice(x, 0, 2) = a",
            "unsolvable: line 2 of the map: slice on the left side: it loses what it leaves out, so that nothing can be told from its result",
        ),
        (
            "concat(x, y) = a",
            "unsolvable: line 2 of the map: concat on the left side: what there was before is not known: say shares=, or what is wanted",
        ),
        (
            "concat(x, y, shares=1:2) = a",
            "unsolvable: line 2 of the map: concat on the left side: dim 0 has 4 elements, which shares of [1, 2] do not divide",
        ),
        (
            "concat(x, y, shares=1:2:1) = a",
            "unsolvable: line 2 of the map: concat on the left side: 3 shares for 2 tensors",
        ),
        (
            "stack(x, y) = a",
            "unsolvable: line 2 of the map: stack on the left side: dim 0 has 4 elements and there are 2 names",
        ),
        (
            "flatten(x) = a",
            "unsolvable: line 2 of the map: flatten on the left side: what there was before is not known: say rows=, or what is wanted",
        ),
        (
            "scale(x, 0) = a",
            "unsolvable: line 2 of the map: scale on the left side: times 0 is 0 whatever it was",
        ),
        ("x = slice(a, 0, 3)", "partly used: 3 of 4 elements of `a`"),
    ];
    for (rule, problem) in cases {
        let report = refuse(&format!("{rest}{rule}"), &there, None);
        assert!(report.contains(problem), "{rule}: {report}");
    }
}

/// Where a map cannot be read, and why.
#[test]
fn maps_that_cannot_be_read_say_where() {
    let cases = [
        (
            "a",
            "line 1, column 2: `=` between the two sides should be here, not the end of the line",
        ),
        (
            "a = b c",
            "line 1, column 7: the end of the rule should be here, not `c`",
        ),
        (
            "a = (b)",
            "line 1, column 5: a name or an operation should be here, not `(`",
        ),
        (
            "# all\na = concat(b,\n  c, dim=)",
            "line 3, column 10: a value should be here, not `)`",
        ),
        (
            "a = concat(b",
            "line 1, column 13: `,` or `)` should be here, not the end of the line",
        ),
        (
            "a = \"b",
            "line 1, column 5: a quoted name must end in the line in which it begins",
        ),
        (
            "[a",
            "line 1, column 3: `=` between the two prefixes should be here, not the end of the line",
        ),
        (
            "a = turn(b)",
            "line 1, column 5: there is no operation `turn`; there are concat, stack, interleave, transpose, permute, slice, select, chunk, unflatten, flatten, unsqueeze, squeeze, pad, fill, cast, scale, add, first, tied, mean, lora, dequant",
        ),
        (
            "a = slice(b, 1)",
            "line 1, column 5: slice needs the index after the last: slice(x, 0, 4096, dim=0, step=1), from the first to before the last",
        ),
        (
            "a = cast(b, INT)",
            "line 1, column 5: cast should be a dtype, not `INT`",
        ),
        (
            "a = stack(b, sides=1)",
            "line 1, column 5: stack takes no `sides=`: stack(x, y, dim=0) or stack(x.{e}, each=e)",
        ),
        (
            "a = stack(b, dim=x)",
            "line 1, column 5: dim should be a number, not `x`",
        ),
        (
            "a = stack(b, c, each=e)",
            "line 1, column 5: stack takes no `each=` but over one tensor that it joins: stack(x, y, dim=0) or stack(x.{e}, each=e)",
        ),
        (
            "a = stack()",
            "line 1, column 5: stack needs a tensor: stack(x, y, dim=0) or stack(x.{e}, each=e)",
        ),
        (
            "a.{l} = b",
            "line 1, column 1: `{l}` is on the left side only: name it on both, or say `each=l` in the operation that goes over it",
        ),
        (
            "a.{l}.{e} = concat(b.{l}, c.{e})",
            "line 1, column 1: no name on the right side has all of `{e}`, `{l}`: one of them must say which tensors there are",
        ),
        (
            "a.{e} = stack(b.{e}, each=l)",
            "line 1, column 1: each=l: the operand has no `{l}` that is a number or a choice",
        ),
        (
            "a.{l:word}b = c.{l}",
            "line 1, column 1: after `{l}` must come a dot, or the end: else a name has two readings",
        ),
        (
            "a.{l:word} = c.{l:x|y}",
            "line 1, column 1: `{l}` is of two kinds; say the kind once, or the same everywhere",
        ),
    ];
    for (map, message) in cases {
        let error = Mapping::parse(map).unwrap_err();
        assert_eq!(error.to_string(), message, "{map}");
    }
}

/// What has no way back says why.
#[test]
fn what_cannot_be_undone_has_no_way_back() {
    let there = specs(&[("a", &[4]), ("b", &[4])]);
    let cases = [
        (
            "x = mean(a, b)",
            "the map has no way back: 1 problem\n  unsolvable: line 1 of the map: mean on the left side: it loses what it leaves out, so that nothing can be told from its result",
        ),
        (
            "x = scale(a, 0.1)\ny = b",
            "there and back, `a` would not be what it was: scale changes its values",
        ),
        (
            "x = cast(a, BF16)\ny = b",
            "there and back, `a` would not be what it was: cast changes its values",
        ),
    ];
    for (map, message) in cases {
        assert_eq!(
            bind(map, &there).inverse().unwrap_err().to_string(),
            message
        );
    }
}

/// One map on top of another, with a way back through both.
#[test]
fn maps_compose() {
    let there = qwen3_moe(2, 3, false);
    let fused = bind(QWEN3_MOE, &there);
    let scoped = "
        inner.{rest:path} = {rest:path}
        q.{l} = slice(model.layers.{l}.self_attn.qkv_proj.weight, 0, 16)
        kv.{l} = slice(model.layers.{l}.self_attn.qkv_proj.weight, 16, 24)";
    let both = fused.then(&Mapping::parse(scoped).unwrap(), None, &Waivers::none());
    let both = both.unwrap();
    let q = both
        .graph()
        .pull(both.expr("q.1").unwrap(), &[0..16, 0..8])
        .unwrap();
    let [q] = &q[..] else { panic!("{q:?}") };
    assert_eq!(
        both.graph().leaf_name(q.from),
        "model.layers.1.self_attn.q_proj.weight"
    );

    let cut = "concat(q.{l}, kv.{l}, shares=2:1) = model.layers.{l}.self_attn.qkv_proj.weight
               inner.{rest:path} = {rest:path}";
    let both = fused.then(&Mapping::parse(cut).unwrap(), None, &Waivers::none());
    let back = both.unwrap().inverse().unwrap();
    let mut expected = there.clone();
    expected.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(back.made().collect::<Vec<_>>(), expected);
}

/// Draws from a seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % bound
    }
}

/// A random term that can be solved for its names, of a shape; the names are added to `there`.
fn term(draw: &mut Draw, shape: &[u64], depth: u32, there: &mut Vec<TensorSpec>) -> String {
    let rank = shape.len();
    let dim = draw.below(rank as u64) as usize;
    let with = |extents: &[u64]| {
        let mut other = shape.to_vec();
        other.splice(dim..=dim, extents.iter().copied());
        other
    };
    if depth == 0 {
        let name = format!("t{}", there.len());
        there.push(TensorSpec::new(&name, Dtype::F32, shape));
        return name;
    }
    let mut next = |draw: &mut Draw, shape: &[u64]| term(draw, shape, depth - 1, there);
    match draw.below(7) {
        0 if shape[dim] > 1 => {
            let first = 1 + draw.below(shape[dim] - 1);
            let second = shape[dim] - first;
            let (a, b) = (next(draw, &with(&[first])), next(draw, &with(&[second])));
            format!("concat({a}, {b}, dim={dim}, shares={first}:{second})")
        }
        1 if rank > 1 && shape[dim] < 4 => {
            let parts: Vec<String> = (0..shape[dim]).map(|_| next(draw, &with(&[]))).collect();
            format!("stack({}, dim={dim})", parts.join(", "))
        }
        2 if shape[dim].is_multiple_of(2) => {
            let half = with(&[shape[dim] / 2]);
            let (a, b) = (next(draw, &half), next(draw, &half));
            format!("interleave({a}, {b}, dim={dim})")
        }
        3 if rank > 1 => {
            let mut turned = shape.to_vec();
            turned.swap(0, rank - 1);
            format!("transpose({}, 0, -1)", next(draw, &turned))
        }
        4 if shape[dim].is_multiple_of(3) => {
            let rows = next(draw, &with(&[3, shape[dim] / 3]));
            format!("flatten({rows}, dim={dim}, rows=3)")
        }
        5 if dim + 1 < rank => {
            let mut joined = shape.to_vec();
            joined.splice(dim..dim + 2, [shape[dim] * shape[dim + 1]]);
            format!(
                "unflatten({}, {}, dim={dim})",
                next(draw, &joined),
                shape[dim]
            )
        }
        6 => format!(
            "squeeze({}, dim={dim})",
            next(draw, &with(&[1, shape[dim]]))
        ),
        _ => next(draw, shape),
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(1000))]

    /// The way back of a random map takes each element where it came from.
    #[test]
    fn there_and_back_is_the_same(seed in proptest::prelude::any::<u64>(), depth in 0..6u32) {
        let (mut draw, mut there) = (Draw(seed), Vec::new());
        let shape: Vec<u64> = (0..1 + draw.below(3)).map(|_| 1 + draw.below(6)).collect();
        let term = term(&mut draw, &shape, depth, &mut there);
        let bound = bind(&format!("x = {term}"), &there);
        let back = bound.inverse().unwrap_or_else(|why| panic!("{term}: {why}"));

        let forth = elements(&bound, "x");
        for spec in back.made() {
            for (at, place) in elements(&back, &spec.name).iter().enumerate() {
                let place: usize = place.strip_prefix('x').unwrap().parse().unwrap();
                proptest::prop_assert_eq!(&forth[place], &format!("{}{at}", spec.name));
            }
        }
        let forth_again = back.inverse().unwrap();
        proptest::prop_assert_eq!(elements(&forth_again, "x"), forth);
    }
}
