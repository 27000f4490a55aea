//! What is told when a map cannot be read, or does not fit.

use super::{bind, specs};
use crate::mapping::{AllowedProblems, Mapping, TensorSpec};

fn refuse(map: &str, sources: &[TensorSpec], targets: Option<&[TensorSpec]>) -> String {
    let bound = Mapping::parse(map)
        .unwrap()
        .bind(sources, targets, &AllowedProblems::none());
    bound.unwrap_err().to_string()
}

/// The problems of maps that cannot work, a line each.
#[test]
fn rules_that_cannot_work_are_told() {
    let sources = specs(&[("a", &[4]), ("b", &[6]), ("m.0", &[2, 3]), ("m.2", &[2, 3])]);
    let rest = "{r:path} = {r:path}\n";
    let cases = [
        (
            "x = stack(a, b)",
            "impossible: line 2 of the map: stack along dim 0: operand 0 has shape [4] and operand \
             1 has [6]",
        ),
        (
            "x = stack(m.{e}, each=e)",
            "missing: `m.1`, needed by line 2 of the map",
        ),
        (
            "x = select(a, 4)",
            "impossible: line 2 of the map: slice: 1 elements from 4 on, every 1 of dim 0, which \
             has 4: a step is at least 1 and the last element must be inside",
        ),
        (
            "x.{l} = squeeze(m.{l}, dim=-1)",
            "impossible: line 2 of the map with l=0: squeeze: dim 1 has 3 elements, not 1",
        ),
        ("a = b", "made twice: `a` by lines 2 and 1 of the map"),
        (
            "slice(x, 0, 2) = a",
            "unsolvable: line 2 of the map: slice on the left side: it loses what it leaves out, \
             so that nothing can be told from its result",
        ),
        (
            "concat(x, y) = a",
            "unsolvable: line 2 of the map: concat on the left side: what there was before is not \
             known: say shares=, or what is wanted",
        ),
        (
            "concat(x, y, shares=1:2) = a",
            "unsolvable: line 2 of the map: concat on the left side: dim 0 has 4 elements, which \
             shares of [1, 2] do not divide",
        ),
        (
            "concat(x, y, shares=1:2:1) = a",
            "unsolvable: line 2 of the map: concat on the left side: 3 shares for 2 tensors",
        ),
        (
            "stack(x, y) = a",
            "unsolvable: line 2 of the map: stack on the left side: dim 0 has 4 elements and there \
             are 2 names",
        ),
        (
            "flatten(x) = a",
            "unsolvable: line 2 of the map: flatten on the left side: what there was before is not \
             known: say rows=, or what is wanted",
        ),
        (
            "scale(x, 0) = a",
            "unsolvable: line 2 of the map: scale on the left side: times 0 is 0 whatever it was",
        ),
        ("x = slice(a, 0, 3)", "partly used: 3 of 4 elements of `a`"),
    ];
    for (rule, problem) in cases {
        let report = refuse(&format!("{rest}{rule}"), &sources, None);
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
            "line 1, column 3: `=` between the two prefixes should be here, not the end of the \
             line",
        ),
        (
            "a = turn(b)",
            "line 1, column 5: there is no operation `turn`; there are concat, stack, interleave, \
             transpose, permute, slice, select, chunk, unflatten, flatten, unsqueeze, squeeze, \
             pad, fill, cast, scale, add, first, tied, mean, lora, dequant",
        ),
        (
            "a = slice(b, 1)",
            "line 1, column 5: slice needs the index after the last: slice(x, 0, 4096, dim=0, \
             step=1), from the first to before the last",
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
            "line 1, column 5: stack takes no `each=` but over one tensor that it joins: stack(x, \
             y, dim=0) or stack(x.{e}, each=e)",
        ),
        (
            "a = stack()",
            "line 1, column 5: stack needs a tensor: stack(x, y, dim=0) or stack(x.{e}, each=e)",
        ),
        (
            "a.{l} = b",
            "line 1, column 1: `{l}` is on the left side only: name it on both, or say `each=l` in \
             the operation that goes over it",
        ),
        (
            "a.{l}.{e} = concat(b.{l}, c.{e})",
            "line 1, column 1: no name on the right side has all of `{e}`, `{l}`: one of them must \
             say which tensors there are",
        ),
        (
            "a.{e} = stack(b.{e}, each=l)",
            "line 1, column 1: each=l: the operand has no `{l}` that is a number or a choice",
        ),
        (
            "a.{l:word}b = c.{l}",
            "line 1, column 1: after `{l}` must come a dot, or the end: else a name has two \
             readings",
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
    let sources = specs(&[("a", &[4]), ("b", &[4])]);
    let cases = [
        (
            "x = mean(a, b)",
            "the map has no way back: 1 problem\n  unsolvable: line 1 of the map: mean on the left \
             side: it loses what it leaves out, so that nothing can be told from its result",
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
            bind(map, &sources).inverse().unwrap_err().to_string(),
            message
        );
    }
}

/// However deep operations lie inside of each other, reading a map comes to an end.
#[test]
fn depth_is_bounded() {
    let nested = |depth: usize| format!("a = {}b{}", "flatten(".repeat(depth), ")".repeat(depth));
    assert!(Mapping::parse(&nested(64)).is_ok());
    for depth in [65, 100_000] {
        let error = Mapping::parse(&nested(depth)).unwrap_err().to_string();
        assert!(error.contains("more than 64 operations inside"), "{error}");
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(3000))]

    /// No text makes reading or binding a map panic.
    #[test]
    fn any_text_is_a_map_or_an_error(
        words in proptest::collection::vec(proptest::sample::select(vec![
            "a", "b", "m.{e}", "m.0", "x", "{r:path}", "{p:a|b}", "=", "=", "\n", "(", ")", ")", ",", ",",
            "concat", "stack", "interleave", "transpose", "permute", "slice", "select", "chunk",
            "unflatten", "flatten", "unsqueeze", "squeeze", "pad", "fill", "cast", "scale", "first",
            "tied", "mean", "lora", "dequant", "each=e", "each=p", "dim=1", "dim=-1", "dim=9", "of=2",
            "shares=1:1", "rows=2", "from=1", "0", "1", "2", "-1", "F32", "BF16", "[", "]", "{", "\"", "#",
        ]), 0..24),
    ) {
        let sources = specs(&[("a", &[4, 2]), ("b", &[4, 2]), ("m.0", &[6]), ("m.1", &[6])]);
        let Ok(mapping) = Mapping::parse(&words.join(" ")) else {
            return Ok(());
        };
        for mapping in [&mapping, &mapping.reversed()] {
            if let Ok(bound) = mapping.bind(&sources, None, &AllowedProblems::none()) {
                let _ = bound.inverse();
            }
        }
    }
}
