//! What ops save, and how it is packed.

use std::sync::Arc;

use approx::assert_relative_eq;
use meshgrad_autograd::{
    Grads, Result, Save, Tape, ToBf16, ToDevice, Track, Var, checkpoint, ops, packing,
};
use meshgrad_runtime::{Device, Tensor};

use crate::assert_error;
use crate::laws::{Net, checkpointed, numbers};

#[test]
fn an_add_saves_nothing() {
    let device = Device::cpu();
    let (a, b) = (numbers(&device, &[64, 64], 1), numbers(&device, &[64, 64], 2));
    let (_, tape) =
        Tape::record(|| ops::add(&Var::input(a.clone()), &Var::input(b.clone()))).unwrap();
    assert_eq!(tape.saved_bytes(), 0);

    let live = device.memory_stats().live;
    drop((a, b));
    assert!(device.memory_stats().live < live, "the tape keeps the operands of an add alive");
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

/// An op may compute with tensors between saving and tracking.
#[test]
fn saved_bytes_count_what_an_op_saved_before_it_used_other_ops() {
    let device = Device::cpu();
    let x = numbers(&device, &[8, 8], 1);
    let run = |input: &Var| {
        let saved = x.save();
        let half = ops::affine(&ops::square(&x)?, 0.5, 0.0)?;
        half.tracked([input], move |dy, [dx]| dx.add(|| ops::mul(dy, &saved.get()?)))
    };

    let (_, tape) = Tape::record(|| run(&Var::input(x.clone()))).unwrap();
    assert_eq!(tape.saved_bytes(), 8 * 8 * 4);
    let (_, tape) = Tape::record(|| run(&Var::constant(x.clone()))).unwrap();
    assert_eq!(tape.saved_bytes(), 0);
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
fn steps_leak_no_memory() {
    let net = Net::new();
    let mut grads = Grads::new(&net.params()).unwrap();
    let mut after_first = None;
    for step in 0..1000 {
        let (y, tape) = Tape::record(|| checkpointed(&net, &Var::input(net.input(step)))).unwrap();
        let unused = match step % 3 {
            0 => Some(tape),
            _ => {
                tape.backward_from(&[(&y, net.input(2))], &mut grads).unwrap();
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
fn an_overwritten_saved_tensor_is_an_error() {
    let net = Net::new();
    let (y, tape) = Tape::record(|| net.forward(&Var::input(net.input(1)))).unwrap();
    let saved = net.b.value().unwrap().version();
    ops::fill_into(&net.b.value().unwrap(), 0.0).unwrap();
    let mut grads = Grads::new(&net.params()).unwrap();
    let found = tape.backward_from(&[(&y, net.input(2))], &mut grads);
    let between = "`b` was overwritten between forward and backward";
    assert_error(found, &format!("{between} (version {saved} when saved, {} now)", saved + 1));
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
        tape.backward_from(&[(&y, net.input(2))], &mut grads).unwrap();
        (grads.get(&net.a).unwrap().to_vec::<f32>().unwrap(), bytes)
    };

    let (plain, bytes) = run(None);
    let (moved, _) = run(Some(Arc::new(ToDevice(other.clone()))));
    assert_eq!(plain, moved);
    assert!(other.memory_stats().peak > 0);

    let (narrow, narrow_bytes) = run(Some(Arc::new(ToBf16)));
    assert_eq!(narrow_bytes, bytes / 2);
    assert_ne!(plain, narrow);
    assert_relative_eq!(plain[..], narrow[..], epsilon = 0.05, max_relative = 0.05);
}

/// The first pass of a checkpoint packs nothing: only its input is saved.
#[test]
fn only_recorded_tensors_are_packed() {
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
    assert_eq!((tape.len(), count.0.load(std::sync::atomic::Ordering::Relaxed)), (1, 1));

    // The scope ends with its body.
    Tape::record(|| block(&Var::input(x.clone()))).unwrap();
    assert_eq!(count.0.load(std::sync::atomic::Ordering::Relaxed), 1);
}

/// `ToDevice` moves activations to its device, unless they are already there. It does not move
/// parameters.
#[test]
fn only_activations_of_other_devices_are_moved() {
    let net = Net::new();
    let other = Device::cpu();
    let record = |device: &Device| {
        let scope = Arc::new(ToDevice(device.clone()));
        let (_, tape) = packing(scope, || {
            Tape::record(|| ops::silu(&ops::linear(&Var::input(net.input(1)), &net.a.var()?)?))
        })
        .unwrap();
        tape
    };
    // The operand of the product and that of silu.
    let activations = 2 * net.input(1).storage_bytes();
    assert_eq!(record(&net.device).saved_bytes(), activations);

    let tape = record(&other);
    assert_eq!(tape.saved_bytes(), 0);
    let moved = other.memory_stats().live;
    let one = ops::to_device(&net.input(1), &other).unwrap();
    assert_eq!(other.memory_stats().live, moved + moved / 2); // rounded sizes
    drop((tape, one));
    assert_eq!(other.memory_stats().live, 0);
}

#[test]
fn saving_needs_no_tape() {
    let x = numbers(&Device::cpu(), &[3], 1);
    assert_eq!(x.save().get().unwrap().to_vec::<f32>().unwrap(), x.to_vec::<f32>().unwrap());
}

/// An op that is not recorded leaves nothing behind, on the tape or in memory.
#[test]
fn ops_on_constants_save_nothing() {
    let x = numbers(&Device::cpu(), &[4, 4], 3);
    let (_, tape) = Tape::record(|| {
        let other = numbers(&Device::cpu(), &[8, 8], 1);
        ops::silu(&Var::constant(other.clone()))?;
        ops::silu(&other)?;
        ops::silu(&Var::input(x.clone()))
    })
    .unwrap();
    assert_eq!((tape.len(), tape.is_empty()), (1, false));
    assert_eq!(tape.saved_bytes(), x.storage_bytes());

    let (_, empty) = Tape::record(|| ops::silu(&Var::constant(x.clone()))).unwrap();
    assert_eq!((empty.len(), empty.is_empty()), (0, true));

    // The first pass of a checkpoint keeps no backward function.
    let (held, counts) = (Arc::new(()), Arc::new(std::sync::Mutex::new(Vec::new())));
    let (inside, of_passes) = (held.clone(), counts.clone());
    let block = move |x: &Var| {
        let captured = inside.clone();
        let y = x.value().clone().tracked([x], move |dy, [dx]| {
            let _ = &captured;
            dx.add(|| Ok(dy.clone()))
        });
        of_passes.lock().unwrap().push(Arc::strong_count(&inside));
        y
    };
    Tape::record(|| checkpoint([&Var::input(x.clone())], move |[x]| block(&x))).unwrap();
    assert_eq!(*counts.lock().unwrap(), [2]);
    drop(held);
}
