//! Errors of loading name the tensor and leave the model unchanged. Some errors make the GPU
//! unusable, so these tests run in separate processes.

use std::sync::atomic::{AtomicBool, Ordering};

use meshgrad_ckpt::Dtype;
use meshgrad_load::PinnedBound;
use meshgrad_models::Decoder;
use meshgrad_models::hf::{Experts, Loader};
use meshgrad_runtime::{DType, Device, ErrorKind, OutOfMemoryReport, Shape, UninitTensor, ops};

use crate::folders::{CONFIGS, Folder, config};
use crate::{COMPARING, assert_without_values, fill, gpu, rerun};

/// The failure that a process tests.
const FAILURE: &str = "MESHGRAD_TEST_FAILURE";

fn is_for(failure: &str) -> bool {
    std::env::var(FAILURE).is_ok_and(|it| it == failure)
}

fn emulated() -> bool {
    gpu().is_some_and(|gpu| gpu.to_string().starts_with("emulator"))
}

/// The model is larger than the memory of the emulated GPU, 2 MiB.
#[test]
fn out_of_memory_names_the_tensor() {
    if !is_for("memory") {
        if emulated() {
            let variables = [(FAILURE, "memory"), ("MESHGRAD_EMULATOR_MEMORY", "2MiB")];
            rerun("failures::out_of_memory_names_the_tensor", &variables);
        }
        return;
    }
    let large = CONFIGS[0].1.replace("700", "70000");
    let folder = Folder::new(&large, Experts::OneByOne, Dtype::BF16);
    let (model, filled) = fill(folder.path(), 1 << 20, &Device::emulator(0).unwrap());
    let error = filled.unwrap_err();
    assert!(error.details::<OutOfMemoryReport>().is_some(), "{error}");
    let expected = "`model.embed_tokens.weight` was not loaded: ";
    assert!(error.to_string().starts_with(expected), "{error}");
    assert_without_values(&model);
}

/// An unrelated kernel fails while the files are read, so the next copy or a pending one fails too.
#[test]
fn a_failed_copy_names_the_tensor() {
    if !is_for("copy") {
        if emulated() {
            for streams in ["ordered", "random:5"] {
                let variables = [(FAILURE, "copy"), ("MESHGRAD_EMULATOR_STREAMS", streams)];
                rerun("failures::a_failed_copy_names_the_tensor", &variables);
            }
        }
        return;
    }
    let folder = Folder::new(CONFIGS[1].1, Experts::OneByOne, Dtype::F32);
    let gpu = Device::emulator(0).unwrap();
    let started = AtomicBool::new(false);
    let fail = |read: u64, all: u64| {
        if read > all / 2 && !started.swap(true, Ordering::Relaxed) {
            // The emulator aborts a kernel that computes addresses from uninitialized memory.
            let indices = UninitTensor::new(&gpu, Shape::new(&[100]).unwrap(), DType::I64);
            let numbers = ops::full(&gpu, &[10], DType::F32, 1.0).unwrap();
            let _ = ops::index_select(&numbers, 0, &indices.unwrap().finish());
        }
    };
    let model = Decoder::new(&config(CONFIGS[1].1)).unwrap();
    let loader = Loader::new(folder.path()).pinned(64 << 10).progress(&fail);
    let error = loader.fill(&model, &gpu).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Device, "{error}");
    let message = error.to_string();
    let (tensor, cause) = message.split_once(" was not loaded: ").unwrap();
    assert!(model.params_named(tensor.trim_matches('`')), "{tensor}");
    assert!(cause.contains("uninitialized-global"), "{cause}");
    assert_without_values(&model);
}

trait Named {
    fn params_named(&self, name: &str) -> bool;
}

impl Named for Decoder {
    fn params_named(&self, name: &str) -> bool {
        use meshgrad_autograd::Module;
        self.params().iter().any(|param| param.name() == name)
    }
}

/// Truncating a file while it is read is an error, and no thread waits forever for memory.
#[test]
fn truncating_a_file_during_loading_is_an_error() {
    let Some(gpu) = gpu() else { return };
    for device in [gpu, Device::cpu()] {
        let folder = Folder::new(CONFIGS[1].1, Experts::OneByOne, Dtype::F32);
        let path = folder.path().join("model.safetensors");
        let truncate = |_: u64, _: u64| {
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.set_len(20_000).unwrap();
        };
        let model = Decoder::new(&config(CONFIGS[1].1)).unwrap();
        let loader = Loader::new(folder.path()).pinned(64 << 10).progress(&truncate);
        // The CPU's windows are large enough to read the file before it is truncated.
        match loader.fill(&model, &device) {
            Ok(_) => assert!(!device.is_gpu()),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Malformed, "{error}");
                assert_without_values(&model);
            }
        }
        assert!([0, COMPARING].contains(&device.pinned_memory_stats().live));
    }
}

/// If the bound is too small, the error states a sufficient one.
#[test]
fn an_insufficient_bound_names_a_sufficient_one() {
    let Some(gpu) = gpu() else { return };
    let folder = Folder::new(CONFIGS[0].1, Experts::OneByOne, Dtype::BF16);
    for bound in [0, 1000] {
        let (model, filled) = fill(folder.path(), bound, &gpu);
        let error = filled.unwrap_err();
        let PinnedBound { needed, bound: was } = *error.details().expect("a PinnedBound");
        assert_eq!(was, bound);
        assert_without_values(&model);
        fill(folder.path(), needed, &gpu).1.unwrap();
    }
}
