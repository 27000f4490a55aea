//! Parameters: frozen, unused, shared, and reported when their gradient is complete.

use std::sync::{Arc, Mutex};

use meshgrad_autograd::{Grads, Init, Param, Spec, Tape, Track, Var, ops};
use meshgrad_runtime::{DType, Shape};

use crate::assert_error;
use crate::laws::{Block, Net, checkpointed, nested, numbers, plain};

#[test]
fn an_unused_parameter_is_an_error_unless_optional() {
    let net = Net::new();
    let spec =
        |optional| Spec { shape: Shape::of([2]), dtype: DType::F32, init: Init::Ones, optional };
    let run = |extra: &Param| {
        extra.materialize(&net.device, 1).unwrap();
        let mut params = net.params();
        params.push(extra.clone());
        let mut grads = Grads::new(&params).unwrap();
        let (y, tape) = Tape::record(|| net.forward(&Var::input(net.input(1)))).unwrap();
        let done = tape.backward_from(&[(&y, net.input(2))], &mut grads);
        done.and_then(|()| grads.get(extra)?.to_vec::<f32>())
    };
    let forgotten = run(&Param::with_spec("forgotten", spec(false)));
    assert_error(forgotten, "no op used `forgotten`: remove the parameter");
    assert_eq!(run(&Param::with_spec("optional", spec(true))), Ok(vec![0.0; 2]));
}

/// A frozen parameter is a constant: nothing is saved for its gradient, and the others have the
/// same gradients as before.
#[test]
fn frozen_parameters_are_constants() {
    let net = Net::new();
    let run = |params: &[Param]| {
        let (y, tape) = Tape::record(|| net.forward(&Var::constant(net.input(1)))).unwrap();
        let saved = tape.saved_bytes();
        let mut grads = Grads::new(params).unwrap();
        tape.backward_from(&[(&y, net.input(2))], &mut grads).unwrap();
        (grads.get(&net.b).unwrap().to_vec::<f32>().unwrap(), saved)
    };
    let (all, saved) = run(&net.params());
    net.a.freeze();
    assert!(net.a.clone().is_frozen() && !net.a.var().unwrap().is_tracked());
    let (frozen, less) = run(std::slice::from_ref(&net.b));
    assert_eq!(all, frozen);
    assert!(less < saved, "{less} of {saved} bytes");

    net.a.unfreeze();
    assert_eq!(run(&net.params()), (all, saved));
}

/// The gradient of a parameter that is not in `Grads` is not computed.
#[test]
fn parameters_without_a_buffer_get_no_gradient() {
    let net = Net::new();
    let mut grads = Grads::new(std::slice::from_ref(&net.b)).unwrap();
    let (y, tape) = Tape::record(|| net.forward(&Var::input(net.input(1)))).unwrap();
    tape.backward_from(&[(&y, net.input(2))], &mut grads).unwrap();
    assert_error(grads.get(&net.a), "there is no gradient of `a`: add the parameter");
    let mut all = Grads::new(&net.params()).unwrap();
    let (y, tape) = Tape::record(|| net.forward(&Var::input(net.input(1)))).unwrap();
    tape.backward_from(&[(&y, net.input(2))], &mut all).unwrap();
    let of_b = |grads: &mut Grads| grads.get(&net.b).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(of_b(&mut grads), of_b(&mut all));

    let computed = Arc::new(Mutex::new(false));
    let (y, tape) = Tape::record(|| {
        let (a, computed) = (net.a.var()?, computed.clone());
        let copy = a.value().clone().tracked([&a], move |dy, [da]| {
            da.add(|| {
                *computed.lock().unwrap() = true;
                Ok(dy.clone())
            })
        })?;
        ops::add(&copy, &net.b.var()?)
    })
    .unwrap();
    let dy = numbers(&net.device, &[6, 6], 2);
    let mut grads = Grads::new(std::slice::from_ref(&net.b)).unwrap();
    tape.backward_from(&[(&y, dy)], &mut grads).unwrap();
    assert!(!*computed.lock().unwrap());
}

/// Cleared gradients are zeros, and accumulation starts again from zero.
#[test]
fn cleared_gradients_are_zeros() {
    let net = Net::new();
    let mut grads = Grads::new(&net.params()).unwrap();
    let run = |grads: &mut Grads| {
        let (y, tape) = Tape::record(|| net.forward(&Var::input(net.input(1)))).unwrap();
        tape.backward_from(&[(&y, net.input(2))], grads).unwrap();
        grads.get(&net.a).unwrap().to_vec::<f32>().unwrap()
    };
    let once = run(&mut grads);
    grads.clear();
    let cleared = grads.get(&net.a).unwrap().to_vec::<f32>().unwrap();
    assert!(cleared.iter().all(|it| *it == 0.0) && once.iter().any(|it| *it != 0.0));
    assert_eq!(run(&mut grads), once);
    assert_ne!(run(&mut grads), once);
}

/// Parameters are reported once, with complete gradients, from the last of the list to the first,
/// regardless of the order in which ops finish.
#[test]
fn parameters_are_reported_in_reverse_order() {
    let blocks: [Block; 3] = [plain, checkpointed, nested];
    for block in blocks {
        for params in [["a", "b"], ["b", "a"]] {
            let net = Net::new();
            let of = |name| {
                if name == "a" { net.a.clone() } else { net.b.clone() }
            };
            let params = params.map(of);
            let mut grads = Grads::new(&params).unwrap();
            let reported = Arc::new(Mutex::new(Vec::new()));
            let log = reported.clone();
            grads.on_ready(move |param, gradient| {
                let entry = (param.name().to_owned(), gradient.to_vec::<f32>()?);
                log.lock().unwrap().push(entry);
                Ok(())
            });

            let (y, tape) = Tape::record(|| block(&net, &Var::input(net.input(1)))).unwrap();
            tape.backward_from(&[(&y, net.input(2))], &mut grads).unwrap();
            let reported = reported.lock().unwrap().clone();
            assert_eq!(reported.len(), 2);
            for ((name, gradient), param) in reported.iter().zip(params.iter().rev()) {
                assert_eq!(name, param.name());
                assert_eq!(*gradient, grads.get(param).unwrap().to_vec::<f32>().unwrap());
            }
        }
    }
}

/// A parameter is reported as soon as the backward of all its uses is done, before the backward of
/// ops that ran earlier. An unused optional parameter is reported at the end, and so are the
/// parameters after it in the order.
#[test]
fn parameters_are_reported_as_soon_as_they_are_complete() {
    let net = Net::new();
    let unused = Param::with_spec("unused", Spec { optional: true, ..Spec::new([2], Init::Ones) });
    unused.materialize(&net.device, 1).unwrap();
    let order_of = |params: &[Param]| {
        let log: Arc<Mutex<Vec<String>>> = Arc::default();
        let mut grads = Grads::new(params).unwrap();
        let reported = log.clone();
        grads.on_ready(move |param, _| {
            reported.lock().unwrap().push(param.name().to_owned());
            Ok(())
        });
        let between = log.clone();
        let (y, tape) = Tape::record(|| {
            let h = ops::linear(&Var::constant(net.input(1)), &net.a.var()?)?;
            let h = h.value().clone().tracked([&h], move |dy, [dh]| {
                between.lock().unwrap().push("between".into());
                dh.add(|| Ok(dy.clone()))
            })?;
            ops::linear(&h, &net.b.var()?)
        })
        .unwrap();
        tape.backward_from(&[(&y, net.input(2))], &mut grads).unwrap();
        drop(grads);
        log.lock().unwrap().clone()
    };

    let (a, b) = (net.a.clone(), net.b.clone());
    assert_eq!(order_of(&[a.clone(), b.clone()]), ["b", "between", "a"]);
    assert_eq!(order_of(&[b.clone(), a.clone()]), ["between", "a", "b"]);
    let with_unused = order_of(&[a.clone(), unused.clone(), b.clone()]);
    assert_eq!(with_unused, ["b", "between", "unused", "a"]);
    let with_unused = order_of(&[a, b, unused]);
    assert_eq!(with_unused, ["between", "unused", "b", "a"]);
}

#[test]
fn gradients_share_one_buffer() {
    let net = Net::new();
    let mut grads = Grads::new(&net.params()).unwrap();
    let names: Vec<&str> = grads.params().map(Param::name).collect();
    assert_eq!(names, ["a", "b"]);
    let (y, tape) = Tape::record(|| net.forward(&Var::input(net.input(1)))).unwrap();
    tape.backward_from(&[(&y, net.input(2))], &mut grads).unwrap();
    let separate: Vec<f32> =
        grads.all().unwrap().iter().flat_map(|(_, g)| g.to_vec().unwrap()).collect();
    let [flat] = &grads.buffers()[..] else { panic!() };
    assert_eq!(flat.to_vec::<f32>().unwrap(), separate);
    let squares: f64 = separate.iter().map(|x| f64::from(*x).powi(2)).sum();
    assert_eq!(grads.norm().unwrap().item::<f32>().unwrap(), squares.sqrt() as f32);
}

/// A product saves an operand only for the gradient of the other one.
#[test]
fn an_operand_of_a_frozen_weight_is_not_saved() {
    let net = Net::new();
    let saved = || {
        let x = || Var::input(net.input(1));
        let (_, tape) = Tape::record(|| ops::linear(&x(), &net.a.var()?)).unwrap();
        tape.saved_bytes()
    };
    assert_eq!(saved(), net.input(1).storage_bytes());
    net.a.freeze();
    assert_eq!(saved(), 0);
}

/// `as_activation` turns a constant, such as a frozen embedding, into an input, so that values
/// computed from it do not count as weights.
#[test]
fn a_constant_can_be_an_activation() {
    let net = Net::new();
    net.a.freeze();
    let ((x, y), tape) = Tape::record(|| {
        let x = ops::linear(&Var::constant(net.input(1)), &net.a.var()?)?.as_activation()?;
        let y = ops::linear(&x, &net.b.var()?)?;
        Ok((x, y))
    })
    .unwrap();
    let (dx, weights) = tape.backward_inputs(&[(&y, net.input(2))], &[&x]).unwrap();
    assert_eq!(dx[0].shape(), x.shape());
    let mut grads = Grads::new(std::slice::from_ref(&net.b)).unwrap();
    weights.run(&mut grads).unwrap();
    assert!(grads.get(&net.b).unwrap().to_vec::<f32>().unwrap().iter().any(|x| *x != 0.0));
}
