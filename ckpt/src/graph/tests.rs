//! What expressions copy, and which are rejected.

mod evaluation;
mod random;
mod views;

use std::ops::Range;

use super::*;
use crate::{Dtype, Kind};

/// A computation on one tensor that keeps its type; its values are irrelevant here.
#[derive(Debug)]
struct Opaque;

impl Compute for Opaque {
    fn name(&self) -> &'static str {
        "opaque"
    }

    fn result(&self, operands: &[TensorType]) -> Result<TensorType, String> {
        match operands {
            [one] => Ok(one.clone()),
            _ => Err(format!("it takes 1 operand, not {}", operands.len())),
        }
    }

    fn rows_of_operands(&self, rows: Range<u64>, _: &[TensorType]) -> Vec<Range<u64>> {
        vec![rows]
    }

    fn compute(&self, _: Range<u64>, operands: &[Operand<'_>], out: &mut [u8]) {
        out.copy_from_slice(operands[0].bytes);
    }
}

/// Fuses the experts of a layer. Of 8 expert-parallel x 2 tensor-parallel ranks, rank 0 reads one
/// sixteenth of the elements, in whole rows.
#[test]
fn a_rank_reads_only_its_share() {
    let (experts, features, hidden) = (128, 768, 2048);
    let mut graph = Graph::new();
    let gates_and_ups: Vec<Expr> = (0..experts)
        .map(|expert| {
            let both = ["gate", "up"].map(|half| {
                let name = format!("{half}.{expert}");
                let one = graph.source(&name, Dtype::BF16, &[features, hidden]);
                graph.unsqueeze(one.unwrap(), 0).unwrap()
            });
            graph.concat(&both, 0).unwrap()
        })
        .collect();
    // [experts, 2, features, hidden]: a rank keeps half of the features of both gate and up.
    let fused = graph.stack(&gates_and_ups, 0).unwrap();
    let region = [0..experts / 8, 0..2, 0..features / 2, 0..hidden];
    let copies = graph.copies(fused, &region).unwrap();
    assert_eq!(copies.len() as u64, experts / 8 * 2);
    let read: u64 = copies.iter().map(ElementCopy::elements).sum();
    assert_eq!(read * 16, experts * 2 * features * hidden);
    assert!(copies.iter().all(|it| it.run() == features / 2 * hidden));
}

/// A contiguous copy is one range, however it was sliced and concatenated.
#[test]
fn contiguous_copies_are_merged() {
    let mut graph = Graph::new();
    let x = graph.source("x", Dtype::F32, &[6, 4]).unwrap();
    let cut = [0, 3].map(|start| graph.slice(x, 0, (start, 3, 1)).unwrap());
    let joined = graph.concat(&cut, 0).unwrap();
    let flat = graph.flatten(joined, 0).unwrap();
    let rows = graph.unflatten(flat, 0, 2).unwrap();
    let copies = graph.copies(rows, &[0..2, 0..12]).unwrap();
    assert!(copies.iter().all(|it| it.run() == it.elements()));
    assert_eq!(copies.len(), 2);

    let transposed = graph.transpose(x, 0, 1).unwrap();
    let [copy] = &graph.copies(transposed, &[0..4, 0..6]).unwrap()[..] else {
        panic!("one copy");
    };
    assert_eq!((copy.elements(), copy.run()), (24, 1));
    assert_eq!(graph.copies(x, &[2..2, 0..4]), Ok(Vec::new()));
}

#[test]
fn invalid_expressions_are_rejected() {
    let mut graph = Graph::new();
    let x = graph.source("x", Dtype::F32, &[6, 4]).unwrap();
    let y = graph.source("y", Dtype::F32, &[6, 5]).unwrap();
    let z = graph.source("z", Dtype::BF16, &[6, 4]).unwrap();
    let whole = graph.source("whole", Dtype::I64, &[6]).unwrap();
    let errors = [
        graph.permute(x, &[0, 0]).unwrap_err(),
        graph.slice(x, 2, (0, 1, 1)).unwrap_err(),
        graph.slice(x, 1, (1, 2, 3)).unwrap_err(),
        graph.slice(x, 1, (0, 2, 0)).unwrap_err(),
        graph.slice(x, 0, (u64::MAX, 2, u64::MAX)).unwrap_err(),
        graph.concat(&[x, y], 0).unwrap_err(),
        graph.stack(&[x, z], 1).unwrap_err(),
        graph.concat(&[], 0).unwrap_err(),
        graph.unflatten(x, 0, 4).unwrap_err(),
        graph.flatten(x, 1).unwrap_err(),
        graph.select(x, 1, 4).unwrap_err(),
        graph.source("huge", Dtype::F32, &[1 << 40, 1 << 40]).unwrap_err(),
        graph.copies(x, &[0..7, 0..4]).unwrap_err(),
        graph.source("x", Dtype::F32, &[24]).unwrap_err(),
        graph.cast(whole, Dtype::F32).unwrap_err(),
        graph.cast(x, Dtype::F8E4M3).unwrap_err(),
        graph.compute(&[x, y], &Computation::new(Opaque)).unwrap_err(),
        graph.squeeze(x, 1).unwrap_err(),
        graph.pad(x, 0, 5, 0.0).unwrap_err(),
        graph.fill(Dtype::I64, 0.0, &[2]).unwrap_err(),
    ];
    let words: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        words,
        [
            "permute: [0, 0] is not an order of the dims of shape [6, 4]: name each dim once",
            "slice: dim 2 is out of range for shape [6, 4]",
            "slice: 2 elements from index 1 with step 3 exceed dim 1 of extent 4: the step must be at \
             least 1 and the last element inside",
            "slice: 2 elements from index 0 with step 0 exceed dim 1 of extent 4: the step must be at \
             least 1 and the last element inside",
            "slice: 2 elements from index 18446744073709551615 with step 18446744073709551615 exceed \
             dim 0 of extent 6: the step must be at least 1 and the last element inside",
            "concat along dim 0: operand 0 has shape [6, 4] and operand 1 has [6, 5]",
            "stack: operand 0 is F32 and operand 1 is BF16: cast one of them",
            "concat: no operands: pass at least one",
            "unflatten: 6 elements of dim 0 cannot be split into 4 rows",
            "flatten: dim 2 is out of range for shape [6, 4]",
            "slice: 1 elements from index 4 with step 1 exceed dim 1 of extent 4: the step must be at \
             least 1 and the last element inside",
            "source: a tensor of shape [1099511627776, 1099511627776] has more elements than fit \
             into 63 bits",
            "[0..7, 0..4] is not a region of shape [6, 4]: pass a range inside each dim",
            "`x` is F32 [6, 4] in one place and F32 [24] in another: use a name for one tensor only",
            "cast: cannot convert I64 to F32: operands must be F64, F32, F16, BF16, F8_E4M3, F8_E5M2 or \
             F8_E8M0, results must be one of the first four",
            "cast: cannot convert F32 to F8_E4M3: operands must be F64, F32, F16, BF16, F8_E4M3, F8_E5M2 \
             or F8_E8M0, results must be one of the first four",
            "opaque: it takes 1 operand, not 2",
            "squeeze: dim 1 has 4 elements, not 1",
            "pad: dim 0 has 6 elements, more than the target extent 5",
            "fill: cannot convert I64 to I64: operands must be F64, F32, F16, BF16, F8_E4M3, F8_E5M2 or \
             F8_E8M0, results must be one of the first four",
        ]
    );
}

/// Too many scattered elements are an error instead of a very long list of copies.
#[test]
fn a_fragmented_layout_is_rejected() {
    let mut graph = Graph::new();
    let x = graph.source("x", Dtype::F32, &[1 << 10, 1000]).unwrap();
    let flat = graph.flatten(x, 0).unwrap();
    let torn = graph.slice(flat, 0, (0, 1 << 17, 7)).unwrap();
    let all = 0..1 << 17;
    let error = graph.copies(torn, std::slice::from_ref(&all)).unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported);
    assert!(error.to_string().contains("more than 65536 copies because of flatten"), "{error}");
}

/// Equal expressions are deduplicated, and casts to a wider dtype and back cancel.
#[test]
fn equal_expressions_are_stored_once() {
    let mut graph = Graph::new();
    let x = graph.source("x", Dtype::BF16, &[6, 4]).unwrap();
    assert_eq!(graph.source("x", Dtype::BF16, &[6, 4]), Ok(x));
    assert_eq!(graph.transpose(x, 0, 1), graph.permute(x, &[1, 0]));
    assert_ne!(graph.scale(x, 0.0), graph.scale(x, -0.0));

    let wide = graph.cast(x, Dtype::F32).unwrap();
    assert_eq!(graph.cast(wide, Dtype::BF16), Ok(x));
    assert_ne!(graph.cast(wide, Dtype::F16), Ok(x));
    let narrow = graph.cast(wide, Dtype::F16).unwrap();
    assert_ne!(graph.cast(narrow, Dtype::F32), Ok(wide));
}

/// The time to trace a region does not depend on its extents.
#[test]
fn huge_extents_are_traced_quickly() {
    let mut graph = Graph::new();
    let x = graph.source("x", Dtype::F32, &[8, 4]).unwrap();
    let padded = graph.pad(x, 0, 1 << 50, 0.0).unwrap();
    let copies = graph.copies(padded, &[3..1 << 50, 0..4]).unwrap();
    let elements: Vec<u64> = copies.iter().map(ElementCopy::elements).collect();
    assert_eq!(elements, [5 * 4, ((1 << 50) - 8) * 4]);
}

/// Expressions with different shapes are not deduplicated.
#[test]
fn slices_of_different_lengths_differ() {
    let mut graph = Graph::new();
    let x = graph.source("x", Dtype::F32, &[6]).unwrap();
    let lengths = [2, 5, 0, 2].map(|count| graph.slice(x, 0, (0, count, 1)).unwrap());
    assert_eq!(lengths.map(|it| graph.shape(it)[0]), [2, 5, 0, 2]);
    assert_eq!(lengths[0], lengths[3]);
}
