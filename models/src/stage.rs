//! Stages of a model.

use std::ops::Range;

use meshgrad_error::{Result, ensure};

/// A stage of a model: consecutive layers, with what is before the layers in the first stage and what
/// follows them in the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Its layers, which may be none.
    pub layers: Range<usize>,
    /// Whether no stage is before it.
    pub is_first: bool,
    /// Whether no stage follows it.
    pub is_last: bool,
}

impl Stage {
    /// The only stage of a model of `layers` layers.
    pub fn whole(layers: usize) -> Stage {
        Stage { layers: 0..layers, is_first: true, is_last: true }
    }

    /// The stages with these numbers of layers, in order.
    ///
    /// # Errors
    /// Without stages.
    pub fn of_sizes(sizes: &[usize]) -> Result<Vec<Stage>> {
        ensure!(!sizes.is_empty(), Invalid, "a model has at least one stage");
        let mut end = 0;
        let stages = sizes.iter().enumerate().map(|(number, size)| {
            let layers = end..end + size;
            end = layers.end;
            Stage { layers, is_first: number == 0, is_last: number + 1 == sizes.len() }
        });
        Ok(stages.collect())
    }

    /// Whether it is a whole model of `layers` layers.
    pub fn is_whole(&self, layers: usize) -> bool {
        *self == Stage::whole(layers)
    }
}
