//! Targets with computed and constant elements.

use std::collections::BTreeMap;
use std::ops::Range;

use super::Collect;
use crate::exec::execute;
use crate::graph::{Computation, Compute, Graph, Operand, TensorType};
use crate::mapping::{AllowedProblems, Mapping, TensorSpec};
use crate::plan::{Catalog, LoadPlan, LoadRequest, Options};
use crate::source::{BackendChoice, Sources};
use crate::{Dtype, Error, FileWriter, Folder};

const ROWS: u64 = 12;
const COLUMNS: u64 = 7;

/// An element of a source tensor: a small whole number, so that nothing here is rounded.
fn element(name: &str, at: u64) -> f64 {
    let seed = u64::from(name.as_bytes()[0]);
    ((at * 7 + seed) % 11) as f64 - 5.0
}

fn write(folder: &std::path::Path, tensors: &[(&str, [usize; 2])]) {
    let mut file = FileWriter::new();
    for (name, shape) in tensors {
        file.add(name, Dtype::F32, shape).unwrap();
    }
    file.save::<Error>(folder.join("model.safetensors"), |tensor, sink| {
        let elements = 0..tensor.byte_len() as u64 / 4;
        let bytes = elements.flat_map(|at| (element(&tensor.name, at) as f32).to_le_bytes());
        sink.append(&bytes.collect::<Vec<u8>>())
    })
    .unwrap();
}

fn at(name: &str, columns: u64, row: u64, column: u64) -> f64 {
    element(name, row * columns + column)
}

/// An element of lora(w, a, b, scale=2), of rank 2.
fn merged(row: u64, column: u64) -> f64 {
    let update = |r| at("b", 2, row, r) * at("a", COLUMNS, r, column);
    at("w", COLUMNS, row, column) + 2.0 * (update(0) + update(1))
}

/// An element of dequant(w, s, F32, block=5x3).
fn scaled(row: u64, column: u64) -> f64 {
    at("w", COLUMNS, row, column) * at("s", 3, row / 5, column / 3)
}

/// Tensors computed from files and from other computed tensors, transposed, sliced, concatenated
/// and padded, match evaluation by hand, with any windows and any number of threads.
#[test]
fn computed_tensors_compose_with_other_operations() {
    let place = tempfile::tempdir().unwrap();
    let tensors = [
        ("a", [2, COLUMNS as usize]),
        ("b", [ROWS as usize, 2]),
        ("s", [3, 3]),
        ("w", [ROWS as usize, COLUMNS as usize]),
    ];
    write(place.path(), &tensors);
    let map = Mapping::parse(
        "merged = lora(w, a, b, scale=2)
         transposed = pad(transpose(lora(w, a, b, scale=2), 0, 1), 9, value=0.5)
         rows   = concat(slice(dequant(w, s, F32, block=5x3), 3, 8), w)
         mean   = mean(lora(w, a, b, scale=2), dequant(w, s, F32, block=5x3))
         fill   = fill(3, F32, shape=2x2)",
    )
    .unwrap();
    let sources = tensors
        .map(|(name, shape)| TensorSpec::new(name, Dtype::F32, &shape.map(|extent| extent as u64)));
    let bound = map.bind(&sources, None, &AllowedProblems::none());
    let bound = bound.unwrap_or_else(|report| panic!("{report}"));
    let expected = |name: &str, row: u64, column: u64| match name {
        "merged" => merged(row, column),
        "transposed" if row < COLUMNS => merged(column, row),
        "transposed" => 0.5,
        "rows" if row < 5 => scaled(row + 3, column),
        "rows" => at("w", COLUMNS, row - 5, column),
        "mean" => (merged(row, column) + scaled(row, column)) / 2.0,
        _ => 3.0,
    };

    let folder = Folder::open(place.path()).unwrap();
    let sources = Sources::open(&folder, BackendChoice::Auto).unwrap();
    let mut digests = BTreeMap::new();
    for (window, threads) in [(1, 1), (16, 3), (60, 2), (100, 4), (1 << 20, 1), (1 << 20, 4)] {
        for part in [false, true] {
            let requests = bound.outputs().map(|spec| {
                let from = u64::from(part && spec.shape[0] > 2);
                let region = [from..spec.shape[0], from..spec.shape[1]];
                LoadRequest::new(spec.name.clone(), bound.expr(&spec.name).unwrap(), region)
            });
            let requests: Vec<LoadRequest> = requests.collect();
            let options = Options { window, threads, ..Options::default() };
            let catalog = Catalog::of(&folder);
            let plan = LoadPlan::new(bound.graph(), &catalog, &requests, &options).unwrap();
            let digest = digests.entry((window, part)).or_insert(plan.digest());
            assert_eq!(*digest, plan.digest());

            let sink = Collect::default();
            let stats = execute(&plan, &sources, &sink, &|_| {}).unwrap();
            assert_eq!(stats.read_bytes, plan.read_bytes());
            let done = sink.done.into_inner().unwrap();
            for request in &requests {
                let (rows, columns) = (request.region[0].clone(), request.region[1].clone());
                let mut elements = done[&*request.target].as_chunks::<4>().0.iter();
                for (row, column) in rows.flat_map(|row| columns.clone().map(move |it| (row, it))) {
                    let found = f32::from_le_bytes(*elements.next().unwrap());
                    let targets = expected(&request.target, row, column);
                    assert_eq!(f64::from(found), targets, "{} {row} {column}", request.target);
                }
            }
        }
    }
}

/// Adds one to each element.
#[derive(Debug)]
struct Next;

impl Compute for Next {
    fn name(&self) -> &'static str {
        "next"
    }

    fn result(&self, operands: &[TensorType]) -> Result<TensorType, String> {
        Ok(operands[0].clone())
    }

    fn rows_of_operands(&self, rows: Range<u64>, _: &[TensorType]) -> Vec<Range<u64>> {
        vec![rows]
    }

    fn compute(&self, _: Range<u64>, operands: &[Operand<'_>], out: &mut [u8]) {
        for (out, byte) in out.iter_mut().zip(operands[0].bytes) {
            *out = byte + 1;
        }
    }
}

/// A graph of the maximum depth can be executed; one more operation is rejected.
#[test]
fn depth_is_limited() {
    let place = tempfile::tempdir().unwrap();
    let mut file = FileWriter::new();
    file.add("x", Dtype::U8, &[2, 3]).unwrap();
    file.save::<Error>(place.path().join("model.safetensors"), |_, sink| {
        sink.append(&[0, 10, 20, 30, 40, 50])
    })
    .unwrap();
    let folder = Folder::open(place.path()).unwrap();

    let next = Computation::new(Next);
    let mut graph = Graph::new();
    let mut made = graph.source("x", Dtype::U8, &[2, 3]).unwrap();
    for level in 0..256 {
        made = match level % 2 {
            0 => graph.compute(&[made], &next),
            _ => graph.transpose(made, 0, 1),
        }
        .unwrap();
    }
    let rejected = graph.transpose(made, 0, 1).unwrap_err();
    assert_eq!(
        rejected.to_string(),
        "permute: the operand already has 256 nested operations; load it first and continue from the result"
    );

    let requests = [LoadRequest::all("made", &graph, made)];
    let plan =
        LoadPlan::new(&graph, &Catalog::of(&folder), &requests, &Options::default()).unwrap();
    let sink = Collect::default();
    let sources = Sources::open(&folder, BackendChoice::Auto).unwrap();
    execute(&plan, &sources, &sink, &|_| {}).unwrap();
    let made = sink.done.into_inner().unwrap();
    assert_eq!(made["made"], [0, 10, 20, 30, 40, 50].map(|it| it + 128));
}
