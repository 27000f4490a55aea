//! Bodies that work on a rank's parts and communicate themselves.

use std::sync::{Mutex, PoisonError};

use meshgrad_collectives::in_redistribution;
use meshgrad_error::{bail, error};
use meshgrad_mesh::{Mesh, Placement, Reduction, Sharding};
use meshgrad_runtime::{DType, Kind, RankScope, ShardedShape, Tensor};

use crate::nested::{NestedBackward, NestedTape};
use crate::slot::{Dep, Slots};
use crate::tape::{BackwardFn, Effects, dep_of, record_local, record_with};
use crate::track::{check_no_partial_max, output};
use crate::{Result, Tape, Var};

/// Calls `body` with this rank's parts of `operands`, as values without a sharding, and states the
/// shardings of what it returns. For computations that no sharding rule describes, such as the
/// dispatch of tokens to experts on other ranks: `body` communicates itself, with collectives such
/// as [`all_to_all_rows`](crate::ops::all_to_all_rows).
///
/// ```text
/// let [y] = local(
///     [
///         LocalOperand::new(&x, &mesh, [("tp", Placement::shard(1))]),
///         LocalOperand::new(&w, &experts, [("ep", Placement::shard(0))]),
///     ],
///     [LocalResult::new(&mesh, [("tp", Placement::shard(1))], &x.global_shape())],
///     |[x, w]| Ok([dispatch(&x, &w)?]),
/// )?;
/// ```
///
/// Each operand must have the stated placements on the stated mesh, and each part that `body`
/// returns must have the shape that its stated sharding gives. The meshes may differ. Outside of
/// [`with_redistribution`](meshgrad_collectives::with_redistribution), as on a single rank,
/// operands may have no sharding: `body` gets them as they are and nothing is stated, so that one
/// source serves one rank and many.
///
/// **Gradients.** `body` gets the gradient of each result's part: that of a shard is the same
/// shard; that of a replicated or partial result is replicated. The gradients that `body` computes
/// for its operands must be likewise: for a replicated or partial operand, every rank must get the
/// whole gradient, so `body` sums over the ranks where that is necessary. An axis named with
/// [`LocalOperand::partial_gradient`] leaves this sum to the program.
///
/// The collectives must depend on a tracked operand on every rank, also on one that has nothing to
/// compute: otherwise its backward does not communicate, and the others wait for it. It does where
/// nothing depends on their results.
///
/// Parameters are operands: using one that `body` captured is an error, since its gradient would
/// not be described. So is using any other captured tracked value. Backward runs the ops of `body`,
/// like `body` itself, outside of `with_mesh`.
///
/// # Errors
/// When an operand has no sharding or another than is stated; when operands belong to several
/// ranks; when a result has another local shape or another sharding than is stated; when `body`
/// uses a captured parameter or value, or a partial maximum; errors of `body`. Backward fails for a
/// result whose gradient is partial.
pub fn local<const N: usize, const M: usize>(
    operands: [LocalOperand<'_>; N],
    results: [LocalResult<'_>; M],
    body: impl FnOnce([Var; N]) -> Result<[Var; M]>,
) -> Result<[Var; M]> {
    let rank = rank_of(&operands)?;
    let gradients = operands.iter().map(|operand| operand.gradient(rank));
    let gradients: Vec<Option<Sharding>> = gradients.collect::<Result<_>>()?;
    let shardings = results.iter().map(|result| result.sharding(rank));
    let shardings: Vec<Option<Sharding>> = shardings.collect::<Result<_>>()?;

    let vars = operands.map(|operand| operand.var);
    let (inputs, parts, tape) = record_body(vars, body)?;
    let with_sharding = |(part, sharding): (&Var, &Option<Sharding>)| match (sharding, rank) {
        (Some(sharding), Some(rank)) => part.value().with_sharding(sharding, rank),
        _ => Ok(part.value().clone()),
    };
    let values: Result<Vec<Tensor>> = parts.iter().zip(&shardings).map(with_sharding).collect();
    let values = values?;
    let tracked = vars.iter().filter(|var| var.is_tracked());
    check_no_partial_max(tracked.map(|var| var.value()), &values)?;

    let effects = Effects { communicates: tape.communicates, ..Effects::default() };
    let backward = LocalBackward {
        rank: rank.unwrap_or_default(),
        gradients,
        dtypes: vars.iter().map(|var| var.dtype()).collect(),
        shardings,
        nested: NestedBackward::new(parts.iter().map(Var::dtype).collect()),
        tape: Mutex::new(Some(NestedTape::new(tape, &inputs, &parts)?)),
    };
    let backward: BackwardFn = Box::new(move |dys, slots| backward.run(dys, slots));
    let first = record_with(M, &vars, Dep::Nothing, effects, backward)?;
    let mut at = 0..M;
    Ok(parts.map(|part| {
        let at = at.next().unwrap_or_default();
        // On every rank, also where a part happens to be a constant.
        match part.dtype().is_float() {
            true => output(values[at].clone(), first, at),
            false => Var::constant(values[at].clone()),
        }
    }))
}

/// An operand of [`local`], with the placements that it must have.
pub struct LocalOperand<'a> {
    var: &'a Var,
    mesh: &'a Mesh,
    placements: Vec<(String, Placement)>,
    partial_gradients: Vec<String>,
}

impl<'a> LocalOperand<'a> {
    /// `var` with these placements on the axes of `mesh`; axes that are not named replicate.
    pub fn new<S: AsRef<str>>(
        var: &'a Var,
        mesh: &'a Mesh,
        placements: impl AsRef<[(S, Placement)]>,
    ) -> LocalOperand<'a> {
        LocalOperand {
            var,
            mesh,
            placements: owned(placements.as_ref()),
            partial_gradients: Vec::new(),
        }
    }

    /// Each rank along `axis`, which must not shard the operand, gets a term of the gradient: it is
    /// partial(sum), as that of a weight with other data on each rank.
    pub fn partial_gradient(mut self, axis: &str) -> LocalOperand<'a> {
        self.partial_gradients.push(axis.to_owned());
        self
    }

    /// The sharding of the gradient, after a check of the operand's own; `None` on a single rank.
    fn gradient(&self, rank: Option<usize>) -> Result<Option<Sharding>> {
        let (Some(_), Some(own)) = (rank, self.var.value().sharding()) else {
            return Ok(None);
        };
        let stated = Sharding::new(self.mesh, &self.placements, own.shape())?;
        if stated != *own {
            let describe = |sharding: &Sharding| format!("{sharding} on {}", sharding.mesh());
            bail!(
                Invalid,
                "local: an operand is {} on the mesh {}, but {} is stated; redistribute it before, \
                 or state its own placements",
                self.var.value(),
                own.mesh(),
                describe(&stated)
            );
        }
        let shards = stated.without_partials();
        let mut placements = shards.placements();
        placements.retain(|(_, placement)| placement.dim().is_some());
        let sum = Placement::Partial(Reduction::Sum);
        let partial = self.partial_gradients.iter();
        placements.extend(partial.map(|axis| (axis.as_str(), sum.clone())));
        Ok(Some(Sharding::new(self.mesh, placements, own.shape())?))
    }
}

/// A result of [`local`]: which part of a global tensor a rank's result is.
pub struct LocalResult<'a> {
    mesh: &'a Mesh,
    placements: Vec<(String, Placement)>,
    shape: &'a [usize],
}

impl<'a> LocalResult<'a> {
    /// A result of the global shape `shape` with these placements on the axes of `mesh`; axes that
    /// are not named replicate.
    pub fn new<S: AsRef<str>>(
        mesh: &'a Mesh,
        placements: impl AsRef<[(S, Placement)]>,
        shape: &'a [usize],
    ) -> LocalResult<'a> {
        LocalResult { mesh, placements: owned(placements.as_ref()), shape }
    }

    /// `None` on a single rank.
    fn sharding(&self, rank: Option<usize>) -> Result<Option<Sharding>> {
        match rank {
            Some(_) => Ok(Some(Sharding::new(self.mesh, &self.placements, self.shape)?)),
            None => Ok(None),
        }
    }
}

fn owned<S: AsRef<str>>(placements: &[(S, Placement)]) -> Vec<(String, Placement)> {
    let owned = |(axis, placement): &(S, Placement)| (axis.as_ref().to_owned(), placement.clone());
    placements.iter().map(owned).collect()
}

/// The rank of all operands; `None` if none has a sharding, as on a single rank.
fn rank_of(operands: &[LocalOperand<'_>]) -> Result<Option<usize>> {
    let mut values = operands.iter().map(|operand| operand.var.value());
    let Some(first) = values.clone().find(|value| value.sharding().is_some()) else {
        return match values.next().filter(|_| in_redistribution()) {
            Some(first) => first.expect_sharding("local").map(|_| None),
            None => Ok(None),
        };
    };
    let rank = first.sharded_shape().rank();
    let Some(other) = values.find(|value| value.sharded_shape().rank() != rank) else {
        return Ok(rank);
    };
    Err(match (rank, other.sharded_shape().rank()) {
        (Some(first_rank), Some(other_rank)) => error!(
            Invalid,
            "local: `{first}` belongs to rank {first_rank}, but `{other}` to rank {other_rank}"
        ),
        _ => error!(
            Invalid,
            "local: `{first}` is sharded ({}), but `{other}` has no sharding; state it with \
             Tensor::with_sharding, or create the tensor inside with_mesh",
            first.sharding().map(Sharding::to_string).unwrap_or_default()
        ),
    })
}

/// Calls `body` with leaves of a nested tape; returns them and its results.
fn record_body<const N: usize, const M: usize>(
    vars: [&Var; N],
    body: impl FnOnce([Var; N]) -> Result<[Var; M]>,
) -> Result<([Var; N], [Var; M], Tape)> {
    let mut deps = Vec::new();
    for var in vars {
        deps.push(dep_of(var)?);
    }
    let ((inputs, parts), tape) = RankScope::current().on_no_mesh().run(|| {
        record_local(|| {
            let mut deps = deps.into_iter();
            let inputs =
                vars.map(|var| Var::leaf(var.value().local(), deps.next().unwrap_or(Dep::Nothing)));
            let parts = body(inputs.clone())?;
            for part in &parts {
                dep_of(part)?;
            }
            Ok((inputs, parts))
        })
    })?;
    Ok((inputs, parts, tape))
}

/// The record of a [`local`].
struct LocalBackward {
    rank: usize,
    /// Of the operands' gradients.
    gradients: Vec<Option<Sharding>>,
    /// Of the operands.
    dtypes: Vec<DType>,
    /// Of the results.
    shardings: Vec<Option<Sharding>>,
    nested: NestedBackward,
    /// Taken by the first phase.
    tape: Mutex<Option<NestedTape>>,
}

impl LocalBackward {
    fn run(&self, dys: &[Option<Tensor>], slots: Slots<'_>) -> Result<()> {
        let dys = dys.iter().zip(&self.shardings).enumerate();
        let dys = dys.map(|(at, (dy, sharding))| match (dy, sharding) {
            (Some(dy), Some(sharding)) => Ok(Some(whole_gradient(at, dy, sharding)?)),
            (dy, _) => Ok(dy.clone()),
        });
        let dys: Vec<Option<Tensor>> = dys.collect::<Result<_>>()?;
        let device = slots.pass.device;
        let finish = |at: usize, gradient: Option<Tensor>| {
            let Some(sharding) = &self.gradients[at] else {
                return Ok(gradient);
            };
            // A part that this rank does not use, such as an empty one, has a gradient of zeros:
            // the ranks must record and compute the same.
            let gradient = match gradient {
                Some(gradient) => gradient.with_sharding(sharding, self.rank)?,
                None => {
                    let shape = ShardedShape::new(sharding, self.rank)?;
                    let zeros = shape.zeros(device, self.dtypes[at], Kind::Value)?;
                    zeros.local().with_sharding(sharding, self.rank)?
                }
            };
            Ok(Some(gradient))
        };
        let tape = || {
            let tape = self.tape.lock().unwrap_or_else(PoisonError::into_inner).take();
            Ok(tape.unwrap_or_else(|| unreachable!("the first phase takes the tape")))
        };
        RankScope::current().on_no_mesh().run(|| self.nested.run(&dys, slots, tape, finish))
    }
}

/// This rank's part of the gradient `dy` of result `at`, which must not be partial.
fn whole_gradient(at: usize, dy: &Tensor, sharding: &Sharding) -> Result<Tensor> {
    let Some(partials) =
        dy.sharding().map(Sharding::partials).filter(|partials| !partials.is_empty())
    else {
        return Ok(dy.local());
    };
    let own = |(axis, _): &(&str, Reduction)| format!("(\"{axis}\", Placement::Replicate)");
    bail!(
        Invalid,
        "local: the gradient of result {at} ({sharding}) is partial: {dy}; write \
         redistribute(&result, [{}]) after `local`, which reduces the gradient",
        partials.iter().map(own).collect::<Vec<_>>().join(", ")
    )
}
