//! Ops that only change a shape.

use meshgrad_autograd::{Result, Var, ops};
use meshgrad_runtime::{Device, Tensor};

use crate::laws::numbers;

/// The shape and the elements of the result.
fn reshaped(x: &Tensor, op: impl Fn(&Tensor) -> Result<Tensor>) -> Vec<usize> {
    let y = op(x).unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), x.to_vec::<f32>().unwrap());
    y.shape().to_vec()
}

#[test]
fn dims_split_and_merge() {
    let x = numbers(&Device::cpu(), &[2, 5, 6], 1);
    assert_eq!(reshaped(&x, |x| ops::split_last(x, 2)), [2, 5, 3, 2]);
    assert_eq!(reshaped(&x, |x| ops::chunk(x, 2)), [2, 5, 2, 3]);
    assert_eq!(reshaped(&x, |x| ops::chunk(x, 6)), [2, 5, 6, 1]);
    assert_eq!(reshaped(&x, ops::merge_last), [2, 30]);
    assert_eq!(reshaped(&x, ops::merge_first), [10, 6]);
    assert_eq!(reshaped(&x, ops::merge_leading), [10, 6]);
    let row = numbers(&Device::cpu(), &[6], 1);
    assert_eq!(reshaped(&row, |x| ops::chunk(x, 3)), [3, 2]);
    assert_eq!(reshaped(&row, ops::merge_leading), [1, 6]);
}

#[test]
fn dims_that_do_not_divide_are_errors() {
    let x = numbers(&Device::cpu(), &[2, 6], 1);
    for parts in [0, 4, 7] {
        let (chunked, split) = (ops::chunk(&x, parts), ops::split_last(&x, parts));
        let (chunked, split) = (chunked.unwrap_err().to_string(), split.unwrap_err().to_string());
        assert!(chunked.contains(&format!("6 features into {parts} equal")), "{chunked}");
        assert!(split.contains(&format!("6 features into groups of {parts}")), "{split}");
    }
    let row = numbers(&Device::cpu(), &[6], 1);
    assert!(ops::merge_last(&row).is_err() && ops::merge_first(&row).is_err());
}

#[test]
fn debug_output_names_the_kind_of_variable() {
    let constant = format!("{:?}", Var::constant(numbers(&Device::cpu(), &[2], 1)));
    assert!(constant.starts_with("constant "), "{constant}");
}
