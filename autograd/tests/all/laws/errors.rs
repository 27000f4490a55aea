//! Mistakes that are errors.

use meshgrad_autograd::{
    Error, Grads, LocalOperand, Tape, TapeError, Track, Var, checkpoint, local, ops,
};
use meshgrad_mesh::Mesh;
use meshgrad_runtime::{DType, Device};

use crate::laws::{Net, numbers};

#[test]
fn an_op_without_backward_is_an_error() {
    let device = Device::cpu();
    let x = numbers(&device, &[3], 1);
    let floor = |x: &Var| ops::cast(x.value(), DType::I64)?.untracked("floor", &[x]);
    assert!(floor(&Var::constant(x.clone())).is_ok());
    let found = Tape::record(|| floor(&Var::input(x.clone())));
    assert_eq!(found.err(), Some(Error::Tape(TapeError::NoBackward { op: "floor".into() })));
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

    let current = |result: meshgrad_autograd::Result<()>| match result {
        Err(Error::Tape(TapeError::OtherTape { current, .. })) => current,
        other => panic!("{other:?}"),
    };
    let square = || ops::square(&y).map(drop);
    assert_eq!(current(square()), "no tape is recording");
    let recording = current(Tape::record(square).map(drop));
    assert!(recording.starts_with("tape "), "{recording}");
    let in_checkpoint = || {
        let y = y.clone();
        let input = Var::input(net.input(1));
        checkpoint([&input], move |[_]| ops::square(&y)).map(drop)
    };
    let in_checkpoint = current(Tape::record(in_checkpoint).map(drop));
    assert_eq!(in_checkpoint, "a checkpoint is running");
    let in_local = || {
        let mesh = Mesh::new(&[1], &["tp"]).unwrap();
        let input = Var::constant(net.input(1));
        let operand = LocalOperand::new::<&str>(&input, &mesh, []);
        local([operand], [], |[_]| ops::square(&y).map(|_| [])).map(|[]| ())
    };
    assert_eq!(current(in_local()), "`local` is running");
    let (z, other) = Tape::record(|| net.forward(&Var::input(net.input(1)))).unwrap();
    let mut grads = Grads::new(&net.params()).unwrap();
    let stale = other.backward(&[(&y, net.input(2))], &mut grads);
    assert!(matches!(stale, Err(Error::Tape(TapeError::OtherTape { .. }))));
    drop((z, x));

    let constant = Var::constant(net.input(1));
    let untracked = tape.backward(&[(&constant, net.input(1))], &mut grads);
    assert!(matches!(untracked, Err(Error::Tape(TapeError::NotTracked { .. }))));
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
    let found = tape.backward(&[(&y, dy)], &mut Grads::default());
    assert!(matches!(found, Err(Error::Tape(TapeError::GradientShape { .. }))));
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
    let found = tape.backward(&[(&y, net.input(2))], &mut Grads::default());
    let is_found = matches!(found, Err(Error::Tape(TapeError::GradientShape { .. })));
    assert!(is_found, "{found:?}");
}
