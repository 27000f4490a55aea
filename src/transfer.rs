//! The weights of a module move to a module on another mesh.

use std::collections::BTreeMap;

use meshgrad_autograd::{Buffer, Module, Param};
use meshgrad_collectives::Redistribute;
use meshgrad_comm::{Redistributor, Transferred};
use meshgrad_error::error;
use meshgrad_mesh::Sharding;
use meshgrad_runtime::{DType, Error, Result, Shape, Tensor};

/// A module and the sharding of each of its parameters and buffers, for [`transfer_module`].
///
/// Ranks outside of the mesh have one too, with the same names, shapes and shardings and without
/// values: building a module allocates nothing.
#[derive(Clone, Copy)]
pub struct ShardedModule<'a> {
    /// The module.
    pub module: &'a dyn Module,
    /// The sharding of a parameter or buffer, from its name and global shape.
    pub sharding: &'a dyn Fn(&str, &Shape) -> Result<Sharding>,
}

/// Moves the values of all parameters and buffers of `from` to those of `to` that have the same
/// names, without a disk: from the mesh of a trainer, for example, to that of a rollout engine, with
/// other degrees and on other ranks of one world. A rank may be in one of the meshes or in both. All
/// ranks of both meshes call this with modules of the same names, shapes and shardings.
///
/// There is one message per dtype for each ordered pair of ranks. The plan is kept, so later calls
/// only move data. The results share no memory with the values of `from`.
///
/// ```
/// use meshgrad::comm::{Local, Rank, Redistributor};
/// use meshgrad::mesh::{Mesh, Placement, Sharding};
/// use meshgrad::prelude::*;
/// use meshgrad::runtime::Shape;
/// use meshgrad::{ShardedModule, transfer_module};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let training = Mesh::new(&[2], &["tp"])?;
/// let inference = Mesh::from_ranks(&[1, 2, 3], &[3], &["tp"])?;
/// let rows = |mesh: &Mesh, shape: &Shape| -> Result<Sharding> {
///     Ok(Sharding::new(mesh, [("tp", Placement::shard(0))], shape)?)
/// };
/// let parts = Local::run(4, |rank| -> Result<_> {
///     let [trainer, rollout] = [(); 2].map(|()| Param::new("w", [6, 1], Init::Ones));
///     if training.contains(rank.rank()) {
///         trainer.shard(&rows(&training, trainer.shape())?, rank.rank())?;
///         trainer.materialize(rank.device(), 0)?;
///     }
///     let redistributor = Redistributor::new(rank);
///     // After each update:
///     transfer_module(
///         &redistributor,
///         ShardedModule {
///             module: &trainer,
///             sharding: &|_, shape| rows(&training, shape),
///         },
///         ShardedModule {
///             module: &rollout,
///             sharding: &|_, shape| rows(&inference, shape),
///         },
///     )?;
///     Ok(rollout.value().ok().map(|w| w.shape().to_vec()))
/// })?;
/// assert_eq!(parts, [None, Some(vec![2, 1]), Some(vec![2, 1]), Some(vec![2, 1])]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Before anything is sent, for a name that only one of the modules has, or that has other shapes or
/// dtypes, and for a value with another sharding than the stated one; for a missing value; when a
/// parameter of `to` has another sharding; as [`Redistributor::transfer_all`].
pub fn transfer_module(
    redistributor: &Redistributor,
    from: ShardedModule<'_>,
    to: ShardedModule<'_>,
) -> Result<()> {
    let (sources, targets) = (weights(from.module)?, weights(to.module)?);
    let same = check_names(&sources, &targets);
    same.and_then(|()| check_specs(&sources, &targets))?;

    let rank = redistributor.rank();
    let mut values: Vec<(Option<Tensor>, [Sharding; 2])> = Vec::new();
    for (name, source) in &sources {
        let stated = (from.sharding)(name, source.shape())?;
        let value = match stated.mesh().contains(rank) {
            true => Some(source.value()?),
            false => None,
        };
        if let Some(value) = &value
            && value.sharding() != Some(&stated)
        {
            return Err(error(format!(
                "`{name}` is {value}, but {stated} is stated; state the sharding that it has"
            )));
        }
        values.push((value, [stated, (to.sharding)(name, source.shape())?]));
    }
    let tensors = values.iter().zip(sources.values());
    let tensors = tensors.map(|((value, [from, to]), source)| Transferred {
        value: value.as_ref(),
        dtype: source.dtype(),
        from,
        to,
    });
    let moved = redistributor.transfer_all(&tensors.collect::<Vec<_>>())?;
    for (target, value) in targets.values().zip(moved) {
        if let Some(value) = value {
            target.set(&value)?;
        }
    }
    Ok(())
}

/// A parameter or a buffer.
enum Weight {
    Param(Param),
    Buffer(Buffer),
}

impl Weight {
    fn shape(&self) -> &Shape {
        match self {
            Weight::Param(param) => param.shape(),
            Weight::Buffer(buffer) => buffer.shape(),
        }
    }

    fn dtype(&self) -> DType {
        match self {
            Weight::Param(param) => param.spec().dtype,
            Weight::Buffer(buffer) => buffer.dtype(),
        }
    }

    fn value(&self) -> Result<Tensor> {
        match self {
            Weight::Param(param) => param.value(),
            Weight::Buffer(buffer) => buffer.value(),
        }
    }

    fn set(&self, value: &Tensor) -> Result<()> {
        match self {
            Weight::Param(param) => param.set(value),
            Weight::Buffer(buffer) => buffer.set(value),
        }
    }
}

/// By name.
type Weights = BTreeMap<String, Weight>;

fn weights(module: &dyn Module) -> Result<Weights> {
    let params = module.params().into_iter();
    let params = params.map(|it| (it.name().to_owned(), Weight::Param(it)));
    let buffers = module.buffers().into_iter();
    let buffers = buffers.map(|it| (it.name().to_owned(), Weight::Buffer(it)));
    let mut weights = Weights::new();
    for (name, weight) in params.chain(buffers) {
        if let Some(other) = weights.insert(name.clone(), weight) {
            let shape = other.shape();
            return Err(error(format!("two weights are named `{name}`, one of shape {shape}")));
        }
    }
    Ok(weights)
}

fn check_names(sources: &Weights, targets: &Weights) -> Result<()> {
    let only_in = |own: &Weights, other: &Weights| {
        own.keys().find(|name| !other.contains_key(*name)).cloned()
    };
    let (found, side, other) = match only_in(sources, targets) {
        Some(name) => (Some(name), "source", "target"),
        None => (only_in(targets, sources), "target", "source"),
    };
    match found {
        None => Ok(()),
        Some(name) => Err(error(format!(
            "`{name}` is in the {side} module, but not in the {other} module (the source has {} \
             weights, the target {}); both need the same names",
            sources.len(),
            targets.len(),
        ))),
    }
}

fn check_specs(sources: &Weights, targets: &Weights) -> Result<()> {
    for ((name, source), target) in sources.iter().zip(targets.values()) {
        let spec = |weight: &Weight| format!("{}{}", weight.dtype(), weight.shape());
        if spec(source) != spec(target) {
            return Err(error(format!(
                "`{name}` is {} in the source module, but {} in the target module",
                spec(source),
                spec(target),
            )));
        }
    }
    Ok(())
}

fn error(problem: String) -> Error {
    error!(Invalid, "transfer_module: {problem}")
}
