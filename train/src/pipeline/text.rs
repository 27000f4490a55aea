//! Text from the stages of a pipeline.

use std::collections::BTreeMap;

use meshgrad_autograd::{Module, Var, Vars, Visitor};
use meshgrad_collectives::{Collectives, communicator};
use meshgrad_error::error;
use meshgrad_models::{Decoded, Generate, Model};
use meshgrad_pipeline::{Action, Message};
use meshgrad_runtime::{DType, Device, Kind, Result, Tensor, ops};

use super::cut::Cut;
use super::learned::Pipeline;
use super::links;

/// A model in stages that generates text. Each stage has its cache, and all ranks get the logits of the
/// last one. All ranks of the pipeline make the same calls.
pub(crate) struct StagedText<'t, M: Model> {
    model: &'t M,
    pipeline: &'t Pipeline<M::Stream>,
    cut: &'t Cut,
}

impl<'t, M: Model> StagedText<'t, M> {
    /// `None` for the whole model on one rank.
    pub(crate) fn new(
        model: &'t M,
        pipeline: &'t Pipeline<M::Stream>,
    ) -> Option<StagedText<'t, M>> {
        Some(StagedText { model, pipeline, cut: pipeline.cut.as_ref()? })
    }
}

impl<M: Model> Module for StagedText<'_, M> {
    fn visit(&self, visitor: &mut dyn Visitor) {
        self.model.visit(visitor);
    }
}

impl<M: Model + Generate> Generate for StagedText<'_, M> {
    /// By stage of this rank.
    type Cache = BTreeMap<usize, M::Cache>;

    fn vocab_size(&self) -> usize {
        self.model.vocab_size()
    }

    fn cache(&self, device: &Device, dtype: DType, capacity: usize) -> Result<Self::Cache> {
        let own = self.pipeline.own_stages().into_iter();
        let cache = |stage: usize| {
            let of = &self.pipeline.stages[stage];
            Ok((stage, self.model.stage_cache(of, device, dtype, capacity)?))
        };
        own.map(cache).collect()
    }

    fn next_logits(
        &self,
        ids_bt: &Tensor,
        cache: &mut Self::Cache,
        dtype: DType,
    ) -> Result<Tensor> {
        let shape = [ids_bt.global_shape()[0], self.vocab_size()];
        let mut logits = Tensor::zeros(ids_bt.device(), &shape, DType::F32, Kind::Value)?.local();
        let mut messages: BTreeMap<Message, Vec<Tensor>> = BTreeMap::new();
        for action in &self.pipeline.evaluation()?.ranks()[self.cut.own] {
            let lacks = || error!(Invalid, "action {action}: an action that it needs has not run");
            match action {
                Action::Compute(pass) => {
                    let stages = self.pipeline.stages.len();
                    let input = match pass.input(stages) {
                        Some(message) => {
                            let tensors = messages.remove(&message).ok_or_else(lacks)?;
                            Some(self.stream(message, tensors)?)
                        }
                        None => None,
                    };
                    let stage = &self.pipeline.stages[pass.stage];
                    let cache = cache.get_mut(&pass.stage).ok_or_else(lacks)?;
                    match self.model.decode(stage, input, ids_bt, cache, dtype)? {
                        Decoded::Logits(last) => logits = ops::cast(&last, DType::F32)?.local(),
                        Decoded::Next(mut stream) => {
                            let mut values = Vec::new();
                            stream.each_var(&mut |var| values.push(var.value().clone()));
                            messages.insert(pass.output(stages).ok_or_else(lacks)?, values);
                        }
                    }
                }
                Action::Send(message) => {
                    let tensors = messages.remove(message).ok_or_else(lacks)?;
                    links::send_with_shapes(self.cut, *message, &tensors)?;
                }
                Action::Receive(message) => {
                    let like = &self.pipeline.boundaries[message.boundary].values;
                    messages
                        .insert(*message, links::receive_with_shapes(self.cut, *message, like)?);
                }
                _ => return Err(lacks()),
            }
        }
        let last = self.cut.placement().rank_of(self.pipeline.stages.len() - 1);
        let stages = communicator(&self.cut.mesh, [&self.cut.axis])?;
        stages.broadcast(&ops::contiguous(&logits)?, last)?.wait()?.as_replicated()
    }
}

impl<M: Model> StagedText<'_, M> {
    /// The stream of a message: all ranks of a stage have the same tokens.
    fn stream(&self, message: Message, tensors: Vec<Tensor>) -> Result<M::Stream> {
        let tensors = tensors.iter().map(|tensor| tensor.local().as_replicated());
        let tensors: Vec<Tensor> = tensors.collect::<Result<_>>()?;
        let mut stream = self.pipeline.boundaries[message.boundary].stream.clone();
        let mut tensors = tensors.into_iter();
        stream.each_var(&mut |var| {
            *var = Var::constant(tensors.next().unwrap_or_else(|| var.value().clone()));
        });
        Ok(stream)
    }
}
