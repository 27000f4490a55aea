//! Models that PyTorch wrote are read without Python, and equal what PyTorch loads.
//!
//! `make_fixtures.py` wrote the fixtures with torch, and beside each the same tensors as
//! safetensors.

mod crafted;
mod damage;
mod zips;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use meshgrad_ckpt::exec::{Slices, execute};
use meshgrad_ckpt::graph::Graph;
use meshgrad_ckpt::plan::{Catalog, LoadPlan, LoadRequest, Options};
use meshgrad_ckpt::source::{BackendChoice, Sources};
use meshgrad_ckpt::torch::{self, TorchModel};
use meshgrad_ckpt::{Dtype, Error, Folder, Kind, Links};
use tempfile::TempDir;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/torch/fixtures")
}

/// A copy of a fixture.
fn copy(name: &str) -> TempDir {
    let place = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixtures().join(name)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), place.path().join(entry.file_name())).unwrap();
    }
    place
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
    let options = Options { threads: 1, ..Options::default() };
    let plan = LoadPlan::new(&graph, &Catalog::of(folder), &requests, &options)?;
    let targets = plan.targets().iter();
    let mut made: Vec<Vec<u8>> = targets.map(|it| vec![0; it.bytes as usize]).collect();
    let slices = Slices::new(made.iter_mut().map(|it| &mut it[..]));
    let sources = Sources::open(folder, BackendChoice::Auto)?;
    execute(&plan, &sources, &slices, &|_| {})?;
    let named = model.assembly.specs().into_iter().zip(made);
    Ok(named.map(|(spec, bytes)| (spec.name, (spec.dtype, spec.shape, bytes))).collect())
}

fn expected(folder: &Path) -> Tensors {
    let file = Folder::open_file(folder.join("expected.safetensors")).unwrap();
    let tensor = |info: &meshgrad_ckpt::TensorInfo| {
        let shape = info.shape.iter().map(|extent| *extent as u64).collect();
        (info.name.clone(), (info.dtype, shape, file.read(&info.name).unwrap()))
    };
    file.tensors().map(tensor).collect()
}

fn open(folder: &Path) -> TorchModel {
    torch::open(folder, Links::Refuse).unwrap().unwrap()
}

/// All dtypes, views of shared storages, modules, several files, and chunks of 2 x 3 ranks.
const EQUAL: [&str; 7] = ["dtypes", "views", "module", "sharded", "dcp", "expanded", "nested"];

#[test]
fn tensors_equal_those_that_pytorch_loads() {
    for name in EQUAL {
        let folder = fixtures().join(name);
        let found = tensors(&open(&folder)).unwrap();
        let expected = expected(&folder);
        assert!(found.keys().eq(expected.keys()), "{name}: {:?}", found.keys());
        for (tensor, found) in &found {
            assert_eq!(*found, expected[tensor], "{name}: {tensor}");
        }
    }
}

/// The comparison above fails for a changed element of any tensor.
#[test]
fn the_comparison_sees_a_changed_byte() {
    let place = copy("sharded");
    let path = place.path().join("pytorch_model-00002-of-00002.bin");
    let mut bytes = fs::read(&path).unwrap();
    // The bias 3.0.
    let at = bytes.windows(4).rposition(|it| it == 3f32.to_le_bytes()).unwrap();
    bytes[at] ^= 1;
    fs::write(&path, bytes).unwrap();
    let expected = expected(&fixtures().join("sharded"));
    assert_ne!(tensors(&open(place.path())).unwrap(), expected);
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

/// All checksums match. If any byte of an entry changes, the checksum of that entry fails and no
/// other one; the error names the entry, and exactly the tensors that its bytes change. No checksum
/// covers the other bytes of a file.
#[test]
fn checksums_show_every_changed_byte() {
    for (name, file) in [
        ("nested", "pytorch_model.bin"),
        ("sharded", "pytorch_model-00002-of-00002.bin"),
        ("dcp", "__4_0.distcp"),
    ] {
        let place = copy(name);
        let path = place.path().join(file);
        let original = fs::read(&path).unwrap();
        let write = |at: usize, byte: u8| {
            let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.write_all_at(&[byte], at as u64).unwrap();
        };
        let (model, intact) = (open(place.path()), tensors(&open(place.path())).unwrap());
        let checksums = model.checksums().unwrap();
        assert_eq!(checksums.without, 0);
        for entry in &checksums.entries {
            model.verify(entry).unwrap();
        }

        // The tensors that the bytes of an entry change, and those that its error names.
        let mut stored: BTreeMap<String, [BTreeSet<String>; 2]> = BTreeMap::new();
        for (at, byte) in original.iter().enumerate() {
            let entries = checksums.entries.iter();
            let mut entries = entries.filter(|it| it.path() == path);
            let entry = entries.find(|it| it.range().contains(&(at as u64)));
            write(at, byte ^ 0x10);
            let failed = checksums.entries.iter().filter_map(|it| model.verify(it).err());
            let failed: Vec<Error> = failed.collect();
            if let Some(entry) = entry {
                let [error] = &failed[..] else {
                    panic!("{name}, byte {at} of {}: {failed:?}", entry.name());
                };
                let (error, named) = (error.to_string(), entry.name());
                let start = format!(
                    "{} cannot be read as a model of PyTorch: its zip entry `{named}` is damaged: ",
                    path.display()
                );
                assert!(error.starts_with(&start), "byte {at}: {error}");
                let listed = error.split_once("; it stores `").map_or("", |it| it.1);
                let listed = listed.trim_end_matches('`').split("`, `").filter(|it| !it.is_empty());
                if named.contains("/data/") {
                    let changed = tensors(&open(place.path())).unwrap();
                    let changed = changed.into_iter().filter(|(name, it)| intact[name] != *it);
                    let key = format!("{named} at {}", entry.range().start);
                    let [of_bytes, of_error] = stored.entry(key).or_default();
                    of_bytes.extend(changed.map(|(name, _)| name));
                    of_error.extend(listed.map(str::to_owned));
                }
            } else {
                assert!(failed.is_empty(), "{name}, byte {at}: {failed:?}");
            }
            write(at, *byte);
        }
        assert!(!stored.is_empty());
        for (entry, [of_bytes, of_error]) in stored {
            assert_eq!(of_bytes, of_error, "{name}: {entry}");
        }
    }
}

/// A changed byte of a pickle is damage, although it may read as a value that is not supported.
#[test]
fn changed_pickles_are_damage() {
    for (name, file) in [("nested", "pytorch_model.bin"), ("dcp", "__4_0.distcp")] {
        let place = copy(name);
        let path = place.path().join(file);
        let original = fs::read(&path).unwrap();
        let entries = open(place.path()).checksums().unwrap().entries;
        let mut pickles = entries.iter().filter(|it| it.path() == path);
        let pickle = pickles.find(|it| it.name().ends_with("/data.pkl")).unwrap();
        for at in pickle.range() {
            let mut bytes = original.clone();
            bytes[at as usize] ^= 2;
            fs::write(&path, bytes).unwrap();
            let error = torch::open(place.path(), Links::Refuse).unwrap_err();
            assert_eq!(error.kind(), Kind::Malformed);
            let error = error.to_string();
            assert!(error.contains("the content has CRC-32 "), "{name}, byte {at}: {error}");
        }
    }
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
    let start = |name: &str| format!("{name} is not supported: ");
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
    tensor("overlapping.bin", "its elements overlap in memory; save tensor.contiguous()");
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
