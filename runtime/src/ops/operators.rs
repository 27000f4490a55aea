//! `+ - * /` and unary minus on `&Tensor`: `(&a + &b)?`. They broadcast like the ops that they call.

use std::ops::{Add, Div, Mul, Neg, Sub};

use crate::{Result, Tensor, ops};

macro_rules! operators {
    ($($trait:ident $method:ident = $op:ident;)+) => {
        $(
            impl $trait<&Tensor> for &Tensor {
                type Output = Result<Tensor>;

                fn $method(self, other: &Tensor) -> Result<Tensor> {
                    ops::$op(self, other)
                }
            }
        )+
    };
}

operators! {
    Add add = add;
    Sub sub = sub;
    Mul mul = mul;
    Div div = div;
}

impl Neg for &Tensor {
    type Output = Result<Tensor>;

    fn neg(self) -> Result<Tensor> {
        ops::neg(self)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Device, Tensor};

    #[test]
    fn operators_are_the_ops() {
        let device = Device::cpu();
        let tensor = |values: &[f32]| Tensor::from_slice(&device, &[values.len()], values).unwrap();
        let (a, b) = (tensor(&[6.0, -3.0]), tensor(&[2.0, 4.0]));
        for (result, expected) in [
            (&a + &b, [8.0, 1.0]),
            (&a - &b, [4.0, -7.0]),
            (&a * &b, [12.0, -12.0]),
            (&a / &b, [3.0, -0.75]),
            (-&a, [-6.0, 3.0]),
        ] {
            assert_eq!(result.unwrap().to_vec::<f32>().unwrap(), expected);
        }
        assert!((&a + &tensor(&[1.0; 3])).is_err());
    }
}
