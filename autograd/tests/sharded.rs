//! The tape and sharded values.

use meshgrad_autograd::{Tape, TapeError, Var, ops};
use meshgrad_mesh::{Mesh, Sharding};
use meshgrad_runtime::{Device, Error, Tensor};

/// Recording an op on a tracked sharded value is an error, because its gradient would be wrong. Ops
/// on sharded constants work.
#[test]
fn sharded_values_are_not_recorded() {
    let mesh = Mesh::new(&[2], &["dp"]).unwrap();
    let sharding = Sharding::replicated(&mesh, &[2]).unwrap();
    let x = Tensor::from_slice(&Device::cpu(), &[2], &[1.0f32, 2.0]).unwrap();
    let x = x.with_sharding(&sharding, 0).unwrap();

    let error = Tape::record(|| ops::exp(&Var::input(x.clone())))
        .err()
        .unwrap();
    assert!(
        matches!(error, Error::Tape(TapeError::Sharded { .. })),
        "{error}"
    );
    let (value, _) = Tape::record(|| ops::exp(&Var::constant(x.clone()))).unwrap();
    assert_eq!(value.value().sharding(), Some(&sharding));
}
