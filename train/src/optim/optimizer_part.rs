//! The part of a parameter that an optimizer updates.

use std::ops::Range;

use meshgrad_autograd::{KeptRows, Module, Param};
use meshgrad_error::{bail, ensure};
use meshgrad_runtime::{Shape, Tensor, ops};

use crate::Result;

/// A parameter, and the rows of it that this rank updates. It reads the parameter's value at each
/// step, so that a checkpoint may set another one.
#[derive(Clone, Debug)]
pub struct OptimizerPart {
    param: Param,
    kept: KeptRows,
    /// Whether these are only some of the rows that the parameter keeps.
    is_slice: bool,
}

/// [`OptimizerPart::of`] every parameter of `module` that is not frozen, in the module's order.
pub fn parts(module: &impl Module) -> Vec<OptimizerPart> {
    module.trained().iter().map(OptimizerPart::of).collect()
}

impl OptimizerPart {
    /// The rows of `param` that this rank keeps ([`Param::kept`]).
    pub fn of(param: &Param) -> OptimizerPart {
        OptimizerPart { param: param.clone(), kept: param.kept(), is_slice: false }
    }

    /// The rows `rows` of `param`, which has no home.
    ///
    /// # Errors
    /// When the parameter does not have these rows, or has a home.
    pub fn of_rows(param: &Param, rows: Range<usize>) -> Result<OptimizerPart> {
        let name = param.name();
        ensure!(param.home().is_none(), Invalid, "part of `{name}`: its home divides its rows");
        let kept = KeptRows::new(param.sharded_shape(), rows, true);
        let kept = kept.map_err(|error| error.context(format_args!("part of `{name}`")))?;
        Ok(OptimizerPart { param: param.clone(), is_slice: !kept.are_all(), kept })
    }

    /// The parameter's name.
    pub fn name(&self) -> &str {
        self.param.name()
    }

    /// The shape of the whole parameter.
    pub fn global_shape(&self) -> &Shape {
        self.param.shape()
    }

    /// The rows.
    pub fn kept(&self) -> &KeptRows {
        &self.kept
    }

    /// Their value, which a step writes to, without a sharding.
    ///
    /// # Shapes
    /// That of the parameter, if these are all of its rows and it has no home; otherwise
    /// [`KeptRows::by_row`].
    ///
    /// # Errors
    /// When the parameter has no value, or it is not contiguous.
    pub fn value(&self) -> Result<Tensor> {
        let value = self.param.kept_value()?.local();
        if !value.is_contiguous() {
            bail!(
                Invalid,
                "`{}`: an optimizer needs a contiguous value, but it has strides {:?}; set a copy",
                self.name(),
                value.layout().strides()
            );
        }
        match self.is_slice {
            true => self.kept.of(&value),
            false => Ok(value),
        }
    }

    /// The shape of this part as a list of matrices, for a parameter of at least two dims.
    ///
    /// # Errors
    /// When it splits a matrix; the error names `optimizer`.
    pub(super) fn matrices(&self, optimizer: &'static str) -> Result<[usize; 3]> {
        let [rows, row_elements] = self.kept.by_row();
        let [.., matrix, columns] = self.global_shape()[..] else {
            return Ok([rows, 1, row_elements]);
        };
        let splits = |row: usize| row.checked_rem(matrix).is_some_and(|rest| rest != 0);
        let is_sharded = !self.kept.shape().local().ends_with(&[matrix, columns]);
        let Range { start, end } = self.kept.rows();
        ensure!(
            !is_sharded && !splits(start) && !splits(end),
            Invalid,
            "`{}`: rows {start}..{end} split a matrix of {matrix} rows, but {optimizer} needs whole \
             matrices",
            self.name()
        );
        Ok([rows.checked_div(matrix).unwrap_or(0), matrix, columns])
    }
}

/// A view of `x`, which must be contiguous, in another shape.
pub(super) fn viewed(x: &Tensor, shape: &[usize]) -> Result<Tensor> {
    // A contiguous tensor reshapes to any shape without a copy.
    ops::reshape(x, shape)
}
