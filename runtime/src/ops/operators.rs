//! `+ - * /` and unary minus on references: `(&a + &b)?`. They broadcast like the ops they call.

use crate::{Result, Tensor, ops};

/// Implements the operators for a type by the functions `add`, `sub`, `mul`, `div` and `neg` of a
/// module `ops` in scope.
#[macro_export]
#[doc(hidden)]
macro_rules! operators {
    ($type:ty) => {
        $crate::operators! { $type, Add add, Sub sub, Mul mul, Div div }

        impl std::ops::Neg for &$type {
            type Output = Result<$type>;

            fn neg(self) -> Result<$type> {
                ops::neg(self)
            }
        }
    };

    ($type:ty, $($trait:ident $method:ident),+) => {
        $(
            impl std::ops::$trait<&$type> for &$type {
                type Output = Result<$type>;

                fn $method(self, other: &$type) -> Result<$type> {
                    ops::$method(self, other)
                }
            }
        )+
    };
}

operators!(Tensor);

#[cfg(test)]
mod tests {
    use crate::{Device, Tensor};

    #[test]
    fn operators_call_the_ops_of_their_names() {
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
