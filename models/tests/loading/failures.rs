//! An error is told, names the tensor, and leaves the model as it was. A GPU is of no use after
//! some of them: they have a process of their own.

use std::sync::atomic::{AtomicBool, Ordering};

use meshgrad_ckpt::Dtype;
use meshgrad_load::Error as LoadError;
use meshgrad_models::hf::{Experts, Loader};
use meshgrad_models::{Error, Qwen3};
use meshgrad_runtime::{CudaError, DType, Device, Error as RuntimeError, Shape, UninitTensor, ops};

use crate::folders::{CONFIGS, Folder, config};
use crate::{COMPARING, again, assert_without_values, fill, gpu};

/// Says which of the failures a process is for.
const FAILURE: &str = "MESHGRAD_TEST_FAILURE";

fn is_for(failure: &str) -> bool {
    std::env::var(FAILURE).is_ok_and(|it| it == failure)
}

fn emulated() -> bool {
    gpu().is_some_and(|gpu| gpu.to_string().starts_with("emulator"))
}

/// A model of parameters beyond 2 MiB, of which an emulated GPU may have no more.
#[test]
fn memory_that_runs_out_is_told_with_the_tensor() {
    if !is_for("memory") {
        if emulated() {
            let variables = [(FAILURE, "memory"), ("MESHGRAD_EMULATOR_MEMORY", "2MiB")];
            again(
                "failures::memory_that_runs_out_is_told_with_the_tensor",
                &variables,
            );
        }
        return;
    }
    let large = CONFIGS[0].1.replace("700", "70000");
    let folder = Folder::new(&large, Experts::OneByOne, Dtype::BF16);
    let (model, filled) = fill(folder.path(), 1 << 20, &Device::emulator(0).unwrap());
    let error = filled.unwrap_err();
    let out_of_memory =
        |source: &RuntimeError| matches!(source, RuntimeError::Cuda(CudaError::OutOfMemory { .. }));
    assert!(
        matches!(&error, Error::Load(LoadError::NotLoaded { tensor, source })
            if tensor == "model.embed_tokens.weight" && out_of_memory(source)),
        "{error}"
    );
    assert_without_values(&model);
}

/// A kernel of somebody else fails while the files are read: so does the next copy, or one that was
/// under way.
#[test]
fn a_copy_that_fails_is_told_with_the_tensor() {
    if !is_for("copy") {
        if emulated() {
            for streams in ["ordered", "random:5"] {
                let variables = [(FAILURE, "copy"), ("MESHGRAD_EMULATOR_STREAMS", streams)];
                again(
                    "failures::a_copy_that_fails_is_told_with_the_tensor",
                    &variables,
                );
            }
        }
        return;
    }
    let folder = Folder::new(CONFIGS[1].1, Experts::OneByOne, Dtype::F32);
    let gpu = Device::emulator(0).unwrap();
    let begun = AtomicBool::new(false);
    let fail = |read: u64, all: u64| {
        if read > all / 2 && !begun.swap(true, Ordering::Relaxed) {
            // The emulator ends a kernel that reads what nobody wrote, now or later.
            let unwritten = UninitTensor::new(&gpu, Shape::new(&[100]).unwrap(), DType::F32);
            let _ = ops::neg(&unwritten.unwrap().finish());
        }
    };
    let model = Qwen3::new(&config(CONFIGS[1].1)).unwrap();
    let loader = Loader::new(folder.path()).pinned(64 << 10).progress(&fail);
    let error = loader.fill(&model, &gpu).unwrap_err();
    let Error::Load(LoadError::NotLoaded {
        tensor,
        source: RuntimeError::Cuda(source),
    }) = error
    else {
        panic!("{error}");
    };
    assert!(model.params_named(&tensor), "{tensor}");
    assert!(
        source.to_string().contains("uninitialized-global"),
        "{source}"
    );
    assert_without_values(&model);
}

trait Named {
    fn params_named(&self, name: &str) -> bool;
}

impl Named for Qwen3 {
    fn params_named(&self, name: &str) -> bool {
        use meshgrad_autograd::Module;
        self.params().iter().any(|param| param.name() == name)
    }
}

/// A file is cut while it is read: no thread waits for memory that will never come.
#[test]
fn a_file_that_is_cut_meanwhile() {
    let Some(gpu) = gpu() else { return };
    for device in [gpu, Device::cpu()] {
        let folder = Folder::new(CONFIGS[1].1, Experts::OneByOne, Dtype::F32);
        let path = folder.path().join("model.safetensors");
        let cut = |_: u64, _: u64| {
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.set_len(20_000).unwrap();
        };
        let model = Qwen3::new(&config(CONFIGS[1].1)).unwrap();
        let loader = Loader::new(folder.path()).pinned(64 << 10).progress(&cut);
        // What was read at once before is all there is for the CPU's large windows.
        match loader.fill(&model, &device) {
            Ok(_) => assert!(!device.is_gpu()),
            Err(error) => {
                assert!(
                    matches!(error, Error::Load(LoadError::Checkpoint(_))),
                    "{error}"
                );
                assert_without_values(&model);
            }
        }
        assert!([0, COMPARING].contains(&device.pinned_memory_stats().live));
    }
}

/// A bound that nothing can be loaded within tells one that is enough.
#[test]
fn a_bound_that_is_too_small() {
    let Some(gpu) = gpu() else { return };
    let folder = Folder::new(CONFIGS[0].1, Experts::OneByOne, Dtype::BF16);
    for bound in [0, 1000] {
        let (model, filled) = fill(folder.path(), bound, &gpu);
        let error = filled.unwrap_err();
        let Error::Load(LoadError::PinnedBound { needed, bound: was }) = error else {
            panic!("{error}");
        };
        assert_eq!(was, bound);
        assert_without_values(&model);
        fill(folder.path(), needed, &gpu).1.unwrap();
    }
}
