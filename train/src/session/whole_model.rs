//! A model before it is divided over ranks.

use meshgrad_autograd::Param;
use meshgrad_models::Model;

/// What the header says of a model, before it is divided over ranks.
pub(super) struct WholeModel {
    pub(super) title: String,
    pub(super) parameters: u64,
    pub(super) active_parameters: u64,
}

impl WholeModel {
    pub(super) fn of(model: &impl Model) -> WholeModel {
        let elements = |param: &Param| param.shape().elements() as u64;
        WholeModel {
            title: model.title(),
            parameters: model.params().iter().map(elements).sum(),
            active_parameters: model.active_parameters(),
        }
    }
}
