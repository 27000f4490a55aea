//! `+ - * /` and unary minus on `&Var`: `(&a + &b)?`. They broadcast like the ops of
//! [`ops`](crate::ops) that they call.

use crate::{Result, Var, ops};

meshgrad_runtime::operators!(Var);

#[cfg(test)]
mod tests {
    use meshgrad_runtime::{Device, Tensor};

    use super::*;

    #[test]
    fn operators_call_the_ops_of_their_names() {
        let device = Device::cpu();
        let var =
            |values: &[f32]| Var::constant(Tensor::from_slice(&device, &[2], values).unwrap());
        let (a, b) = (var(&[6.0, -3.0]), var(&[2.0, 4.0]));
        for (result, expected) in [
            (&a + &b, [8.0, 1.0]),
            (&a - &b, [4.0, -7.0]),
            (&a * &b, [12.0, -12.0]),
            (&a / &b, [3.0, -0.75]),
            (-&a, [-6.0, 3.0]),
        ] {
            assert_eq!(result.unwrap().value().to_vec::<f32>().unwrap(), expected);
        }
        assert!(
            (&a + &Var::constant(
                Tensor::zeros(
                    &device,
                    &[3],
                    meshgrad_runtime::DType::F32,
                    meshgrad_runtime::Kind::Cache
                )
                .unwrap()
            ))
                .is_err()
        );
    }
}
