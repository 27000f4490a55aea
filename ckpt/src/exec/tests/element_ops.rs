//! Element operations.

use crate::exec::{Slices, execute};
use crate::graph::{ElementOp, Graph, Scalar};
use crate::plan::{Catalog, LoadPlan, LoadRequest, Options};
use crate::source::{BackendChoice, Sources};
use crate::{Dtype, Error, FileWriter, Folder};

const SHAPE: [u64; 2] = [7, 33];

/// Casts and scales varied bit patterns, contiguous and transposed, in windows that split the
/// tensor anywhere. Each element gets all operations.
#[test]
fn operations_apply_to_each_element() {
    let from = [Dtype::BF16, Dtype::F16, Dtype::F32, Dtype::F64, Dtype::F8E4M3];
    let to = [Dtype::F64, Dtype::F32, Dtype::F16, Dtype::BF16];
    for (from, to) in from.into_iter().flat_map(|from| to.map(|to| (from, to))) {
        let folder = tempfile::tempdir().unwrap();
        let mut file = FileWriter::new();
        file.add("x", from, &SHAPE.map(|it| it as usize)).unwrap();
        let bits = |at: u64| 0x3801_4001_3f81_4b05_u64.rotate_left(at as u32 * 5);
        let data: Vec<u8> = (0..SHAPE[0] * SHAPE[1])
            .flat_map(|at| bits(at).to_le_bytes()[..from.bits() / 8].to_vec())
            .collect();
        let path = folder.path().join("model.safetensors");
        file.save::<Error>(path, |_, sink| sink.append(&data)).unwrap();

        let mut graph = Graph::new();
        let x = graph.source("x", from, &SHAPE).unwrap();
        let cast = graph.cast(x, to).unwrap();
        let scaled = graph.scale(cast, 0.7).unwrap();
        let transposed = graph.transpose(scaled, 0, 1).unwrap();
        let requests = [
            LoadRequest::all("plain", &graph, scaled),
            LoadRequest::new("transposed", transposed, [3..30, 2..7]),
        ];
        let steps = [ElementOp::Cast(to), ElementOp::Scale(crate::graph::Real(0.7))];
        let expected = |row: u64, column: u64| {
            let element = Scalar::from_bits(from, bits(row * SHAPE[1] + column));
            let done = steps.iter().fold(element, |it, step| step.apply(it).unwrap());
            done.value().unwrap()
        };

        for window in [1, 16, 100, 1 << 20] {
            let folder = Folder::open(folder.path()).unwrap();
            let options = Options { window, in_place: 1, ..Options::default() };
            let plan = LoadPlan::new(&graph, &Catalog::of(&folder), &requests, &options).unwrap();
            let mut memory = [0, 1].map(|at| vec![0; plan.targets()[at].bytes as usize]);
            let sources = Sources::open(&folder, BackendChoice::Auto).unwrap();
            let slices = Slices::new(memory.iter_mut().map(|it| &mut it[..]));
            execute(&plan, &sources, &slices, &|_| {}).unwrap();

            let [plain, transposed] = &memory;
            let found = |memory: &[u8], at: u64| {
                let (size, mut bits) = (to.bits() / 8, [0; 8]);
                bits[..size].copy_from_slice(&memory[at as usize * size..][..size]);
                Scalar::from_bits(to, u64::from_le_bytes(bits)).value().unwrap()
            };
            let same = |a: f64, b: f64| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
            for (row, column) in (0..7).flat_map(|row| (0..33).map(move |column| (row, column))) {
                let expected = expected(row, column);
                let here = found(plain, row * 33 + column);
                assert!(same(here, expected), "{from} {to} {window}: {here} {expected}");
                if (2..7).contains(&row) && (3..30).contains(&column) {
                    let here = found(transposed, (column - 3) * 5 + row - 2);
                    assert!(same(here, expected), "{from} {to} {window}: {here} {expected}");
                }
            }
        }
    }
}
