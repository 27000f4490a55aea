//! Functions of rows: a normalization, and a function with given numbers.

use super::{Family, ROW_FEATURES};
use meshgrad_kernels::expression::Expression;
use meshgrad_kernels::row_map::{RowMap, RowNumber};
use meshgrad_kernels::{Dtype, Result, Variant};

pub(super) fn row_map() -> Family {
    let mut kernels = Vec::new();
    for dtype in Dtype::ALL {
        for features in ROW_FEATURES {
            kernels.push(standardize(dtype, features).map(|it| it.ptx()));
            kernels.push(scaled_center(dtype, features).map(|it| it.ptx()));
        }
    }
    kernels
}

/// y = (x - mean) / sqrt(variance) * w: x is a matrix, w a vector. It writes the mean and the inverse
/// of the root. The scalar is the number of features.
///
/// # Errors
/// None: the function is small enough.
pub fn standardize(dtype: Dtype, features: usize) -> Result<RowMap> {
    let [x, w, mean, inverse] = [0, 1, 2, 3].map(Expression::operand);
    let over_features = |sum: &Expression| sum / Expression::scalar(0);
    let [of_mean, of_inverse] = [0, 1].map(Expression::operand);
    let centered = &x - &mean;
    let numbers = vec![
        RowNumber { summand: x.clone(), number: over_features(&of_mean) },
        RowNumber {
            summand: &centered * &centered,
            number: Expression::constant(1.0) / over_features(&of_inverse).sqrt(),
        },
    ];
    let value = &centered * &inverse * &w;
    RowMap::new((dtype, features, true), [true, false], 0, numbers, value, true)
}

/// y = a (x - sum of b): x and b are matrices, and a is given.
///
/// # Errors
/// None: the function is small enough.
pub fn scaled_center(dtype: Dtype, features: usize) -> Result<RowMap> {
    let [x, b, a, sum] = [0, 1, 2, 3].map(Expression::operand);
    let numbers = vec![RowNumber { summand: b, number: Expression::operand(1) }];
    let value = &a * (&x - &sum);
    RowMap::new((dtype, features, true), [true, true], 1, numbers, value, false)
}
