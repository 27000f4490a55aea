//! The part of a parameter that an optimizer updates.

use std::fmt;
use std::ops::Range;

use meshgrad_autograd::{Module, Param, row_count, row_elements};
use meshgrad_error::ensure;
use meshgrad_mesh::RowBox;
use meshgrad_runtime::{DType, Shape, ShardedShape, Tensor, ops};

use crate::Result;

/// A range of the rows of a parameter, or of this rank's part of a sharded one. Its rows are all dims
/// but the last, merged; a parameter with fewer than two dims is one row.
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
    /// The shape of the part that `rows` counts the rows of: this rank's part of a sharded parameter.
    local: Shape,
    rows: Range<usize>,
    /// Where the rows are in the whole parameter.
    boxes: Vec<RowBox>,
}

/// [`Part::of`] every parameter of `module` that is not frozen, in the module's order.
///
/// # Errors
/// When a parameter has no value.
pub fn parts(module: &impl Module) -> Result<Vec<Part>> {
    module.trained().iter().map(Part::of).collect()
}

impl Part {
    /// The rows of `param` that this rank keeps: those of its [`Home`](meshgrad_autograd::Home), or
    /// all.
    ///
    /// # Errors
    /// When a parameter has no value.
    pub fn of(param: &Param) -> Result<Part> {
        let (name, shape) = (param.name().to_owned(), param.sharded_shape());
        match param.home() {
            Some(home) => Part::with_shape(name, home.value().clone(), &shape, home.rows()),
            None => {
                let whole = *param.shape();
                Part::new(name, param.value()?, &whole, 0..row_count(&whole))
            }
        }
    }

    /// The rows `rows` of parameter `name`, whose shape is `global`, with their value.
    ///
    /// # Shapes
    /// `value` any shape, contiguous, with the elements of `rows`; f64, f32 or bf16.
    ///
    /// # Errors
    /// When the parameter has not these rows, or they do not have the elements of `value`.
    pub fn new(
        name: impl Into<String>,
        value: Tensor,
        global: &[usize],
        rows: Range<usize>,
    ) -> Result<Part> {
        Part::with_shape(name.into(), value, &Shape::new(global)?.into(), rows)
    }

    fn with_shape(
        name: String,
        value: Tensor,
        shape: &ShardedShape,
        rows: Range<usize>,
    ) -> Result<Part> {
        let (global, local) = (**shape, *shape.local());
        let count = row_count(&local);
        let Range { start, end } = rows;
        ensure!(
            start <= end && end <= count,
            Invalid,
            "part of `{name}`: rows {start}..{end} are outside of the {count} rows of shape {local}"
        );
        let expected = rows.len() * row_elements(&local);
        ensure!(
            value.elements() == expected && value.is_contiguous(),
            Invalid,
            "part of `{name}`: rows {start}..{end} of a parameter of shape {local} need {expected} \
             elements in a contiguous tensor, but the value has shape {}",
            value.shape()
        );
        let spec = PartSpec {
            name,
            dtype: value.dtype(),
            shape: *value.shape(),
            boxes: shape.row_boxes(rows.clone()),
            global,
            local,
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

    /// The rows that this part has, of the whole parameter or of this rank's part of a sharded one.
    pub fn rows(&self) -> Range<usize> {
        self.spec.rows.clone()
    }

    pub(super) fn spec(&self) -> &PartSpec {
        &self.spec
    }

    /// Where the rows are in the whole parameter.
    pub(super) fn boxes(&self) -> &[RowBox] {
        &self.spec.boxes
    }

    /// The elements of a row.
    pub(super) fn row_elements(&self) -> usize {
        row_elements(&self.spec.local)
    }

    /// The shape of this part as a list of matrices, for a parameter of at least two dims.
    ///
    /// # Errors
    /// When it splits a matrix; the error names `optimizer`.
    pub(super) fn matrices(&self, optimizer: &'static str) -> Result<[usize; 3]> {
        let PartSpec { global, local, rows, .. } = &self.spec;
        let [.., matrix, columns] = global[..] else {
            return Ok([rows.len(), 1, self.row_elements()]);
        };
        let splits = |row: usize| row.checked_rem(matrix).is_some_and(|rest| rest != 0);
        let is_sharded = !local.ends_with(&[matrix, columns]);
        let Range { start, end } = *rows;
        ensure!(
            !is_sharded && !splits(start) && !splits(end),
            Invalid,
            "`{}`: rows {start}..{end} split a matrix of {matrix} rows, but {optimizer} needs whole \
             matrices",
            self.spec.name
        );
        let count = rows.len().checked_div(matrix).unwrap_or(0);
        Ok([count, matrix, columns])
    }
}

impl fmt::Display for PartSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PartSpec { name, dtype, shape, local, rows: Range { start, end }, .. } = self;
        write!(f, "`{name}` {dtype}{shape}, rows {start}..{end} of {local}")
    }
}

/// A view of `x`, which must be contiguous, in another shape.
pub(super) fn viewed(x: &Tensor, shape: &[usize]) -> Result<Tensor> {
    // A contiguous tensor reshapes to any shape without a copy.
    ops::reshape(x, shape)
}
