//! Sharded models: each rank reads its regions and no other bytes, and all ranks together write the
//! folder that one rank writes.

mod world;

use std::path::Path;

use meshgrad_autograd::Module;
use meshgrad_ckpt::exec::Stats;
use meshgrad_ckpt::ranks::{Ranks, Saved, ShardedSnapshot};
use meshgrad_ckpt::{Folder, Snapshot};
use meshgrad_load::LoadOptions;
use meshgrad_mesh::{Mesh, Placement, Reduction, Sharding};
use meshgrad_models::folder::{self, NamedTensor};
use meshgrad_models::hf::{self, Experts, Loader};
use meshgrad_models::{Decoder, families::qwen3::Qwen3Config};
use meshgrad_runtime::{DType, Device, Kind, Tensor};
use world::{CONFIGS, Layout, Named, config, files, part, save_whole, values};

const EXPERTS: [Experts; 2] = [Experts::OneByOne, Experts::Fused];

/// The CPU, and the emulated GPU if it is built.
fn devices() -> Vec<Device> {
    let gpu = Device::emulator_is_built().then(|| Device::emulator(0).unwrap());
    [Some(Device::cpu()), gpu].into_iter().flatten().collect()
}

/// A rank's model, loaded from a folder. Reads no gaps.
fn loaded(
    config: &Qwen3Config,
    layout: &Layout,
    rank: usize,
    dir: &Path,
    device: &Device,
) -> (Decoder, Stats) {
    let model = Decoder::new(config).unwrap();
    layout.shard(&model, rank);
    let filled = Loader::new(dir).max_gap(0).fill(&model, device).unwrap();
    (model, filled.stats)
}

/// Checks that a rank's module has its regions of a whole module, and returns their bytes.
fn assert_has_regions(
    module: &impl Module,
    whole: &[(String, Tensor)],
    layout: &Layout,
    rank: usize,
) -> u64 {
    let mut bytes = 0;
    for ((name, value), (of_whole, whole)) in values(module).iter().zip(whole) {
        assert_eq!(name, of_whole);
        let region = layout.region(whole.shape(), rank);
        let local = value.local().to_vec::<f32>().unwrap();
        assert!(local == part(whole, &region), "{name} on rank {rank}, {layout:?}");
        let stated = value.sharding().map(ToString::to_string);
        assert_eq!(stated, Some(layout.sharding(whole.shape()).to_string()));
        bytes += 4 * region.elements() as u64;
    }
    bytes
}

/// For all models, layouts of experts and meshes, each rank loads the shards of the whole model and
/// reads exactly their bytes.
#[test]
fn a_rank_reads_only_its_regions() {
    for text in CONFIGS {
        let config = config(text);
        let whole = Decoder::materialized(&config, &Device::cpu(), 7).unwrap();
        let expected = values(&whole);
        for experts in EXPERTS {
            let run = tempfile::tempdir().unwrap();
            save_whole(&whole, experts, run.path(), "whole");
            let dir = run.path().join("whole");
            for layout in Layout::all() {
                for rank in 0..layout.mesh.len() {
                    let (model, stats) = loaded(&config, &layout, rank, &dir, &Device::cpu());
                    let bytes = assert_has_regions(&model, &expected, &layout, rank);
                    assert_eq!(stats.read_bytes, bytes, "rank {rank}, {layout:?}");
                    assert_eq!(stats.written_bytes, bytes);
                }
            }
        }
    }
}

/// Experts [E, 2, F, H] that are sharded over F are read from one tensor per expert, gate and up
/// apart: every rank reads its rows of each, and no other bytes.
#[test]
fn features_of_experts_are_read_from_each_tensor() {
    let config = config(CONFIGS[2]);
    let whole = Decoder::materialized(&config, &Device::cpu(), 7).unwrap();
    let run = tempfile::tempdir().unwrap();
    save_whole(&whole, Experts::OneByOne, run.path(), "whole");
    let mesh = Mesh::new(&[3], &["tp"]).unwrap();
    let model = Decoder::new(&config).unwrap();
    let is_up = |name: &str| name.ends_with(".experts.gate_up_proj");
    for param in model.params() {
        let placement = match is_up(param.name()) {
            true => Placement::shard(2),
            false => Placement::ragged(0, vec![0, 0, param.shape()[0]]),
        };
        let sharding = Sharding::new(&mesh, [("tp", placement)], param.shape()).unwrap();
        param.shard(&sharding, 1).unwrap();
    }
    let loader = Loader::new(&run.path().join("whole")).max_gap(0).fill(&model, &Device::cpu());
    // Two layers of five experts, gate and up, two of six features, eight inputs.
    assert_eq!(loader.unwrap().stats.read_bytes, 2 * 5 * 2 * 2 * 8 * 4);
    for (param, whole) in model.params().into_iter().zip(whole.params()) {
        let value = param.value().unwrap();
        assert_eq!(value.elements() > 0, is_up(param.name()));
        if is_up(param.name()) {
            assert_eq!(value.shape().to_vec(), [5, 2, 2, 8]);
            let region = value.sharding().unwrap().region(1).unwrap();
            let expected = part(&whole.value().unwrap(), &region);
            assert_eq!(value.local().to_vec::<f32>().unwrap(), expected);
        }
    }
}

/// Saves a rank's model as a Hugging Face folder.
fn save_shards(
    model: &Decoder,
    experts: Experts,
    (parent, name): (&Path, &str),
    ranks: &mut Ranks<'_>,
) -> Saved {
    let params = folder::params(model).unwrap();
    let mut snapshot = ShardedSnapshot::new(parent, name);
    let added = hf::add_shards(model, &params, experts, &mut snapshot, "");
    ShardedSnapshot::save(added.map(|()| snapshot), ranks).unwrap()
}

/// For all models, layouts of experts and meshes, the ranks write the folder that one rank writes:
/// all files, with the manifest. A folder saved on one mesh is loaded on another.
#[test]
fn ranks_write_the_folder_of_one_rank() {
    for text in CONFIGS {
        let config = config(text);
        let whole = Decoder::materialized(&config, &Device::cpu(), 7).unwrap();
        for experts in EXPERTS {
            let run = tempfile::tempdir().unwrap();
            save_whole(&whole, experts, run.path(), "0");
            let expected = files(&run.path().join("0"));
            assert!(expected.contains_key("manifest.json") && expected.contains_key("config.json"));
            for (number, layout) in Layout::all().enumerate() {
                let from = run.path().join(number.to_string());
                let to = (number + 1).to_string();
                layout.run(&|mut ranks| {
                    let (model, _) = loaded(&config, &layout, ranks.rank(), &from, &Device::cpu());
                    save_shards(&model, experts, (run.path(), &to), &mut ranks);
                });
                assert!(files(&run.path().join(to)) == expected, "{experts:?}, {layout:?}");
            }
        }
    }
}

/// The same for a module with buffers under its own names, on all devices.
#[test]
fn modules_are_saved_and_loaded_by_name() {
    let whole = Named::materialized();
    let expected = values(&whole);
    let run = tempfile::tempdir().unwrap();
    let dir = run.path().join("whole");
    folder::save(&whole, &dir).unwrap();
    for device in devices() {
        for layout in Layout::all() {
            let saved = run.path().join("sharded");
            let written = layout.run(&|mut ranks| {
                let module = Named::new();
                layout.shard(&module, ranks.rank());
                folder::load(&module, &dir, &device).unwrap();
                assert_has_regions(&module, &expected, &layout, ranks.rank());
                folder::save_sharded(&module, &saved, &mut ranks).unwrap().written_bytes
            });
            assert!(files(&saved) == files(&dir), "{device}, {layout:?}");
            let data = std::fs::metadata(dir.join("model.safetensors")).unwrap().len();
            assert_eq!(written.iter().sum::<u64>(), data);
            std::fs::remove_dir_all(saved).unwrap();
        }
    }
}

/// Loading to a GPU reads the same regions through pinned memory.
#[test]
fn gpus_load_the_same_regions() {
    let config = config(CONFIGS[2]);
    let whole = Decoder::materialized(&config, &Device::cpu(), 7).unwrap();
    let expected = values(&whole);
    let run = tempfile::tempdir().unwrap();
    save_whole(&whole, Experts::OneByOne, run.path(), "whole");
    for device in devices() {
        for layout in Layout::all().filter(|layout| layout.mesh.len() == 4) {
            let dir = run.path().join("whole");
            let (model, stats) = loaded(&config, &layout, 2, &dir, &device);
            let bytes = assert_has_regions(&model, &expected, &layout, 2);
            assert_eq!(stats.read_bytes, bytes, "{device}, {layout:?}");
        }
    }
}

/// Parameters that all ranks have are written by one of them each, so that all write about equally
/// many bytes: at most the mean, the largest parameter and the header.
#[test]
fn replicas_share_the_writing() {
    let config = config(CONFIGS[2]);
    let whole = Decoder::materialized(&config, &Device::cpu(), 7).unwrap();
    let largest = values(&whole).iter().map(|(_, value)| 4 * value.elements()).max().unwrap();
    for size in 2..=4 {
        let run = tempfile::tempdir().unwrap();
        let layout = Layout::of(&[size], 0);
        let written = layout.run(&|mut ranks| {
            let place = (run.path(), "saved");
            save_shards(&whole, Experts::OneByOne, place, &mut ranks).written_bytes
        });
        let header = std::fs::read(run.path().join("saved/model.safetensors")).unwrap();
        let header = u64::from_le_bytes(*header.first_chunk().unwrap()) + 8;
        let mean = written.iter().sum::<u64>() / size as u64;
        let most = mean + largest as u64 + header;
        assert!(written.iter().all(|bytes| (1..=most).contains(bytes)), "{written:?}, {most}");
    }
}

/// A folder of another model is refused with the tensor and both shapes, whatever the sharding.
#[test]
fn other_shapes_are_named() {
    let run = tempfile::tempdir().unwrap();
    let whole = Decoder::materialized(&config(CONFIGS[0]), &Device::cpu(), 7).unwrap();
    save_whole(&whole, Experts::OneByOne, run.path(), "whole");
    let other = config(&CONFIGS[0].replace("vocab_size = 21", "vocab_size = 22"));
    let model = Decoder::new(&other).unwrap();
    Layout::of(&[2], 0).shard(&model, 1);
    let filled = Loader::new(&run.path().join("whole")).fill(&model, &Device::cpu());
    let error = filled.unwrap_err().to_string();
    for part in ["model.embed_tokens.weight", "[21, 8]", "[22, 8]"] {
        assert!(error.contains(part), "{error}");
    }
    assert!(model.params().iter().all(|param| param.value().is_err()));
}

/// Partial values are refused by name, in both directions, and parts are not saved as if they were
/// whole.
#[test]
fn partial_values_and_parts_are_refused() {
    let mesh = Mesh::new(&[2], &["tp"]).unwrap();
    let tensor = |placement: Placement, shape: &[usize]| {
        let sharding = Sharding::new(&mesh, [("tp", placement)], &[4, 2]).unwrap();
        let local = Tensor::zeros(&Device::cpu(), shape, DType::F32, Kind::Parameter).unwrap();
        let part = local.with_sharding(&sharding, 0).unwrap();
        vec![NamedTensor::new("w", part)]
    };
    let partial = tensor(Placement::Partial(Reduction::Sum), &[4, 2]);
    let half = tensor(Placement::shard(0), &[2, 2]);
    let run = tempfile::tempdir().unwrap();
    let by_name = || folder::by_name().unwrap();
    let message = "`w` has partial values (tp: partial(sum)); redistribute it first";

    let mut sharded = ShardedSnapshot::new(run.path(), "saved");
    let error = folder::add_shards(&partial, by_name(), &mut sharded, "").unwrap_err();
    assert_eq!(error.to_string(), message);
    let mut snapshot = Snapshot::new(run.path(), "saved");
    let error = folder::add_tensors(&partial, &by_name(), &mut snapshot, "").unwrap_err();
    assert_eq!(error.to_string(), message);
    let error = folder::add_tensors(&half, &by_name(), &mut snapshot, "").unwrap_err().to_string();
    assert!(error.starts_with("this rank has only a part of `w` (tp: shard(0)); "), "{error}");

    let whole = vec![NamedTensor::new("w", partial[0].tensor.local())];
    folder::add_tensors(&whole, &by_name(), &mut snapshot, "").unwrap();
    snapshot.save().unwrap();
    let stored = Folder::open(run.path().join("saved")).unwrap();
    let read = folder::read(&partial, &stored, &by_name(), &LoadOptions::default());
    assert_eq!(read.unwrap_err().to_string(), message);
}

/// A rank whose module has no values fails on all ranks, and so does a mesh of which some ranks do
/// not take part. Nothing is left.
#[test]
fn all_ranks_report_a_rank_without_values() {
    let run = tempfile::tempdir().unwrap();
    let dir = run.path().join("saved");
    let layout = Layout::of(&[2], 0);
    let errors = layout.run(&|mut ranks| {
        let module = match ranks.rank() {
            0 => Named::materialized(),
            _ => Named::new(),
        };
        folder::save_sharded(&module, &dir, &mut ranks).unwrap_err().to_string()
    });
    for error in errors {
        assert!(error.starts_with("rank 1 failed to plan the checkpoint: "), "{error}");
        assert!(error.contains("`bias`"), "{error}");
    }

    let whole = Named::materialized();
    let source = run.path().join("whole");
    folder::save(&whole, &source).unwrap();
    let errors = layout.run(&|mut ranks| {
        let module = Named::new();
        Layout::of(&[3], 0).shard(&module, ranks.rank());
        folder::load(&module, &source, &Device::cpu()).unwrap();
        folder::save_sharded(&module, &dir, &mut ranks).unwrap_err().to_string()
    });
    for error in errors {
        let expected = "`bias`: ranks [0, 1] have 6 of the 7 elements of [7]; save with all ranks of its \
                        mesh";
        assert_eq!(error, expected);
    }
    assert_eq!(std::fs::read_dir(run.path()).unwrap().count(), 1);
}
