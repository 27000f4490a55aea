//! Messages for maps that cannot be parsed or do not fit the tensors.

use super::{bind, specs};
use crate::mapping::{AllowedProblems, Mapping, TensorSpec};

fn reject(map: &str, sources: &[TensorSpec], targets: Option<&[TensorSpec]>) -> String {
    let bound = Mapping::parse(map).unwrap().bind(sources, targets, &AllowedProblems::none());
    bound.unwrap_err().to_string()
}

/// Rules that cannot be applied are reported with the reason.
#[test]
fn rules_that_cannot_work_are_reported() {
    let sources = specs(&[("a", &[4]), ("b", &[6]), ("m.0", &[2, 3]), ("m.2", &[2, 3])]);
    let rest = "{r:path} = {r:path}\n";
    let cases = [
        (
            "x = stack(a, b)",
            "impossible: line 2 of the map: stack along dim 0: operand 0 has shape [4] and operand \
             1 has [6]",
        ),
        ("x = stack(m.{e}, each=e)", "missing: `m.1`, required by line 2 of the map"),
        (
            "x = select(a, 4)",
            "impossible: line 2 of the map: slice: 1 elements from index 4 with step 1 exceed \
             dim 0 of extent 4: the step must be at least 1 and the last element inside",
        ),
        (
            "x = concat(a, b, mm.0)",
            "missing: `mm.0`, required by line 2 of the map; did you mean `m.0`?",
        ),
        (
            "x.{l} = squeeze(m.{l}, dim=-1)",
            "impossible: line 2 of the map with l=0: squeeze: dim 1 has 3 elements, not 1",
        ),
        ("a = b", "made twice: lines 1 and 2 of the map both produce `a`"),
        (
            "slice(x, 0, 2) = a",
            "unsolvable: line 2 of the map: slice on the left side: its result does not \
             determine its operands",
        ),
        (
            "concat(x, y) = a",
            "unsolvable: line 2 of the map: concat on the left side: its operands cannot be \
             derived: specify shares=, or the targets",
        ),
        (
            "concat(x, y, shares=1:2) = a",
            "unsolvable: line 2 of the map: concat on the left side: 4 elements of dim 0 \
             cannot be divided into shares [1, 2]",
        ),
        (
            "concat(x, y, shares=1:2:1) = a",
            "unsolvable: line 2 of the map: concat on the left side: 3 shares for 2 tensors",
        ),
        (
            "stack(x, y) = a",
            "unsolvable: line 2 of the map: stack on the left side: dim 0 has 4 elements, but there \
             are 2 names",
        ),
        (
            "flatten(x) = a",
            "unsolvable: line 2 of the map: flatten on the left side: its operands cannot be \
             derived: specify rows=, or the targets",
        ),
        (
            "scale(x, 0) = a",
            "unsolvable: line 2 of the map: scale on the left side: a multiplication by 0 has no inverse",
        ),
        ("x = slice(a, 0, 3)", "partly used: 3 of 4 elements of `a`"),
    ];
    for (rule, problem) in cases {
        let report = reject(&format!("{rest}{rule}"), &sources, None);
        assert!(report.contains(problem), "{rule}: {report}");
    }
}

/// A syntax error is reported with its position and reason.
#[test]
fn syntax_errors_have_a_position() {
    let cases = [
        ("a", "line 1, column 2: expected `=` between the two sides, found the end of the line"),
        ("a = b c", "line 1, column 7: expected the end of the rule, found `c`"),
        ("a = (b)", "line 1, column 5: expected a name or an operation, found `(`"),
        ("# all\na = concat(b,\n  c, dim=)", "line 3, column 10: expected a value, found `)`"),
        ("a = concat(b", "line 1, column 13: expected `,` or `)`, found the end of the line"),
        ("a = \"b", "line 1, column 5: a quoted name must end on the line on which it starts"),
        (
            "[a",
            "line 1, column 3: expected `=` between the two prefixes, found the end of the \
             line",
        ),
        (
            "a = turn(b)",
            "line 1, column 5: unknown operation `turn`; the operations are concat, stack, interleave, \
             transpose, permute, slice, select, chunk, unflatten, flatten, unsqueeze, squeeze, \
             pad, fill, cast, scale, add, first, tied, rename, mean, lora, dequant",
        ),
        (
            "a = slice(b, 1)",
            "line 1, column 5: slice needs the end index: slice(x, 0, 4096, dim=0, step=1): start and \
             exclusive end",
        ),
        (
            "a = cast(b, INT)",
            "line 1, column 5: cast must be a dtype: F64, F32, F16 or BF16, not `INT`",
        ),
        (
            "a = stack(b, sides=1)",
            "line 1, column 5: stack takes no `sides=`: stack(x, y, dim=0) or stack(x.{e}, each=e)",
        ),
        ("a = stack(b, dim=x)", "line 1, column 5: dim must be a number, not `x`"),
        (
            "a = stack(b, c, each=e)",
            "line 1, column 5: stack takes no `each=` except with a single operand: stack(x, y, \
             dim=0) or stack(x.{e}, each=e)",
        ),
        (
            "a = stack()",
            "line 1, column 5: stack needs a tensor: stack(x, y, dim=0) or stack(x.{e}, each=e)",
        ),
        (
            "a.{l} = b",
            "line 1, column 1: `{l}` is only on the left side: use it on both, or write `each=l` in \
             the operation that iterates over it",
        ),
        (
            "a.{l}.{e} = concat(b.{l}, c.{e})",
            "line 1, column 1: no name on the right side has all of `{e}`, `{l}`: one name must \
             determine the tensors",
        ),
        (
            "a.{e} = stack(b.{e}, each=l)",
            "line 1, column 1: each=l: the operand has no capture `{l}` that is a number or a choice",
        ),
        (
            "a.{l:word}b = c.{l}",
            "line 1, column 1: `{l}` is ambiguous: it must be followed by a dot, or be last",
        ),
        (
            "a.{l:word} = c.{l:x|y}",
            "line 1, column 1: `{l}` has two kinds; declare the kind once, or the same one everywhere",
        ),
    ];
    for (map, message) in cases {
        let error = Mapping::parse(map).unwrap_err();
        assert_eq!(error.to_string(), message, "{map}");
    }
}

/// Maps without an inverse report why.
#[test]
fn lossy_maps_have_no_inverse() {
    let sources = specs(&[("a", &[4]), ("b", &[4])]);
    let cases = [
        (
            "x = mean(a, b)",
            "the map has no inverse: 1 problem\n  unsolvable: line 1 of the map: mean on the left \
             side: its result does not determine its operands",
        ),
        ("x = scale(a, 0.1)\ny = b", "a round trip would change `a`: scale changes its values"),
        ("x = cast(a, BF16)\ny = b", "a round trip would change `a`: cast changes its values"),
    ];
    for (map, message) in cases {
        assert_eq!(bind(map, &sources).inverse().unwrap_err().to_string(), message);
    }
}

/// Deep nesting of operations is an error, not a stack overflow.
#[test]
fn nesting_is_limited() {
    let nested = |depth: usize| format!("a = {}b{}", "flatten(".repeat(depth), ")".repeat(depth));
    assert!(Mapping::parse(&nested(64)).is_ok());
    for depth in [65, 100_000] {
        let error = Mapping::parse(&nested(depth)).unwrap_err().to_string();
        assert!(error.contains("more than 64 nested operations"), "{error}");
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(3000))]

    /// No text makes the parser or binding panic.
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
