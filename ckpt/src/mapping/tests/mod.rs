//! Maps of real models and random ones, their inverses, and messages.

mod messages;
mod operations;
mod qwen3;
mod random;
mod round_trips;

use super::*;
use crate::graph::{ElementCopy, Leaf};

fn specs(tensors: &[(&str, &[u64])]) -> Vec<TensorSpec> {
    let spec = |(name, shape): &(&str, &[u64])| TensorSpec::new(name, Dtype::F32, shape);
    tensors.iter().map(spec).collect()
}

fn bind(map: &str, sources: &[TensorSpec]) -> Bound {
    let bound = Mapping::parse(map).unwrap().bind(sources, None, &AllowedProblems::none());
    bound.unwrap_or_else(|report| panic!("{report}"))
}

/// The origin of each element of an output: the name of its leaf and its index there, such as `a3`,
/// or the value of a constant.
fn elements(bound: &Bound, name: &str) -> Vec<String> {
    let graph = bound.graph();
    let expr = bound.expr(name).unwrap();
    let whole: Vec<_> = graph.shape(expr).iter().map(|extent| 0..*extent).collect();
    let mut elements = vec![String::new(); graph.shape(expr).iter().product::<u64>() as usize];
    for copy in graph.copies(expr, &whole).unwrap() {
        for iteration in 0..copy.elements() {
            let (from, to) = element(&copy, iteration);
            elements[to as usize] = match copy.from {
                Leaf::Fill(value) => format!("{}", value.value().unwrap()),
                leaf => format!("{}{from}", graph.leaf_name(leaf)),
            };
        }
    }
    elements
}

fn element(copy: &ElementCopy, iteration: u64) -> (u64, u64) {
    let (mut rest, mut from, mut to) = (iteration, copy.source_offset, copy.destination_offset);
    for it in &copy.loops {
        from += rest % it.count * it.source_stride;
        to += rest % it.count * it.destination_stride;
        rest /= it.count;
    }
    (from, to)
}
