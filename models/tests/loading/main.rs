//! Loading to a GPU gives the same bits as loading to the CPU and pins no more memory than the
//! bound. An error leaves the model unchanged.

mod failures;
mod folders;

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use folders::{CONFIGS, Folder, config};
use meshgrad_autograd::Module;
use meshgrad_ckpt::Dtype;
use meshgrad_models::hf::{self, Experts, Filled, Loader};
use meshgrad_models::{Decoder, Error, Result};
use meshgrad_runtime::{Device, MemoryStats, with_stream};

/// The machine's GPU with `MESHGRAD_TEST_GPU=cuda`, otherwise the emulator's, which cargo builds
/// with the tests.
fn gpu() -> Option<Device> {
    let device = match std::env::var("MESHGRAD_TEST_GPU").as_deref() {
        Ok("cuda") => Device::cuda(0),
        Ok(other) => panic!("MESHGRAD_TEST_GPU={other}: expected `cuda`"),
        Err(_) if Device::emulator_is_built() => Device::emulator(0),
        Err(_) => {
            eprintln!("no emulator: tested on the CPU only");
            return None;
        }
    };
    Some(device.unwrap_or_else(|error| panic!("{error}")))
}

/// Runs one test of this program in a new process with these environment variables, on the
/// emulator.
fn rerun(test: &str, variables: &[(&str, &str)]) {
    let run = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env_remove("MESHGRAD_TEST_GPU")
        .env("MESHGRAD_EMULATOR_QUIET", "1")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let output = [run.stdout, run.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
    let output = output.concat();
    let passed = run.status.success() && output.contains("1 passed");
    assert!(passed, "{test} with {variables:?}: {output}");
}

/// The name and the bits of each parameter.
fn bits(model: &Decoder) -> Vec<(String, Vec<u32>)> {
    let of = |param: meshgrad_autograd::Param| {
        let value = param.value().unwrap().to_vec::<f32>().unwrap();
        let bits = value.iter().map(|it| it.to_bits()).collect();
        (param.name().to_owned(), bits)
    };
    model.params().into_iter().map(of).collect()
}

/// Bounds on pinned memory, from more than all tensors need to less than a row of stacked experts.
const BOUNDS: [u64; 4] = [256 << 20, 1 << 20, 128 << 10, 24 << 10];

/// Pinned bytes of the two buffers through which values are copied back for comparison. They stay
/// pinned.
const COMPARING: usize = 8 << 20;

/// For all configurations, both expert layouts and both dtypes, both devices load the same
/// parameters. Pinned memory stays within the bound and is freed afterwards.
#[test]
fn loaded_parameters_are_the_same_on_all_devices() {
    let Some(gpu) = gpu() else { return };
    for (name, text) in CONFIGS {
        for (experts, dtype) in [
            (Experts::OneByOne, Dtype::F32),
            (Experts::OneByOne, Dtype::BF16),
            (Experts::Fused, Dtype::F32),
            (Experts::Fused, Dtype::BF16),
        ] {
            let folder = Folder::new(text, experts, dtype);
            let expected = hf::load(folder.path(), &Device::cpu()).unwrap();
            for bound in BOUNDS {
                gpu.reset_peak();
                let loaded = Loader::new(folder.path()).pinned(bound).load(&gpu);
                let loaded = loaded.unwrap_or_else(|error| panic!("{name}: {error}"));
                assert_bounded(&gpu, bound);
                assert_eq!(loaded.experts, expected.experts);
                let same = bits(&loaded.model) == bits(&expected.model);
                assert!(same, "{name}, {experts:?}, {dtype}, {bound} bytes pinned");
            }
        }
    }
}

/// Asserts that memory was pinned within the bound and then freed.
fn assert_bounded(gpu: &Device, bound: u64) {
    let MemoryStats { live, peak, .. } = gpu.pinned_memory_stats();
    assert!(live == 0 || live == COMPARING, "{live} bytes are still pinned");
    let peak = (peak - live) as u64;
    assert!((1..=bound).contains(&peak), "{peak} of {bound}");
}

/// Loading gives the same result if the GPU copies as late as events allow. This detects buffers
/// that are refilled too early.
#[test]
fn results_do_not_depend_on_the_time_of_copies() {
    if gpu().is_none_or(|gpu| gpu.to_string().starts_with("cuda")) {
        return;
    }
    for seed in ["random:1", "random:2"] {
        let variables = [("MESHGRAD_EMULATOR_STREAMS", seed)];
        rerun("loaded_parameters_are_the_same_on_all_devices", &variables);
        rerun("loading_in_a_stream_scope", &variables);
    }
}

/// Loading is complete when it returns, regardless of the stream that the tensors were allocated
/// on.
#[test]
fn loading_in_a_stream_scope() {
    let Some(gpu) = gpu() else { return };
    let folder = Folder::new(CONFIGS[0].1, Experts::OneByOne, Dtype::F32);
    let side = gpu.stream().unwrap();
    let loaded = with_stream(&side, || {
        let loaded = hf::load(folder.path(), &gpu)?;
        Ok::<_, Error>(bits(&loaded.model))
    });
    let expected = hf::load(folder.path(), &Device::cpu()).unwrap();
    assert!(loaded.unwrap().wait().unwrap() == bits(&expected.model));
}

/// On the CPU each tensor is read in place: borrowed once, without extra memory.
#[test]
fn the_cpu_needs_no_extra_memory() {
    for (_, text) in CONFIGS {
        let folder = Folder::new(text, Experts::OneByOne, Dtype::BF16);
        let device = Device::cpu();
        let loaded = hf::load(folder.path(), &device).unwrap();
        for param in loaded.model.params() {
            assert_eq!(param.value().unwrap().version(), 1, "{}", param.name());
        }
        let memory = device.memory_stats();
        assert_eq!(memory.peak, memory.live);
        assert_eq!(device.pinned_memory_stats().peak, 0);
    }
}

/// A model saves the same bytes from a GPU and from the CPU.
#[test]
fn saved_bytes_are_the_same_on_all_devices() {
    let Some(gpu) = gpu() else { return };
    for (name, text) in CONFIGS {
        let folder = Folder::new(text, Experts::OneByOne, Dtype::F32);
        for experts in [Experts::OneByOne, Experts::Fused] {
            let [here, there] = [&Device::cpu(), &gpu].map(|device| {
                let model = hf::load(folder.path(), device).unwrap().model;
                folders::saved(&model, experts)
            });
            assert!(here == there, "{name}, {experts:?}");
        }
    }
}

/// Progress starts above zero and ends at the total.
#[test]
fn progress_is_reported() {
    let folder = Folder::new(CONFIGS[1].1, Experts::OneByOne, Dtype::F32);
    for device in [Some(Device::cpu()), gpu()].into_iter().flatten() {
        let reports = Mutex::new(Vec::new());
        let report = |read, all| reports.lock().unwrap().push((read, all));
        let loader = Loader::new(folder.path()).pinned(128 << 10).progress(&report);
        let model = Decoder::new(&config(CONFIGS[1].1)).unwrap();
        loader.fill(&model, &device).unwrap();

        let reports = reports.into_inner().unwrap();
        let all = folder.bytes();
        assert!(reports.iter().all(|it| it.1 == all && (1..=all).contains(&it.0)));
        assert!(reports.iter().any(|it| it.0 == all));
    }
}

/// Loading to a meta device is an error, and the model stays without values.
#[test]
fn loading_to_a_meta_device_is_an_error() {
    let folder = Folder::new(CONFIGS[0].1, Experts::OneByOne, Dtype::F32);
    let devices = [Some(Device::cpu()), gpu()].into_iter().flatten();
    for device in devices.map(|device| Device::meta(device.properties())) {
        let error = hf::load(folder.path(), &device).err().unwrap();
        let expected = format!("was not loaded: tensors on {device} have shapes but no values");
        assert!(error.to_string().contains(&expected), "{error}");
    }
}

fn assert_without_values(model: &Decoder) {
    assert!(model.params().iter().all(|param| param.value().is_err()));
}

fn fill(dir: &Path, bound: u64, gpu: &Device) -> (Decoder, Result<Filled>) {
    let model = Decoder::new(&*hf::read_config(dir).unwrap()).unwrap();
    let filled = Loader::new(dir).pinned(bound).fill(&model, gpu);
    (model, filled)
}
