//! Batches of a language model on a device, gathered from a token stream.

use meshgrad_models::{IGNORE_INDEX, TokenBatch};
use meshgrad_runtime::{Device, Tensor};

use crate::Result;
use crate::sampler::{Batch, Order, Windows};
use crate::tokens::Tokens;

/// A token stream in windows, and the device that batches are copied to.
#[derive(Clone, Copy)]
pub struct TokenBatches<'t> {
    windows: Windows,
    tokens: Tokens<'t>,
    device: &'t Device,
}

impl<'t> TokenBatches<'t> {
    /// Batches of `windows` of `tokens`.
    pub fn new(windows: Windows, tokens: Tokens<'t>, device: &'t Device) -> TokenBatches<'t> {
        TokenBatches {
            windows,
            tokens,
            device,
        }
    }

    /// The microbatches of step `step` (from 1): its `batch_size` sequences in groups of at most
    /// `micro_batch_size`.
    pub fn of_step(
        self,
        order: &Order,
        step: u64,
        batch_size: usize,
        micro_batch_size: usize,
    ) -> impl Iterator<Item = Result<TokenBatch>> + 't {
        let order = order.clone();
        let starts = (0..batch_size).step_by(micro_batch_size.max(1));
        starts.map(move |first| {
            let rows = first..(first + micro_batch_size).min(batch_size);
            self.gather(order.windows(step, rows))
        })
    }

    /// The first `batches` batches of `batch_size` sequences in their order; all batches if
    /// `batches` is 0. Sequences without a trained token are left out.
    pub fn in_order(
        self,
        batch_size: usize,
        batches: usize,
    ) -> impl Iterator<Item = Result<TokenBatch>> + 't {
        let windows = self.windows.trained(0..self.windows.count(), self.tokens);
        let all = windows.count().div_ceil(batch_size);
        let batches = if batches == 0 { all } else { batches.min(all) };
        (0..batches).map(move |at| {
            let rows = at * batch_size..((at + 1) * batch_size).min(windows.count());
            self.gather(rows.map(|row| windows.window(row)))
        })
    }

    fn gather(&self, chosen: impl IntoIterator<Item = usize>) -> Result<TokenBatch> {
        let chosen: Vec<usize> = chosen.into_iter().collect();
        let mut batch = Batch::gather(self.windows, chosen.iter().copied(), |at| {
            self.tokens.get(at)
        })?;
        if self.tokens.is_masked() {
            let positions = chosen
                .iter()
                .flat_map(|window| self.windows.tokens(*window).skip(1));
            for (label, position) in batch.labels.iter_mut().zip(positions) {
                if !self.tokens.is_trained(position) {
                    *label = IGNORE_INDEX;
                }
            }
        }
        let shape = [batch.rows, batch.seq_len];
        Ok(TokenBatch::new(
            &Tensor::from_slice(self.device, &shape, &batch.input_ids)?,
            &Tensor::from_slice(self.device, &shape, &batch.labels)?,
        ))
    }
}
