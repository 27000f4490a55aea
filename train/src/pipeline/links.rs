//! Messages between stages. Each directed edge between two ranks has a communicator of its own, in
//! which messages have the order of the program.

use std::sync::Arc;

use meshgrad_collectives::{Collectives, Communicator, current_redistribution};
use meshgrad_error::error;
use meshgrad_mesh::{Channel, Group};
use meshgrad_pipeline::{Message, MessageKind};
use meshgrad_runtime::{DType, Pending, Tensor, ops};

use super::cut::Cut;
use crate::Result;

/// The tensors of a message.
pub(super) enum Tensors {
    Here(Vec<Tensor>),
    /// From another rank.
    Coming(Vec<Pending<Tensor>>),
}

impl Tensors {
    pub(super) fn wait(self) -> Result<Vec<Tensor>> {
        match self {
            Tensors::Here(tensors) => Ok(tensors),
            Tensors::Coming(tensors) => tensors.into_iter().map(Pending::wait).collect(),
        }
    }
}

/// Starts to send this rank's parts of the tensors of `message`.
pub(super) fn send(cut: &Cut, message: Message, tensors: &[Tensor]) -> Result<Vec<Pending<()>>> {
    let edge = edge(cut, message)?;
    let sent = tensors.iter().map(|tensor| edge.send(&ops::contiguous(&tensor.local())?, 1));
    sent.collect()
}

/// Starts to receive tensors of the local shapes of `like`.
pub(super) fn receive(cut: &Cut, message: Message, like: &[Tensor]) -> Result<Tensors> {
    let edge = edge(cut, message)?;
    let coming = like.iter().map(|tensor| edge.recv(tensor.shape(), tensor.dtype(), 0));
    Ok(Tensors::Coming(coming.collect::<Result<_>>()?))
}

/// Sends tensors of any shapes, and waits until they have arrived.
pub(super) fn send_with_shapes(cut: &Cut, message: Message, tensors: &[Tensor]) -> Result<()> {
    let edge = edge(cut, message)?;
    for tensor in tensors {
        let shape: Vec<i64> = tensor.shape().iter().map(|extent| *extent as i64).collect();
        let shape = Tensor::from_slice(tensor.device(), &[shape.len()], &shape)?;
        let sent = [edge.send(&shape, 1)?, edge.send(&ops::contiguous(&tensor.local())?, 1)?];
        sent.into_iter().try_for_each(Pending::wait)?;
    }
    Ok(())
}

/// Receives tensors of any shapes, with the dtypes and the numbers of dims of `like`.
pub(super) fn receive_with_shapes(
    cut: &Cut,
    message: Message,
    like: &[Tensor],
) -> Result<Vec<Tensor>> {
    let edge = edge(cut, message)?;
    let receive = |like: &Tensor| {
        let shape = edge.recv(&[like.shape().len()], DType::I64, 0)?.wait()?.to_vec::<i64>()?;
        let shape: Vec<usize> = shape.into_iter().map(|extent| extent as usize).collect();
        edge.recv(&shape, like.dtype(), 0)?.wait()
    };
    like.iter().map(receive).collect()
}

/// From the rank that sends a message to the one that receives it.
fn edge(cut: &Cut, message: Message) -> Result<Arc<dyn Communicator>> {
    let peer = |stage| -> Result<usize> {
        let index = cut.placement().rank_of(stage);
        let peer = cut.mesh.peer(cut.rank, &cut.axis, index)?;
        peer.ok_or_else(|| error!(Invalid, "rank {} is not in mesh {}", cut.rank, cut.mesh))
    };
    let channel = match message.kind {
        MessageKind::Activation => Channel::Forward,
        MessageKind::Gradient => Channel::Backward,
    };
    let group = Group::new([peer(message.from())?, peer(message.to())?])?.with_channel(channel);
    current_redistribution()?.connect(&group)
}
