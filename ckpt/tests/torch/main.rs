//! Models that PyTorch wrote are read without Python, and equal what PyTorch loads.
//!
//! `make_fixtures.py` wrote the fixtures with torch, and beside each the same tensors as
//! safetensors.

mod crafted;
mod damage;
mod zips;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use meshgrad_ckpt::exec::{Slices, execute};
use meshgrad_ckpt::graph::Graph;
use meshgrad_ckpt::plan::{Catalog, LoadPlan, LoadRequest, Options};
use meshgrad_ckpt::source::{BackendChoice, Sources};
use meshgrad_ckpt::torch::{self, TorchModel};
use meshgrad_ckpt::{Dtype, Folder, Links};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/torch/fixtures")
}

type Tensors = BTreeMap<String, (Dtype, Vec<u64>, Vec<u8>)>;

/// Reads all tensors by plans, as loads and conversions do.
fn tensors(model: &TorchModel) -> Result<Tensors, Box<dyn std::error::Error>> {
    let mut graph = Graph::new();
    let mut requests = Vec::new();
    for spec in model.assembly.specs() {
        let expr = graph.source(&spec.name, spec.dtype, &spec.shape)?;
        requests.push(LoadRequest::all(&*spec.name, &graph, expr));
    }
    let (graph, requests) = model.assembly.inline(&graph, requests)?;
    let folder = model.assembly.folder();
    let options = Options {
        threads: 1,
        ..Options::default()
    };
    let plan = LoadPlan::new(&graph, &Catalog::of(folder), &requests, &options)?;
    let targets = plan.targets().iter();
    let mut made: Vec<Vec<u8>> = targets.map(|it| vec![0; it.bytes as usize]).collect();
    let slices = Slices::new(made.iter_mut().map(|it| &mut it[..]));
    let sources = Sources::open(folder, BackendChoice::Auto)?;
    execute(&plan, &sources, &slices, &|_| {})?;
    let named = model.assembly.specs().into_iter().zip(made);
    Ok(named
        .map(|(spec, bytes)| (spec.name, (spec.dtype, spec.shape, bytes)))
        .collect())
}

fn expected(folder: &Path) -> Tensors {
    let file = Folder::open_file(folder.join("expected.safetensors")).unwrap();
    let tensor = |info: &meshgrad_ckpt::TensorInfo| {
        let shape = info.shape.iter().map(|extent| *extent as u64).collect();
        (
            info.name.clone(),
            (info.dtype, shape, file.read(&info.name).unwrap()),
        )
    };
    file.tensors().map(tensor).collect()
}

fn open(folder: &Path) -> TorchModel {
    torch::open(folder, Links::Refuse).unwrap().unwrap()
}

/// All dtypes, views of shared storages, modules, several files, and chunks of 2 x 3 ranks.
const EQUAL: [&str; 7] = [
    "dtypes", "views", "module", "sharded", "dcp", "expanded", "nested",
];

#[test]
fn tensors_equal_those_that_pytorch_loads() {
    for name in EQUAL {
        let folder = fixtures().join(name);
        let found = tensors(&open(&folder)).unwrap();
        let expected = expected(&folder);
        assert!(
            found.keys().eq(expected.keys()),
            "{name}: {:?}",
            found.keys()
        );
        for (tensor, found) in &found {
            assert_eq!(*found, expected[tensor], "{name}: {tensor}");
        }
    }
}

/// The comparison above fails for a changed element of any tensor.
#[test]
fn the_comparison_sees_a_changed_byte() {
    let place = tempfile::tempdir().unwrap();
    let from = fixtures().join("sharded");
    for entry in fs::read_dir(&from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), place.path().join(entry.file_name())).unwrap();
    }
    let path = place.path().join("pytorch_model-00002-of-00002.bin");
    let mut bytes = fs::read(&path).unwrap();
    // The bias 3.0.
    let at = bytes
        .windows(4)
        .rposition(|it| it == 3f32.to_le_bytes())
        .unwrap();
    bytes[at] ^= 1;
    fs::write(&path, bytes).unwrap();
    assert_ne!(tensors(&open(place.path())).unwrap(), expected(&from));
}

/// A byte has two elements, so the last extent is doubled, as in safetensors.
#[test]
fn four_bit_floats_have_two_elements_in_a_byte() {
    let found = tensors(&open(&fixtures().join("float4"))).unwrap();
    let bytes = vec![0x12, 0x34, 0x56, 0x78];
    assert_eq!(found["w"], (Dtype::F4, vec![2, 4], bytes));
}

/// Chunks of 4-bit floats may be split along the last dim, too.
#[test]
fn four_bit_floats_are_joined_along_the_last_dim() {
    let found = tensors(&open(&fixtures().join("float4-dcp"))).unwrap();
    let bytes: Vec<u8> = (1..=24).collect();
    assert_eq!(found["w"], (Dtype::F4, vec![3, 16], bytes));
}

/// Values that are not tensors are left out, and named.
#[test]
fn other_values_are_named() {
    let left_out = |name: &str| open(&fixtures().join(name)).left_out;
    assert_eq!(left_out("dcp"), ["names", "step"]);
    let nested = ["epoch", "extra.1", "optimizer.param_groups"];
    assert_eq!(left_out("nested"), nested);
}

/// All checksums match. If any byte of an entry changes, only the checksum of that entry fails, and
/// the error names the entry and its tensors.
#[test]
fn checksums_show_every_changed_byte() {
    let mut entries = 0;
    for (name, file) in [
        ("nested", "pytorch_model.bin"),
        ("sharded", "pytorch_model-00002-of-00002.bin"),
        ("dcp", "__4_0.distcp"),
    ] {
        let model = open(&fixtures().join(name));
        let checksums = model.checksums().unwrap();
        assert_eq!(checksums.without, 0);
        for entry in &checksums.entries {
            model.verify(entry).unwrap();
        }
        entries += checksums.entries.len();

        let place = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(fixtures().join(name)).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), place.path().join(entry.file_name())).unwrap();
        }
        let path = place.path().join(file);
        let original = fs::read(&path).unwrap();
        let model = open(place.path());
        let checksums = model.checksums().unwrap().entries;
        let mut seen = 0;
        for at in (0..original.len()).step_by(7) {
            let mut bytes = original.clone();
            bytes[at] ^= 0x10;
            // In place, because the file is open.
            fs::write(&path, &bytes).unwrap();
            let wrong = checksums.iter().filter_map(|it| model.verify(it).err());
            let wrong: Vec<String> = wrong.map(|error| error.to_string()).collect();
            assert!(wrong.len() <= 1, "{wrong:?}");
            for message in wrong {
                assert!(
                    message.contains(file) && message.contains("has CRC-32"),
                    "{message}"
                );
                let is_data = message.contains("/data/");
                assert_eq!(is_data, message.contains("it stores `"), "{message}");
                seen += 1;
            }
        }
        // The rest are headers, the directory and padding.
        assert!(seen > 20, "{name}: {seen}");
        fs::write(&path, &original).unwrap();
    }
    assert!(entries > 50, "{entries}");
}

#[test]
fn files_without_checksums_are_counted() {
    let checksums = open(&fixtures().join("without-crc")).checksums().unwrap();
    assert_eq!((checksums.entries.len(), checksums.without), (0, 1));
}

/// A folder without any of these files is not a model of PyTorch.
#[test]
fn other_folders_have_no_model() {
    let folder = tempfile::tempdir().unwrap();
    assert!(torch::open(folder.path(), Links::Refuse).unwrap().is_none());
}

#[test]
fn files_without_plain_tensors_say_what_to_do() {
    let message = |name: &str| {
        let path = fixtures().join("wrong").join(name);
        let error = match torch::open_file(&path) {
            Ok(model) => panic!("{name}: {:?}", model.assembly.specs()),
            Err(error) => error.to_string(),
        };
        error.replace(&path.display().to_string(), name)
    };
    let start = |name: &str| format!("{name} cannot be read as a model of PyTorch: ");
    let state = "save only the state_dict: torch.save(model.state_dict(), ..)";
    let global = |file: &str, global: &str| {
        let expected = format!(
            "{}its pickle names `{global}`, which a file of plain tensors does not need and which is \
             not loaded; {state}",
            start(file)
        );
        assert_eq!(message(file), expected);
    };
    global("whole-module.bin", "torch.nn.modules.container.Sequential");
    global("sparse.bin", "torch._utils._rebuild_sparse_tensor");
    global("quantized.bin", "torch._utils._rebuild_qtensor");
    let tensor = |file: &str, problem: &str| {
        let expected = format!("{}tensor `w` cannot be read: {problem}", start(file));
        assert_eq!(message(file), expected);
    };
    tensor(
        "complex128.bin",
        "safetensors has no complex128; save tensor.to(torch.complex64), or its parts as \
         torch.view_as_real(tensor)",
    );
    tensor(
        "much-expanded.bin",
        "it is expanded and repeats its elements 5000 times, more than 4096; save \
         tensor.contiguous(), or the tensor before expand()",
    );
    tensor(
        "overlapping.bin",
        "its elements overlap in memory; save tensor.contiguous()",
    );
    assert_eq!(
        message("no-tensors.bin"),
        format!(
            "{}it has no tensor, but other values such as `epoch`; save a state_dict: \
             torch.save(model.state_dict(), ..)",
            start("no-tensors.bin")
        )
    );
    assert_eq!(
        message("conjugate.bin"),
        format!(
            "{}tensor `w` cannot be read: it is a conjugate or negative view; save \
             tensor.resolve_conj().resolve_neg()",
            start("conjugate.bin")
        )
    );
    assert!(message("legacy.bin").starts_with(&format!(
        "{}it has the format of PyTorch before 1.6; save it again: python -c",
        start("legacy.bin")
    )));
}
