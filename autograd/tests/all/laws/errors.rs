//! Mistakes that are errors.

use meshgrad_autograd::{Grads, LocalOperand, Tape, Track, Var, checkpoint, local, ops};
use meshgrad_mesh::Mesh;
use meshgrad_runtime::{DType, Device};

use crate::assert_error;
use crate::laws::{Net, numbers};

#[test]
fn an_op_without_backward_is_an_error() {
    let device = Device::cpu();
    let x = numbers(&device, &[3], 1);
    let floor = |x: &Var| ops::cast(x.value(), DType::I64)?.untracked("floor", &[x]);
    assert!(floor(&Var::constant(x.clone())).is_ok());
    let found = Tape::record(|| floor(&Var::input(x.clone())));
    assert_error(found, "floor has no gradient, but an operand requires one");
    assert!(Tape::record(|| floor(&Var::constant(x.clone()))).is_ok());
    assert!(floor(&Var::input(x)).is_ok());
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

    let square = || ops::square(&y).map(drop);
    assert_error(square(), ", but no tape is recording: inside `checkpoint`");
    let recording = Tape::record(square).map(drop).unwrap_err().to_string();
    assert!(recording.contains(", but tape "), "{recording}");
    assert!(recording.contains(" is recording: inside `checkpoint`"), "{recording}");
    let in_checkpoint = || {
        let y = y.clone();
        let input = Var::input(net.input(1));
        checkpoint([&input], move |[_]| ops::square(&y)).map(drop)
    };
    assert_error(Tape::record(in_checkpoint), ", but a checkpoint is running: inside");
    let in_local = || {
        let mesh = Mesh::new(&[1], &["tp"]).unwrap();
        let input = Var::constant(net.input(1));
        let operand = LocalOperand::new::<&str>(&input, &mesh, []);
        local([operand], [], |[_]| ops::square(&y).map(|_| [])).map(|[]| ())
    };
    assert_error(in_local(), ", but `local` is running: inside");
    let (z, other) = Tape::record(|| net.forward(&Var::input(net.input(1)))).unwrap();
    let mut grads = Grads::new(&net.params()).unwrap();
    let stale = other.backward_from(&[(&y, net.input(2))], &mut grads);
    assert_error(stale, ", but backward runs on tape ");
    drop((z, x));

    let constant = Var::constant(net.input(1));
    let untracked = tape.backward_from(&[(&constant, net.input(1))], &mut grads);
    assert_error(untracked, "backward root of shape ");
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
fn gradients_of_another_shape_are_errors() {
    let net = Net::new();
    let (y, tape) = Tape::record(|| net.forward(&Var::input(net.input(1)))).unwrap();
    let dy = numbers(&net.device, &[4, 5], 1);
    let found = tape.backward_from(&[(&y, dy)], &mut Grads::default());
    assert_error(found, "both must have the same dtype and shape");
}

/// An op that returns a gradient of a different shape than its input's is an error.
#[test]
fn an_op_whose_gradient_has_another_shape_is_an_error() {
    let net = Net::new();
    let wrong = numbers(&net.device, &[2, 3], 1);
    let (y, tape) = Tape::record(|| {
        let x = ops::silu(&Var::input(net.input(1)))?;
        let wrong = wrong.clone();
        let copy = x.value().clone();
        copy.tracked([&x], move |_, [dx]| dx.add(|| Ok(wrong.clone())))
    })
    .unwrap();
    let found = tape.backward_from(&[(&y, net.input(2))], &mut Grads::default());
    assert_error(found, "both must have the same dtype and shape");
}
