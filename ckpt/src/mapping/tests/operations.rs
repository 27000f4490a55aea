//! Each operation of a map, tested by the elements of its result.

use super::{bind, elements, specs};
use crate::Dtype;
use crate::mapping::{AllowedProblems, Mapping, TensorSpec};

/// Tests each operation by the elements of its result.
#[test]
fn operations_select_the_right_elements() {
    let sources = specs(&[("a", &[4]), ("b", &[4]), ("m", &[2, 3])]);
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
        let allowed = AllowedProblems::none().and("unexpected").unwrap();
        let allowed = allowed.and("partly-used").unwrap();
        let bound = Mapping::parse(&map).unwrap().bind(&sources, None, &allowed);
        let bound = bound.unwrap_or_else(|report| panic!("{operation}: {report}"));
        assert_eq!(elements(&bound, "made").join(" "), expected, "{operation}");
    }
}

/// The capture that an operation iterates over may be anywhere in a name.
#[test]
fn the_iterated_capture_may_come_first() {
    for template in ["experts.{e}.layers.{l}", "layers.{l}.experts.{e}"] {
        let places = (0..3).flat_map(|expert| (0..12).map(move |layer| (expert, layer)));
        let sources: Vec<TensorSpec> = places
            .map(|(expert, layer)| {
                let name = template.replace("{e}", &expert.to_string());
                let name = name.replace("{l}", &layer.to_string());
                TensorSpec::new(&name, Dtype::F32, &[2])
            })
            .collect();
        let bound = bind(&format!("w.{{l}} = stack({template}, each=e)"), &sources);
        let mut made: Vec<TensorSpec> = bound.outputs().collect();
        made.sort_by_key(|it| it.name.len());
        let names: Vec<&str> = made.iter().map(|it| it.name.as_str()).collect();
        let expected = (0..12).map(|layer| format!("w.{layer}"));
        assert_eq!(names, expected.collect::<Vec<_>>());
        assert!(made.iter().all(|it| it.shape == [3, 2]));
    }
}
