//! Bodies of `local` on one rank. `dist/comm/tests/all/redistribution` has bodies that communicate.

use meshgrad_autograd::{
    Grads, Init, LocalOperand, LocalResult, Param, Result, Tape, Var, checkpoint, local, ops,
};
use meshgrad_mesh::{Mesh, Placement, Reduction, Sharding};
use meshgrad_runtime::{DType, Device, Kind, Tensor, ops as runtime, with_mesh};

use crate::assert_error;

fn mesh() -> Mesh {
    Mesh::new(&[3], &["tp"]).unwrap()
}

/// One device for all tensors of a test.
fn device() -> Device {
    thread_local! {
        static DEVICE: Device = Device::cpu();
    }
    DEVICE.with(Device::clone)
}

fn numbers(shape: &[usize]) -> Tensor {
    let count = shape.iter().product::<usize>();
    let numbers: Vec<f32> = (0..count).map(|at| (at as f32 * 1.3).sin()).collect();
    Tensor::from_slice(&device(), shape, &numbers).unwrap()
}

fn weight() -> Param {
    let w = Param::new("w", [4, 4], Init::Normal { std: 0.5 });
    w.materialize(&device(), 3).unwrap();
    w
}

/// silu(x wT) and its square, by a body without a sharding.
fn layer(x: &Var, w: &Param) -> Result<[Var; 2]> {
    let one = mesh();
    let shape = x.value().global_shape();
    local(
        [LocalOperand::new::<&str>(x, &one, []), LocalOperand::new::<&str>(&w.var()?, &one, [])],
        [(); 2].map(|()| LocalResult::new::<&str>(&one, [], &shape)),
        |[x, w]| {
            let y = ops::silu(&ops::linear(&x, &w)?)?;
            let squared = ops::square(&y)?;
            Ok([y, squared])
        },
    )
}

fn plain(x: &Var, w: &Param) -> Result<[Var; 2]> {
    let y = ops::silu(&ops::linear(x, &w.var()?)?)?;
    let squared = ops::square(&y)?;
    Ok([y, squared])
}

/// Runs `block` twice, the second time on its first result, and returns the gradients of x and w.
fn gradients(
    block: impl Fn(&Var, &Param) -> Result<[Var; 2]>,
    split: bool,
) -> Result<[Vec<f32>; 2]> {
    let (w, frozen) = (weight(), numbers(&[2, 4]));
    let ((x, roots), tape) = Tape::record(|| {
        let x = Var::input(frozen);
        let [y, _] = block(&x, &w)?;
        Ok((x, block(&y, &w)?))
    })?;
    let roots: Vec<(&Var, Tensor)> =
        roots.iter().map(|root| (root, root.value().clone())).collect();
    let mut grads = Grads::new(std::slice::from_ref(&w))?;
    let dx = match split {
        true => {
            let (mut dx, weights) = tape.backward_inputs(&roots, &[&x])?;
            weights.run(&mut grads)?;
            dx.remove(0).to_vec()?
        }
        false => {
            tape.backward_from(&roots, &mut grads)?;
            Vec::new()
        }
    };
    Ok([dx, grads.get(&w)?.to_vec()?])
}

#[test]
fn gradients_equal_those_without_local() {
    let expected = gradients(plain, true).unwrap();
    assert_eq!(gradients(layer, true).unwrap(), expected);
    assert_eq!(gradients(layer, false).unwrap()[1], expected[1]);
    let checkpointed = |x: &Var, w: &Param| {
        let w = w.clone();
        checkpoint([x], move |[x]| layer(&x, &w))
    };
    assert_eq!(gradients(checkpointed, true).unwrap(), expected);
    assert_eq!(gradients(checkpointed, false).unwrap()[1], expected[1]);
}

#[test]
fn the_tape_counts_what_the_body_saves() {
    let w = weight();
    let bytes = |block: fn(&Var, &Param) -> Result<[Var; 2]>| {
        let (_, tape) = Tape::record(|| block(&Var::input(numbers(&[2, 4])), &w)).unwrap();
        tape.saved_bytes()
    };
    assert_eq!(bytes(layer), bytes(plain));
    let [y, _] = layer(&Var::input(numbers(&[2, 4])), &w).unwrap();
    assert!(!y.is_tracked());
}

#[test]
fn operands_that_no_op_saves_are_freed() {
    let (device, one) = (device(), mesh());
    let x = Var::input(numbers(&[64, 64]));
    let (y, _tape) = Tape::record(|| {
        let x = Var::input(x.value().clone());
        let operand = LocalOperand::new::<&str>(&x, &one, []);
        let result = LocalResult::new::<&str>(&one, [], &[64, 64]);
        let [y] = local([operand], [result], |[x]| Ok([ops::affine(&x, 2.0, 0.0)?]))?;
        ops::affine(&y, 2.0, 0.0)
    })
    .unwrap();
    let live = device.memory_stats().live;
    drop(x);
    assert!(device.memory_stats().live < live, "the tape keeps the operand");
    drop(y);
}

#[test]
fn captured_parameters_and_values_are_errors() {
    let (one, w) = (mesh(), weight());
    let run = |body: &dyn Fn(&Var, Var) -> Result<Var>| {
        Tape::record(|| {
            let outer = ops::square(&Var::input(numbers(&[2, 4])))?;
            let x = Var::input(numbers(&[2, 4]));
            let operand = LocalOperand::new::<&str>(&x, &one, []);
            let result = LocalResult::new::<&str>(&one, [], &[2, 4]);
            local([operand], [result], |[x]| Ok([body(&outer, x)?]))
        })
        .err()
        .unwrap()
    };
    let param = run(&|_, x| ops::linear(&x, &w.var()?)).to_string();
    assert!(param.contains("`w`"), "{param}");
    let nested = w.clone();
    let in_checkpoint = run(&move |_, x| {
        let w = nested.clone();
        checkpoint([&x], move |[x]| ops::linear(&x, &w.var()?))
    });
    let captured = "the body of `local` uses parameter `w`";
    assert!(in_checkpoint.to_string().contains(captured), "{in_checkpoint}");
    let value = run(&|outer, x| ops::add(&x, outer));
    assert!(value.to_string().contains("belongs to tape "), "{value}");
    let returned = run(&|outer, _| Ok(outer.clone()));
    assert!(returned.to_string().contains("belongs to tape "), "{returned}");

    // Also when nothing is recorded.
    let x = Var::constant(numbers(&[2, 4]));
    let operand = LocalOperand::new::<&str>(&x, &one, []);
    let result = LocalResult::new::<&str>(&one, [], &[2, 4]);
    let refused = local([operand], [result], |[x]| Ok([ops::linear(&x, &w.var()?)?]));
    assert_error(refused, captured);
}

/// The square of `x` in a body, with these placements of operand and result.
fn squared(x: &Var, of_x: &[(&str, Placement)], of_y: &[(&str, Placement)]) -> Result<Var> {
    let mesh = mesh();
    let shape = x.value().global_shape();
    let operand = LocalOperand::new(x, &mesh, of_x);
    let [y] = local([operand], [LocalResult::new(&mesh, of_y, &shape)], |[x]| {
        assert!(x.value().sharding().is_none());
        // Inside the body, constants have no sharding either.
        let two = runtime::full(x.value().device(), &[], DType::F32, 2.0)?;
        Ok([ops::mul(&ops::square(&x)?, &Var::constant(two))?])
    })?;
    Ok(y)
}

#[test]
fn shardings_are_checked() {
    let rows = [("tp", Placement::shard(0))];
    let sharding = Sharding::new(&mesh(), &rows, &[5, 4]).unwrap();
    let x = numbers(&[2, 4]).with_sharding(&sharding, 1).unwrap();
    let x = Var::constant(x);
    with_mesh(&mesh(), 1, || -> Result<()> {
        let y = squared(&x, &rows, &rows)?;
        assert_eq!(y.value().sharding(), Some(&sharding));

        let error = squared(&x, &[], &rows).err().unwrap().to_string();
        assert!(error.starts_with("local: an operand is "), "{error}");
        assert!(error.contains("tp: shard(0)"), "{error}");
        assert_error(squared(&x, &rows, &[]), ": the shape is [2, 4], but the part of rank 1 in");
        assert_error(
            squared(&x, &rows, &[("dp", Placement::shard(0))]),
            "axis `dp` is not in the mesh (axes: tp 3)",
        );
        let mesh = mesh();
        let twice = LocalOperand::new(&x, &mesh, &rows).partial_gradient("tp");
        assert_error(local([twice], [], |_| Ok([])), "axis `tp` has two placements");
        Ok(())
    })
    .unwrap();
    let (other_rank, none) =
        (numbers(&[2, 4]).with_sharding(&sharding, 0).unwrap(), numbers(&[2, 4]));
    for other in [other_rank, none] {
        let (mesh, other) = (mesh(), Var::constant(other));
        let operands = [&x, &other].map(|var| LocalOperand::new(var, &mesh, &rows));
        let error = local(operands, [], |_| Ok([])).err().unwrap();
        assert!(error.to_string().starts_with("local: "), "{error}");
    }
}

#[test]
fn gradients_of_results_must_be_whole() {
    let tp = |placement: Placement| Sharding::new(&mesh(), [("tp", placement)], &[2, 4]).unwrap();
    let x = numbers(&[2, 4]).with_sharding(&tp(Placement::Replicate), 1).unwrap();
    let gradient = |of_dy: Placement| -> Result<Tensor> {
        let ((x, y), tape) = Tape::record(|| {
            let x = Var::input(x.clone());
            let y = squared(&x, &[], &[])?;
            Ok((x, y))
        })?;
        let dy = numbers(&[2, 4]).with_sharding(&tp(of_dy), 1)?;
        let (mut dx, _) = tape.backward_inputs(&[(&y, dy)], &[&x])?;
        Ok(dx.remove(0))
    };
    let dx = gradient(Placement::Replicate).unwrap();
    assert_eq!(dx.sharding(), Some(&tp(Placement::Replicate)));
    let error = gradient(Placement::Partial(Reduction::Sum)).unwrap_err().to_string();
    assert!(error.starts_with("local: the gradient of result 0 ("), "{error}");
    assert!(error.contains(r#"[("tp", Placement::Replicate)]"#), "{error}");
}

/// Ranks that have nothing to compute record and compute the same as the others.
#[test]
fn unused_operands_have_zero_gradients_and_constant_results_are_tracked() {
    let (mesh, rows) = (mesh(), [("tp", Placement::shard(0))]);
    let sharding = Sharding::new(&mesh, &rows, &[2, 4]).unwrap();
    // The last of three ranks has none of two rows.
    let part = Tensor::zeros(&device(), &[0, 4], DType::F32, Kind::Value).unwrap();
    let part = part.with_sharding(&sharding, 2).unwrap();
    let ((x, y), tape) = Tape::record(|| {
        let x = Var::input(part.clone());
        let operand = LocalOperand::new(&x, &mesh, &rows);
        let [y] = local([operand], [LocalResult::new(&mesh, &rows, &[2, 4])], |[x]| {
            Ok([Var::constant(x.into_value())])
        })?;
        Ok((x, y))
    })
    .unwrap();
    let (dx, weights) = tape.backward_inputs(&[(&y, part)], &[&x]).unwrap();
    assert_eq!(dx[0].sharding(), Some(&sharding));
    let mut no_params = Grads::new(&[]).unwrap();
    weights.run(&mut no_params).unwrap();
}
