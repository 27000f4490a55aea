//! Pipelines: a model that is cut into stages, which run on the ranks along an axis of a mesh.
//!
//! - `accumulate.rs`: the gradients of a step.
//! - `cut.rs`: which rank has which stage.
//! - `pass_order.rs`: the schedule.
//! - `learned.rs`: what flows between stages, learnt from a pass without data.
//! - `links.rs`: messages between stages.
//! - `norm.rs`: the norm of the gradients of all stages.
//! - `split.rs`: cuts of about equal cost.
//! - `text.rs`: text from all stages.
//! - `passes.rs`: the passes of a step, which interpret the actions of a program.

mod accumulate;
mod cut;
mod learned;
mod links;
mod norm;
mod pass_order;
mod passes;
mod split;
mod text;

pub use accumulate::StepTotals;
pub use cut::Cut;
pub use learned::Pipeline;
pub(crate) use learned::flops;
pub(crate) use norm::ParamsOfStages;
pub use pass_order::PassOrder;
pub(crate) use passes::Passes;
pub(crate) use split::{balanced, costs};
pub(crate) use text::StagedText;
