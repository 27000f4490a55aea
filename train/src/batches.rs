//! Batches of a language model on a device, gathered from a token stream.

use meshgrad_models::TokenBatch;
use meshgrad_runtime::{Device, Tensor};

use crate::Result;
use crate::sampler::{Batch, Order, Windows, validation_windows};
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

    /// The microbatches of step `step` (from 1): its `batch_size` sequences, at most `micro_batch_size` at
    /// a time.
    pub fn of_step(
        self,
        order: Order,
        step: u64,
        batch_size: usize,
        micro_batch_size: usize,
    ) -> impl Iterator<Item = Result<TokenBatch>> + 't {
        let starts = (0..batch_size).step_by(micro_batch_size.max(1));
        starts.map(move |first| {
            let rows = first..(first + micro_batch_size).min(batch_size);
            self.gather(order.windows(step, rows))
        })
    }

    /// The first `batches` batches of `batch_size` sequences in their order; all for 0.
    pub fn in_order(
        self,
        batch_size: usize,
        batches: usize,
    ) -> impl Iterator<Item = Result<TokenBatch>> + 't {
        let all = self.windows.count().div_ceil(batch_size);
        let batches = if batches == 0 { all } else { batches.min(all) };
        (0..batches).map(move |at| self.gather(validation_windows(self.windows, batch_size, at)))
    }

    fn gather(&self, chosen: impl IntoIterator<Item = usize>) -> Result<TokenBatch> {
        let batch = Batch::gather(self.windows, chosen, |at| self.tokens.get(at))?;
        let shape = [batch.rows, batch.seq_len];
        Ok(TokenBatch {
            ids: Tensor::from_slice(self.device, &shape, &batch.input_ids)?,
            labels: Tensor::from_slice(self.device, &shape, &batch.labels)?,
        })
    }
}
