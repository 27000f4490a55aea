//! Sums over rows: the gradients of the weights of RMS norm and layer norm.

use super::{COLUMN_FEATURES, Family};
use meshgrad_kernels::column_sums::{ColumnSums, SumPartials};
use meshgrad_kernels::expression::Expression;
use meshgrad_kernels::{Dtype, Variant};

pub(super) fn column_sums() -> Family {
    let mut kernels = vec![SumPartials::new(false).ptx(), SumPartials::new(true).ptx()];
    for dtype in Dtype::ALL {
        for features in COLUMN_FEATURES {
            for centered in [false, true] {
                kernels.push(weight_gradient(dtype, features, centered).ptx());
            }
        }
    }
    kernels.into_iter().map(Ok).collect()
}

/// The sum of dy (x - mean) inv_rms, without `centered` of dy x inv_rms. The matrices are dy and x,
/// the numbers the mean, if there is one, and inv_rms.
pub fn weight_gradient(dtype: Dtype, features: usize, centered: bool) -> ColumnSums {
    let [dy, x, first, second] = [0, 1, 2, 3].map(Expression::operand);
    let (normed, numbers) = match centered {
        true => ((x - first) * second, 2),
        false => (x * first, 1),
    };
    ColumnSums::new((dtype, features, true), [2, numbers], dy * normed)
}
