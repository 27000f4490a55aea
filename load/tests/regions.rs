//! Loading to a GPU gives the same tensors as loading to the CPU, within the bound on pinned
//! memory.

use half::bf16;
use meshgrad_ckpt::graph::{Expr, Graph};
use meshgrad_ckpt::plan::LoadRequest;
use meshgrad_ckpt::{Dtype, FileWriter, Folder};
use meshgrad_load::{LoadOptions, PinnedBound, load};
use meshgrad_runtime::{DType, Device, Kind, Tensor};

const SHAPE: [usize; 3] = [6, 50, 40];

/// The machine's GPU with `MESHGRAD_TEST_GPU=cuda`, otherwise the emulator's.
fn gpu() -> Option<Device> {
    let device = match std::env::var("MESHGRAD_TEST_GPU").as_deref() {
        Ok("cuda") => Device::cuda(0),
        Ok(other) => panic!("MESHGRAD_TEST_GPU={other}: expected `cuda`"),
        Err(_) if Device::emulator_is_built() => Device::emulator(0),
        Err(_) => {
            eprintln!("skipped: the emulator is not built");
            return None;
        }
    };
    Some(device.unwrap_or_else(|error| panic!("{error}")))
}

/// One tensor whose elements are all different.
fn folder() -> (tempfile::TempDir, Folder) {
    let temp = tempfile::tempdir().unwrap();
    let mut file = FileWriter::new();
    file.add("x", Dtype::F32, &SHAPE).unwrap();
    let count: usize = SHAPE.iter().product();
    let values = (0..count).flat_map(|it| (it as f32).to_le_bytes());
    let bytes: Vec<u8> = values.collect();
    let path = temp.path().join("model.safetensors");
    file.save(&path, |_, data| data.append(&bytes)).unwrap();
    let folder = Folder::open(temp.path()).unwrap();
    (temp, folder)
}

/// Regions of `x`: whole, partial, transposed, cast, and empty.
fn requests(graph: &mut Graph) -> Vec<(LoadRequest, DType)> {
    let x = graph.source("x", Dtype::F32, &SHAPE.map(|it| it as u64)).unwrap();
    let transposed = graph.transpose(x, 0, 2).unwrap();
    let narrow = graph.cast(x, Dtype::BF16).unwrap();
    let part =
        |name: &str, of: Expr, dtype| (LoadRequest::new(name, of, [1..5, 7..50, 0..6]), dtype);
    vec![
        (LoadRequest::all("all", graph, x), DType::F32),
        part("part", x, DType::F32),
        part("transposed", transposed, DType::F32),
        part("narrow", narrow, DType::BF16),
        (LoadRequest::new("none", x, [0..6, 3..3, 0..40]), DType::F32),
    ]
}

fn tensors(device: &Device, requests: &[(LoadRequest, DType)]) -> Vec<Tensor> {
    let tensor = |(request, dtype): &(LoadRequest, DType)| {
        let shape: Vec<usize> = request.region.iter().map(|it| it.clone().count()).collect();
        Tensor::zeros(device, &shape, *dtype, Kind::Cache).unwrap()
    };
    requests.iter().map(tensor).collect()
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    match tensor.dtype() {
        DType::BF16 => {
            let values = tensor.to_vec::<bf16>().unwrap();
            values.iter().map(|it| it.to_bits().into()).collect()
        }
        _ => {
            let values = tensor.to_vec::<f32>().unwrap();
            values.iter().map(|it| it.to_bits()).collect()
        }
    }
}

/// For any bound, the GPU loads the same values as the CPU and pins no more than the bound, even if
/// tensors are larger than the bound and the file stores them in another order. If the bound is too
/// small for a single chunk, the error names a sufficient bound.
#[test]
fn loads_stay_within_the_bound_or_name_a_sufficient_one() {
    let Some(gpu) = gpu() else { return };
    let (_temp, folder) = folder();
    let mut graph = Graph::new();
    let requests = requests(&mut graph);
    let load_to = |device: &Device, pinned: u64| {
        let tensors = tensors(device, &requests);
        let pairs = requests.iter().zip(&tensors);
        let pairs: Vec<(LoadRequest, &Tensor)> =
            pairs.map(|(it, tensor)| (it.0.clone(), tensor)).collect();
        let options = LoadOptions { pinned, ..LoadOptions::default() };
        load(&folder, &graph, &pairs, &options).map(|_| tensors)
    };
    let bits_of = |tensors: &[Tensor]| tensors.iter().map(bits).collect::<Vec<_>>();
    let expected = bits_of(&load_to(&Device::cpu(), 0).unwrap());
    let (mut loaded_count, mut rejected) = (0, 0);
    let mut bounds = vec![4 << 10, 8 << 10, 40 << 10, 100 << 10, 300_000, 1 << 20, 64 << 20];
    while let Some(bound) = bounds.pop() {
        let before = gpu.pinned_memory_stats().live;
        gpu.reset_peak();
        let loaded = load_to(&gpu, bound);
        let peak = gpu.pinned_memory_stats().peak - before;
        assert!(peak as u64 <= bound, "{peak} of {bound}");
        assert_eq!(gpu.pinned_memory_stats().live, before);
        match loaded {
            Ok(tensors) => {
                assert!(bits_of(&tensors) == expected, "{bound}");
                loaded_count += 1;
            }
            Err(error) => {
                let too_small: Option<&PinnedBound> = error.details();
                let needed = too_small.unwrap_or_else(|| panic!("{bound}: {error}")).needed;
                assert!(needed > bound && bound < 8 << 10, "{needed} for {bound}");
                bounds.push(needed);
                rejected += 1;
            }
        }
    }
    assert_eq!((loaded_count, rejected), (7, 1));
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let Some(gpu) = gpu() else { return };
    let (_temp, folder) = folder();
    let mut graph = Graph::new();
    let x = graph.source("x", Dtype::F32, &SHAPE.map(|it| it as u64)).unwrap();
    let request = |name: &str| LoadRequest::new(name, x, [0..6, 0..50, 0..40]);
    let load_both = |first: &Tensor, second: &Tensor| {
        let pairs = [(request("a"), first), (request("b"), second)];
        let loaded = load(&folder, &graph, &pairs, &LoadOptions::default());
        loaded.unwrap_err().to_string()
    };
    let tensor = |device: &Device, shape: &[usize], kind| {
        Tensor::zeros(device, shape, DType::F32, kind).unwrap()
    };
    let fits = tensor(&gpu, &SHAPE, Kind::Cache);
    let elsewhere = tensor(&Device::cpu(), &SHAPE, Kind::Cache);
    let error = load_both(&fits, &elsewhere);
    assert!(
        error.starts_with("`b` was not loaded: load: operands are on different devices"),
        "{error}"
    );
    let error = load_both(&fits, &tensor(&gpu, &[6, 50], Kind::Cache));
    assert!(error.starts_with("target `b` has 48000 bytes"), "{error}");
    let error = load_both(&fits, &tensor(&gpu, &SHAPE, Kind::Value));
    assert!(error.starts_with("`b` was not loaded: fill_from_pinned"), "{error}");
}
