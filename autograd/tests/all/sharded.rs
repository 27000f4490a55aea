//! The tape, parameters and gradient buffers of sharded tensors. `opcheck/tests/sharding` checks
//! the gradients of all ops.

use meshgrad_autograd::{Grads, Init, Param, Result, Tape, Track, Var, checkpoint, ops};
use meshgrad_mesh::{Mesh, Placement, Reduction, Sharding};
use meshgrad_runtime::{Accumulator, Device, Tensor, ops as runtime, with_mesh};

use crate::assert_error;

const RANKS: usize = 3;

fn mesh() -> Mesh {
    Mesh::new(&[RANKS], &["tp"]).unwrap()
}

fn shard(dim: usize, shape: &[usize]) -> Sharding {
    Sharding::new(&mesh(), [("tp", Placement::shard(dim))], shape).unwrap()
}

fn replicated(shape: &[usize]) -> Sharding {
    Sharding::replicated(&mesh(), shape).unwrap()
}

/// The part of `rank` of a tensor of distinct numbers.
fn part(device: &Device, sharding: &Sharding, rank: usize) -> Tensor {
    let count = sharding.shape().iter().product::<usize>();
    let numbers: Vec<f32> = (0..count).map(|at| (at as f32 * 1.3).sin()).collect();
    let mut local = Tensor::from_slice(device, sharding.shape(), &numbers).unwrap();
    for (dim, range) in sharding.region(rank).unwrap().as_box().unwrap().into_iter().enumerate() {
        local = local.slice(dim as isize, range).unwrap();
    }
    let local = runtime::contiguous(&local).unwrap();
    local.with_sharding(sharding, rank).unwrap()
}

/// Every rank generates its part of a parameter only, with the values that the whole has there.
#[test]
fn a_sharded_parameter_is_a_part_of_the_whole() {
    let device = Device::cpu();
    for init in [Init::Normal { std: 0.3 }, Init::Uniform { bound: 2.0 }, Init::Ones] {
        let whole = Param::new("w", [5, 4], init);
        whole.materialize(&device, 7).unwrap();
        let whole = whole.value().unwrap();
        let mut rows = Vec::new();
        for rank in 0..RANKS {
            let w = Param::new("w", [5, 4], init);
            w.shard(&shard(0, &[5, 4]), rank).unwrap();
            w.materialize(&device, 7).unwrap();
            let value = w.value().unwrap();
            assert_eq!(value.sharding(), Some(&shard(0, &[5, 4])));
            assert_eq!(value.storage_bytes(), value.elements() * size_of::<f32>());
            rows.extend(value.local().to_vec::<f32>().unwrap());
        }
        assert_eq!(rows, whole.to_vec::<f32>().unwrap());
    }
}

/// Inside `with_mesh`, a parameter without a stated sharding is replicated.
#[test]
fn parameters_are_replicated_by_default() {
    let w = Param::new("w", [5, 4], Init::Ones);
    with_mesh(&mesh(), 1, || w.materialize(&Device::cpu(), 7)).unwrap();
    assert_eq!(w.value().unwrap().sharding(), Some(&replicated(&[5, 4])));
}

#[test]
fn shardings_that_do_not_fit_a_parameter_are_errors() {
    let device = Device::cpu();
    let w = Param::new("w", [5, 4], Init::Ones);
    let partial = [("tp", Placement::Partial(Reduction::Sum))];
    let partial = Sharding::new(&mesh(), partial, &[5, 4]).unwrap();
    for sharding in [shard(0, &[4, 5]), partial.clone()] {
        assert_error(w.shard(&sharding, 0), "`w` of shape [5, 4] cannot be sharded as ");
    }

    w.shard(&shard(0, &[5, 4]), 1).unwrap();
    for value in [
        part(&device, &shard(0, &[5, 4]), 1).local(),
        part(&device, &shard(1, &[5, 4]), 1),
        part(&device, &shard(0, &[5, 4]), 2),
    ] {
        let error = w.set(&value).unwrap_err().to_string();
        assert!(error.starts_with("parameter `w` is "), "{error}");
        assert!(error.contains(", but the new value is "), "{error}");
    }
    w.set(&part(&device, &shard(0, &[5, 4]), 1)).unwrap();
    assert_error(w.shard(&shard(1, &[5, 4]), 1), "it has a value already");

    let other = Param::new("other", [5, 4], Init::Ones);
    let value = part(&device, &replicated(&[5, 4]), 0).local();
    let value = value.with_sharding(&partial, 0).unwrap();
    let error = other.set(&value).unwrap_err().to_string();
    assert!(error.starts_with("parameter `other` is "), "{error}");
    assert!(error.contains(", but the new value is "), "{error}");
}

/// A reshaped parameter adds to the buffer of the parameter, which keeps the parameter's shards.
#[test]
fn gradients_of_reshaped_parameters_have_the_shards_of_the_parameter() {
    let device = Device::cpu();
    let gradient = |x: &Tensor, w: Param| -> Result<Tensor> {
        let mut grads = Grads::new(std::slice::from_ref(&w))?;
        for _ in 0..2 {
            let (y, tape) = Tape::record(|| {
                let merged = ops::merge_first(&w.var()?)?;
                let again = ops::merge_first(&w.var()?)?;
                ops::mul(
                    &ops::linear(&Var::constant(x.clone()), &merged)?,
                    &ops::linear(&Var::constant(x.clone()), &again)?,
                )
            })?;
            let dy = runtime::affine(y.value(), 0.5, 0.0)?;
            tape.backward_from(&[(&y, dy)], &mut grads)?;
        }
        grads.get(&w)
    };
    let whole = Param::new("w", [6, 2, 4], Init::Normal { std: 1.0 });
    whole.materialize(&device, 3).unwrap();
    let x = part(&device, &replicated(&[5, 4]), 0);
    let expected = gradient(&x.local(), whole).unwrap().to_vec::<f32>().unwrap();

    let mut rows = Vec::new();
    for rank in 0..RANKS {
        let w = Param::new("w", [6, 2, 4], Init::Normal { std: 1.0 });
        w.shard(&shard(0, &[6, 2, 4]), rank).unwrap();
        w.materialize(&device, 3).unwrap();
        let x = part(&device, &replicated(&[5, 4]), rank);
        let gradient = gradient(&x, w).unwrap();
        assert_eq!(gradient.sharding(), Some(&shard(0, &[6, 2, 4])));
        rows.extend(gradient.local().to_vec::<f32>().unwrap());
    }
    assert_eq!(rows, expected);
}

/// The flat buffer has the elements of the rank's parts, and the gradient of a
/// parameter that nothing uses is zero with the parameter's shards.
#[test]
fn the_flat_buffer_and_unused_parameters() {
    let device = Device::cpu();
    let rank = 2;
    let mut spec = meshgrad_autograd::Spec::new([5, 4], Init::Ones);
    spec.optional = true;
    let unused = Param::with_spec("unused", spec);
    let used = Param::new("used", [4], Init::Ones);
    unused.shard(&shard(0, &[5, 4]), rank).unwrap();
    used.shard(&replicated(&[4]), rank).unwrap();
    for param in [&unused, &used] {
        param.materialize(&device, 1).unwrap();
    }

    let mut grads = Grads::new(&[unused.clone(), used.clone()]).unwrap();
    assert_eq!(grads.buffers()[0].shape()[..], [4 + 4]);
    let x = part(&device, &shard(0, &[7, 4]), rank);
    let (y, tape) = Tape::record(|| ops::mul(&Var::constant(x.clone()), &used.var()?)).unwrap();
    tape.backward_from(&[(&y, x.clone())], &mut grads).unwrap();
    assert_eq!(grads.get(&used).unwrap().sharding().unwrap().to_string(), "tp: partial(sum)");
    let zeros = grads.get(&unused).unwrap();
    assert_eq!(zeros.sharding(), Some(&shard(0, &[5, 4])));
    assert_eq!(zeros.local().to_vec::<f32>().unwrap(), [0.0; 4]);
}

/// After `clear`, another sharding of the batch may lead to gradients that are not partial. Reading
/// the gradient of a parameter that nothing used does not fix its sharding.
#[test]
fn cleared_gradients_have_no_sharding() {
    let device = Device::cpu();
    let mut spec = meshgrad_autograd::Spec::new([4], Init::Ones);
    spec.optional = true;
    let w = Param::with_spec("w", spec);
    w.shard(&replicated(&[4]), 0).unwrap();
    w.materialize(&device, 1).unwrap();
    let mut grads = Grads::new(std::slice::from_ref(&w)).unwrap();
    let mut step = |sharding: &Sharding| {
        let zeros = grads.get(&w).unwrap();
        assert_eq!(zeros.sharding(), Some(&replicated(&[4])));
        let x = part(&device, sharding, 0);
        let (y, tape) = Tape::record(|| ops::mul(&Var::constant(x.clone()), &w.var()?)).unwrap();
        tape.backward_from(&[(&y, x)], &mut grads).unwrap();
        let text = grads.get(&w).unwrap().sharding().unwrap().to_string();
        grads.clear();
        text
    };
    assert_eq!(step(&shard(0, &[7, 4])), "tp: partial(sum)");
    assert_eq!(step(&replicated(&[7, 4])), "tp: replicate");
}

/// An op that accumulates a local gradient without stating its sharding is refused: by the op that
/// adds it, or by the tape if none does.
#[test]
fn accumulated_gradients_need_a_sharding() {
    let device = Device::cpu();
    let w = Param::new("w", [4], Init::Ones);
    w.shard(&replicated(&[4]), 0).unwrap();
    w.materialize(&device, 1).unwrap();
    let backward = |add: fn(&Tensor, &mut Accumulator) -> Result<()>| {
        let mut grads = Grads::new(std::slice::from_ref(&w)).unwrap();
        let (y, tape) = Tape::record(|| {
            let w = w.var()?;
            let y = w.value().clone();
            y.tracked([&w], move |dy, [dw]| dw.accumulate(|dw| add(dy, dw)))
        })
        .unwrap();
        let dy = part(&device, &replicated(&[4]), 0);
        tape.backward_from(&[(&y, dy)], &mut grads)
    };
    let error = backward(|dy, dw| runtime::add_into(&dy.local(), dw)).unwrap_err();
    let expected = "`into` is sharded (tp: replicate), but `x` has no sharding";
    assert!(error.to_string().contains(expected), "{error}");

    let written = backward(|_, dw| {
        dw.filled();
        Ok(())
    });
    assert_error(written, "both must have the same dtype and shape");
}

/// A checkpoint recomputes sharded values, and gives the same gradients.
#[test]
fn checkpoints_of_sharded_values() {
    let device = Device::cpu();
    let x = part(&device, &shard(0, &[5, 4]), 1);
    let gradient = |checkpointed: bool| {
        let ((x, y), tape) = Tape::record(|| {
            let x = Var::input(x.clone());
            let block = |x: &Var| ops::silu(&ops::square(x)?);
            let y = match checkpointed {
                true => checkpoint([&x], move |[x]| block(&x))?,
                false => block(&x)?,
            };
            Ok((x, y))
        })
        .unwrap();
        let dy = y.value().clone();
        let (dx, _) = tape.backward_inputs(&[(&y, dy)], &[&x]).unwrap();
        assert_eq!(dx[0].sharding(), Some(&shard(0, &[5, 4])));
        dx[0].local().to_vec::<f32>().unwrap()
    };
    assert_eq!(gradient(true), gradient(false));
}

/// An input that no root depends on has a zero gradient with its shards.
#[test]
fn unused_inputs_have_zero_gradients() {
    let device = Device::cpu();
    let x = part(&device, &shard(0, &[5, 4]), 2);
    let ((x, z, y), tape) = Tape::record(|| {
        let (x, z) = (Var::input(x.clone()), Var::input(x.clone()));
        let y = ops::exp(&x)?;
        Ok((x, z, y))
    })
    .unwrap();
    let dy = y.value().clone();
    let (gradients, _) = tape.backward_inputs(&[(&y, dy)], &[&x, &z]).unwrap();
    assert_eq!(gradients[1].sharding(), Some(&shard(0, &[5, 4])));
    assert_eq!(gradients[1].local().to_vec::<f32>().unwrap(), [0.0; 4]);
}

/// The gradient of a root must have its shards.
#[test]
fn gradients_of_roots_are_checked() {
    let device = Device::cpu();
    let x = part(&device, &shard(0, &[6, 4]), 0);
    for dy in [
        x.local(),
        part(&device, &shard(1, &[6, 4]), 0),
        part(&device, &replicated(&[6, 4]), 0),
        part(&device, &shard(0, &[6, 4]), 1),
    ] {
        let ((x, y), tape) = Tape::record(|| {
            let x = Var::input(x.clone());
            let y = ops::exp(&x)?;
            Ok((x, y))
        })
        .unwrap();
        let error = tape.backward_inputs(&[(&y, dy)], &[&x]).err().unwrap().to_string();
        assert!(error.ends_with("; both must have the same dtype and shape"), "{error}");
        assert!(error.contains("[6, 4] (tp: shard(0))"), "{error}");
    }
}

/// The gradient of a maximum over a sharded dim depends on which rank has the maximum.
#[test]
fn a_partial_maximum_is_not_tracked() {
    let x = part(&Device::cpu(), &shard(0, &[5, 4]), 1);
    let refused = Tape::record(|| ops::max(&Var::input(x.clone()), &[0]));
    assert_error(refused, " depends on all ranks: compute the maximum of a whole dim");
    Tape::record(|| ops::max(&Var::constant(x.clone()), &[0])).unwrap();
    Tape::record(|| ops::max(&Var::input(x.clone()), &[1])).unwrap();
}
