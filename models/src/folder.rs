//! Folders of safetensors files, written from and read into the tensors of any module.
//!
//! A [`Mapping`] relates the module's tensors, on the left, to those of the folder, on the right.
//! Reading and writing apply it in opposite directions; with [`by_name`] both have the same names.
//! Tensors may be on any device that computes.
//!
//! Sharded tensors are read and written by their regions: a rank reads only its own, and all ranks
//! write one folder, which equals that of a single rank ([`save_sharded`]).

mod damage;
mod memory;
mod shards;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use meshgrad_autograd::{Buffer, Module, Param};
use meshgrad_ckpt::exec::{OpenTensors, Stats, check_ties, gather};
use meshgrad_ckpt::mapping::{AllowedProblems, Bound, Mapping, Problem, TensorSpec};
use meshgrad_ckpt::plan::LoadRequest;
use meshgrad_ckpt::ranks::{Ranks, Saved, ShardedSnapshot};
use meshgrad_ckpt::{Folder, FolderWriter, Listed, Snapshot};
use meshgrad_error::{Error, Kind as ErrorKind, Result, error};
use meshgrad_load::LoadOptions;
use meshgrad_runtime::{DType, Device, Kind, ShardedShape, Tensor, UninitTensor};

pub use damage::{Damage, check_texts, or_damage, sealed};
use memory::specs;
pub use memory::{NamedTensor, beside};
use shards::expect_whole;
pub use shards::{add_shard_copies, add_shards};

/// The error for a file that cannot be read.
pub fn unreadable(path: &Path, cause: io::Error) -> Error {
    error!(System, "{}: {cause}", path.display()).caused_by(cause)
}

/// The mapping that keeps all names: the tensors of a folder have the names in the module.
///
/// # Errors
/// Never: a test checks that the mapping parses.
pub fn by_name() -> Result<Mapping> {
    Mapping::parse("{rest:path} = {rest:path}")
}

/// Saves the parameters and buffers of `module` to the new folder `dir`, under their names. The
/// folder appears complete, sealed by a manifest, or not at all.
///
/// # Errors
/// When a value is missing, or the folder exists or cannot be written.
pub fn save(module: &impl Module, dir: &Path) -> Result<()> {
    let (parent, name) = split(dir);
    let mut snapshot = Snapshot::new(parent, &name);
    module.check_names()?;
    add_tensors(&values(module)?, &by_name()?, &mut snapshot, "")?;
    snapshot.save()?;
    Ok(())
}

/// Saves the parameters and buffers of `module`, of which each rank has shards, to the new folder
/// `dir`. All ranks must call this; together they write the files that [`save`] writes
/// for the whole module. A region that several ranks have is written by one of them. A rank
/// holds no tensor of which it only has a part.
///
/// # Errors
/// On all ranks, when a rank fails ([`FailedRank`](meshgrad_error::FailedRank)), or no rank has
/// some elements of a tensor.
/// The folder then does not exist.
pub fn save_sharded(module: &impl Module, dir: &Path, ranks: &mut Ranks<'_>) -> Result<Saved> {
    let values = module.check_names().and_then(|()| values(module));
    let snapshot = match &values {
        Ok(values) => of_shards(values, dir),
        Err(error) => return ShardedSnapshot::save(Err(error.clone()), ranks),
    };
    ShardedSnapshot::save(snapshot, ranks)
}

fn of_shards<'t>(values: &'t [NamedTensor], dir: &Path) -> Result<ShardedSnapshot<'t>> {
    let (parent, name) = split(dir);
    let mut snapshot = ShardedSnapshot::new(parent, &name);
    add_shards(values, by_name()?, &mut snapshot, "")?;
    Ok(snapshot)
}

/// The parent and the name of a folder.
fn split(dir: &Path) -> (&Path, Cow<'_, str>) {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    (dir.parent().unwrap_or(Path::new("")), name)
}

/// Loads the parameters and buffers of `module` to `device` from the folder `dir`, in which they
/// have the same names. Float dtypes are converted. Of a sharded parameter or buffer
/// ([`Param::shard`]), only the region of this rank is read.
///
/// # Errors
/// When tensors are missing, unexpected or of another shape, with all of them; when a file is damaged
/// or memory runs out. The values are then unchanged.
pub fn load(module: &impl Module, dir: &Path, device: &Device) -> Result<Stats> {
    module.check_names()?;
    let (params, buffers) = (module.params(), module.buffers());
    let (folder, options) = (Folder::open(dir)?, LoadOptions::default());
    let read = |tensors: &[NamedTensor]| read(tensors, &folder, &by_name()?, &options);
    fill_all(&params, &buffers, device, read)
}

/// The values of the parameters of a module; of those with a home, the rows of this rank.
///
/// # Errors
/// When one has no value.
pub fn params(module: &impl Module) -> Result<Vec<NamedTensor>> {
    module.params().iter().map(NamedTensor::of).collect()
}

/// The values of the buffers of a module.
///
/// # Errors
/// When one has no value.
pub fn buffers(module: &impl Module) -> Result<Vec<NamedTensor>> {
    let buffers = module.buffers().into_iter();
    buffers.map(|buffer| Ok(NamedTensor::new(buffer.name(), buffer.value()?))).collect()
}

/// What one folder stores of a model.
#[derive(Module)]
#[module(crate = meshgrad_autograd)]
pub struct StoredValues {
    /// Parameters.
    pub params: Vec<Param>,
    /// Buffers that have a place beside them.
    pub buffers: Vec<Buffer>,
}

/// The values of the parameters and the buffers of a module.
///
/// # Errors
/// When one has no value.
pub fn values(module: &impl Module) -> Result<Vec<NamedTensor>> {
    Ok([params(module)?, buffers(module)?].concat())
}

/// Adds a copy of `tensors` to a snapshot, as the safetensors files of its folder `folder` (empty
/// for its root).
///
/// # Errors
/// When a tensor is only a part, has partial values or cannot be read; when tensors cannot be written
/// as the mapping requires.
pub fn add_tensors(
    tensors: &[NamedTensor],
    mapping: &Mapping,
    snapshot: &mut Snapshot,
    folder: &str,
) -> Result<()> {
    let mut writer = FolderWriter::new();
    let mut copied = BTreeMap::new();
    for (spec, bytes) in stored(tensors, mapping)? {
        let shape: Vec<usize> = spec.shape.iter().map(|extent| *extent as usize).collect();
        writer.add(&spec.name, spec.dtype, &shape)?;
        copied.insert(spec.name, bytes);
    }
    snapshot.add_model(folder, writer, move |tensor, sink| {
        // Freed as soon as it is written.
        sink.append(&copied.remove(&tensor.name).unwrap_or_default())
    });
    Ok(())
}

/// The tensors that a folder stores for `tensors` under `mapping`, with their bytes.
///
/// # Errors
/// As [`add_tensors`].
pub fn stored(tensors: &[NamedTensor], mapping: &Mapping) -> Result<Vec<(TensorSpec, Vec<u8>)>> {
    tensors.iter().try_for_each(expect_whole)?;
    let bound = bound_to_store(tensors, mapping)?;

    let named = tensors.iter();
    let by_name: BTreeMap<&str, &Tensor> = named.map(|it| (&*it.name, &it.tensor)).collect();
    let requests = bound.requests();
    let sources_of = |request: &LoadRequest| {
        let sources = bound.graph().sources_of(request.expr).into_iter();
        sources.map(str::to_owned).collect()
    };
    let sources: Vec<BTreeSet<String>> = requests.iter().map(sources_of).collect();
    let mut open = OpenTensors::new(&sources);
    let mut written = Vec::new();
    for (request, names) in requests.iter().zip(&sources) {
        let spec = TensorSpec::new(
            &request.target,
            bound.graph().dtype(request.expr),
            bound.graph().shape(request.expr),
        );
        let elements: u64 = spec.shape.iter().product();
        let mut bytes = vec![0; elements as usize * spec.dtype.bits() / 8];
        open.open(names, |name| memory::bytes(by_name[name]))?;
        gather(bound.graph(), request.expr, &request.region, &|name| open.bytes(name), &mut bytes)?;
        open.close(names);
        written.push((spec, bytes));
    }
    Ok(written)
}

/// The name of each tensor that a folder stores for `tensors`, with the names of the tensors that
/// it is made from.
///
/// # Errors
/// When tensors cannot be written as the mapping requires.
pub fn stored_names(
    tensors: &[NamedTensor],
    mapping: &Mapping,
) -> Result<Vec<(String, Vec<String>)>> {
    let bound = bound_to_store(tensors, mapping)?;
    let named = |request: LoadRequest| {
        let sources = bound.graph().sources_of(request.expr).into_iter();
        let sources = sources.map(str::to_owned).collect();
        (request.target.to_string(), sources)
    };
    Ok(bound.requests().into_iter().map(named).collect())
}

fn bound_to_store(tensors: &[NamedTensor], mapping: &Mapping) -> Result<Bound> {
    let bound = mapping.bind_to_store(&specs(tensors)?);
    bound.map_err(|report| {
        let unwritable = Error::with_details(ErrorKind::Mismatch, report);
        unwritable.context("tensors cannot be written as the mapping requires")
    })
}

/// Loads every parameter and buffer of `module` from `folder`. Float dtypes are converted. Of a sharded
/// parameter ([`Param::shard`]), only the region of this rank is read, and of a parameter with a home
/// only the rows that this rank keeps.
///
/// # Errors
/// As [`read`]. The parameters then keep their values, except those with a home.
pub fn fill(
    module: &impl Module,
    device: &Device,
    folder: &Folder,
    mapping: &Mapping,
    options: &LoadOptions<'_>,
) -> Result<Stats> {
    let none = AllowedProblems::none();
    let filled = fill_allowing(module, device, folder, mapping, &none, options);
    filled.map(|(stats, _)| stats)
}

/// As [`fill`], for a module that is a part of a model, such as a pipeline stage. Tensors of the
/// folder that it does not use are left to the other parts.
///
/// # Errors
/// As [`fill`].
pub fn fill_part(
    module: &impl Module,
    device: &Device,
    folder: &Folder,
    mapping: &Mapping,
    options: &LoadOptions<'_>,
) -> Result<Stats> {
    let all = AllowedProblems::none().and("unexpected")?;
    let filled = fill_allowing(module, device, folder, mapping, &all, options);
    filled.map(|(stats, _)| stats)
}

/// As [`fill`], without the tensors of the folder that are unexpected and `allowed`. Returns their
/// names, too.
pub(crate) fn fill_allowing(
    module: &impl Module,
    device: &Device,
    folder: &Folder,
    mapping: &Mapping,
    allowed: &AllowedProblems,
    options: &LoadOptions<'_>,
) -> Result<(Stats, Vec<String>)> {
    let read = |tensors: &[NamedTensor]| read_allowing(tensors, folder, mapping, allowed, options);
    module.check_names()?;
    fill_all(&module.params(), &module.buffers(), device, read)
}

/// Reads new values of `params` and `buffers`, and sets them once all are read. Rows of homes are
/// read to their place.
fn fill_all<T>(
    params: &[Param],
    buffers: &[Buffer],
    device: &Device,
    read: impl FnOnce(&[NamedTensor]) -> Result<T>,
) -> Result<T> {
    let unfilled = |name: &str, shape: ShardedShape, dtype: DType| {
        let value = UninitTensor::with_kind(device, *shape.local(), dtype, Kind::Parameter);
        let value = value.map_err(|cause| meshgrad_load::not_loaded(name, cause))?;
        Ok(NamedTensor::new(name, shape.part(&value.finish())?))
    };
    let of_params = params.iter().map(|param| match param.home() {
        Some(_) => NamedTensor::of(param),
        None => unfilled(param.name(), param.sharded_shape(), param.spec().dtype),
    });
    let of_buffers = buffers
        .iter()
        .map(|buffer| unfilled(buffer.name(), buffer.sharded_shape(), buffer.dtype()));
    let tensors: Vec<NamedTensor> = of_params.chain(of_buffers).collect::<Result<_>>()?;
    let result = read(&tensors)?;

    let (of_params, of_buffers) = tensors.split_at(params.len());
    for (param, named) in params.iter().zip(of_params) {
        match param.home() {
            Some(_) => param.rows_written(),
            None => param.set(&named.tensor)?,
        }
    }
    for (buffer, named) in buffers.iter().zip(of_buffers) {
        buffer.set(&named.tensor)?;
    }
    Ok(result)
}

/// Reads `tensors`, of a mutable kind, from `folder` with [`meshgrad_load::load`]. They are all
/// that the folder has: another tensor there is an error. Of a sharded tensor, only the region of
/// this rank is read, and of a home only its rows, directly into the tensor; call
/// [`Param::rows_written`] then.
///
/// # Errors
/// When a tensor has partial values; when tensors are missing, unexpected or of another shape, with a
/// [`Report`](meshgrad_ckpt::mapping::Report) of them; when a file is damaged, with
/// [`LoadOptions::sealed_by`] as [`Damage`] of the checkpoint; when memory runs out; with
/// [`LoadOptions::only_finite`] when a value is not finite. The contents are then unspecified.
pub fn read(
    tensors: &[NamedTensor],
    folder: &Folder,
    mapping: &Mapping,
    options: &LoadOptions<'_>,
) -> Result<Stats> {
    let read = read_allowing(tensors, folder, mapping, &AllowedProblems::none(), options);
    read.map(|(stats, _)| stats)
}

/// As [`read`], for tensors of a part of a model. Tensors of the folder that are not among them are
/// left to the other parts.
///
/// # Errors
/// As [`read`].
pub fn read_part(
    tensors: &[NamedTensor],
    folder: &Folder,
    mapping: &Mapping,
    options: &LoadOptions<'_>,
) -> Result<Stats> {
    let all = AllowedProblems::none().and("unexpected")?;
    read_allowing(tensors, folder, mapping, &all, options).map(|(stats, _)| stats)
}

fn read_allowing(
    tensors: &[NamedTensor],
    folder: &Folder,
    mapping: &Mapping,
    allowed: &AllowedProblems,
    options: &LoadOptions<'_>,
) -> Result<(Stats, Vec<String>)> {
    let result = read_unchecked(tensors, folder, mapping, allowed, options);
    result.map_err(|error| match options.sealed_by {
        Some(checkpoint) => or_damage(checkpoint, error),
        None => error,
    })
}

fn read_unchecked(
    tensors: &[NamedTensor],
    folder: &Folder,
    mapping: &Mapping,
    allowed: &AllowedProblems,
    options: &LoadOptions<'_>,
) -> Result<(Stats, Vec<String>)> {
    let stored: Vec<TensorSpec> = folder.tensors().map(TensorSpec::from).collect();
    let expected = specs(tensors)?;
    let allowed = allowed.clone().and("narrowed")?;
    let bound = mapping.bind_whole(&stored, &expected, &allowed);
    let bound = bound.map_err(|report| {
        let other = Error::with_details(ErrorKind::Mismatch, report);
        let folder = folder.path().display();
        other.context(format_args!("{folder}: tensors do not match the configuration"))
    })?;
    let allowed = bound.report().allowed.iter();
    let unused = allowed.filter_map(|problem| match problem {
        Problem::Unused { name } => Some(name.clone()),
        _ => None,
    });
    let unused = unused.collect();
    let (rank, ranks) = shards::position(tensors);
    check_ties(&bound, folder, rank, ranks)?;

    let mut graph = bound.graph().clone();
    let mut requests = Vec::with_capacity(tensors.len());
    for named in tensors {
        let missing = || error!(Missing, "the files lack {}", Listed(&[&named.name]));
        let expr = bound.expr(&named.name).ok_or_else(missing)?;
        let part = shards::part(named, expr, &mut graph)?;
        let is_empty = |expr| graph.shape(expr).contains(&0);
        // A rank may have no rows of a parameter.
        if !is_empty(part) || is_empty(expr) {
            let request = LoadRequest::all(named.name.as_str(), &graph, part);
            requests.push((request, &named.tensor));
        }
    }
    let loaded = meshgrad_load::load(folder, &graph, &requests, options);
    let stats = loaded.map_err(|error| damage::located(folder, error))?;
    Ok((stats, unused))
}
