//! Round trips with only what the two commands know: the reversed map has no targets.

use super::{bind, specs};
use crate::mapping::{AllowedProblems, Bound, Mapping, Report, TensorSpec};

const FUSED: &str = include_str!("../../../../examples/qwen3-moe-fused.map");

fn there(map: &str, sources: &[TensorSpec]) -> Result<Bound, Report> {
    let mapping = Mapping::parse(map).unwrap();
    mapping.bind(sources, None, &AllowedProblems::none())
}

fn rejected(map: &str, sources: &[TensorSpec]) -> String {
    there(map, sources).unwrap_err().to_string()
}

/// Shares must have the ratio of the operands' extents.
#[test]
fn shares_must_match_the_tensors() {
    let layer = "model.layers.0.self_attn";
    let names = ["q", "k", "v"].map(|it| format!("{layer}.{it}_proj.weight"));
    let mut sources = specs(&names.each_ref().map(|name| (&**name, &[10, 4][..])));
    let fused = FUSED.replace("gate_up_proj =", "gate_up_proj ?=");
    let fused = fused.replace("down_proj    =", "down_proj ?=");
    assert_eq!(
        rejected(&fused, &sources),
        "1 problem\n  impossible: line 10 of the map with l=0: concat: shares=8:1:1 contradicts the \
         operands, which have 10, 10, 10 elements of dim 0: write shares=1:1:1"
    );
    sources[0].shape[0] = 80;
    let bound = there(&fused, &sources).unwrap();
    assert_eq!(bound.round_trip(), Ok(Default::default()));
}

/// Arguments for the inverse are compared with the tensors in the forward direction.
#[test]
fn declared_extents_must_match_the_tensors() {
    let sources = specs(&[("a", &[4, 6]), ("b", &[8, 6])]);
    let cases = [
        (
            "x = concat(a, b, shares=1:1)",
            "concat: shares=1:1 contradicts the operands, which have 4, 8 elements of dim 0: write \
             shares=1:2",
        ),
        (
            "x = concat(a, b, shares=1:2:1)",
            "concat: shares=1:2:1 contradicts the operands, which have 4, 8 elements of dim 0: write \
             shares=1:2",
        ),
        (
            "x = concat(transpose(a, 0, 1), transpose(b, 0, 1), dim=-1, shares=2:1)",
            "concat: shares=2:1 contradicts the operands, which have 4, 8 elements of dim -1: write \
             shares=1:2",
        ),
        (
            "y = b\nx = flatten(a, rows=3)",
            "flatten: rows=3 contradicts the operand, which has 4 elements of dim 0: write rows=4",
        ),
        (
            "y = b\nx = pad(a, 9, dim=1, from=5)",
            "pad: from=5 contradicts the operand, which has 6 elements of dim 1: write from=6",
        ),
    ];
    for (map, message) in cases {
        let report = rejected(map, &sources);
        assert!(report.contains(message), "{map}: {report}");
    }
    for map in ["x = concat(a, b, shares=4:8)", "y = b\nx = flatten(a, rows=4)"] {
        let bound = there(map, &sources).unwrap();
        assert_eq!(bound.round_trip(), Ok(Default::default()), "{map}");
    }
}

/// A map is proven only if the reversed map, without targets, restores the sources.
#[test]
fn a_refused_inverse_is_not_proven() {
    let sources = specs(&[("a", &[4]), ("b", &[4])]);
    let cases =
        [("x = concat(a, b)", "specify shares="), ("x = flatten(stack(a, b))", "specify rows=")];
    for (map, why) in cases {
        let bound = there(map, &sources).unwrap();
        assert!(bound.inverse().is_ok(), "{map}");
        let error = bound.round_trip().unwrap_err();
        let error = error.to_string();
        assert!(error.starts_with("the reversed map is refused: "), "{map}: {error}");
        assert!(error.contains(why), "{map}: {error}");
    }
}

/// A map is not proven if the way back applies a rule that the way there did not.
#[test]
fn an_inverse_that_uses_another_rule_is_not_proven() {
    let map = "a.{l} ?= b.{l}\n{r:path} = {r:path}";
    let bound = bind(map, &specs(&[("a.0", &[4])]));
    let error = bound.round_trip().unwrap_err().to_string();
    assert!(error.contains("missing: `b.0`, required by line 1 of the map"), "{error}");
}

/// Tensors that were left out with permission do not come back.
#[test]
fn a_map_that_leaves_tensors_out_is_not_proven() {
    let sources = specs(&[("a", &[4]), ("b", &[4])]);
    let allowed = AllowedProblems::none().and("unexpected").unwrap();
    let bound = Mapping::parse("x = a").unwrap().bind(&sources, None, &allowed);
    let error = bound.unwrap().round_trip().unwrap_err();
    assert_eq!(error.to_string(), "`b` is left out, which was allowed");
}

/// The way back adds a tied tensor that the source lacks.
#[test]
fn added_tensors_are_listed() {
    let map = "head = tied(head, embed)\nembed = embed";
    let trip = bind(map, &specs(&[("embed", &[4])])).round_trip().unwrap();
    assert_eq!(trip.added, ["head"]);
    assert_eq!(trip.ties.len(), 1);
}

/// A rule that matches no tensor is an error that says what to do; `?=` makes it optional.
#[test]
fn rules_that_match_nothing_are_errors() {
    let sources = specs(&[("model.layers.0.norm", &[4]), ("model.layers.1.norm", &[4])]);
    let rest = "{r:path} = {r:path}\n";
    let cases = [
        (
            "model.layers.{l}.norm = model.layerz.{l}.norm",
            "unmatched: line 2 of the map: no tensor matches `model.layerz.{l}.norm`; did you mean \
             `model.layers.0.norm`? Correct the name, or write `?=` if the rule is optional",
        ),
        (
            "x = stack(head.{e}, each=e)",
            "unmatched: line 2 of the map: no tensor matches `head.{e}`; correct the name, or write \
             `?=` if the rule is optional",
        ),
        (
            "x = model.layers.0.norm.T",
            "unmatched: line 2 of the map: no tensor matches `model.layers.0.norm.T`; `.T` is part \
             of the name: write transpose(model.layers.0.norm, 0, 1)",
        ),
        (
            "x = first(head, tail)",
            "unmatched: line 2 of the map: no tensor matches `head`; correct the name, or write `?=` \
             if the rule is optional",
        ),
        (
            "{n:path} = outer.{n:path}",
            "unmatched: line 2 of the map: no tensor matches `outer.{n}`; correct the name, or write \
             `?=` if the rule is optional",
        ),
    ];
    for (rule, message) in cases {
        let map = format!("{rest}{rule}");
        assert_eq!(rejected(&map, &sources), format!("1 problem\n  {message}"));
        let optional = format!("{rest}{}", rule.replacen('=', "?=", 1));
        let bound = there(&optional, &sources).unwrap();
        assert_eq!(bound.outputs().count(), 2, "{optional}");
    }
    let allowed = AllowedProblems::none().and("unmatched:model.layerz.{r:path}");
    let mapping = Mapping::parse(&format!("{rest}{}", cases[0].0)).unwrap();
    assert!(mapping.bind(&sources, None, &allowed.unwrap()).is_ok());
}

/// With requested tensors, a rule may apply to none: a pipeline stage has only some layers.
#[test]
fn requested_tensors_need_not_match_every_rule() {
    let sources = specs(&[("a", &[4]), ("b", &[4])]);
    let map = Mapping::parse("x = a\ny = b\nz = c").unwrap();
    let targets = specs(&[("x", &[4])]);
    let bound = map.bind(&sources, Some(&targets), &AllowedProblems::none());
    assert_eq!(bound.unwrap().outputs().collect::<Vec<_>>(), targets);
}

/// Beside a rule that keeps all other names, a rule of two names could mean a copy or a renaming,
/// so it must say which.
#[test]
fn copies_that_drop_the_original_are_errors() {
    let sources = specs(&[("embed", &[4]), ("norm", &[4])]);
    let rest = "{r:path} = {r:path}\n";
    assert_eq!(
        rejected(&format!("{rest}head = embed"), &sources),
        "1 problem\n  dropped: `embed` is written as `head` by line 2 of the map and under no other \
         name; to keep both, add `embed = embed`; to rename it, write `head = rename(embed)`"
    );
    let names = |map: &str| -> Vec<String> {
        let bound = bind(&format!("{rest}{map}"), &sources);
        bound.outputs().map(|it| it.name).collect()
    };
    assert_eq!(names("head = embed\nembed = embed"), ["embed", "head", "norm"]);
    assert_eq!(names("head = rename(embed)"), ["head", "norm"]);
    assert_eq!(names("norm = embed\nembed = norm"), ["embed", "norm"]);
    // Without a rule that keeps names, every name is given by the map.
    let bound = bind("head = embed\nnorm = norm", &sources);
    assert_eq!(bound.outputs().count(), 2);
}

/// An empty slice is a mistake in the map.
#[test]
fn empty_slices_are_rejected() {
    for (range, found) in [("3, 3", "3, 3"), ("4, 2", "4, 2")] {
        let error = Mapping::parse(&format!("x = slice(a, {range})")).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "line 1, column 5: slice must be a range of at least one element, with the end after \
                 the start, not `{found}`"
            )
        );
    }
}

/// `?=` may have spaces around it or none; a `?` elsewhere belongs to the name.
#[test]
fn optional_rules_are_parsed() {
    let spaced = Mapping::parse("a ?= b").unwrap();
    assert_eq!(Mapping::parse("a?=b").unwrap(), spaced);
    assert_ne!(Mapping::parse("a = b").unwrap(), spaced);
    assert_eq!(spaced.reversed(), Mapping::parse("b ?= a").unwrap());
    assert!(Mapping::parse("a? = b?").is_ok());
    assert!(Mapping::parse("a ? = b").is_err());
}
