//! Small models, their shardings on small meshes, and ranks that are threads.

use std::collections::BTreeMap;
use std::path::Path;
use std::thread;

use meshgrad_autograd::{Buffer, Init, Module, Param};
use meshgrad_ckpt::Snapshot;
use meshgrad_ckpt::ranks::Ranks;
use meshgrad_mesh::{Mesh, Placement, Region, Sharding};
use meshgrad_models::Decoder;
use meshgrad_models::families::qwen3::Qwen3Config;
use meshgrad_models::hf::{self, Experts};
use meshgrad_runtime::{Device, Tensor};

/// Dense models with tied and untied embeddings, and a mixture of experts.
pub(crate) const CONFIGS: [&str; 3] = [
    r#"
    model_type = "qwen3"
    vocab_size = 21
    hidden_size = 8
    intermediate_size = 12
    num_hidden_layers = 2
    num_attention_heads = 2
    num_key_value_heads = 1
    head_dim = 4
    tie_word_embeddings = true
    "#,
    r#"
    model_type = "qwen3"
    vocab_size = 10
    hidden_size = 6
    intermediate_size = 8
    num_hidden_layers = 1
    num_attention_heads = 2
    num_key_value_heads = 2
    head_dim = 4
    tie_word_embeddings = false
    "#,
    r#"
    model_type = "qwen3_moe"
    vocab_size = 12
    hidden_size = 8
    num_hidden_layers = 2
    num_attention_heads = 2
    num_key_value_heads = 1
    head_dim = 4
    num_experts = 5
    num_experts_per_tok = 2
    moe_intermediate_size = 6
    norm_topk_prob = true
    "#,
];

pub(crate) fn config(text: &str) -> Qwen3Config {
    toml::from_str(text).unwrap()
}

/// Saves a whole model as a Hugging Face folder.
pub(crate) fn save_whole(model: &Decoder, experts: Experts, parent: &Path, name: &str) {
    let mut snapshot = Snapshot::new(parent, name);
    hf::add_model(model, experts, &mut snapshot, "").unwrap();
    snapshot.save().unwrap();
}

/// A module with a buffer, whose tensors are stored under their names.
#[derive(Clone)]
pub(crate) struct Named {
    params: Vec<Param>,
    running_mean: Buffer,
}

impl Named {
    pub(crate) fn new() -> Named {
        let init = Init::Normal { std: 1.0 };
        Named {
            params: vec![
                Param::new("bias", [7], init),
                Param::new("scalar", [], init),
                Param::new("weight", [6, 10], init),
                Param::new("stacked", [4, 2, 6, 3], init),
            ],
            running_mean: Buffer::new("running_mean", [9], init),
        }
    }

    pub(crate) fn materialized() -> Named {
        let module = Named::new();
        for param in module.params() {
            param.materialize(&Device::cpu(), 3).unwrap();
        }
        module.running_mean.materialize(&Device::cpu(), 3).unwrap();
        module
    }
}

impl Module for Named {
    fn visit(&self, visitor: &mut dyn meshgrad_autograd::Visitor) {
        self.params.visit(visitor);
        self.running_mean.visit(visitor);
    }
}

/// A mesh, and the number of the placements that are tried first.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) mesh: Mesh,
    pub(crate) choice: usize,
}

const CHOICES: usize = 6;

impl Layout {
    /// All placements on meshes of 1, 2, 3 and 4 ranks in a row, and of 2 x 2 ranks.
    pub(crate) fn all() -> impl Iterator<Item = Layout> {
        let meshes = [&[1][..], &[2], &[3], &[4], &[2, 2]].map(|sizes| {
            let names = &["a", "b"][..sizes.len()];
            Mesh::new(sizes, names).unwrap()
        });
        meshes
            .into_iter()
            .flat_map(|mesh| (0..CHOICES).map(move |choice| Layout { mesh: mesh.clone(), choice }))
    }

    pub(crate) fn of(sizes: &[usize], choice: usize) -> Layout {
        let mesh = Mesh::new(sizes, &["a", "b"][..sizes.len()]).unwrap();
        Layout { mesh, choice }
    }

    /// Rows; the last dim; experts and the features in each half of gate and up; blocks; ragged with
    /// empty shards; head and tail. The first from `choice` on that fits the shape is chosen.
    pub(crate) fn sharding(&self, shape: &[usize]) -> Sharding {
        let is_square = self.mesh.axes().len() == 2;
        let and_b = |placement: Placement| is_square.then_some(("b", placement));
        let last = shape.len().saturating_sub(1);
        let with = |a: Placement, b: Option<(&'static str, Placement)>| {
            [Some(("a", a)), b].into_iter().flatten().collect::<Vec<_>>()
        };
        let all_but_one_at_the_end = |dim: usize| {
            let extent = shape.get(dim).copied().unwrap_or(0);
            let mut sizes = vec![0; self.mesh.axes()[0].size()];
            sizes[0] = extent.min(1);
            *sizes.last_mut().unwrap() += extent - extent.min(1);
            Placement::ragged(dim, sizes)
        };
        let choices: [Vec<(&str, Placement)>; CHOICES] = [
            with(Placement::shard(0), None),
            with(Placement::shard(last), and_b(Placement::shard(0))),
            with(Placement::shard(2), and_b(Placement::shard(0))),
            with(Placement::in_blocks(0, 2), and_b(Placement::shard(last))),
            with(all_but_one_at_the_end(0), None),
            with(Placement::head_and_tail(last), and_b(Placement::shard(last))),
        ];
        let fits = (self.choice..self.choice + CHOICES)
            .find_map(|at| Sharding::new(&self.mesh, &choices[at % CHOICES][..], shape).ok());
        fits.unwrap_or_else(|| Sharding::replicated(&self.mesh, shape).unwrap())
    }

    /// States the shardings of a module's parameters and buffers.
    pub(crate) fn shard(&self, module: &impl Module, rank: usize) {
        for param in module.params() {
            param.shard(&self.sharding(param.shape()), rank).unwrap();
        }
        for buffer in module.buffers() {
            buffer.shard(&self.sharding(buffer.shape()), rank).unwrap();
        }
    }

    /// The region of a tensor that a rank has.
    pub(crate) fn region(&self, shape: &[usize], rank: usize) -> Region {
        self.sharding(shape).region(rank).unwrap()
    }

    /// Runs a function on each rank, on its own thread.
    pub(crate) fn run<T: Send>(&self, rank: &(dyn Fn(Ranks<'static>) -> T + Sync)) -> Vec<T> {
        thread::scope(|scope| {
            let ranks = Ranks::threads(self.mesh.len()).into_iter();
            let threads: Vec<_> = ranks.map(|it| scope.spawn(move || rank(it))).collect();
            threads.into_iter().map(|it| it.join().unwrap()).collect()
        })
    }
}

/// The values of a region of a whole tensor.
pub(crate) fn part(whole: &Tensor, region: &Region) -> Vec<f32> {
    let values = whole.to_vec::<f32>().unwrap();
    let mut offsets = vec![0];
    for (extent, dim) in whole.shape().iter().zip(region.dims()) {
        let indices = || dim.ranges().iter().cloned().flatten();
        let along = |outer: usize| indices().map(move |at| outer * extent + at);
        offsets = offsets.into_iter().flat_map(along).collect();
    }
    offsets.into_iter().map(|at| values[at]).collect()
}

/// The values of all parameters and buffers.
pub(crate) fn values(module: &impl Module) -> Vec<(String, Tensor)> {
    let params = module.params().into_iter().map(|it| (it.name().to_owned(), it.value().unwrap()));
    let buffers = module.buffers().into_iter();
    let buffers = buffers.map(|it| (it.name().to_owned(), it.value().unwrap()));
    params.chain(buffers).collect()
}

/// The files of a folder, with their content.
pub(crate) fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let file = |path: std::path::PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, std::fs::read(&path).unwrap())
    };
    entries.map(file).collect()
}
