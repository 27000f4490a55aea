//! Transfers of tensors between two meshes of one world, as from training to inference.

use std::collections::BTreeSet;

use meshgrad_error::{ensure, error};
use meshgrad_mesh::{Group, Region, Sharding, Transfer, TransferMessage, TransferTensor};
use meshgrad_runtime::{DType, Device, Error, Pending, Result, Shape, Tensor, UninitTensor, ops};

use super::Redistributor;
use super::plans::{KeyRef, KeyRefs};
use super::regions::{joined, part, region};
use crate::collectives::Collectives;

const OP: &str = "transfer";

/// A tensor of a [transfer](Redistributor::transfer_all).
#[derive(Clone, Copy)]
pub struct Transferred<'a> {
    /// This rank's part; `None` on ranks that are not in the mesh of `from`.
    pub value: Option<&'a Tensor>,
    /// The dtype, which ranks without a value need to know.
    pub dtype: DType,
    /// The sharding of the value.
    pub from: &'a Sharding,
    /// The sharding of the result, of the same global shape. Its mesh may have other axes, other
    /// ranks and another number of ranks.
    pub to: &'a Sharding,
}

impl Redistributor {
    /// Brings a tensor from the mesh of one sharding to the mesh of another. A rank may be in one of
    /// the meshes or in both. Ranks of the mesh of `from` pass their part `x`; ranks of the mesh of
    /// `to` get theirs, which shares no memory with `x`. All ranks of both meshes call this.
    ///
    /// Each element is sent once to each rank that needs it and does not have it, as
    /// [`Transfer`] plans.
    ///
    /// # Errors
    /// As [`Redistributor::transfer_all`].
    pub fn transfer(
        &self,
        x: Option<&Tensor>,
        dtype: DType,
        from: &Sharding,
        to: &Sharding,
    ) -> Result<Option<Tensor>> {
        let tensor = Transferred { value: x, dtype, from, to };
        Ok(self.transfer_all(&[tensor])?.pop().flatten())
    }

    /// [`Redistributor::transfer`] of many tensors, such as all weights of a model, with one message
    /// per dtype for each ordered pair of ranks. All ranks of all meshes pass the same list.
    ///
    /// # Errors
    /// As [`Transfer::plan`], and for a value without the sharding `from`; for a value of another
    /// dtype, or if a rank of the mesh of `from` has no value or another rank has one; errors of
    /// the communication.
    pub fn transfer_all(&self, tensors: &[Transferred<'_>]) -> Result<Vec<Option<Tensor>>> {
        self.start_transfer_all(tensors)?.wait()
    }

    /// Starts [`Redistributor::transfer_all`] and does not wait for other ranks.
    ///
    /// # Errors
    /// As [`Redistributor::transfer_all`]; errors of the communication are those of
    /// [`Pending::wait`].
    pub fn start_transfer_all(
        &self,
        tensors: &[Transferred<'_>],
    ) -> Result<Pending<Vec<Option<Tensor>>>> {
        let rank = self.member.rank;
        for tensor in tensors {
            tensor.check(rank)?;
        }
        let keys = KeyRefs(tensors.iter().map(Transferred::key).collect());
        let plan = self.transfers.get(&keys, || {
            let planned: Vec<_> = tensors.iter().map(Transferred::planned).collect();
            Transfer::plan(&planned)
        })?;
        let mut results: Vec<Assembly> =
            tensors.iter().map(|tensor| tensor.assembly(rank)).collect::<Result<_>>()?;

        let ranks: BTreeSet<usize> = tensors.iter().flat_map(Transferred::ranks).collect();
        let is_idle = plan.messages().is_empty() || !ranks.contains(&rank);
        let (mut sends, mut receipts) = (Vec::new(), Vec::new());
        if !is_idle {
            let ranks: Vec<usize> = ranks.into_iter().collect();
            let group = Group::new(ranks)?;
            let communicator = self.member.communicator(&group)?;
            communicator.fuse(|communicator| {
                for message in plan.messages() {
                    for parts in parts_by_dtype(message, tensors) {
                        if message.sender == rank {
                            let to = group.index_of(message.receiver).unwrap_or_default();
                            sends.push(communicator.send(&packed(&parts, tensors, rank)?, to)?);
                        } else if message.receiver == rank {
                            let from = group.index_of(message.sender).unwrap_or_default();
                            let count = parts.iter().map(|(_, region)| region.elements()).sum();
                            let dtype = tensors[parts[0].0].dtype;
                            receipts.push((parts, communicator.recv(&[count], dtype, from)?));
                        }
                    }
                }
                Ok(())
            })?;
        }
        let device = self.member.device.clone();
        Ok(Pending::by_host(move || {
            for (parts, message) in receipts {
                let message = message.wait()?;
                let mut start = 0;
                for (at, region) in parts {
                    let end = start + region.elements();
                    let part = ops::reshape(&message.slice(0, start..end)?, &region.extents())?;
                    results[at].parts.push((region, part));
                    start = end;
                }
            }
            for send in sends {
                send.wait()?;
            }
            let finish = |result: Assembly| result.finish(&device, rank);
            results.into_iter().map(finish).collect()
        }))
    }
}

/// Tensors and their regions.
type Parts = Vec<(usize, Region)>;

/// The parts of a message, one list per dtype.
fn parts_by_dtype(message: &TransferMessage, tensors: &[Transferred<'_>]) -> Vec<Parts> {
    let of = |dtype: &DType| -> Parts {
        let parts = message.parts.iter();
        parts
            .filter(|part| tensors[part.tensor].dtype == *dtype)
            .map(|part| (part.tensor, part.region.clone()))
            .collect()
    };
    let lists = DType::ALL.iter().map(of);
    lists.filter(|parts| !parts.is_empty()).collect()
}

/// The parts that this rank has, one after the other, each in row-major order: [elements].
fn packed(parts: &Parts, tensors: &[Transferred<'_>], rank: usize) -> Result<Tensor> {
    let flat = |(at, inner): &(usize, Region)| {
        let tensor = &tensors[*at];
        let x = tensor.value.ok_or_else(|| tensor.misplaced(rank))?.local();
        ops::reshape(&part(&x, &region(tensor.from, rank)?, inner)?, &[inner.elements()])
    };
    let flat = parts.iter().map(flat).collect::<Result<Vec<Tensor>>>()?;
    ops::concat(&flat.iter().collect::<Vec<_>>(), 0)
}

impl Transferred<'_> {
    fn key(&self) -> KeyRef<'_> {
        KeyRef { from: self.from, to: self.to, bits: self.dtype.bits() }
    }

    fn planned(&self) -> TransferTensor<'_> {
        TransferTensor { from: self.from, to: self.to, element_bits: self.dtype.bits() }
    }

    fn ranks(&self) -> Vec<usize> {
        [self.from.mesh().ranks(), self.to.mesh().ranks()].concat()
    }

    fn check(&self, rank: usize) -> Result<()> {
        let Some(x) = self.value else {
            return match self.from.mesh().contains(rank) {
                true => Err(self.misplaced(rank)),
                false => Ok(()),
            };
        };
        x.expect_sharding(OP)?;
        x.with_sharding(self.from, rank)?;
        ensure!(
            x.dtype() == self.dtype,
            Invalid,
            "{OP}: the value is {x}, but the stated dtype is {}",
            self.dtype
        );
        Ok(())
    }

    /// The error of a rank in the source mesh that passes no value.
    fn misplaced(&self, rank: usize) -> Error {
        error!(
            Invalid,
            "{OP}: rank {rank} is in the source mesh {} but passes no value; pass its part",
            self.from.mesh()
        )
    }

    /// The result, with the part that this rank has.
    fn assembly(&self, rank: usize) -> Result<Assembly> {
        let Some(whole) = self.to.region(rank) else {
            return Ok(Assembly::default());
        };
        let mut parts = Vec::new();
        if let Some(x) = self.value {
            let own = region(self.from, rank)?;
            let kept = own.intersection(&whole);
            if !kept.is_empty() {
                // The result must not change when the caller updates `x`.
                parts.push((kept.clone(), ops::copy(&part(&x.local(), &own, &kept)?)?));
            }
        }
        Ok(Assembly { target: Some((self.to.clone(), whole, self.dtype)), parts })
    }
}

/// A result while its parts arrive.
#[derive(Default)]
struct Assembly {
    /// `None` on ranks that get no result.
    target: Option<(Sharding, Region, DType)>,
    parts: Vec<(Region, Tensor)>,
}

impl Assembly {
    fn finish(self, device: &Device, rank: usize) -> Result<Option<Tensor>> {
        let Some((sharding, whole, dtype)) = self.target else {
            return Ok(None);
        };
        let x = match self.parts.is_empty() {
            true => UninitTensor::new(device, Shape::new(&whole.extents())?, dtype)?.finish(),
            false => joined(self.parts)?,
        };
        x.local().with_sharding(&sharding, rank).map(Some)
    }
}
