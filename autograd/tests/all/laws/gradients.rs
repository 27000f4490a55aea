//! What a backward pass computes, in full, split, recomputed and in parts.

use approx::assert_relative_eq;
use meshgrad_autograd::{
    Grads, Init, Operand, Param, Result, Spec, Tape, Track, Var, checkpoint, ops,
};
use meshgrad_runtime::{DType, Device, Shape, Tensor};

use crate::laws::{
    Backward, Block, Net, bits, checkpointed, gradients, nested, numbers, plain, scaled_first,
};

/// Splitting the backward pass, running a part of it on another thread, and recomputing change no
/// bit.
#[test]
fn split_equals_full_equals_checkpointed() {
    // Each block is paired with a recomputed form that has the same order of ops, because gradients
    // are summed in tape order.
    let pairs: [(Block, Block); 2] = [(plain, checkpointed), (scaled_first, nested)];
    for (block, recomputed) in pairs {
        let (full, none) = gradients(Backward::Full, block);
        assert!(none.is_empty());
        assert_eq!(full, gradients(Backward::Full, recomputed).0);

        let split = gradients(Backward::Split, block);
        assert_eq!(split, gradients(Backward::WithInputs, block));
        assert_eq!(full, split.0);
        for block in [block, recomputed] {
            assert_eq!(split, gradients(Backward::Split, block));
            assert_eq!(split, gradients(Backward::SplitOnAnotherThread, block));
        }
    }
}

/// The gradients of microbatches add up to those of the whole batch.
#[test]
fn microbatches_add_up() {
    let net = Net::new();
    let (x, dy) = (net.input(1), net.input(2));
    let run = |parts: &[std::ops::Range<usize>]| {
        let mut grads = Grads::new(&net.params()).unwrap();
        for part in parts {
            let rows = |t: &Tensor| t.slice(0, part.clone()).unwrap();
            let (y, tape) = Tape::record(|| net.forward(&Var::input(rows(&x)))).unwrap();
            tape.backward_from(&[(&y, rows(&dy))], &mut grads).unwrap();
        }
        let all = grads.all().unwrap();
        all.iter().flat_map(|(_, g)| g.to_vec::<f32>().unwrap()).collect::<Vec<f32>>()
    };
    let (whole, parts) = (run(std::slice::from_ref(&(0..4))), run(&[0..1, 1..4]));
    assert_relative_eq!(whole[..], parts[..], epsilon = 1e-5, max_relative = 1e-5);
}

#[test]
fn several_roots_add_up() {
    let net = Net::new();
    let gradient = |first: bool, second: bool| {
        let mut grads = Grads::new(&net.params()).unwrap();
        let ((y, z), tape) = Tape::record(|| {
            let y = net.forward(&Var::input(net.input(1)))?;
            Ok((y.clone(), ops::square(&y)?))
        })
        .unwrap();
        let (dy, dz) = (net.input(2), net.input(3));
        let roots = [(&y, dy), (&z, dz)];
        let used = [first, second];
        let roots: Vec<_> =
            roots.into_iter().zip(used).filter(|(_, w)| *w).map(|(r, _)| r).collect();
        tape.backward_from(&roots, &mut grads).unwrap();
        grads.get(&net.b).unwrap().to_vec::<f32>().unwrap()
    };
    let (both, one, other) = (gradient(true, true), gradient(true, false), gradient(false, true));
    for ((both, one), other) in both.iter().zip(&one).zip(&other) {
        assert!((both - one - other).abs() < 1e-4, "{both} {one} {other}");
    }
}

/// A checkpoint accepts inputs computed from a bf16 parameter only, whose gradients are accumulated
/// in f32. The gradient agrees with the one without a checkpoint up to bf16 rounding.
#[test]
fn checkpoints_accept_values_computed_from_bf16_parameters() {
    let device = Device::cpu();
    let spec = Spec {
        shape: Shape::new(&[4, 8]).unwrap(),
        dtype: DType::BF16,
        init: Init::Normal { std: 1.0 },
        optional: false,
    };
    let param = Param::with_spec("w", spec);
    param.materialize(&device, 1).unwrap();
    let x = ops::cast(&numbers(&device, &[4, 8], 1), DType::BF16).unwrap();

    let block = |[x, w]: [Var; 2]| Ok([ops::silu(&ops::linear(&x, &w)?)?]);
    let gradient = |recomputed: bool| {
        let (y, tape) = Tape::record(|| {
            let inputs = [Var::constant(x.clone()), ops::affine(&param.var()?, 2.0, 0.5)?];
            let [y] = match recomputed {
                true => checkpoint(inputs.each_ref(), block)?,
                false => block(inputs)?,
            };
            ops::affine(&y, 3.0, 0.0)
        })
        .unwrap();
        let dy = ops::full(&device, y.shape(), DType::BF16, 0.25).unwrap();
        let mut grads = Grads::new(std::slice::from_ref(&param)).unwrap();
        tape.backward_from(&[(&y, dy)], &mut grads).unwrap();
        grads.get(&param).unwrap().to_vec::<f32>().unwrap()
    };
    // The weight is an input of the checkpoint, where its gradient is bf16.
    let (whole, recomputed) = (gradient(false), gradient(true));
    assert_relative_eq!(whole[..], recomputed[..], max_relative = 1.0 / 128.0);
}

/// A compute copy of a parameter is made once per value, and shares the parameter's gradient.
#[test]
fn compute_copies_share_the_parameters_gradient() {
    let net = Net::new();
    let copy = |param: &Param| param.var_as(DType::BF16).unwrap().value().storage_id();
    let first = net.a.var_as(DType::BF16).unwrap();
    assert_eq!(copy(&net.a), first.value().storage_id());
    ops::fill_into(&net.a.value().unwrap(), 0.5).unwrap();
    assert_eq!(
        net.a.var_as(DType::BF16).unwrap().value().to_vec::<half::bf16>().unwrap()[0].to_f32(),
        0.5
    );

    let mut grads = Grads::new(std::slice::from_ref(&net.a)).unwrap();
    let x = ops::cast(&net.input(1), DType::BF16).unwrap();
    let (y, tape) =
        Tape::record(|| ops::linear(&Var::input(x.clone()), &net.a.var_as(DType::BF16)?)).unwrap();
    let dy = ops::cast(&net.input(2), DType::BF16).unwrap();
    tape.backward_from(&[(&y, dy)], &mut grads).unwrap();
    assert_eq!(grads.get(&net.a).unwrap().dtype(), DType::F32);
}

/// An op on tensors computes the bits of the same op on variables, and records and saves nothing.
#[test]
fn ops_on_tensors_give_the_bits_of_ops_on_variables() {
    let device = Device::cpu();
    let [x, w] = [[5, 4], [3, 4]].map(|shape| numbers(&device, &shape, 3));
    let gain = numbers(&device, &[4], 5);
    fn network<V: Operand>(x: &V, w: &V, gain: &V) -> Result<Vec<V>> {
        let (sum, normed) = ops::add_rms_norm(x, &ops::silu(x)?, gain, 1e-6)?;
        let y = ops::linear(&normed, w)?;
        let parts = ops::split(&ops::reshape(&ops::softmax(&y)?, &[15])?, &[4, 11], 0)?;
        Ok([vec![sum, ops::concat(&[&y, &y], 1)?], parts].concat())
    }

    let (plain, tape) = Tape::record(|| network(&x, &w, &gain)).unwrap();
    assert_eq!((tape.len(), tape.saved_bytes()), (0, 0));
    let inputs = || [&x, &w, &gain].map(|value| Var::input(value.clone()));
    let (recorded, tape) = Tape::record(|| {
        let [x, w, gain] = inputs();
        network(&x, &w, &gain)
    })
    .unwrap();
    assert!(tape.len() >= 6 && tape.saved_bytes() > 0);
    for (plain, recorded) in plain.iter().zip(&recorded) {
        let values = |tensor: &Tensor| tensor.to_vec::<f32>().unwrap();
        assert_eq!(values(plain), values(recorded.value()));
    }
}

/// Each result of a checkpointed block gets its own gradient, whatever type holds the results.
#[test]
fn results_of_a_checkpoint_keep_their_gradients() {
    type Results = ((Var, Option<Var>), (Vec<Var>, [Var; 1]));
    let net = Net::new();
    let block = {
        let (a, b) = (net.a.clone(), net.b.clone());
        move |x: &Var| -> Result<Results> {
            let (by_a, by_b) = (ops::linear(x, &a.var()?)?, ops::linear(x, &b.var()?)?);
            let product = ops::mul(&by_a, &by_b)?;
            Ok(((by_a, Some(by_b)), (vec![product], [ops::silu(x)?])))
        }
    };
    let run = |checkpointed: bool| {
        let block = block.clone();
        let ((x, results), tape) = Tape::record(|| {
            let x = Var::input(net.input(1));
            let results = match checkpointed {
                true => checkpoint([&x], move |[x]| block(&x))?,
                false => block(&x)?,
            };
            Ok((x, results))
        })
        .unwrap();
        let ((by_a, by_b), (product, [gate])) = results;
        let results = [by_a, by_b.unwrap(), product[0].clone(), gate];
        let roots: Vec<(&Var, Tensor)> = results
            .iter()
            .enumerate()
            .map(|(salt, result)| (result, numbers(&net.device, result.shape(), salt + 5)))
            .collect();
        let mut grads = Grads::new(&net.params()).unwrap();
        let (dx, weights) = tape.backward_inputs(&roots, &[&x]).unwrap();
        weights.run(&mut grads).unwrap();
        let values = results.iter().map(|result| result.value().to_vec::<f32>().unwrap());
        let values: Vec<f32> = values.flatten().collect();
        (values, dx[0].to_vec::<f32>().unwrap(), bits(&mut grads))
    };
    assert_eq!(run(true), run(false));
}

/// A checkpointed block may return a parameter that it also uses; both uses add to the gradient.
#[test]
fn a_checkpoint_may_return_a_parameter() {
    let net = Net::new();
    let run = |checkpointed: bool| {
        let b = net.b.clone();
        let block = move |x: &Var| Ok([ops::linear(x, &b.var()?)?, b.var()?]);
        let (loss, tape) = Tape::record(|| {
            let x = Var::input(net.input(1));
            let [y, w] = match checkpointed {
                true => checkpoint([&x], move |[x]| block(&x))?,
                false => block(&x)?,
            };
            ops::linear(&y, &w)
        })
        .unwrap();
        let mut grads = Grads::new(std::slice::from_ref(&net.b)).unwrap();
        tape.backward_from(&[(&loss, net.input(2))], &mut grads).unwrap();
        bits(&mut grads)
    };
    assert_eq!(run(true), run(false));
}

/// Gradients that ops add and gradients that they write in place add up, in every order.
#[test]
fn added_and_accumulated_gradients_add_up() {
    let doubled = |x: &Var, in_place: bool| {
        let value = meshgrad_runtime::ops::affine(x.value(), 2.0, 0.0)?;
        value.tracked([x], move |dy, [dx]| {
            let gradient = meshgrad_runtime::ops::affine(dy, 2.0, 0.0)?;
            match in_place {
                true => dx.accumulate(|sum| meshgrad_runtime::ops::add_into(&gradient, sum)),
                false => dx.add(|| Ok(gradient)),
            }
        })
    };
    let device = Device::cpu();
    for dtype in [DType::F32, DType::BF16] {
        let cast = |x: &Tensor| meshgrad_runtime::ops::cast(x, dtype).unwrap();
        let (x, ones) = (
            cast(&numbers(&device, &[3, 5], 1)),
            cast(&Tensor::from_slice(&device, &[3, 5], &[1f32; 15]).unwrap()),
        );
        for order in 0..8 {
            let ((x, y), tape) = Tape::record(|| {
                let x = Var::input(x.clone());
                let h = ops::affine(&x, 3.0, 0.0)?;
                let [a, b, c] = [0, 1, 2].map(|at| doubled(&h, order >> at & 1 == 1));
                Ok((x, ops::add(&ops::add(&a?, &b?)?, &c?)?))
            })
            .unwrap();
            let (dx, _) = tape.backward_inputs(&[(&y, ones.clone())], &[&x]).unwrap();
            let dx = meshgrad_runtime::ops::cast(&dx[0], DType::F32).unwrap();
            assert_eq!(dx.to_vec::<f32>().unwrap(), [18.0; 15], "{dtype} {order}");
        }
    }
}

/// Reordered rows have the gradient of gathered ones, by the inverse permutation.
#[test]
fn reordered_elements_have_the_gradient_of_gathered_ones() {
    let device = Device::cpu();
    let index = |values: [i64; 8]| Tensor::from_slice(&device, &[2, 4], &values).unwrap();
    let order = index([2, 0, 3, 1, 3, 1, 0, 2]);
    let inverse = index([1, 3, 0, 2, 2, 1, 3, 0]);
    let w = Param::new("w", [2, 4], Init::Normal { std: 1.0 });
    w.materialize(&device, 1).unwrap();
    let of = |op: &dyn Fn(&Var) -> Result<Var>| {
        let mut grads = Grads::new(std::slice::from_ref(&w)).unwrap();
        let (y, tape) = Tape::record(|| op(&w.var()?)).unwrap();
        tape.backward_from(&[(&y, numbers(&device, &[2, 4], 5))], &mut grads).unwrap();
        (y.value().to_vec::<f32>().unwrap(), bits(&mut grads))
    };
    let gathered = of(&|x| ops::gather(x, 1, &order));
    assert_eq!(of(&|x| ops::reorder(x, 1, &order, &inverse)), gathered);
    assert_ne!(of(&|x| ops::reorder(x, 1, &order, &order)), gathered);
}
