//! Laws of the backward pass, for any ops.

use std::sync::{Arc, Mutex};

use meshgrad_autograd::{
    Error, Grads, Init, Operand, Param, Result, Save, Spec, Tape, TapeError, ToBf16, ToDevice,
    Track, Var, checkpoint, ops, packing,
};
use meshgrad_runtime::{DType, Device, Kind, Shape, Tensor};

/// Parameters of a small network.
struct Net {
    device: Device,
    a: Param,
    b: Param,
}

impl Net {
    fn new() -> Net {
        let device = Device::cpu();
        let param = |name: &str| {
            let param = Param::new(name, [6, 6], Init::Normal { std: 0.4 });
            param.materialize(&device, 3).unwrap();
            param
        };
        let (a, b) = (param("a"), param("b"));
        Net { device, a, b }
    }

    fn params(&self) -> Vec<Param> {
        vec![self.a.clone(), self.b.clone()]
    }

    fn input(&self, salt: usize) -> Tensor {
        numbers(&self.device, &[4, 6], salt)
    }

    /// Uses `a` twice, once through a function of the weight only, and `b` once.
    fn forward(&self, x: &Var) -> Result<Var> {
        forward(&self.a, &self.b, x)
    }
}

fn forward(a: &Param, b: &Param, x: &Var) -> Result<Var> {
    let h = ops::silu(&ops::linear(x, &a.var()?)?)?;
    let scaled = ops::affine(&a.var()?, 0.5, 0.1)?;
    let h = ops::add(&ops::linear(&h, &scaled)?, x)?;
    ops::linear(&h, &b.var()?)
}

fn numbers(device: &Device, shape: &[usize], salt: usize) -> Tensor {
    let count: usize = shape.iter().product();
    let numbers: Vec<f32> = (0..count)
        .map(|i| ((i * 3 + salt * 17) as f32 * 0.7).sin())
        .collect();
    Tensor::from_slice(device, shape, &numbers).unwrap()
}

fn bits(grads: &mut Grads) -> Vec<u32> {
    let all = grads.all().unwrap();
    all.iter()
        .flat_map(|(_, g)| g.to_vec::<f32>().unwrap())
        .map(f32::to_bits)
        .collect()
}

type Block = fn(&Net, &Var) -> Result<Var>;

#[derive(Clone, Copy, PartialEq)]
enum Backward {
    Full,
    Split,
    SplitOnAnotherThread,
}

/// Gradients of parameters and inputs over a few microbatches.
fn gradients(how: Backward, block: Block) -> (Vec<u32>, Vec<u32>) {
    let net = Net::new();
    let mut grads = Grads::new(&net.params()).unwrap();
    let mut of_inputs = Vec::new();
    for microbatch in 0..3 {
        let dy = net.input(9);
        let ((x, y), tape) = Tape::record(|| {
            let x = Var::input(net.input(microbatch));
            let y = block(&net, &x)?;
            Ok((x, y))
        })
        .unwrap();
        if how == Backward::Full {
            tape.backward(&[(&y, dy)], &mut grads).unwrap();
            continue;
        }

        let (dx, weights) = tape.backward_inputs(&[(&y, dy)], &[&x]).unwrap();
        of_inputs.extend(dx[0].to_vec::<f32>().unwrap().iter().map(|x| x.to_bits()));
        match how {
            Backward::Split => weights.run(&mut grads).unwrap(),
            _ => std::thread::scope(|scope| {
                scope
                    .spawn(|| weights.run(&mut grads).unwrap())
                    .join()
                    .unwrap();
            }),
        }
    }
    (bits(&mut grads), of_inputs)
}

fn plain(net: &Net, x: &Var) -> Result<Var> {
    net.forward(x)
}

fn checkpointed(net: &Net, x: &Var) -> Result<Var> {
    let (a, b) = (net.a.clone(), net.b.clone());
    let [y] = checkpoint([x], move |[x]| Ok([forward(&a, &b, &x)?]))?;
    Ok(y)
}

/// As [`plain`], with the function of the weight first.
fn scaled_first(net: &Net, x: &Var) -> Result<Var> {
    let scaled = ops::affine(&net.a.var()?, 0.5, 0.1)?;
    let h = ops::silu(&ops::linear(x, &net.a.var()?)?)?;
    let h = ops::add(&ops::linear(&h, &scaled)?, x)?;
    ops::linear(&h, &net.b.var()?)
}

/// As [`scaled_first`], as nested checkpoints with two inputs, one of them computed from a weight.
fn nested(net: &Net, x: &Var) -> Result<Var> {
    let (a, b) = (net.a.clone(), net.b.clone());
    let scaled = ops::affine(&net.a.var()?, 0.5, 0.1)?;
    let [y] = checkpoint([x, &scaled], move |[x, scaled]| {
        let a = a.clone();
        let inner_x = x.clone();
        let [h] = checkpoint([&inner_x], move |[x]| {
            Ok([ops::silu(&ops::linear(&x, &a.var()?)?)?])
        })?;
        let h = ops::add(&ops::linear(&h, &scaled)?, &x)?;
        Ok([ops::linear(&h, &b.var()?)?])
    })?;
    Ok(y)
}

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
            tape.backward(&[(&y, rows(&dy))], &mut grads).unwrap();
        }
        let all = grads.all().unwrap();
        all.iter()
            .flat_map(|(_, g)| g.to_vec::<f32>().unwrap())
            .collect::<Vec<f32>>()
    };
    let (whole, parts) = (run(std::slice::from_ref(&(0..4))), run(&[0..1, 1..4]));
    for (whole, parts) in whole.iter().zip(&parts) {
        assert!(
            (whole - parts).abs() <= 1e-5 * (1.0 + whole.abs()),
            "{whole} {parts}"
        );
    }
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
        let roots: Vec<_> = roots
            .into_iter()
            .zip(used)
            .filter(|(_, w)| *w)
            .map(|(r, _)| r)
            .collect();
        tape.backward(&roots, &mut grads).unwrap();
        grads.get(&net.b).unwrap().to_vec::<f32>().unwrap()
    };
    let (both, one, other) = (
        gradient(true, true),
        gradient(true, false),
        gradient(false, true),
    );
    for ((both, one), other) in both.iter().zip(&one).zip(&other) {
        assert!((both - one - other).abs() < 1e-4, "{both} {one} {other}");
    }
}

#[test]
fn an_add_saves_nothing() {
    let device = Device::cpu();
    let (a, b) = (
        numbers(&device, &[64, 64], 1),
        numbers(&device, &[64, 64], 2),
    );
    let (_, tape) =
        Tape::record(|| ops::add(&Var::input(a.clone()), &Var::input(b.clone()))).unwrap();
    assert_eq!(tape.saved_bytes(), 0);

    let live = device.memory_stats().live;
    drop((a, b));
    assert!(
        device.memory_stats().live < live,
        "the tape keeps the operands of an add alive"
    );
}

#[test]
fn saved_bytes_count_each_storage_once() {
    let device = Device::cpu();
    let x = numbers(&device, &[8, 8], 1);
    let (_, tape) = Tape::record(|| {
        let x = Var::input(x.clone());
        ops::add(&ops::square(&x)?, &ops::sin(&ops::transpose(&x, 0, 1)?)?)
    })
    .unwrap();
    assert_eq!(tape.saved_bytes(), 8 * 8 * 4);
    assert_eq!(tape.len(), 4);
}

#[test]
fn inference_saves_nothing() {
    let net = Net::new();
    let live = net.device.memory_stats().live;
    let y = net.forward(&Var::constant(net.input(1))).unwrap();
    assert!(!y.is_tracked());
    drop(y);
    assert_eq!(net.device.memory_stats().live, live);
}

/// A thousand steps, some of them dropped before backward, leak no memory.
#[test]
fn steps_leak_nothing() {
    let net = Net::new();
    let mut grads = Grads::new(&net.params()).unwrap();
    let mut after_first = None;
    for step in 0..1000 {
        let (y, tape) = Tape::record(|| checkpointed(&net, &Var::input(net.input(step)))).unwrap();
        let unused = match step % 3 {
            0 => Some(tape),
            _ => {
                tape.backward(&[(&y, net.input(2))], &mut grads).unwrap();
                grads.clear();
                None
            }
        };
        drop(unused);
        drop(y);
        let live = net.device.memory_stats().live;
        assert_eq!(*after_first.get_or_insert(live), live);
    }
}

#[test]
fn an_op_without_backward_is_an_error() {
    let device = Device::cpu();
    let x = numbers(&device, &[3], 1);
    let floor = |x: &Var| ops::cast(x.value(), DType::I64)?.untracked("floor", &[x]);
    assert!(floor(&Var::constant(x.clone())).is_ok());
    let found = Tape::record(|| floor(&Var::input(x.clone())));
    assert_eq!(
        found.err(),
        Some(Error::Tape(TapeError::NoBackward { op: "floor".into() }))
    );
}

#[test]
fn an_unused_parameter_is_an_error_unless_optional() {
    let net = Net::new();
    let spec = |optional| Spec {
        shape: Shape::of([2]),
        dtype: DType::F32,
        init: Init::Ones,
        optional,
    };
    let run = |extra: &Param| {
        extra.materialize(&net.device, 1).unwrap();
        let mut params = net.params();
        params.push(extra.clone());
        let mut grads = Grads::new(&params).unwrap();
        let (y, tape) = Tape::record(|| net.forward(&Var::input(net.input(1)))).unwrap();
        let done = tape.backward(&[(&y, net.input(2))], &mut grads);
        done.map(|()| grads.get(extra).unwrap().to_vec::<f32>().unwrap())
    };
    let forgotten = run(&Param::with_spec("forgotten", spec(false)));
    assert_eq!(
        forgotten,
        Err(Error::Tape(TapeError::Untouched {
            names: vec!["forgotten".into()]
        }))
    );
    assert_eq!(
        run(&Param::with_spec("optional", spec(true))),
        Ok(vec![0.0; 2])
    );
}

#[test]
fn values_of_another_tape_are_errors() {
    let net = Net::new();
    let ((x, y), tape) = Tape::record(|| {
        let x = Var::input(net.input(1));
        let y = net.forward(&x)?;
        Ok((x, y))
    })
    .unwrap();

    assert!(matches!(
        ops::square(&y),
        Err(Error::Tape(TapeError::OtherTape { .. }))
    ));
    assert!(matches!(
        Tape::record(|| ops::square(&y)),
        Err(Error::Tape(TapeError::OtherTape { .. }))
    ));
    let (z, other) = Tape::record(|| net.forward(&Var::input(net.input(1)))).unwrap();
    let mut grads = Grads::new(&net.params()).unwrap();
    let stale = other.backward(&[(&y, net.input(2))], &mut grads);
    assert!(matches!(
        stale,
        Err(Error::Tape(TapeError::OtherTape { .. }))
    ));
    drop((z, x));

    let constant = Var::constant(net.input(1));
    let untracked = tape.backward(&[(&constant, net.input(1))], &mut grads);
    assert!(matches!(
        untracked,
        Err(Error::Tape(TapeError::NotTracked { .. }))
    ));
}

#[test]
fn a_tracked_value_captured_by_a_checkpoint_is_an_error() {
    let net = Net::new();
    let found = Tape::record(|| {
        let x = Var::input(net.input(1));
        let captured = ops::square(&x)?;
        checkpoint([&x], move |[x]| Ok([ops::add(&x, &captured)?]))
    });
    let message = found.err().unwrap().to_string();
    assert!(message.contains("a checkpoint is running"), "{message}");
}

#[test]
fn an_overwritten_saved_tensor_is_an_error() {
    let net = Net::new();
    let (y, tape) = Tape::record(|| net.forward(&Var::input(net.input(1)))).unwrap();
    ops::fill_into(&net.b.value().unwrap(), 0.0).unwrap();
    let mut grads = Grads::new(&net.params()).unwrap();
    let found = tape.backward(&[(&y, net.input(2))], &mut grads);
    let Err(Error::Tape(TapeError::Overwritten { name, saved, now })) = found else {
        panic!("{found:?}")
    };
    assert_eq!((name.as_str(), now), ("b", saved + 1));
}

#[test]
fn gradients_of_another_shape_are_errors() {
    let net = Net::new();
    let (y, tape) = Tape::record(|| net.forward(&Var::input(net.input(1)))).unwrap();
    let dy = numbers(&net.device, &[4, 5], 1);
    let found = tape.backward(&[(&y, dy)], &mut Grads::default());
    assert!(matches!(
        found,
        Err(Error::Tape(TapeError::GradientShape { .. }))
    ));
}

/// The gradient of a parameter that is not in `Grads` is not computed.
/// A frozen parameter is a constant: nothing is saved for its gradient, and the others have the
/// same gradients as before.
#[test]
fn frozen_parameters_are_constants() {
    let net = Net::new();
    let run = |params: &[Param]| {
        let (y, tape) = Tape::record(|| net.forward(&Var::constant(net.input(1)))).unwrap();
        let saved = tape.saved_bytes();
        let mut grads = Grads::new(params).unwrap();
        tape.backward(&[(&y, net.input(2))], &mut grads).unwrap();
        (grads.get(&net.b).unwrap().to_vec::<f32>().unwrap(), saved)
    };
    let (all, saved) = run(&net.params());
    net.a.freeze();
    assert!(net.a.clone().is_frozen() && !net.a.var().unwrap().is_tracked());
    let (frozen, less) = run(&[net.b.clone()]);
    assert_eq!(all, frozen);
    assert!(less < saved, "{less} of {saved} bytes");

    net.a.unfreeze();
    assert_eq!(run(&net.params()), (all, saved));
}

#[test]
fn parameters_without_a_buffer_get_no_gradient() {
    let net = Net::new();
    let mut grads = Grads::new(std::slice::from_ref(&net.b)).unwrap();
    let (y, tape) = Tape::record(|| net.forward(&Var::input(net.input(1)))).unwrap();
    tape.backward(&[(&y, net.input(2))], &mut grads).unwrap();
    assert!(matches!(
        grads.get(&net.a),
        Err(Error::Tape(TapeError::NoGradient { .. }))
    ));
    let mut all = Grads::new(&net.params()).unwrap();
    let (y, tape) = Tape::record(|| net.forward(&Var::input(net.input(1)))).unwrap();
    tape.backward(&[(&y, net.input(2))], &mut all).unwrap();
    let of_b = |grads: &mut Grads| grads.get(&net.b).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(of_b(&mut grads), of_b(&mut all));
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
                if name == "a" {
                    net.a.clone()
                } else {
                    net.b.clone()
                }
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
            tape.backward(&[(&y, net.input(2))], &mut grads).unwrap();
            let reported = reported.lock().unwrap().clone();
            assert_eq!(reported.len(), 2);
            for ((name, gradient), param) in reported.iter().zip(params.iter().rev()) {
                assert_eq!(name, param.name());
                assert_eq!(
                    *gradient,
                    grads.get(param).unwrap().to_vec::<f32>().unwrap()
                );
            }
        }
    }
}

#[test]
fn gradients_may_share_one_buffer() {
    let net = Net::new();
    let flat = Tensor::zeros(&net.device, &[72], DType::F32, Kind::Gradient).unwrap();
    let mut grads = Grads::over(&net.params(), &flat).unwrap();
    let (y, tape) = Tape::record(|| net.forward(&Var::input(net.input(1)))).unwrap();
    tape.backward(&[(&y, net.input(2))], &mut grads).unwrap();
    let separate: Vec<f32> = grads
        .all()
        .unwrap()
        .iter()
        .flat_map(|(_, g)| g.to_vec().unwrap())
        .collect();
    assert_eq!(flat.to_vec::<f32>().unwrap(), separate);

    let short = Tensor::zeros(&net.device, &[71], DType::F32, Kind::Gradient).unwrap();
    assert!(matches!(
        Grads::over(&net.params(), &short),
        Err(Error::Tape(TapeError::FlatBuffer { actual: 71, .. }))
    ));
}

#[test]
fn saved_tensors_may_be_packed() {
    let net = Net::new();
    let other = Device::cpu();
    let run = |packing_scope: Option<Arc<dyn meshgrad_autograd::Packing>>| {
        let mut grads = Grads::new(&net.params()).unwrap();
        let forward = || net.forward(&Var::input(net.input(1)));
        let (y, tape) = Tape::record(|| match packing_scope {
            Some(scope) => packing(scope, forward),
            None => forward(),
        })
        .unwrap();
        let bytes = tape.saved_bytes();
        tape.backward(&[(&y, net.input(2))], &mut grads).unwrap();
        (grads.get(&net.a).unwrap().to_vec::<f32>().unwrap(), bytes)
    };

    let (plain, bytes) = run(None);
    let (moved, _) = run(Some(Arc::new(ToDevice(other.clone()))));
    assert_eq!(plain, moved);
    assert!(other.memory_stats().peak > 0);

    let (narrow, narrow_bytes) = run(Some(Arc::new(ToBf16)));
    assert_eq!(narrow_bytes, bytes / 2);
    assert_ne!(plain, narrow);
    for (plain, narrow) in plain.iter().zip(&narrow) {
        assert!(
            (plain - narrow).abs() < 0.05 * (1.0 + plain.abs()),
            "{plain} {narrow}"
        );
    }
}

/// A compute copy of a parameter is made once per value, and its gradient is the parameter's.
#[test]
fn compute_copies_share_the_parameters_gradient() {
    let net = Net::new();
    let copy = |param: &Param| param.var_as(DType::BF16).unwrap().value().storage_id();
    let first = net.a.var_as(DType::BF16).unwrap();
    assert_eq!(copy(&net.a), first.value().storage_id());
    ops::fill_into(&net.a.value().unwrap(), 0.5).unwrap();
    assert_eq!(
        net.a
            .var_as(DType::BF16)
            .unwrap()
            .value()
            .to_vec::<half::bf16>()
            .unwrap()[0]
            .to_f32(),
        0.5
    );

    let mut grads = Grads::new(std::slice::from_ref(&net.a)).unwrap();
    let x = ops::cast(&net.input(1), DType::BF16).unwrap();
    let (y, tape) =
        Tape::record(|| ops::linear(&Var::input(x.clone()), &net.a.var_as(DType::BF16)?)).unwrap();
    let dy = ops::cast(&net.input(2), DType::BF16).unwrap();
    tape.backward(&[(&y, dy)], &mut grads).unwrap();
    assert_eq!(grads.get(&net.a).unwrap().dtype(), DType::F32);
}

/// A checkpoint accepts inputs computed from a bf16 parameter only, whose gradients are accumulated
/// in f32. The result agrees with that without a checkpoint up to bf16 rounding.
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
            let inputs = [
                Var::constant(x.clone()),
                ops::affine(&param.var()?, 2.0, 0.5)?,
            ];
            let [y] = match recomputed {
                true => checkpoint(inputs.each_ref(), block)?,
                false => block(inputs)?,
            };
            ops::affine(&y, 3.0, 0.0)
        })
        .unwrap();
        let dy = ops::full(&device, y.shape(), DType::BF16, 0.25).unwrap();
        let mut grads = Grads::new(std::slice::from_ref(&param)).unwrap();
        tape.backward(&[(&y, dy)], &mut grads).unwrap();
        grads.get(&param).unwrap().to_vec::<f32>().unwrap()
    };
    for (whole, recomputed) in gradient(false).iter().zip(gradient(true)) {
        // The weight is an input of the checkpoint, where its gradient is bf16.
        assert!(
            (whole - recomputed).abs() <= whole.abs() / 128.0,
            "{whole} {recomputed}"
        );
    }
}

#[test]
fn saving_needs_no_tape() {
    let x = numbers(&Device::cpu(), &[3], 1);
    assert_eq!(
        x.save().get().unwrap().to_vec::<f32>().unwrap(),
        x.to_vec::<f32>().unwrap()
    );
}

/// An op on tensors computes the bits of the same op on variables, and records and saves nothing.
#[test]
fn ops_on_tensors_are_the_ops_on_variables() {
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

/// The first pass of a checkpoint packs nothing: only its input is saved.
#[test]
fn only_what_is_recorded_is_packed() {
    struct Count(std::sync::atomic::AtomicUsize);

    impl meshgrad_autograd::Packing for Count {
        fn pack(&self, _: &Tensor) -> Result<Option<Box<dyn meshgrad_autograd::Packed>>> {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Ok(None)
        }
    }

    let x = numbers(&Device::cpu(), &[4, 4], 3);
    let count = Arc::new(Count(0.into()));
    let block = |x: &Var| ops::silu(&ops::silu(x)?);
    let (_, tape) = packing(count.clone(), || {
        Tape::record(|| checkpoint([&Var::input(x.clone())], move |[x]| block(&x)))
    })
    .unwrap();
    assert_eq!(
        (
            tape.len(),
            count.0.load(std::sync::atomic::Ordering::Relaxed)
        ),
        (1, 1)
    );
}
