//! The part of a parameter that an optimizer updates.

use std::fmt;
use std::ops::Range;

use meshgrad_autograd::{Module, Param};
use meshgrad_runtime::{DType, Region, Shape, Tensor, ops};

use super::OptimError;
use crate::Result;

/// A range of the rows of a parameter. Its rows are all dims but the last, merged; a parameter with
/// fewer than two dims is one row.
#[derive(Clone, Debug)]
pub struct Part {
    spec: PartSpec,
    value: Tensor,
}

/// The description of a part, without its value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PartSpec {
    pub(super) name: String,
    dtype: DType,
    shape: Shape,
    global: Shape,
    rows: Range<usize>,
}

/// Every parameter of `module` that is not frozen as one part, in the module's order.
///
/// # Errors
/// [`TapeError::NotMaterialized`](meshgrad_runtime::TapeError::NotMaterialized).
pub fn parts(module: &impl Module) -> Result<Vec<Part>> {
    module.trained().iter().map(Part::whole).collect()
}

impl Part {
    /// All rows of `param`.
    ///
    /// # Errors
    /// [`TapeError::NotMaterialized`](meshgrad_runtime::TapeError::NotMaterialized).
    pub fn whole(param: &Param) -> Result<Part> {
        let shape = *param.shape();
        Part::new(param.name(), param.value()?, &shape, 0..row_count(&shape))
    }

    /// The rows `rows` of parameter `name`, whose shape is `global`, with their value.
    ///
    /// # Shapes
    /// `value` any shape, contiguous, with the elements of `rows`; f64, f32 or bf16.
    ///
    /// # Errors
    /// [`OptimError::NoRows`]; [`OptimError::Rows`].
    pub fn new(
        name: impl Into<String>,
        value: Tensor,
        global: &[usize],
        rows: Range<usize>,
    ) -> Result<Part> {
        let (name, global) = (name.into(), Shape::new(global)?);
        let count = row_count(&global);
        if rows.start > rows.end || rows.end > count {
            return Err(OptimError::NoRows {
                name,
                rows,
                count,
                global,
            }
            .into());
        }
        let expected = rows.len() * last_extent(&global);
        if value.elements() != expected || !value.is_contiguous() {
            return Err(OptimError::Rows {
                name,
                rows,
                global,
                expected,
                actual: *value.shape(),
            }
            .into());
        }
        let spec = PartSpec {
            name,
            dtype: value.dtype(),
            shape: *value.shape(),
            global,
            rows,
        };
        Ok(Part { spec, value })
    }

    /// The parameter's name.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// The value of these rows.
    pub fn value(&self) -> &Tensor {
        &self.value
    }

    /// The shape of the whole parameter.
    pub fn global_shape(&self) -> &Shape {
        &self.spec.global
    }

    /// The rows of the whole parameter that this part has.
    pub fn rows(&self) -> Range<usize> {
        self.spec.rows.clone()
    }

    pub(super) fn spec(&self) -> &PartSpec {
        &self.spec
    }

    /// The shape of this part as a list of rows.
    pub(super) fn row_shape(&self) -> [usize; 2] {
        [self.spec.rows.len(), last_extent(&self.spec.global)]
    }

    /// The elements of this part in the global parameter, as a tensor of [`Part::row_shape`].
    pub(super) fn region(&self) -> Result<Region> {
        let PartSpec { global, rows, .. } = &self.spec;
        let whole = Region::whole(&[row_count(global), last_extent(global)])?;
        Ok(whole.slice(0, rows.clone())?)
    }

    /// The shape of this part as a list of matrices, for a parameter of at least two dims.
    ///
    /// # Errors
    /// [`OptimError::SplitMatrix`], naming `optimizer`.
    pub(super) fn matrices(&self, optimizer: &'static str) -> Result<[usize; 3], OptimError> {
        let PartSpec { global, rows, .. } = &self.spec;
        let [.., matrix, columns] = global[..] else {
            return Ok([rows.len(), 1, last_extent(global)]);
        };
        let splits = |row: usize| row.checked_rem(matrix).is_some_and(|rest| rest != 0);
        if splits(rows.start) || splits(rows.end) {
            return Err(OptimError::SplitMatrix {
                optimizer,
                name: self.spec.name.clone(),
                rows: rows.clone(),
                matrix,
            });
        }
        let count = rows.len().checked_div(matrix).unwrap_or(0);
        Ok([count, matrix, columns])
    }
}

impl fmt::Display for PartSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PartSpec {
            name,
            dtype,
            shape,
            global,
            rows: Range { start, end },
        } = self;
        write!(
            f,
            "`{name}` {dtype}{shape}, rows {start}..{end} of {global}"
        )
    }
}

/// A view of `x`, which must be contiguous, in another shape.
pub(super) fn viewed(x: &Tensor, shape: &[usize]) -> Result<Tensor> {
    // A contiguous tensor reshapes to any shape without a copy.
    Ok(ops::reshape(x, shape)?)
}

fn row_count(shape: &Shape) -> usize {
    let rows = shape.split_last().map(|(_, rows)| rows);
    rows.map_or(1, |rows| rows.iter().product())
}

fn last_extent(shape: &Shape) -> usize {
    shape.last().copied().unwrap_or(1)
}
