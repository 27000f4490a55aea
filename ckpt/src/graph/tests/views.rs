//! Views of sources.

use super::super::*;
use crate::Dtype;

/// A view of a source selects the same elements as slices and permutations of it.
#[test]
fn views_equal_slices_and_permutations() {
    let mut graph = Graph::new();
    let matrix = graph.source("matrix", Dtype::F32, &[5, 7]).unwrap();
    let flat = graph.source("flat", Dtype::F32, &[35]).unwrap();

    let whole = graph.view(flat, 0, &[5, 7], &[7, 1]).unwrap();
    let transposed = graph.view(matrix, 0, &[7, 5], &[1, 7]).unwrap();
    let steps = graph.view(matrix, 8, &[2, 3], &[14, 2]).unwrap();
    let unflattened = graph.unflatten(flat, 0, 5).unwrap();
    let other_transposed = graph.transpose(matrix, 0, 1).unwrap();
    let rows = graph.slice(matrix, 0, (1, 2, 2)).unwrap();
    let other_steps = graph.slice(rows, 1, (1, 3, 2)).unwrap();
    for (view, other) in
        [(whole, unflattened), (transposed, other_transposed), (steps, other_steps)]
    {
        assert_eq!(graph.shape(view), graph.shape(other));
        let all = |of: Expr| graph.copies_of_all(of).unwrap();
        assert_eq!(all(view), all(other));
    }
}

/// A view neither leaves its source nor visits an element twice.
#[test]
fn views_outside_of_their_source_are_errors() {
    let mut graph = Graph::new();
    let flat = graph.source("flat", Dtype::F32, &[12]).unwrap();
    let permuted = graph.unflatten(flat, 0, 3).unwrap();
    assert!(graph.view(flat, 9, &[0, 5], &[1, 1]).is_ok());
    for (of, offset, shape, strides) in [
        (flat, 0, &[13][..], &[1][..]),
        (flat, 1, &[3, 4], &[4, 1]),
        (flat, 12, &[1], &[1]),
        (flat, 0, &[2, 2], &[1, 1]),
        (flat, 0, &[2], &[0]),
        (flat, 0, &[2], &[1, 1]),
        (flat, u64::MAX, &[2], &[1]),
        (flat, 0, &[u64::MAX, 3], &[u64::MAX, 1]),
        (permuted, 0, &[2], &[1]),
    ] {
        let made = graph.view(of, offset, shape, strides);
        let error = made.unwrap_err().to_string();
        assert!(error.contains("is not inside a tensor of 12 elements, or visits"), "{error}");
    }
}

/// A view keeps its source when a graph is imported into one with other sources; a source that
/// becomes several is an error that names it.
#[test]
fn views_are_imported_with_their_source() {
    let mut other = Graph::new();
    let [_, b] = ["a", "b"].map(|name| other.source(name, Dtype::F32, &[6]).unwrap());
    let view = other.view(b, 1, &[2], &[3]).unwrap();

    let mut graph = Graph::new();
    for name in ["x", "y", "stored"] {
        graph.source(name, Dtype::F32, &[6]).unwrap();
    }
    let stored = graph.source("stored", Dtype::F32, &[6]).unwrap();
    let is_b = |name: &str| (name == "b").then_some(stored);
    let made = graph.import(&other, &is_b).unwrap();
    let made = made[view.index()];
    assert_eq!(graph.sources_of(made), ["stored"].into());
    let copies = |graph: &Graph, of| {
        let copies = graph.copies_of_all(of).unwrap().into_iter();
        copies.map(|it| (it.source_offset, it.loops)).collect::<Vec<_>>()
    };
    assert_eq!(copies(&graph, made), copies(&other, view));

    let [first, second] = [0, 3].map(|at| graph.slice(stored, 0, (at, 3, 1)).unwrap());
    let joined = graph.concat(&[second, first], 0).unwrap();
    let error = graph.import(&other, &|name| (name == "b").then_some(joined));
    let error = error.unwrap_err().to_string();
    assert!(error.starts_with("view: `b` is made of several stored tensors"), "{error}");
}
