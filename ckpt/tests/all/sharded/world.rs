//! Models of a few tensors, their shards, and ranks that save them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use meshgrad_ckpt::exec::{TensorBytes, gather};
use meshgrad_ckpt::mapping::{Mapping, TensorSpec};
use meshgrad_ckpt::ranks::{Cause, Ranks, Saved, Shard, ShardedSnapshot};
use meshgrad_ckpt::vfs::{RealFs, Vfs};
use meshgrad_ckpt::{Dtype, Error, FolderWriter, Result, Staging};
use meshgrad_error::error;
use meshgrad_mesh::{Mesh, Placement, Region, Sharding};

/// The tensors of a model, and how they are stored.
#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) tensors: Vec<(TensorSpec, Vec<u8>)>,
    pub(crate) mapping: &'static str,
}

/// Experts that are stored one by one, a transposed and a
/// converted tensor, a scalar, an empty tensor, and a padded one.
const STORED: &str = "
    up = stack(stack({e}.{h:gate|up}, each=h), each=e)
    turned = transpose(turned_in_file, 0, 1)
    cast(wide, BF16) = narrow
    pad(table, 9, dim=0, value=1, from=7) = padded
    {r:path} = {r:path}
";

impl Model {
    fn new(mapping: &'static str, tensors: &[(&str, Dtype, &[u64])]) -> Model {
        let tensor = |(number, (name, dtype, shape)): (usize, &(&str, Dtype, &[u64]))| {
            let elements: u64 = shape.iter().product();
            let bytes = (0..elements * dtype.bits() as u64 / 8)
                .map(|at| (at * 7 + at / 251 + number as u64 * 13) as u8)
                .collect();
            (TensorSpec::new(name, *dtype, shape), bytes)
        };
        Model { tensors: tensors.iter().enumerate().map(tensor).collect(), mapping }
    }

    pub(crate) fn by_name() -> Model {
        let tensors: [(&str, Dtype, &[u64]); 6] = [
            ("bias", Dtype::F32, &[11]),
            ("empty", Dtype::F32, &[0, 4]),
            ("matrix", Dtype::F32, &[12, 10]),
            ("norm", Dtype::BF16, &[8]),
            ("scalar", Dtype::F32, &[]),
            ("stacked", Dtype::BF16, &[4, 2, 6, 5]),
        ];
        Model::new("{rest:path} = {rest:path}", &tensors)
    }

    pub(crate) fn mapped() -> Model {
        let tensors: [(&str, Dtype, &[u64]); 5] = [
            ("norm", Dtype::F32, &[8]),
            ("table", Dtype::F32, &[7, 6]),
            ("turned", Dtype::F32, &[12, 10]),
            ("up", Dtype::F32, &[4, 2, 6, 5]),
            ("wide", Dtype::F32, &[6, 4]),
        ];
        Model::new(STORED, &tensors)
    }

    /// A single tensor of bytes.
    pub(crate) fn of_rows(rows: u64, columns: u64) -> Model {
        let shape = [rows, columns];
        Model::new("{rest:path} = {rest:path}", &[("rows", Dtype::U8, &shape)])
    }

    pub(crate) fn mapping(&self) -> Mapping {
        Mapping::parse(self.mapping).unwrap()
    }

    fn bytes(&self, name: &str) -> Option<&[u8]> {
        let found = self.tensors.iter().find(|(spec, _)| spec.name == name);
        found.map(|(_, bytes)| &bytes[..])
    }
}

/// The dense bytes of a region of a row-major tensor.
pub(crate) fn part(spec: &TensorSpec, bytes: &[u8], region: &Region) -> Vec<u8> {
    let size = spec.dtype.bits() / 8;
    let mut offsets = vec![0];
    for (extent, dim) in spec.shape.iter().zip(region.dims()) {
        let indices = || dim.ranges().iter().cloned().flatten();
        let along = |outer: usize| indices().map(move |at| outer * *extent as usize + at);
        offsets = offsets.into_iter().flat_map(along).collect();
    }
    let element = |at: usize| bytes[at * size..(at + 1) * size].to_vec();
    offsets.into_iter().flat_map(element).collect()
}

/// The number of choices of placements, and the one that shards rows.
const CHOICES: usize = 7;
const ROWS: usize = 1;

/// A mesh, and the placements of each tensor that are valid for its shape.
pub(crate) struct Layout {
    pub(crate) mesh: Mesh,
    /// Number of the choice among valid placements.
    pub(crate) choice: usize,
    /// Whether ranks with equal regions divide the rows, unevenly.
    pub(crate) divides_rows: bool,
}

impl Layout {
    /// Layouts of a mesh of 1, 2, 3 and 4 ranks in a row, and of 2 x 2 ranks.
    pub(crate) fn all() -> Vec<Layout> {
        let mut all = Vec::new();
        for sizes in [&[1][..], &[2], &[3], &[4], &[2, 2]] {
            let names = &["a", "b"][..sizes.len()];
            for (choice, divides_rows) in (0..CHOICES).flat_map(|it| [(it, false), (it, true)]) {
                let mesh = Mesh::new(sizes, names).unwrap();
                all.push(Layout { mesh, choice, divides_rows });
            }
        }
        all
    }

    /// The rows of one tensor.
    pub(crate) fn of_rows(ranks: usize, tensor: &str) -> Layout {
        let mesh = Mesh::new(&[ranks], &["a"]).unwrap();
        let choice = (ROWS + CHOICES - tensor.len() % CHOICES) % CHOICES;
        Layout { mesh, choice, divides_rows: false }
    }

    /// The rows that a rank has of its region.
    fn rows(&self, sharding: &Sharding, rank: usize) -> Range<usize> {
        let region = sharding.region(rank).unwrap();
        let extents = region.extents();
        let outer = extents.split_last().map(|(_, outer)| outer);
        let rows = outer.map_or(1, |outer| outer.iter().product());
        if !self.divides_rows {
            return 0..rows;
        }
        let equal = |other: &usize| sharding.region(*other).as_ref() == Some(&region);
        let equal: Vec<usize> = (0..self.ranks()).filter(equal).collect();
        let at = equal.iter().position(|it| *it == rank).unwrap();
        let start = |at: usize| rows * at * at / (equal.len() * equal.len());
        start(at)..start(at + 1)
    }

    pub(crate) fn ranks(&self) -> usize {
        self.mesh.len()
    }

    /// Even, uneven, ragged, in blocks, head and tail, with empty shards, over one and two axes.
    /// Placements that do not fit are replaced by the next one that does.
    pub(crate) fn sharding(&self, name: &str, shape: &[u64]) -> Sharding {
        let shape: Vec<usize> = shape.iter().map(|extent| *extent as usize).collect();
        let sizes: Vec<usize> = self.mesh.axes().iter().map(|axis| axis.size()).collect();
        let all_in_last = |dim: usize| {
            let mut sizes = vec![0; sizes[0]];
            sizes[0] = shape.get(dim).copied().unwrap_or(0).min(1);
            sizes[self.mesh.axes()[0].size() - 1] +=
                shape.get(dim).copied().unwrap_or(0) - sizes[0];
            Placement::ragged(dim, sizes)
        };
        let second = |placement: Placement| match sizes.len() {
            1 => vec![],
            _ => vec![("b", placement)],
        };
        let last = shape.len().saturating_sub(1);
        let choices: [_; CHOICES] = [
            vec![],
            [vec![("a", Placement::shard(0))], second(Placement::Replicate)].concat(),
            [vec![("a", Placement::shard(last))], second(Placement::shard(0))].concat(),
            [vec![("a", Placement::in_blocks(0, 2))], second(Placement::shard(last))].concat(),
            [vec![("a", Placement::head_and_tail(last))], second(Placement::shard(last))].concat(),
            [second(Placement::shard(0)), vec![("a", all_in_last(last))]].concat(),
            [vec![("a", Placement::in_blocks(2, 3))], second(Placement::shard(1))].concat(),
        ];
        let start = self.choice + name.len();
        let valid = (start..start + choices.len()).find_map(|at| {
            Sharding::new(&self.mesh, &choices[at % choices.len()][..], &shape).ok()
        });
        valid.expect("replicated is valid")
    }
}

/// The shards of a rank.
pub(crate) struct Shards {
    pub(crate) shards: Vec<Shard>,
    pub(crate) memory: Memory,
}

/// Bytes by tensor.
#[derive(Clone, Default)]
pub(crate) struct Memory {
    pub(crate) bytes: BTreeMap<String, Vec<u8>>,
    /// Whether nothing can be read.
    pub(crate) is_lost: bool,
}

impl Memory {
    /// The function that reads them, each once.
    fn reader<'m>(self) -> impl Fn(&str) -> Result<TensorBytes<'m>, Cause> {
        let unread = Mutex::new(self.bytes);
        move |name| match self.is_lost {
            true => Err("the device is lost".into()),
            false => {
                let bytes = unread.lock().unwrap().remove(name);
                Ok(Box::new(bytes.expect("each tensor is read once")))
            }
        }
    }
}

/// All tensors of `model`.
pub(crate) fn whole(model: &Model) -> Shards {
    let tensors = model.tensors.iter().cloned();
    let bytes = tensors.clone().map(|(spec, bytes)| (spec.name, bytes));
    Shards {
        memory: Memory { bytes: bytes.collect(), ..Memory::default() },
        shards: tensors.map(|(spec, _)| Shard::whole(spec)).collect(),
    }
}

/// The shards of one rank of `model`.
pub(crate) fn shards_of(model: &Model, layout: &Layout, rank: usize) -> Shards {
    let (mut shards, mut memory) = (Vec::new(), Memory::default());
    for (spec, bytes) in &model.tensors {
        let sharding = layout.sharding(&spec.name, &spec.shape);
        let region = sharding.region(rank).unwrap();
        let rows = layout.rows(&sharding, rank);
        let row_bytes = region.extents().last().unwrap_or(&1) * spec.dtype.bits() / 8;
        let held = rows.start * row_bytes..rows.end * row_bytes;
        let bytes = part(spec, bytes, &region)[held].to_vec();
        memory.bytes.insert(spec.name.clone(), bytes);
        shards.push(Shard::new(spec.clone(), &region).of_rows(rows));
    }
    Shards { shards, memory }
}

/// Options of a save that the files depend on.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) block: u64,
    pub(crate) file: u64,
}

/// Small blocks in one file; small blocks in several files, one of which is smaller than a block;
/// one large block.
pub(crate) const SIZES: [Sizes; 3] = [
    Sizes { block: 100, file: u64::MAX },
    Sizes { block: 2048, file: 600 },
    Sizes { block: 16 << 20, file: u64::MAX },
];

/// Saves the whole model with the writer for one process.
pub(crate) fn save_whole(model: &Model, parent: &Path, name: &str, sizes: Sizes) {
    let specs: Vec<TensorSpec> = model.tensors.iter().map(|(spec, _)| spec.clone()).collect();
    let bound = model.mapping().bind_to_store(&specs).unwrap();
    let mut writer = FolderWriter::new().max_shard_bytes(sizes.file);
    for spec in bound.outputs() {
        let shape: Vec<usize> = spec.shape.iter().map(|extent| *extent as usize).collect();
        writer.add(&spec.name, spec.dtype, &shape).unwrap();
    }
    let mut staging = Staging::new(parent, name).unwrap().block_bytes(sizes.block);
    staging.set_about("step", 7);
    staging.write("config.json", b"{}").unwrap();
    let written = writer.write::<Error>(&mut staging, "model", |tensor, data| {
        let expr = bound.expr(&tensor.name).unwrap();
        let whole: Vec<Range<u64>> = bound.graph().shape(expr).iter().map(|it| 0..*it).collect();
        let mut out = vec![0; tensor.byte_len()];
        let memory = |name: &str| model.bytes(name);
        gather(bound.graph(), expr, &whole, &memory, &mut out).unwrap();
        data.append(&out)
    });
    written.unwrap();
    staging.commit().unwrap();
}

/// A rank that saves, with what a test changes.
pub(crate) struct Rank<'a> {
    pub(crate) model: &'a Model,
    pub(crate) parent: &'a Path,
    pub(crate) name: &'a str,
    pub(crate) sizes: Sizes,
    pub(crate) vfs: Arc<dyn Vfs>,
    pub(crate) ranks: Ranks<'static>,
    pub(crate) shards: Result<Shards, String>,
}

impl Rank<'_> {
    pub(crate) fn save(mut self) -> Result<Saved> {
        let (vfs, parent, sizes) = (self.vfs, self.parent, self.sizes);
        let snapshot = self.shards.map(|Shards { shards, memory }| {
            let snapshot = ShardedSnapshot::new_in(vfs, parent, self.name);
            let snapshot = snapshot.block_bytes(sizes.block);
            let mut snapshot = snapshot.max_shard_bytes(sizes.file);
            snapshot.set_about("step", 7);
            snapshot.add("config.json", "{}");
            snapshot.add_model("model", self.model.mapping(), shards, memory.reader());
            snapshot
        });
        ShardedSnapshot::save(
            snapshot.map_err(|problem| error!(Invalid, "{problem}")),
            &mut self.ranks,
        )
    }
}

/// Saves on all ranks of a layout; `change` may change a rank.
pub(crate) fn save_on(
    model: &Model,
    layout: &Layout,
    (parent, name): (&Path, &str),
    sizes: Sizes,
    change: &(dyn Fn(usize, &mut Rank<'_>) + Sync),
) -> Vec<Result<Saved>> {
    let models: Vec<&Model> = vec![model; layout.ranks()];
    let ranks = |_, ranks| ranks;
    on_ranks(&models, layout, (parent, name), sizes, &ranks, change)
}

/// Saves another model on each rank.
pub(crate) fn save_models(
    models: &[&Model],
    layout: &Layout,
    place: (&Path, &str),
) -> Vec<Result<Saved>> {
    let ranks = |_, ranks| ranks;
    on_ranks(models, layout, place, SIZES[0], &ranks, &|_, _| {})
}

/// How a rank reaches the others.
type MakeRanks<'c> = &'c (dyn Fn(usize, Ranks<'static>) -> Ranks<'static> + Sync);

/// Saves each model on its rank.
pub(crate) fn on_ranks(
    models: &[&Model],
    layout: &Layout,
    (parent, name): (&Path, &str),
    sizes: Sizes,
    make_ranks: MakeRanks<'_>,
    change: &(dyn Fn(usize, &mut Rank<'_>) + Sync),
) -> Vec<Result<Saved>> {
    let save = |(number, ranks): (usize, Ranks<'static>)| {
        let model = models[number];
        let mut rank = Rank {
            model,
            parent,
            name,
            sizes,
            vfs: Arc::new(RealFs),
            ranks: make_ranks(number, ranks),
            shards: Ok(shards_of(model, layout, number)),
        };
        change(number, &mut rank);
        rank.save()
    };
    let save = &save;
    thread::scope(|scope| {
        let ranks = Ranks::threads(layout.ranks()).into_iter().enumerate();
        let threads: Vec<_> = ranks.map(|rank| scope.spawn(move || save(rank))).collect();
        threads.into_iter().map(|it| it.join().unwrap()).collect()
    })
}

/// All files below a folder, with their content.
pub(crate) fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => {
                    let name = path.strip_prefix(folder).unwrap().to_string_lossy().into_owned();
                    files.insert(name, std::fs::read(&path).unwrap());
                }
            }
        }
    }
    files
}
