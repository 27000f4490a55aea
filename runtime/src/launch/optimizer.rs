//! Launches of AdamW.

use meshgrad_kernels::adamw::{
    AdamW, AdamWArguments, AdamWConstants, AdamWEntry, CHUNK, GlobalIndices, Rounding, chunk_words,
};

use crate::core::arguments::optimizer::{AdamWOperands, StepScalars};
use crate::launch::{Launcher, Operand, Plan, PlanError, extent};
use crate::{DType, Key, Layout, Result, Tensor};

/// A table of parameters in device memory, and a host copy of its contents.
#[derive(Debug, Default)]
pub(crate) struct Table {
    words: Vec<u64>,
    uploaded: Option<Tensor>,
}

/// One step of AdamW for all parameters, in one launch, with contiguous `gradients`.
pub(crate) fn adamw(
    gpu: &Launcher<'_>,
    table: &mut Table,
    operands: &[AdamWOperands<'_>],
    gradients: &[Tensor],
    scalars: StepScalars<'_>,
) -> Result<()> {
    let changed = operands.iter().flat_map(|one| [&one.param, &one.exp_avg, &one.exp_avg_sq]);
    let changed: Vec<&Tensor> = changed.collect();
    let now = [scalars.learning_rate, scalars.step, scalars.scale];
    let read: Vec<&Tensor> = gradients.iter().chain(now).collect();
    let (changed, read) = gpu.use_many(&changed, &read)?;
    let Some((gradients, [learning_rate, step, scale])) = read.split_last_chunk() else {
        return Ok(());
    };

    let mut entries = Vec::with_capacity(operands.len());
    let addresses = changed.as_chunks::<3>().0.iter().zip(gradients);
    for (one, ([param, exp_avg, exp_avg_sq], gradient)) in operands.iter().zip(addresses) {
        let rounding = match one.rounding {
            Some(draw) => Some((draw.key(), draw.indices_of(gpu.op(), &one.param)?)),
            None => None,
        };
        let addresses = [param.0, gradient.0, exp_avg.0, exp_avg_sq.0];
        entries.push(gpu.planned(entry(one, rounding, addresses))?);
    }

    let plan = gpu.planned(plan(&entries))?;
    if plan.launch.is_none() {
        return Ok(());
    }
    let uploaded = table.of(&entries, scalars.step)?;
    let start = gpu.ptr(uploaded)?;
    let arguments = AdamWArguments {
        table: start,
        chunks: start.byte_add(8 * table.words.len() as u64),
        learning_rate: *learning_rate,
        step: *step,
        scale: *scale,
    };
    gpu.run(&plan, &arguments)
}

impl Table {
    /// The table on the device of `neighbor`: entries, then chunks. It is uploaded if it has
    /// changed.
    fn of(&mut self, entries: &[AdamWEntry], neighbor: &Tensor) -> Result<&Tensor> {
        let device = neighbor.device();
        let words: Vec<u64> = entries.iter().flat_map(AdamWEntry::words).collect();
        let uploaded = self.uploaded.take();
        let uploaded = uploaded.filter(|it| it.device() == device && self.words == words);
        let uploaded = match uploaded {
            Some(uploaded) => uploaded,
            None => {
                let chunks = chunk_words(entries);
                let all = words.iter().chain(&chunks).map(|word| *word as i64);
                let all: Vec<i64> = all.collect();
                Tensor::from_slice(device, &[all.len()], &all)?
            }
        };
        self.words = words;
        Ok(self.uploaded.insert(uploaded))
    }
}

fn plan(entries: &[AdamWEntry]) -> Result<Plan<AdamW>, PlanError> {
    let chunks = entries.iter().map(|entry| entry.elements.div_ceil(CHUNK.into()));
    let chunks = extent("adamw", "chunks", chunks.sum::<u64>() as usize, i32::MAX as u32)?;
    let variant = AdamWEntry::variant(entries);
    let launch = variant.launch(chunks);
    Ok(Plan { variant, launch })
}

fn entry(
    operands: &AdamWOperands<'_>,
    rounding: Option<(Key, Layout)>,
    addresses: [u64; 4],
) -> Result<AdamWEntry, PlanError> {
    let param = Operand::of(&operands.param);
    let rounding = match (param.dtype, rounding) {
        (DType::F32, _) => Rounding::F32,
        (DType::BF16, None) => Rounding::Bf16,
        (DType::BF16, Some((key, indices))) => {
            Rounding::Bf16Stochastic { key: key.words(), indices: innermost_first(&indices) }
        }
        (other, _) => return Err(PlanError::DType(other)),
    };
    let of = operands.constants;
    Ok(AdamWEntry {
        addresses,
        elements: operands.param.elements() as u64,
        rounding,
        constants: AdamWConstants {
            beta1: of.beta1,
            beta2: of.beta2,
            eps: of.eps,
            weight_decay: of.weight_decay,
        },
    })
}

/// Global indices in the table's format; at least one dim.
fn innermost_first(indices: &Layout) -> GlobalIndices {
    let dims = indices.merged_dims().into_iter().rev();
    let mut dims: Vec<(u64, u64)> =
        dims.map(|(extent, stride)| (extent as u64, stride as u64)).collect();
    if dims.is_empty() {
        dims.push((1, 1));
    }
    GlobalIndices { first: indices.offset() as u64, dims }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Region;

    #[test]
    fn dims_of_global_indices_are_merged() {
        let whole = Region::whole(&[4, 6, 10]).unwrap();
        let region = whole.slice(0, 1..3).unwrap().slice(2, 4..8).unwrap();
        let indices = Key::new(0).within(&region);
        let indices = innermost_first(&indices.global_indices("test", region.shape()).unwrap());
        assert_eq!((indices.first, indices.dims), (64, vec![(4, 1), (12, 10)]));

        let one = innermost_first(&Layout::contiguous(Default::default(), 0));
        assert_eq!(one.dims, [(1, 1)]);
    }
}
